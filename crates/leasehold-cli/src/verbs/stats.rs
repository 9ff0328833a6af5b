//! `stats`: what became of runs, and what waits in queues.

use crate::args::Stats as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::metrics::{Own, Snapshot, all_counters, queue_names, states, text};
use crate::output;
use crate::table::Column::{self, Extra, Whole};
use crate::table::table;
use leasehold_core::{Coordinator, Counters, Error, Event, LeaseName, Result};
use leasehold_work::queue::Queue;
use leasehold_work::tally::Tally;
use serde_json::{Map, Value, json};

/// What people are shown: those that are alike share a column.
const COLUMNS: [(&str, &[Event]); 10] = [
    ("GRANTED", &[Event::Granted]),
    ("SUCCEEDED", &[Event::Succeeded]),
    ("FAILED", &[Event::Failed]),
    ("LOST", &[Event::Lost]),
    ("DIED", &[Event::Died]),
    ("DRAINED", &[Event::Drained]),
    ("EVICTED", &[Event::Evicted]),
    ("SKIPPED", &[Event::SkippedOverlap, Event::AlreadyRun, Event::Paused]),
    ("DROPPED", &[Event::DroppedTooOld, Event::DroppedCoalesced, Event::DroppedClockAhead]),
    ("FENCED", &[Event::Fenced]),
];

/// The counts to be printed.
#[derive(Default)]
struct StatsRows {
    leases: Vec<(LeaseName, Counters)>,
    queues: Vec<(String, Tally)>,
    damaged: Vec<Error>,
}

pub async fn stats(context: &Context, args: &Args) -> Result<Exit> {
    if args.prometheus {
        return prometheus(context).await;
    }
    let only = args.name.as_deref().map(LeaseName::new).transpose()?;
    let found = match (context.existing().await?, only) {
        (Some(coordinator), Some(lease)) => {
            let counters = coordinator.counters(&lease).await?;
            StatsRows { leases: vec![(lease, counters)], ..StatsRows::default() }
        }
        (Some(coordinator), None) => gather(coordinator).await?,
        (None, Some(lease)) => StatsRows { leases: vec![(lease, Counters::default())], ..StatsRows::default() },
        (None, None) => StatsRows::default(),
    };
    context.print(
        || {
            let leases = found.leases.iter().map(|(lease, counters)| lease_json(lease, counters));
            Value::Array(leases.chain(found.queues.iter().map(|(queue, tally)| queue_json(queue, tally))).collect())
        },
        || tables(&found),
    )?;
    if let (Some(name), [(_, counters)]) = (&args.name, &found.leases[..])
        && *counters == Counters::default()
    {
        output::say(&format!("nothing was ever counted for `{name}`; see `leasehold ls` for the leases there are"));
    }
    told(&found.damaged)
}

async fn gather(coordinator: &Coordinator) -> Result<StatsRows> {
    let (leases, mut damaged) = all_counters(coordinator).await?;
    let mut queues = Vec::new();
    for name in queue_names(coordinator).await? {
        let mut tally = Queue::new(coordinator.store().clone(), name.clone()).tally().await?;
        damaged.append(&mut tally.troubles);
        queues.push((name.to_string(), tally));
    }
    Ok(StatsRows { leases, queues, damaged })
}

/// Says what could not be read, and so was not counted.
fn told(damaged: &[Error]) -> Result<Exit> {
    damaged.iter().for_each(|error| output::warn(&error.to_string()));
    Ok(damaged.first().map_or(Exit::Done, Exit::from))
}

fn tables(found: &StatsRows) -> String {
    if found.leases.is_empty() && found.queues.is_empty() {
        output::say("no leases and no queues yet");
        return String::new();
    }
    // A column of zeros for what few ever do would make the table wider than a terminal.
    let happened = |event| found.leases.iter().any(|(_, counters)| counters.get(event) > 0);
    let is_shown = |(_, events): &&(&str, &[Event])| match **events {
        [rare @ (Event::Drained | Event::Evicted)] => happened(rare),
        _ => true,
    };
    let columns: Vec<(&str, &[Event])> = COLUMNS.iter().filter(is_shown).copied().collect();
    let row = |(lease, counters): &(LeaseName, Counters)| {
        let count = |(_, events): &(&str, &[Event])| events.iter().map(|event| counters.get(*event)).sum::<u64>();
        std::iter::once(lease.to_string()).chain(columns.iter().map(|column| count(column).to_string())).collect()
    };
    let column = |(title, events): &(&'static str, &[Event])| match events {
        // What went wrong is never left out.
        [Event::Granted | Event::Drained | Event::Evicted] | [Event::SkippedOverlap, ..] => Extra(title),
        _ => Whole(title),
    };
    let header: Vec<Column> = std::iter::once(Whole("NAME")).chain(columns.iter().map(column)).collect();
    // Of a store that has queues only, the queues.
    let mut text = if found.leases.is_empty() { String::new() } else { table(&header, found.leases.iter().map(row)) };
    if !found.queues.is_empty() {
        let row = |(queue, tally): &(String, Tally)| {
            let oldest = tally.oldest.map(|since| output::rough(tally.now.saturating_since(since)));
            let counts = states(tally).map(|(_, count)| count.to_string());
            let last = oldest.unwrap_or_else(|| "-".into());
            std::iter::once(queue.clone()).chain(counts).chain([last]).collect()
        };
        let header = ["QUEUE", "READY", "CLAIMED", "DELAYED", "DEAD", "OLDEST"].map(Whole);
        let gap = if text.is_empty() { "" } else { "\n" };
        text = format!("{text}{gap}{}", table(&header, found.queues.iter().map(row)));
    }
    text
}

fn lease_json(lease: &LeaseName, counters: &Counters) -> Value {
    let counts: Map<String, Value> =
        Event::ALL.iter().map(|event| (event.as_str().into(), json!(counters.get(*event)))).collect();
    json!({
        "name": lease.as_str(),
        "counts": counts,
        "last_run": counters.last_run.map(output::rfc3339),
        "last_success": counters.last_success.map(output::rfc3339),
    })
}

fn queue_json(queue: &str, tally: &Tally) -> Value {
    let items: Map<String, Value> =
        states(tally).map(|(state, count)| (state.into(), json!(count))).into_iter().collect();
    let oldest = tally.oldest.map(|since| tally.now.saturating_since(since).as_millis() as u64);
    json!({ "queue": queue, "items": items, "oldest_ready_ms": oldest })
}

/// The families that `--metrics` serves.
async fn prometheus(context: &Context) -> Result<Exit> {
    let settings = context.settings()?;
    let (jobs, requests) = (super::schedule::jobs_here(settings), &context.requests);
    let found = match context.existing().await? {
        Some(coordinator) => Snapshot::take(coordinator, &settings.metrics_leases.value, &jobs).await?,
        None => Snapshot::default(),
    };
    let store = Some(settings.store.value.scheme());
    output::print(&text(&Own { store, requests, jobs: &jobs, more: None }, Some(&found)))?;
    told(&found.damaged)
}
