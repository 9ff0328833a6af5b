//! `schedule backfill` and `schedule trigger`: runs that an operator asks for.
//!
//! A backfill claims each slot under a lease of its own, named after the slot, so that it can be interrupted, continued
//! and shared by machines, with whatever span: what succeeded is not run again, what failed or was never run is. Each run
//! also holds the job's own lease, so that it never overlaps a regular one and the job's guards admit it.
//!
//! Promise: no slot is run of which anybody knows that it succeeded, and none of which the journal no longer knows what
//! became of it unless that is asked for. Non-promise: a slot whose success could not be written down may run again.

use super::launch::{Output, Prefix, ping, run, words};
use super::table::Jobs;
use crate::args::Backfill;
use crate::bar::Bar;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use crate::verbs::relay::{Relay, exit_of};
use leasehold_core::{Coordinator, Error, Inspection, Kind, LeaseName, Result, Slot, SlotState, Timestamp};
use leasehold_work::schedule::{BackfillNeed, Busy, Job, Journals, Known, backfill_lease, slot_text};
use std::io::IsTerminal;
use std::process::Command;

/// How long a backfill waits for a regular run to end.
const PATIENCE: &str = "1d";
/// How many slots are named one by one.
const MAX_NAMED: usize = 10;
/// Each of them is looked up.
const FORGOTTEN_AT_MOST: usize = 10_000;

pub async fn trigger(context: &Context, jobs: &Jobs, name: &str) -> Result<Exit> {
    let job = jobs.named(name)?;
    let Inspection { record, now, .. } = context.coordinator().await?.inspect(&job.name).await?;
    // Somebody asked for this run: a skip is not what they asked for.
    let mut command = as_slot(context, job, Slot(now))?;
    // Its `busy` is about an earlier run; a pause ends when somebody resumes the job, and not by itself.
    let busy = if record.paused.is_some() { Busy::Skip } else { job.busy };
    match busy {
        Busy::Skip => {}
        Busy::Wait(limit) => drop(command.arg(format!("--wait={}", leasehold_core::format_duration(limit)))),
        Busy::Retry(pause) => drop(command.arg(format!("--retry-after={}", leasehold_core::format_duration(pause)))),
    }
    ping(&mut command, job);
    words(&mut command, job);
    finish(command, job, &mut Relay::listen()?).await
}

fn held_exit_code() -> String {
    format!("--held-exit-code={}", Exit::Held.code())
}

/// `run` under the job's own lease, for a slot that is only named to it, up to the job's command. A skip is not a run, and
/// must not look like one that went well.
fn as_slot(context: &Context, job: &Job, slot: Slot) -> Result<Command> {
    let settings = context.settings()?;
    let output = Output { settings: settings.output_environment(), prefix: Prefix::None };
    let mut command = run(job, job.name.as_str(), &settings.store.value.portable(), &output)?;
    command.arg(format!("--as-slot={}", slot_text(slot))).arg(held_exit_code());
    command.args(job.ttl.map(|ttl| format!("--ttl={ttl}")));
    Ok(command)
}

pub async fn backfill(context: &Context, jobs: &Jobs, args: &Backfill) -> Result<Exit> {
    crate::supervise::check()?;
    let job = jobs.named(&args.name)?;
    let zone = job.schedule.zone();
    let (from, to) = (zone.parse_instant("--from", &args.from)?, zone.parse_instant("--to", &args.to)?);
    if from > to {
        return Err(Error::invalid("--from", &args.from, "it is after --to"));
    }
    context.in_use("run its slots there; nothing was run here").await?;
    let coordinator = context.coordinator().await?;
    let now = coordinator.inspect(&job.name).await?.now;
    if to.0 > now {
        return Err(Error::invalid(
            "--to",
            &args.to,
            format!("it is in the future; the store's clock shows {}", slot_text(Slot(now))),
        ));
    }
    // Not while the slots run: then the terminal is the job's, and a line for each slot says how many are left.
    let bar = Bar::begin();
    let found = find(coordinator, job, from, to, args.max as usize, &bar).await;
    bar.clear();
    let SlotsLeft { mut slots, forgotten } = found?;
    let mut left_out = !forgotten.is_empty();
    if left_out
        && (args.again_if_forgotten
            || can_ask(args) && output::agreed(&format!("run {}", forgotten_line(job, &forgotten)))?)
    {
        left_out = false;
        slots.extend(&forgotten);
        slots.sort();
    }
    if left_out {
        output::say(&format!(
            "left out: {}. They may have succeeded; to run them anyway, add --again-if-forgotten",
            forgotten_line(job, &forgotten)
        ));
    }
    let nothing_else = if left_out { Exit::Usage } else { Exit::Done };
    if slots.is_empty() {
        output::say(&format!("no slot of `{}` in that span is left to run", job.name));
        return Ok(nothing_else);
    }
    if slots.len() > args.max as usize {
        let message = format!("there are more than {} slots in that span; narrow it, or raise --max", args.max);
        return Err(Error::new(Kind::Invalid, message));
    }
    let what = span_line(job, &slots);
    if !args.yes && !output::agreed(&format!("run {what}"))? {
        output::say("nothing was run");
        return Ok(nothing_else);
    }
    let (mut worst, mut relay) = (nothing_else, Relay::listen()?);
    for (number, slot) in slots.iter().enumerate() {
        output::say(&format!("slot {} of `{}`, {} of {}", slot_text(*slot), job.name, number + 1, slots.len()));
        if !is_free(coordinator, job).await? {
            return Ok(Exit::Held);
        }
        let claims = backfill_lease(&job.name, *slot)?;
        let exit = one(context, job, &claims, *slot, &mut relay).await?;
        if relay.was_told() {
            return Ok(exit);
        }
        // Another backfill may have been faster: then the slot was skipped, and is done.
        let is_over = exit.code() == Exit::Held.code() && is_done(coordinator, &claims).await?;
        if exit.code() != 0 && !is_over {
            output::say(&format!("slot {} of `{}` ended with exit code {}", slot_text(*slot), job.name, exit.code()));
            worst = exit;
        }
    }
    Ok(worst)
}

