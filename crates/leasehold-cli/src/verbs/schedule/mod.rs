//! `schedule`: jobs from `[[job]]` tables, each slot once in the whole fleet.

mod backfill;
mod daemon;
mod install;
mod launch;
mod table;

use super::{coordinator, existing, operate};
use crate::args::{Common, Next, Schedule as Args, ScheduleRun, ScheduleVerb};
use crate::config::{Flags, Settings};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result, Timestamp};
use leasehold_work::schedule::{Job, slot_text};
use serde_json::{Value, json};
use std::sync::Arc;
use table::Jobs;

pub async fn schedule(common: &Common, args: Args) -> Result<Exit> {
    if args.verb.is_some() && args.run != ScheduleRun::default() {
        let message = "--on, --max-running and --quiet go with `schedule` alone, or behind `schedule run`";
        return Err(Error::new(Kind::Invalid, message));
    }
    let path = table::find(args.file.as_deref())?;
    let settings = Settings::gather_near(common, Flags::default(), Some(&path))?;
    if let Some(ScheduleVerb::Install(args)) = &args.verb {
        return install::install(args, &path, &settings);
    }
    let jobs = Jobs::read(&path, &settings)?;
    match args.verb.unwrap_or(ScheduleVerb::Run(args.run)) {
        ScheduleVerb::Run(args) => daemon::run(common, settings, jobs, args).await,
        ScheduleVerb::Check => check(common, &settings, &jobs).await,
        ScheduleVerb::Next(args) => next(common, &settings, &jobs, &args).await,
        ScheduleVerb::Backfill(args) => backfill::backfill(&settings, &jobs, &args).await,
        ScheduleVerb::Trigger(args) => backfill::trigger(&settings, &jobs, &args.name).await,
        ScheduleVerb::Pause(args) => {
            jobs.named(&args.name)?;
            operate::order(common, &settings, &args, operate::Asked::Pause, "paused").await
        }
        ScheduleVerb::Resume(args) => {
            jobs.named(&args.name)?;
            operate::order(common, &settings, &args, operate::Asked::Resume, "resumed").await
        }
        ScheduleVerb::Install(_) => Ok(Exit::Done),
    }
}

/// The store's time; this machine's where there is no store yet. Only for showing.
async fn now(settings: &Settings) -> Result<Timestamp> {
    let time = match existing(settings).await? {
        Some(coordinator) => Some(coordinator.inspect(&"schedule".parse()?).await?.now),
        None => None,
    };
    Ok(time.unwrap_or_else(|| Timestamp::from_millis(leasehold_system::clock::wall_ms())))
}

async fn check(common: &Common, settings: &Settings, jobs: &Jobs) -> Result<Exit> {
    let now = now(settings).await?;
    let next = |job: &Job| job.schedule.next_after(now);
    if common.json {
        let all = jobs.all.iter().map(|job| {
            json!({
                "name": job.name.as_str(),
                "schedule": job.schedule.to_string(),
                "next": next(job).map(slot_text),
                "on": job.on,
            })
        });
        output::json(&Value::Array(all.collect()))?;
        return Ok(Exit::Done);
    }
    let mut rows = vec![["NAME", "SCHEDULE", "NEXT", "LOCAL TIME", "ON"].map(String::from).to_vec()];
    for job in &jobs.all {
        let (at, local) = match next(job) {
            Some(slot) => (slot_text(slot), job.schedule.zone().show(slot.0)),
            None => ("never".into(), "-".into()),
        };
        let on = if job.on.is_empty() { "any machine".into() } else { job.on.join(", ") };
        rows.push(vec![job.name.to_string(), job.schedule.to_string(), at, local, on]);
    }
    output::print(&output::table(&rows))?;
    let (count, path, store) = (jobs.all.len(), jobs.path.display(), &settings.store.value);
    let valid =
        if count == 1 { format!("1 job in `{path}` is valid") } else { format!("{count} jobs in `{path}` are valid") };
    output::say(&format!("{valid}; the store is `{store}`"));
    Ok(Exit::Done)
}

async fn next(common: &Common, settings: &Settings, jobs: &Jobs, args: &Next) -> Result<Exit> {
    let chosen: Vec<&Arc<Job>> = match &args.name {
        Some(name) => vec![jobs.named(name)?],
        None => jobs.all.iter().collect(),
    };
    let (now, far) = (now(settings).await?, Timestamp::from_millis(u64::MAX));
    let mut slots = Vec::new();
    for job in chosen {
        let from = match &args.from {
            Some(text) => job.schedule.zone().parse_instant("--from", text)?.0,
            None => now,
        };
        slots.extend(job.schedule.between(from, far).take(args.count as usize).map(|slot| (slot, job)));
    }
    slots.sort_by_key(|(slot, _)| *slot);
    if common.json {
        let all = slots.iter().map(|(slot, job)| json!({ "name": job.name.as_str(), "slot": slot_text(*slot) }));
        output::json(&Value::Array(all.collect()))?;
        return Ok(Exit::Done);
    }
    let mut rows = vec![["SLOT", "LOCAL TIME", "NAME"].map(String::from).to_vec()];
    rows.extend(
        slots.iter().map(|(slot, job)| vec![slot_text(*slot), job.schedule.zone().show(slot.0), job.name.to_string()]),
    );
    output::print(&output::table(&rows))?;
    Ok(Exit::Done)
}
