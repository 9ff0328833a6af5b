//! `check --missed`: is a job late, or was it missed, on whichever machine it should have run?

use crate::args::Check as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::notify::{AFTER_RUN, Notifier, location};
use crate::output::{self, relative};
use crate::table::Column::{self, State, Text, Whole};
use crate::table::table;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Error, Kind, LeaseName, Result, Slot, Timestamp};
use leasehold_work::notify::{Overdue, overdue};
use leasehold_work::presence::{Role, processes};
use leasehold_work::schedule::{Definition, Definitions, Journals, slot_text};
use serde_json::{Value, json};

const COLUMNS: [Column; 5] = [Whole("NAME"), State("WHAT"), Text("SLOT"), Whole("WHEN"), Text("PUBLISHED BY")];
/// How many processes are read, to say when a scheduler last reported.
const PROCESSES: usize = 1_000;

/// The exit code when something is late or missed.
const FOUND: Exit = Exit::Code(1);

pub async fn check(context: &Context, args: &Args) -> Result<Exit> {
    let (rules, wrong) = context.settings()?.notify.read_each();
    wrong.iter().for_each(|error| output::say(&format!("{error}; this table sends no notifications")));
    debug_assert!(args.missed, "clap requires it");
    let Some(coordinator) = context.in_use("check that one").await? else {
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
        output::warn(&format!("cannot tell whether job `{name}` is late or was missed: {error}"));
    }
    if !found.is_empty() && !context.common.json {
        output::say(&schedulers(coordinator).await);
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
        // Somebody who relies on messages must learn that none are sent.
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

/// When a scheduler last reported: without one, jobs are late for want of it. Best effort, as what it reads is.
async fn schedulers(coordinator: &Coordinator) -> String {
    let Ok(seen) = processes(coordinator.store().as_ref(), PROCESSES).await else {
        return "whether any scheduler runs cannot be told: the list of processes cannot be read".to_owned();
    };
    let all = || seen.processes.iter().filter(|process| process.role == Role::Scheduler);
    let running = all().filter(|process| !process.is_silent(seen.now)).count();
    match all().max_by_key(|process| process.reported) {
        None => "no scheduler has reported in the last day; those that were stopped properly are not listed".to_owned(),
        Some(last) if running > 0 => {
            let (count, ago) = (output::count(running, "scheduler"), relative(last.reported, seen.now));
            format!("{count} reporting, the last one {ago} ({})", last.host)
        }
        Some(last) => {
            format!("no scheduler has reported since {} ({})", output::rfc3339(last.reported), last.host)
        }
    }
}

type OverdueJob = (LeaseName, Definition, Overdue, Timestamp);

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
            Ok((overdue, _)) if overdue.is_none() => {}
            Ok((overdue, now)) => surveyed.found.push((name, definition, overdue, now)),
            Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Corrupt | Kind::Regressed) => {
                surveyed.unknown.push((name, error));
            }
            // The store does not answer, about this job or any.
            Err(error) => return Err(error),
        }
    }
    Ok(surveyed)
}

async fn look(coordinator: &Coordinator, name: &LeaseName, definition: &Definition) -> Result<(Overdue, Timestamp)> {
    let (journal, _) = Journals::new(coordinator.clone()).read(name).await?;
    let seen = coordinator.inspect(name).await?;
    if seen.record.relocation.is_some() {
        return Ok((Overdue::default(), seen.now));
    }
    Ok((overdue(definition, &seen.record, &journal, seen.now)?.0, seen.now))
}

fn as_json((name, definition, overdue, _): &OverdueJob) -> Value {
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

fn rows((name, definition, overdue, now): &OverdueJob) -> Vec<Vec<String>> {
    let row = |what: String, slots: String, last: Slot| {
        vec![name.to_string(), what, slots, relative(last.0, *now), definition.host.clone()]
    };
    // A slot that was missed is late too; it is one thing to see to.
    let is_missed = |slot: &Slot| overdue.missed.is_some_and(|(_, first, last)| (first..=last).contains(slot));
    let late = overdue.late.filter(|slot| !is_missed(slot)).map(|slot| row("late".into(), slot_text(slot), slot));
    let missed = overdue.missed.map(|(count, first, last)| {
        let span = if first == last { String::new() } else { format!("{} to ", slot_text(first)) };
        row(format!("missed {count}"), format!("{span}{}", slot_text(last)), last)
    });
    late.into_iter().chain(missed).collect()
}
