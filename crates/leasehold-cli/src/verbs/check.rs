//! `check --missed`: is a job late, or was it missed, whoever should have run it?

use crate::args::Check as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::notify::{AFTER_RUN, Notifier};
use crate::output;
use leasehold_core::{Coordinator, LeaseName, Result};
use leasehold_work::notify::{Overdue, overdue};
use leasehold_work::schedule::{Definition, Definitions, Journals, slot_text};
use serde_json::{Value, json};

/// The exit code when something is late or missed.
const FOUND: Exit = Exit::Code(1);

pub async fn check(context: &Context, args: &Args) -> Result<Exit> {
    let rules = context.settings()?.notify.read()?;
    debug_assert!(args.missed, "clap requires it");
    let Some(coordinator) = context.existing().await? else {
        context.print(|| Value::Array(Vec::new()), String::new)?;
        let store = &context.settings()?.store.value;
        output::say(&format!("there is no store at `{store}`, so no job is published; is this the right store?"));
        return Ok(Exit::Done);
    };
    let (found, count) = find(coordinator).await?;
    context.print(
        || Value::Array(found.iter().map(as_json).collect()),
        || {
            let rows: Vec<Vec<String>> = found.iter().flat_map(rows).collect();
            if rows.is_empty() { String::new() } else { output::table(&["NAME", "WHAT", "SLOT", "PUBLISHED BY"], rows) }
        },
    )?;
    if found.is_empty() && !context.common.json {
        let store = &context.settings()?.store.value;
        output::say(&match count {
            0 => format!("no job is published in `{store}`; is this the right store?"),
            1 => "1 published job; it is neither late nor missed".to_owned(),
            count => format!("{count} published jobs; none is late or missed"),
        });
    }
    if let Some(notifier) = Notifier::new(coordinator, rules) {
        let telling = async {
            if let Err(error) = notifier.sweep().await {
                output::say(&format!("cannot tell of everything that is down: {error}"));
            }
            notifier.deliver_for(AFTER_RUN).await;
        };
        let _ = tokio::time::timeout(AFTER_RUN, telling).await;
    }
    Ok(if found.is_empty() { Exit::Done } else { FOUND })
}

type Found = (LeaseName, Definition, Overdue);

/// What is late or missed, and of how many.
async fn find(coordinator: &Coordinator) -> Result<(Vec<Found>, usize)> {
    let journals = Journals::new(coordinator.clone());
    let all = Definitions::new(coordinator.clone()).all().await?;
    let (mut found, count) = (Vec::new(), all.len());
    for (name, definition) in all {
        let (journal, _) = journals.read(&name).await?;
        let seen = coordinator.inspect(&name).await?;
        if seen.record.relocation.is_some() {
            continue;
        }
        let (overdue, _) = overdue(&definition, &seen.record, &journal, seen.now)?;
        if !overdue.is_none() {
            found.push((name, definition, overdue));
        }
    }
    Ok((found, count))
}

fn as_json((name, definition, overdue): &Found) -> Value {
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

fn rows((name, definition, overdue): &Found) -> Vec<Vec<String>> {
    let row = |what: String, slot| vec![name.to_string(), what, slot_text(slot), definition.host.clone()];
    let late = overdue.late.map(|slot| row("late".into(), slot));
    let missed = overdue.missed.map(|(count, _, last)| row(format!("missed {count}"), last));
    late.into_iter().chain(missed).collect()
}
