//! `check --missed`: is a job late, or was it missed, on whichever machine it should have run?

use crate::args::Check as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::notify::{AFTER_RUN, Notifier, location};
use crate::output;
use crate::table::Column::{self, State, Text, Whole};
use crate::table::table;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Error, Kind, LeaseName, Result};
use leasehold_work::notify::{Overdue, overdue};
use leasehold_work::schedule::{Definition, Definitions, Journals, slot_text};
use serde_json::{Value, json};

const COLUMNS: [Column; 4] = [Whole("NAME"), State("WHAT"), Text("SLOT"), Text("PUBLISHED BY")];

/// The exit code when something is late or missed.
const FOUND: Exit = Exit::Code(1);

pub async fn check(context: &Context, args: &Args) -> Result<Exit> {
    let (rules, wrong) = context.settings()?.notify.read_each();
    wrong.iter().for_each(|error| output::say(&format!("{error}; this table sends no notifications")));
    debug_assert!(args.missed, "clap requires it");
    let Some(coordinator) = context.existing().await? else {
        context.print(|| Value::Array(Vec::new()), String::new)?;
        return nothing_published(context, "there is no such store");
    };
    let Surveyed { found, count, unknown } = find(coordinator).await?;
    context.print(
        || Value::Array(found.iter().map(as_json).collect()),
        || {
            let rows: Vec<Vec<String>> = found.iter().flat_map(rows).collect();
            if rows.is_empty() { String::new() } else { table(&COLUMNS, rows) }
        },
    )?;
    for (name, error) in &unknown {
        output::say(&format!("cannot tell whether job `{name}` is late or was missed: {error}"));
    }
    if found.is_empty() && unknown.is_empty() && count > 0 && !context.common.json {
        output::say(&match count {
            1 => "1 published job; it is neither late nor missed".to_owned(),
            count => format!("{count} published jobs; none is late or missed"),
        });
    }
    if let Some(notifier) = Notifier::new(coordinator, rules, location(context.settings()?)) {
        let until = SystemClock.now() + AFTER_RUN;
        let telling = async {
            if let Err(error) = notifier.sweep().await {
                output::say(&format!("cannot tell of everything that is down: {error}"));
            }
            notifier.deliver_until(until).await;
        };
        let _ = tokio::time::timeout(AFTER_RUN, telling).await;
    }
    match wrong.first() {
        _ if !found.is_empty() => Ok(FOUND),
        _ if !unknown.is_empty() => Ok(Exit::Corrupt),
        _ if count == 0 => nothing_published(context, "no job is published there"),
        // Who counts on being told must hear that nobody is.
        wrong => Ok(wrong.map_or(Exit::Done, Exit::from)),
    }
}

/// A store without published jobs is probably the wrong one, and a check that runs every ten minutes must not hide that.
fn nothing_published(context: &Context, what: &str) -> Result<Exit> {
    let store = &context.settings()?.store.value;
    output::say(&format!(
        "cannot tell what was missed in `{store}`: {what}; is this the right store? A scheduler publishes its jobs when it \
         starts, and `run --slot` publishes its job with its first run"
    ));
    Ok(Exit::Misconfigured)
}

type OverdueJob = (LeaseName, Definition, Overdue);

/// What was found out about the published jobs.
#[derive(Default)]
struct Surveyed {
    /// What is late or missed.
    found: Vec<OverdueJob>,
    /// How many jobs were looked at.
    count: usize,
    /// What nobody can tell it of: anybody who may publish one job could otherwise hide all others.
    unknown: Vec<(LeaseName, Error)>,
}

async fn find(coordinator: &Coordinator) -> Result<Surveyed> {
    let all = Definitions::new(coordinator.clone()).all().await?;
    let mut surveyed = Surveyed { count: all.len(), ..Surveyed::default() };
    for (name, definition) in all {
        match look(coordinator, &name, &definition).await {
            Ok(overdue) if overdue.is_none() => {}
            Ok(overdue) => surveyed.found.push((name, definition, overdue)),
            Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Corrupt | Kind::Regressed) => {
                surveyed.unknown.push((name, error));
            }
            // The store does not answer, about this job or any.
            Err(error) => return Err(error),
        }
    }
    Ok(surveyed)
}

async fn look(coordinator: &Coordinator, name: &LeaseName, definition: &Definition) -> Result<Overdue> {
    let (journal, _) = Journals::new(coordinator.clone()).read(name).await?;
    let seen = coordinator.inspect(name).await?;
    if seen.record.relocation.is_some() {
        return Ok(Overdue::default());
    }
    Ok(overdue(definition, &seen.record, &journal, seen.now)?.0)
}

fn as_json((name, definition, overdue): &OverdueJob) -> Value {
    json!({
        "name": name.as_str(),
        "late": overdue.late.map(slot_text),
        "missed": overdue.missed.map_or(0, |(count, ..)| count),
        "first_missed": overdue.missed.map(|(_, first, _)| slot_text(first)),
        "last_missed": overdue.missed.map(|(.., last)| slot_text(last)),
        "owner": definition.owner,
        "host": definition.host,
    })
}

fn rows((name, definition, overdue): &OverdueJob) -> Vec<Vec<String>> {
    let row = |what: String, slot| vec![name.to_string(), what, slot_text(slot), definition.host.clone()];
    let late = overdue.late.map(|slot| row("late".into(), slot));
    let missed = overdue.missed.map(|(count, _, last)| row(format!("missed {count}"), last));
    late.into_iter().chain(missed).collect()
}
