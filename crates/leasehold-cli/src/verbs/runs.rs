//! `runs`: every due slot of a job, or of all jobs, and what became of it.

use crate::args::Runs as Args;
use crate::context::{Context, never_held};
use crate::exit::Exit;
use crate::output::{self, relative, rough};
use crate::table::Column::{Extra, State, Text, Whole};
use crate::table::table;
use leasehold_core::{
    Coordinator, Error, Inspection, Kind, LeaseName, Outcome, Ownership, Result, SlotState, Timestamp, Transfer,
};
use leasehold_work::schedule::{EndReason, Entry, Fate, Journal, Journals, Zone, slot_text};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How many runs of all jobs are shown, unless it is said.
const OF_ALL: usize = 50;
/// How many journals are read at once.
const PAGE: usize = 200;

/// A slot for showing.
struct Row {
    job: LeaseName,
    entry: Entry,
    fate: &'static str,
    /// The store's time when it was read.
    now: Timestamp,
}

/// What is shown, and what could not be read.
#[derive(Default)]
struct RunRows {
    rows: Vec<Row>,
    damaged: Vec<Error>,
}

pub async fn runs(context: &Context, args: &Args) -> Result<Exit> {
    let job = args.name.as_deref().map(LeaseName::new).transpose()?;
    let since = args.since.as_deref().map(|text| Zone::UTC.parse_instant("--since", text)).transpose()?;
    let RunRows { mut rows, damaged } = match &job {
        Some(job) => of_one(context, job).await?,
        None => of_all(context).await?,
    };
    if let Some(since) = since {
        rows.retain(|row| row.entry.last.unwrap_or(row.entry.slot) >= since);
    }
    let (found, limit) = (rows.len(), args.limit.unwrap_or(if job.is_some() { 0 } else { OF_ALL }));
    rows.truncate(if limit == 0 { found } else { limit });
    context.print(
        || Value::Array(rows.iter().map(as_json).collect()),
        || match job {
            Some(_) => of_one_text(&rows),
            None => of_all_text(&rows),
        },
    )?;
    if rows.len() < found {
        output::say(&format!("the newest {} of {found} are shown; `--limit 0` shows all", rows.len()));
    }
    if job.is_none() {
        damaged.iter().for_each(|error| output::warn(&error.to_string()));
    }
    Ok(damaged.first().map_or(Exit::Done, Exit::from))
}

async fn of_one(context: &Context, job: &LeaseName) -> Result<RunRows> {
    let no_slot = || {
        let message = format!(
            "no slot of `{job}` is known: it is no job of a schedule, or has had no slot yet; `leasehold history {job}` shows its \
             runs, and `leasehold schedule check` the jobs of leasehold.toml"
        );
        Error::new(Kind::Invalid, message)
    };
    let nobody_held_it = || {
        let message = format!("{}, and `leasehold schedule check` for the jobs of leasehold.toml", never_held(job));
        Error::new(Kind::Invalid, message)
    };
    let coordinator = context.existing().await?.ok_or_else(nobody_held_it)?;
    let (journal, _) = Journals::new(coordinator.clone()).read(job).await?;
    let seen = coordinator.inspect(job).await?;
    if journal == Journal::default() && seen.record.slot.is_none() {
        return Err(if seen.record == Ownership::default() { nobody_held_it() } else { no_slot() });
    }
    let history = context.history(&seen).await?;
    Ok(RunRows { rows: rows(job, journal, &seen, &history.transfers), damaged: history.damaged })
}

