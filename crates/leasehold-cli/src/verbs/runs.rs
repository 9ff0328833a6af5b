//! `runs`: every due slot of a job and what became of it.

use crate::args::Runs as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{self, relative, rough};
use leasehold_core::{Error, Inspection, Kind, LeaseName, Outcome, Result, SlotState, Transfer};
use leasehold_work::schedule::{Entry, Fate, Journal, Journals, Zone, slot_text};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A slot for showing.
struct Row {
    entry: Entry,
    fate: &'static str,
}

pub async fn runs(context: &Context, args: &Args) -> Result<Exit> {
    let job = LeaseName::new(&args.name)?;
    let since = args.since.as_deref().map(|text| Zone::UTC.parse_instant("--since", text)).transpose()?;
    let nothing = || {
        let message = format!("no slot of `{job}` is known; see `leasehold schedule check` for the jobs there are");
        Error::new(Kind::Invalid, message)
    };
    let coordinator = context.existing().await?.ok_or_else(nothing)?;
    let (journal, _) = Journals::new(coordinator.clone()).read(&job).await?;
    let seen = coordinator.inspect(&job).await?;
    if journal == Journal::default() && seen.record.slot.is_none() {
        return Err(nothing());
    }
    let history = context.history(&seen).await?;
    let mut rows = rows(journal, &seen, &history.transfers);
    if let Some(since) = since {
        rows.retain(|row| row.entry.last.unwrap_or(row.entry.slot) >= since);
    }
    let header = ["SLOT", "OUTCOME", "WHEN", "RAN FOR", "EXIT", "CPU", "MEMORY", "HOST", "EPOCH", "TRIES"];
    context.print(
        || Value::Array(rows.iter().map(as_json).collect()),
        || output::table(&header, rows.iter().map(|row| as_cells(row, &seen))),
    )?;
    Ok(history.damaged.first().map_or(Exit::Done, Exit::from))
}

/// Newest first. What the journal missed, because the store was away when it was to be written, is taken from the
/// lease's own record, which is never wrong about who ran what.
fn rows(mut journal: Journal, seen: &Inspection, history: &[Arc<Transfer>]) -> Vec<Row> {
    let record = &seen.record;
    // Slots from before the oldest that the journal still has were forgotten on purpose.
    let oldest = journal.entries.iter().map(|entry| entry.slot).min();
    for transfer in history.iter().filter(|transfer| record.transfers.contains(transfer) || transfer.slot >= oldest) {
        let (Some(slot), Some(to)) = (transfer.slot, &transfer.to) else { continue };
        let known = journal.entries.iter_mut().find(|e| e.slot == slot && e.last.is_none());
        let fate = match transfer.outcome {
            Some(Outcome::Succeeded) => Fate::Succeeded,
            Some(Outcome::Failed) => Fate::Failed,
            Some(Outcome::Lost | Outcome::Evicted) => Fate::Lost,
            Some(Outcome::NotStarted) => Fate::NotStarted,
            Some(Outcome::Expired) | None => Fate::Running,
        };
        match known {
            Some(entry) if entry.epoch == Some(transfer.epoch) && entry.fate == Fate::Running => entry.fate = fate,
            Some(entry) if entry.epoch >= Some(transfer.epoch) => {}
            // Written after the run had died: what the journal says of it stands.
            Some(entry) if entry.epoch.is_none() && entry.fate.is_final() => {}
            other => {
                let attempts = other.as_ref().map_or(0, |entry| entry.attempts) + 1;
                let (epoch, ran_for_ms) = (Some(transfer.epoch), transfer.held_for_ms);
                let entry = Entry { epoch, attempts, ran_for_ms, ..Entry::new(slot, fate, transfer.at, &to.host) };
                match other {
                    Some(old) => *old = entry,
                    None => journal.entries.push(entry),
                }
            }
        }
    }
    journal.entries.sort_by_key(|entry| (entry.slot, entry.last));
    journal.entries.into_iter().rev().map(|entry| Row { fate: fate(&entry, seen), entry }).collect()
}

fn fate(entry: &Entry, seen: &Inspection) -> &'static str {
    let goes_on = entry.epoch == Some(seen.record.epoch) && seen.record.live_tenure(seen.now).is_some();
    // The record has the last word on its newest slot.
    match seen.record.slot.filter(|mark| mark.slot == entry.slot && Some(mark.epoch) == entry.epoch) {
        Some(mark) if mark.state == SlotState::Done => Fate::Succeeded.as_str(),
        Some(mark) if mark.state == SlotState::Failed => Fate::Failed.as_str(),
        // Another takes it up, unless a newer slot was claimed since.
        _ if entry.fate == Fate::Running && !goes_on => {
            let is_open = seen.record.interrupted_slot(seen.now).is_some_and(|mark| mark.slot == entry.slot);
            if is_open { "interrupted" } else { Fate::Died.as_str() }
        }
        _ => entry.fate.as_str(),
    }
}

fn as_json(row: &Row) -> Value {
    let entry = &row.entry;
    json!({
        "slot": slot_text(entry.slot),
        "last": entry.last.map(slot_text),
        "count": entry.count.unwrap_or(1),
        "more": entry.more,
        "fate": row.fate,
        "at": output::rfc3339(entry.at),
        "ran_for_ms": entry.ran_for_ms,
        "exit": entry.exit,
        "cpu_ms": entry.usage.map(|usage| usage.cpu_ms),
        "peak_memory_bytes": entry.usage.map(|usage| usage.peak_memory_bytes),
        "output": entry.output,
        "host": entry.host,
        "epoch": entry.epoch.map(leasehold_core::Epoch::get),
        "tries": entry.attempts,
    })
}

fn as_cells(row: &Row, seen: &Inspection) -> Vec<String> {
    let entry = &row.entry;
    let dash = || "-".to_owned();
    let slot = match (entry.last, entry.count) {
        (Some(last), Some(count)) => {
            let more = if entry.more { " or more" } else { "" };
            format!("{} to {} ({count}{more})", slot_text(entry.slot), slot_text(last))
        }
        _ => slot_text(entry.slot),
    };
    vec![
        slot,
        row.fate.into(),
        relative(entry.at, seen.now),
        entry.ran_for_ms.map_or_else(dash, |ms| rough(Duration::from_millis(ms))),
        entry.exit.map_or_else(dash, |code| code.to_string()),
        entry.usage.map_or_else(dash, |usage| rough(Duration::from_millis(usage.cpu_ms))),
        entry.usage.map_or_else(dash, |usage| output::bytes(usage.peak_memory_bytes)),
        entry.host.clone(),
        entry.epoch.map_or_else(dash, |epoch| epoch.to_string()),
        if entry.attempts == 0 { dash() } else { entry.attempts.to_string() },
    ]
}
