//! `schedule`: jobs from `[[job]]` tables, each slot once in the whole fleet.

mod backfill;
mod daemon;
mod import;
mod install;
mod launch;
mod plan;
mod public;
mod table;

use super::operate;
use crate::args::{Next, Schedule as Args, ScheduleRun, ScheduleVerb};
use crate::config::Settings;
use crate::context::{Context, moved_to};
use crate::exit::Exit;
use crate::output;
use crate::supervise::settlement::is_temporary;
use crate::table::Column::{self, Extra, Text, Whole};
use crate::table::{page, table};
use leasehold_core::store::Range;
use leasehold_core::{Error, Kind, Result, Shelf, Slot, Timestamp};
use leasehold_stores::StoreUrl;
use leasehold_work::schedule::{Job, slot_text};
use serde_json::{Value, json};
use std::sync::Arc;
use table::Jobs;

/// The columns of `schedule check`.
const CHECKED: [Column; 6] =
    [Whole("NAME"), Text("SCHEDULE"), Whole("NEXT"), Extra("LOCAL TIME"), Extra("ON"), Text("IN WORDS")];

pub async fn schedule(context: &Context, args: Args) -> Result<Exit> {
    if args.verb.is_some() && args.run != ScheduleRun::default() {
        let message = "--on, --max-running, --quiet and --metrics go with `schedule` alone, or behind `schedule run`";
        return Err(Error::new(Kind::Invalid, message));
    }
    if let Some(ScheduleVerb::Import(args)) = &args.verb {
        return import::import(args);
    }
    // What no file has any more.
    if let Some(ScheduleVerb::Retire(args)) = &args.verb {
        return plan::retire(context, &args.name).await;
    }
    let path = table::find(args.file.as_deref())?;
    let settings = context.settings()?;
    if let Some(ScheduleVerb::Install(args)) = &args.verb {
        return install::install(args, &path, settings);
    }
    let jobs = Jobs::read(&path, settings)?;
    match args.verb.unwrap_or(ScheduleVerb::Run(args.run)) {
        ScheduleVerb::Run(args) => daemon::run(context, jobs, args).await,
        ScheduleVerb::Check => check(context, &jobs).await,
        ScheduleVerb::Plan => plan::plan(context, &jobs).await,
        ScheduleVerb::Next(args) => next(context, &jobs, &args).await,
        ScheduleVerb::Backfill(args) => backfill::backfill(context, &jobs, &args).await,
        ScheduleVerb::Trigger(args) => backfill::trigger(context, &jobs, &args.name).await,
        ScheduleVerb::Pause(args) => {
            jobs.named(&args.name)?;
            operate::order(context, &args, operate::OperatorRequest::PauseJob, None).await
        }
        ScheduleVerb::Resume(args) => {
            jobs.named(&args.name)?;
            operate::order(context, &args, operate::OperatorRequest::Resume, None).await
        }
        ScheduleVerb::Install(_) | ScheduleVerb::Import(_) | ScheduleVerb::Retire(_) => Ok(Exit::Done),
    }
}

/// The jobs of the file that is found here; none if there is none, or none that is valid.
pub fn jobs_here(settings: &Settings) -> Vec<Arc<Job>> {
    table::find(None).and_then(|path| Jobs::read(&path, settings)).map(|jobs| jobs.all).unwrap_or_default()
}

/// The store's time; this machine's where there is no store yet. Only for showing.
async fn now(context: &Context) -> Result<Timestamp> {
    match context.existing().await? {
        // Every key may ask for an empty part of a listing, also one that is for a few names.
        Some(coordinator) => Ok(coordinator.store().list(Shelf::Lease, Range::new(None, 1)).await?.now),
        None => Ok(Timestamp::from_millis(leasehold_system::clock::wall_ms())),
    }
}

async fn check(context: &Context, jobs: &Jobs) -> Result<Exit> {
    // Jobs run without it, so here is where it is found.
    context.settings()?.notify.check()?;
    for job in &jobs.all {
        match launch::check_here(job) {
            Err(error) if job.on.is_empty() => return Err(error),
            // It may be there on the machines that run it.
            Err(error) => output::warn(&format!("not on this machine: {error}")),
            Ok(()) => {}
        }
    }
    let (count, path) = (output::count(jobs.all.len(), "job"), jobs.path.display());
    let valid = format!("{count} in `{path}` {} valid", if jobs.all.len() == 1 { "is" } else { "are" });
    // Of the file that is the answer, and of the store only what it shows besides.
    let now = now(context).await.map_err(|e| match is_temporary(e.kind()) {
        true => Error::new(e.kind(), format!("{valid}, but the store cannot be reached")).with_source(e),
        false => e,
    })?;
    let next = |job: &Job| job.schedule.next_after(now);
    let as_json = |job: &Arc<Job>| {
        let (name, schedule) = (job.name.as_str(), job.schedule.to_string());
        let words = job.schedule.words();
        json!({ "name": name, "schedule": schedule, "words": words, "next": next(job).map(slot_text), "on": job.on })
    };
    let row = |job: &Arc<Job>| {
        let (at, local) = match next(job) {
            Some(slot) => (slot_text(slot), job.schedule.zone().show(slot.0)),
            None => ("never".into(), "-".into()),
        };
        let on = if job.on.is_empty() { "any machine".into() } else { job.on.join(", ") };
        vec![job.name.to_string(), job.schedule.to_string(), at, local, on, job.schedule.words()]
    };
    context
        .print(|| Value::Array(jobs.all.iter().map(as_json).collect()), || table(&CHECKED, jobs.all.iter().map(row)))?;
    if !context.common.json {
        let store = &context.settings()?.store.value;
        output::say(&format!("{valid}; the store is `{store}`{}", not_made_yet(store)));
    }
    if let Some(coordinator) = context.existing().await?
        && let Some(url) = moved_to(coordinator).await
    {
        output::warn(&format!("this store has moved to `{url}`: none of these jobs runs here any more; name that one"));
    }
    Ok(Exit::Done)
}

/// What to know about a folder that is not there: other machines may have it.
fn not_made_yet(store: &StoreUrl) -> &'static str {
    if store.scheme() == "dir" && store.is_missing() {
        ", which does not exist yet (is the share mounted?)"
    } else {
        ""
    }
}

async fn next(context: &Context, jobs: &Jobs, args: &Next) -> Result<Exit> {
    let chosen: Vec<&Arc<Job>> = match &args.name {
        Some(name) => vec![jobs.named(name)?],
        None => jobs.all.iter().collect(),
    };
    let (now, far) = (now(context).await?, Timestamp::from_millis(u64::MAX));
    let mut slots = Vec::new();
    for job in chosen {
        let from = match &args.from {
            // With the slot at that very instant.
            Some(text) => {
                let from = job.schedule.zone().parse_instant("--from", text)?.0.as_millis();
                Timestamp::from_millis(from.saturating_sub(1))
            }
            None => now,
        };
        slots.extend(job.schedule.between(from, far).take(args.count as usize).map(|slot| (slot, job)));
    }
    // So many in all: the next ones, whichever jobs they are of.
    slots.sort_by_key(|(slot, _)| *slot);
    slots.truncate(args.count as usize);
    context.print(
        || slots.iter().map(|(slot, job)| json!({ "name": job.name.as_str(), "slot": slot_text(*slot) })).collect(),
        || {
            let row = |(slot, job): &(Slot, &Arc<Job>)| {
                vec![slot_text(*slot), job.schedule.zone().show(slot.0), job.name.to_string()]
            };
            page(slots.iter().map(row))
        },
    )
}