/// Newest first. A job whose journal or record is damaged hides no other.
async fn of_all(context: &Context) -> Result<RunRows> {
    let mut found = RunRows::default();
    let Some(coordinator) = context.existing().await? else { return Ok(found) };
    let journals = Journals::new(coordinator.clone());
    let mut after = None;
    loop {
        let (page, more) = journals.list(after.as_ref(), PAGE).await?;
        after = page.last().map(|(job, _)| job.clone());
        for (job, journal) in page {
            match all_rows(coordinator, &job, journal).await {
                Ok(rows) => found.rows.extend(rows),
                Err(error) if error.kind() == Kind::Corrupt => found.damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        if !more {
            break;
        }
    }
    found.rows.sort_by_key(|row| std::cmp::Reverse(row.entry.end()));
    Ok(found)
}

async fn all_rows(coordinator: &Coordinator, job: &LeaseName, journal: Result<Journal>) -> Result<Vec<Row>> {
    let journal = journal?;
    let seen = coordinator.inspect(job).await?;
    Ok(rows(job, journal, &seen, &seen.record.transfers))
}

/// Newest first. What the journal missed, because the store was away when it was to be written, is taken from the
/// lease's own record, which is never wrong about who ran what.
fn rows(job: &LeaseName, mut journal: Journal, seen: &Inspection, history: &[Arc<Transfer>]) -> Vec<Row> {
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
            Some(Outcome::Drained) => Fate::Drained,
            _ => Fate::Running,
        };
        match known {
            Some(entry) if entry.epoch == Some(transfer.epoch) && entry.fate == Fate::Running => entry.fate = fate,
            Some(entry) if entry.epoch >= Some(transfer.epoch) => {}
            // Written after the run had died: what the journal says of it stands.
            Some(entry) if entry.epoch.is_none() && entry.fate.is_final() => {}
            other => {
                let attempts = other.as_ref().map_or(0, |entry| entry.attempts) + 1;
                let (epoch, ran_for_ms) = (Some(transfer.epoch), transfer.held_for_ms);
                let entry = Entry { epoch, attempts, ran_for_ms, ..Entry::new(slot, fate, transfer.at, to.host()) };
                match other {
                    Some(old) => *old = entry,
                    None => journal.entries.push(entry),
                }
            }
        }
    }
    journal.entries.sort_by_key(|entry| (entry.slot, entry.last));
    let row = |entry: Entry| Row { job: job.clone(), fate: fate(&entry, seen), entry, now: seen.now };
    journal.entries.into_iter().rev().map(row).collect()
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
        "job": row.job.as_str(),
        "slot": slot_text(entry.slot),
        "last": entry.last.map(slot_text),
        "count": entry.count.unwrap_or(1),
        "more": entry.more,
        "fate": row.fate,
        "at": output::rfc3339(entry.at),
        "ran_for_ms": entry.ran_for_ms,
        "exit": entry.exit,
        "why": entry.why.as_ref().map(EndReason::as_str),
        "cpu_ms": entry.usage.map(|usage| usage.cpu_ms),
        "peak_memory_bytes": entry.usage.map(|usage| usage.peak_memory_bytes),
        "output": entry.output,
        "host": entry.host,
        "epoch": entry.epoch.map(leasehold_core::Epoch::get),
        "tries": entry.attempts,
    })
}

fn of_one_text(rows: &[Row]) -> String {
    let columns = [
        Text("SLOT"),
        State("OUTCOME"),
        Whole("EXIT"),
        Extra("RAN FOR"),
        Extra("CPU"),
        Extra("MEMORY"),
        Text("HOST"),
        // The slot says as much, and is what `logs` takes.
        Extra("WHEN"),
        Extra("EPOCH"),
        Extra("TRIES"),
    ];
    let cells = |row: &Row| {
        let entry = &row.entry;
        vec![
            slot_cell(entry),
            row.fate.into(),
            or_dash(entry.exit),
            length_cell(entry),
            or_dash(entry.usage.map(|usage| rough(Duration::from_millis(usage.cpu_ms)))),
            or_dash(entry.usage.map(|usage| output::bytes(usage.peak_memory_bytes))),
            entry.host.clone(),
            relative(entry.at, row.now),
            or_dash(entry.epoch),
            or_dash(Some(entry.attempts).filter(|attempts| *attempts > 0)),
        ]
    };
    format!("{}{}", table(&columns, rows.iter().map(cells)), reasons(rows, |row| slot_text(row.entry.slot)))
}

fn of_all_text(rows: &[Row]) -> String {
    if rows.is_empty() {
        output::say("no slot of any job is known yet");
        return String::new();
    }
    let columns =
        [Whole("JOB"), Text("SLOT"), State("OUTCOME"), Extra("WHEN"), Extra("RAN FOR"), Whole("EXIT"), Extra("HOST")];
    let cells = |row: &Row| {
        let entry = &row.entry;
        vec![
            row.job.to_string(),
            slot_cell(entry),
            row.fate.into(),
            relative(entry.at, row.now),
            length_cell(entry),
            or_dash(entry.exit),
            entry.host.clone(),
        ]
    };
    let text = table(&columns, rows.iter().map(cells));
    format!("{text}{}", reasons(rows, |row| format!("{} {}", row.job, slot_text(row.entry.slot))))
}

/// A line for each run that did not end by itself, below the table.
fn reasons(rows: &[Row], name: impl Fn(&Row) -> String) -> String {
    let line = |row: &Row| row.entry.why.as_ref().map(|why| format!("{}: {}: {why}\n", name(row), row.fate));
    let lines: String = rows.iter().filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

fn slot_cell(entry: &Entry) -> String {
    match (entry.last, entry.count) {
        (Some(last), Some(count)) => {
            let more = if entry.more { " or more" } else { "" };
            format!("{} to {} ({count}{more})", slot_text(entry.slot), slot_text(last))
        }
        _ => slot_text(entry.slot),
    }
}

fn length_cell(entry: &Entry) -> String {
    or_dash(entry.ran_for_ms.map(|ms| rough(Duration::from_millis(ms))))
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