/// Whether the job may be run now, or will be in a while; says what it waits for.
async fn is_free(coordinator: &Coordinator, job: &Job) -> Result<bool> {
    let (name, Inspection { record, now, .. }) = (&job.name, coordinator.inspect(&job.name).await?);
    if let Some(mark) = &record.paused {
        output::say(&format!(
            "`{name}` is paused by {} ({}): nothing more is run. Resume it with `leasehold schedule resume {name} --why '...'`, \
             and then run this again",
            mark.by, mark.why
        ));
        return Ok(false);
    }
    if let Some(tenure) = record.live_tenure(now) {
        output::say(&format!("waiting for `{name}`, which is held by {}", tenure.holder));
    }
    Ok(true)
}

/// The slots of a span that are left to run.
struct SlotsLeft {
    /// Those that failed or were never run.
    slots: Vec<Slot>,
    /// Those of which the journal no longer knows what became of them.
    forgotten: Vec<Slot>,
}

async fn find(coordinator: &Coordinator, job: &Job, from: Slot, to: Slot, max: usize, bar: &Bar) -> Result<SlotsLeft> {
    let (journal, _) = Journals::new(coordinator.clone()).read(&job.name).await?;
    let record = coordinator.inspect(&job.name).await?.record;
    let history = coordinator.history(&job.name, &record).await?;
    let known = Known { record: &record, history: &history, journal: &journal };
    let mut found = SlotsLeft { slots: Vec::new(), forgotten: Vec::new() };
    let after = Timestamp::from_millis(from.0.as_millis().saturating_sub(1));
    for slot in job.schedule.between(after, to.0).filter(|slot| !known.has_succeeded(*slot)) {
        let (left, at) = (found.slots.len(), slot_text(slot));
        bar.at(&format!("looking for slots of `{}` that are left to run: {left} so far, at {at}", job.name));
        // A backfill may have been at it before.
        let backfilled = claimed(coordinator, &backfill_lease(&job.name, slot)?).await?;
        match BackfillNeed::of(&known, backfilled, slot) {
            BackfillNeed::Done => {}
            BackfillNeed::Needed => found.slots.push(slot),
            BackfillNeed::Unknown => found.forgotten.push(slot),
        }
        if found.slots.len() > max {
            break;
        }
        if found.forgotten.len() > FORGOTTEN_AT_MOST {
            let message = format!(
                "of more than {FORGOTTEN_AT_MOST} slots in that span the journal no longer knows what \
                                   became of them; narrow it"
            );
            return Err(Error::new(Kind::Invalid, message));
        }
    }
    Ok(found)
}

/// What became of the slot under the lease of its own.
async fn claimed(coordinator: &Coordinator, claims: &LeaseName) -> Result<Option<SlotState>> {
    Ok(coordinator.inspect(claims).await?.record.slot.map(|mark| mark.state))
}

async fn is_done(coordinator: &Coordinator, claims: &LeaseName) -> Result<bool> {
    Ok(claimed(coordinator, claims).await? == Some(SlotState::Done))
}

fn span_line(job: &Job, slots: &[Slot]) -> String {
    match slots {
        [] => format!("no slot of `{}`", job.name),
        [slot] => format!("1 slot of `{}`, {}", job.name, slot_text(*slot)),
        [first, .., last] => {
            format!("{} slots of `{}` from {} to {}", slots.len(), job.name, slot_text(*first), slot_text(*last))
        }
    }
}

fn forgotten_line(job: &Job, slots: &[Slot]) -> String {
    let named: Vec<String> = slots.iter().take(MAX_NAMED).map(|slot| slot_text(*slot)).collect();
    let more = if slots.len() > MAX_NAMED { ", ..." } else { "" };
    format!(
        "{}, of which the journal no longer knows what became of them ({}{more})",
        span_line(job, slots),
        named.join(", ")
    )
}

/// Whether there is somebody to ask about slots that the journal has forgotten.
fn can_ask(args: &Backfill) -> bool {
    !args.yes && std::io::stdin().is_terminal()
}

/// Outside the claim on the slot, inside the job's own lease.
async fn one(context: &Context, job: &Job, claims: &LeaseName, slot: Slot, relay: &mut Relay) -> Result<Exit> {
    let store = context.settings()?.store.value.portable();
    let at = slot_text(slot);
    let mut inner = as_slot(context, job, slot)?;
    inner.arg("--unless-succeeded").arg(format!("--wait={PATIENCE}"));
    words(&mut inner, job);
    let mut outer = Command::new(inner.get_program());
    outer.arg("run").arg(claims.as_str()).arg(format!("--slot-at={at}")).arg("--unrecorded");
    outer.arg(format!("--wait={PATIENCE}")).arg(held_exit_code()).arg("--quiet").env("LEASEHOLD_STORE", &store);
    outer.arg("--").arg(inner.get_program()).args(inner.get_args());
    if let Some(cwd) = inner.get_current_dir() {
        outer.current_dir(cwd);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    finish(outer, job, relay).await
}

/// Waits for the run, and passes signals on to it.
async fn finish(mut command: Command, job: &Job, relay: &mut Relay) -> Result<Exit> {
    let child = command.spawn().map_err(|e| Error::unavailable(format!("cannot start job `{}`", job.name), e))?;
    relay.wait(child, std::future::ready(())).await.map(exit_of)
}
