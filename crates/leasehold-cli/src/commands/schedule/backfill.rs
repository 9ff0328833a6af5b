//! `schedule backfill` and `schedule trigger`: runs that an operator asks for.
//!
//! A backfill claims each slot under a lease of its own, named after the span, so that it can be broken off, taken up
//! again and shared by machines without running a slot twice; each run also holds the job's own lease, so that it never
//! overlaps a regular one and the job's guards admit it.
//!
//! Promise: as many slots as were shown are run, each once, oldest first. Non-promise: a slot that was run by its
//! schedule is run again only if the journal has forgotten it.

use super::launch::{run, words};
use super::table::Jobs;
use crate::args::Backfill;
use crate::commands::coordinator;
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold::{Error, Kind, LeaseName, Result, Slot, Timestamp};
use leasehold_work::{Busy, Job, Journals, parse_instant, slot_text};
use std::io::{BufRead, IsTerminal, Write};
use std::process::Command;

/// How long a backfill waits for a regular run to end.
const PATIENCE: &str = "1d";

pub async fn trigger(settings: &Settings, jobs: &Jobs, name: &str) -> Result<Exit> {
    let job = jobs.named(name)?;
    let now = coordinator(settings).await?.inspect(&job.name).await?.now;
    let mut command = run(job, job.name.as_str(), &settings.store.value.portable())?;
    command.arg(format!("--as-slot={}", slot_text(Slot(now))));
    match job.busy {
        Busy::Skip => {}
        Busy::Wait(limit) => drop(command.arg(format!("--wait={}", leasehold::format_duration(limit)))),
        Busy::Retry(pause) => drop(command.arg(format!("--retry-after={}", leasehold::format_duration(pause)))),
    }
    if let Some(ttl) = job.ttl {
        command.arg(format!("--ttl={ttl}"));
    }
    words(&mut command, job);
    finish(command, job).await
}

pub async fn backfill(settings: &Settings, jobs: &Jobs, args: &Backfill) -> Result<Exit> {
    crate::supervise::check()?;
    let job = jobs.named(&args.name)?;
    let (from, to) = (parse_instant("--from", &args.from)?, parse_instant("--to", &args.to)?);
    if from > to {
        return Err(Error::invalid("--from", &args.from, "it is after --to"));
    }
    let coordinator = coordinator(settings).await?;
    let now = coordinator.inspect(&job.name).await?.now;
    if to.0 > now {
        return Err(Error::invalid(
            "--to",
            &args.to,
            format!("it is still to come; the store's clock shows {}", slot_text(Slot(now))),
        ));
    }
    let (journal, _) = Journals::new(coordinator).read(&job.name).await?;
    let ran =
        |slot: &Slot| journal.entries.iter().any(|e| e.slot == *slot && e.fate == leasehold_work::Fate::Succeeded);
    let after = Timestamp::from_millis(from.0.as_millis().saturating_sub(1));
    let slots: Vec<Slot> =
        job.schedule.between(after, to.0).filter(|slot| !ran(slot)).take(args.max as usize + 1).collect();
    let (Some(first), Some(last)) = (slots.first(), slots.last()) else {
        output::say(&format!("no slot of `{}` in that span is left to run", job.name));
        return Ok(Exit::Done);
    };
    if slots.len() > args.max as usize {
        let message = format!("there are more than {} slots in that span; narrow it, or raise --max", args.max);
        return Err(Error::new(Kind::Invalid, message));
    }
    let what = format!("{} slots of `{}` from {} to {}", slots.len(), job.name, slot_text(*first), slot_text(*last));
    if !args.yes && !agreed(&what)? {
        output::say("nothing was run");
        return Ok(Exit::Done);
    }
    let compact = |slot: Slot| slot_text(slot).replace(['-', ':'], "");
    let claims = LeaseName::new(format!("{}/backfill/{}-{}", job.name, compact(from), compact(to)))?;
    let mut worst = Exit::Done;
    for slot in &slots {
        let exit = one(settings, job, &claims, *slot).await?;
        if exit != Exit::Code(0) {
            output::say(&format!("slot {} of `{}` ended with exit code {}", slot_text(*slot), job.name, exit.code()));
            worst = exit;
        }
    }
    Ok(worst)
}

/// Outside the claim on the slot, inside the job's own lease.
async fn one(settings: &Settings, job: &Job, claims: &LeaseName, slot: Slot) -> Result<Exit> {
    let store = settings.store.value.portable();
    let at = slot_text(slot);
    let mut inner = run(job, job.name.as_str(), &store)?;
    inner.arg(format!("--as-slot={at}")).arg(format!("--wait={PATIENCE}"));
    if let Some(ttl) = job.ttl {
        inner.arg(format!("--ttl={ttl}"));
    }
    words(&mut inner, job);
    let mut outer = Command::new(inner.get_program());
    outer.arg("run").arg(claims.as_str()).arg(format!("--slot-at={at}")).arg("--unrecorded");
    outer.arg(format!("--wait={PATIENCE}")).arg("--quiet").env("LEASEHOLD_STORE", &store);
    outer.arg("--").arg(inner.get_program()).args(inner.get_args());
    if let Some(cwd) = inner.get_current_dir() {
        outer.current_dir(cwd);
    }
    for (name, value) in &job.env {
        outer.env(name, value);
    }
    finish(outer, job).await
}

async fn finish(command: Command, job: &Job) -> Result<Exit> {
    let cannot = |e| Error::unavailable(format!("cannot start job `{}`", job.name), e);
    let status = tokio::process::Command::from(command).status().await.map_err(cannot)?;
    let code =
        status.code().unwrap_or_else(|| 128 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0));
    Ok(Exit::Code(u8::try_from(code & 0xff).unwrap_or(1)))
}

/// Asks; without anybody to ask it is an error, not a yes.
fn agreed(what: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::new(Kind::Invalid, format!("{what} would be run; say --yes to run them")));
    }
    let _ = write!(std::io::stderr(), "leasehold: run {what}? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
