//! The slot that a run is for.
//!
//! Promise: which slot is due is told by the store's clock alone, and the slot is claimed in the same swap as the lease.
//! Non-promise: the journal is best effort; a store that is slow to write it delays no command.

use crate::args::RunSlot;
use crate::config::{blame_flag, duration_of};
use crate::supervise::Signals;
use crate::{log, output};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::lease::protocol::{AfterFailure, Refusal, SlotClaim};
use leasehold_core::{
    Coordinator, Epoch, Event, Inspection, Kind, LeaseName, Result, Slot, SlotState, Timestamp, migration,
};
use leasehold_work::schedule::{
    Candidate, CatchUp, Definitions, Dropped, Entry, Fate, Journal, Journals, Known, Plan, RunDefinition, Schedule,
    Timing, Zone, parse_instant, slot_text,
};
use std::time::Duration;

/// A trigger that fires a little early, because its machine's clock is ahead, means the slot that is about to come.
const EARLY_AT_MOST: Duration = Duration::from_secs(300);

/// Which slot a run is for, if any.
#[derive(Debug)]
pub enum SlotPlan {
    /// The run is for no slot.
    Unscheduled,
    /// The newest that is due, by a line that is published as it was written.
    Newest(Box<Schedule>, CatchUp, Box<Timing>),
    /// This one, to be claimed with the lease, or claimed already with the lease that is adopted.
    At(Slot),
    /// This one, only to be named to the command: `trigger` and `backfill` see to the rest.
    Named(Slot),
}

/// What was found due.
pub enum DueSlot {
    /// Go on, for this slot if any.
    Go(Option<Candidate>),
    /// Nothing is to be done, and why.
    Nothing(String, Event),
    /// This signal came while the slot was waited for.
    Signal(i32),
}

impl SlotPlan {
    pub fn new(args: &RunSlot) -> Result<Self> {
        let at = |flag: &str, text: &Option<String>| text.as_deref().map(|t| parse_instant(flag, t)).transpose();
        if let Some(slot) = at("--slot-at", &args.slot_at)? {
            return Ok(SlotPlan::At(slot));
        }
        if let Some(slot) = at("--as-slot", &args.as_slot)? {
            return Ok(SlotPlan::Named(slot));
        }
        let Some(line) = &args.slot else { return Ok(SlotPlan::Unscheduled) };
        let zone = args.tz.as_deref().map_or(Ok(Zone::UTC), str::parse).map_err(|e| blame_flag(e, "--tz"))?;
        let gap = args.dst.as_deref().map(str::parse).transpose().map_err(|e| blame_flag(e, "--dst"))?;
        let fold = args.dst_fold.as_deref().map(str::parse).transpose().map_err(|e| blame_flag(e, "--dst-fold"))?;
        let schedule = Schedule::new(line, zone, gap, fold).map_err(|e| blame_flag(e, "--slot"))?;
        let age = duration_of("--slot-max-age", args.slot_max_age.as_deref())?;
        let policy = CatchUp::new(1, age.unwrap_or(CatchUp::default().max_age()));
        let policy = policy.map_err(|e| blame_flag(e, "--slot-max-age"))?;
        let timing = Timing::of_line(line, args.tz.clone(), args.dst.clone(), args.dst_fold.clone());
        Ok(SlotPlan::Newest(Box::new(schedule), policy, Box::new(timing)))
    }

    /// What to claim with the lease.
    pub fn claim(&self, found: Option<Candidate>) -> Option<SlotClaim> {
        let Candidate { slot, gives_up, .. } = found.filter(|_| !matches!(self, SlotPlan::Named(_)))?;
        // A slot that is named, as `backfill` does, is run even if it failed before.
        let after_failure = if let SlotPlan::At(_) = self { AfterFailure::Retry } else { AfterFailure::Leave };
        Some(SlotClaim { slot, after_failure, gives_up })
    }

    /// Whether looking again finds what this refusal is about.
    pub const fn finds(&self, refusal: &Refusal) -> bool {
        matches!((self, refusal), (SlotPlan::Newest(..), Refusal::Interrupted(_)))
    }

    /// The slot before this one, by the schedule that is known.
    fn before(&self, slot: Slot) -> Option<Slot> {
        if let SlotPlan::Newest(schedule, ..) = self { schedule.before(slot) } else { None }
    }

    /// Finds the slot to run, by the store's clock.
    pub async fn find(&self, coordinator: &Coordinator, lease: &LeaseName, signals: &mut Signals) -> Result<DueSlot> {
        let (schedule, policy) = match self {
            SlotPlan::Unscheduled => return Ok(DueSlot::Go(None)),
            SlotPlan::At(slot) | SlotPlan::Named(slot) => {
                return Ok(DueSlot::Go(Some(Candidate { slot: *slot, gives_up: None, is_recovery: false })));
            }
            SlotPlan::Newest(schedule, policy, _) => (schedule, *policy),
        };
        loop {
            // A signal ends the wait for a store that does not answer.
            let looked = tokio::select! {
                looked = look(coordinator, lease, schedule, policy) => looked?,
                number = signals.next_ending() => return Ok(DueSlot::Signal(number)),
            };
            let wait = match looked {
                Looked::Found(found) => return Ok(found),
                Looked::Soon(wait) => wait,
            };
            tokio::select! {
                () = SystemClock.sleep_until(SystemClock.now() + wait) => {}
                number = signals.next_ending() => return Ok(DueSlot::Signal(number)),
            }
        }
    }
}

/// What one look at the store showed.
enum Looked {
    Found(DueSlot),
    /// A slot comes so soon that it is waited for.
    Soon(Duration),
}

/// Looks for a slot that is due, and settles those that are not run any more.
async fn look(coordinator: &Coordinator, lease: &LeaseName, schedule: &Schedule, policy: CatchUp) -> Result<Looked> {
    let journals = Journals::new(coordinator.clone());
    let (journal, _) = journals.read(lease).await?;
    let seen = coordinator.inspect(lease).await?;
    // A trigger that was forgotten in an old store must not end with "already ran".
    if let Some(state) = &seen.record.relocation {
        let what = format!("lease `{lease}`");
        return Err(migration::elsewhere(coordinator.store().as_ref(), &what, state).await);
    }
    let plan = Plan::of(schedule, &seen.record, &journal, policy, seen.now);
    let (given_up, dropped) = journals.settle(lease, &plan).await?;
    if let Some((slot, fate)) = given_up {
        output::say(&passed_line(lease, slot, fate));
    }
    dropped.iter().for_each(|dropped| log_dropped(lease, dropped));
    if let Some(until) = plan.ahead {
        let line = ahead_line(lease, until, seen.now);
        // Once, whatever was asked for; after that only to those who want to hear of what is skipped.
        let past = journal.entries.iter().filter(|entry| entry.end().0 <= seen.now);
        if past.max_by_key(|entry| entry.end()).is_none_or(|last| last.fate != Fate::DroppedClockAhead) {
            output::say(&line);
        }
        return Ok(Looked::Found(DueSlot::Nothing(line, Event::AlreadyRun)));
    }
    if let Some(first) = plan.candidates(&seen.record).first() {
        return Ok(Looked::Found(DueSlot::Go(Some(*first))));
    }
    Ok(match soon(schedule, seen.now) {
        Some(wait) => Looked::Soon(wait),
        None => {
            let lines = dropped.iter().map(|dropped| dropped_line(lease, dropped));
            let why: Vec<String> = lines.chain([nothing_due(schedule, lease, &seen, &journal)]).collect();
            Looked::Found(DueSlot::Nothing(why.join("; "), Event::AlreadyRun))
        }
    })
}

/// How long until a slot that is about to come; none if it is not.
fn soon(schedule: &Schedule, now: Timestamp) -> Option<Duration> {
    let next = schedule.next_after(now)?;
    let interval = schedule.before(next).map_or(EARLY_AT_MOST, |before| next.0.saturating_since(before.0));
    let wait = next.0.saturating_since(now);
    (wait <= (interval / 10).min(EARLY_AT_MOST)).then_some(wait)
}

/// What became of a slot that is not run.
pub fn passed_line(lease: &LeaseName, slot: Slot, fate: Fate) -> String {
    let why = match fate {
        Fate::SkippedOverlap => ", because an earlier run was still running",
        Fate::Paused => ", because the job was paused",
        Fate::Died => ", because its runs died as often as it may be run, or until it was too old",
        _ => "",
    };
    format!("{}: slot {} of `{lease}` was not run{why}", fate.as_str(), slot_text(slot))
}

/// Logs that slots are not caught up on. They are in the journal and the counters too: a run that succeeds stays quiet.
pub fn log_dropped(lease: &LeaseName, dropped: &Dropped) {
    let (job, slot, line) = (lease.as_str(), slot_text(dropped.last), dropped_line(lease, dropped));
    let outcome = Fate::from(dropped.reason).as_str();
    tracing::info!(target: log::RUNS, job, slot, outcome, slots = dropped.count, "{line}");
}

fn dropped_line(lease: &LeaseName, dropped: &Dropped) -> String {
    let more = if dropped.more { " or more" } else { "" };
    let (fate, count, last) = (Fate::from(dropped.reason).as_str(), dropped.count, slot_text(dropped.last));
    let slots = if count == 1 && !dropped.more { "slot" } else { "slots" };
    format!("{fate}: {count}{more} {slots} of `{lease}` up to {last}")
}

/// For a job whose slots were claimed while the store's clock was ahead.
pub fn ahead_line(lease: &LeaseName, until: Slot, now: Timestamp) -> String {
    format!(
        "no slot of `{lease}` can run until {until}: slots up to then were claimed or settled while the store's clock was \
         ahead, and it shows {now} now. If that is correct, set the job back: leasehold rewind '{lease}' --why '...'",
        until = slot_text(until),
        now = slot_text(Slot(now)),
    )
}

/// Why no slot is run.
pub fn nothing_due(schedule: &Schedule, lease: &LeaseName, seen: &Inspection, journal: &Journal) -> String {
    let latest = schedule.latest(seen.now);
    let newest = latest.map_or("none".into(), slot_text);
    match seen.record.slot {
        Some(mark) if mark.state == SlotState::Failed && latest == Some(mark.slot) => {
            let entry = journal.entries.iter().find(|entry| entry.slot == mark.slot && entry.epoch == Some(mark.epoch));
            let code = entry.and_then(|entry| entry.exit).map(|code| format!(" with exit code {code}"));
            format!(
                "slot {newest} of `{lease}` already ran, and failed{} under epoch {}; a failed slot is not run again (see \
                 --retries, or run it without --slot)",
                code.unwrap_or_default(),
                mark.epoch
            )
        }
        Some(mark) if mark.state == SlotState::Running => {
            format!("slot {} of `{lease}` is running under epoch {}", slot_text(mark.slot), mark.epoch)
        }
        Some(mark) if latest.is_none_or(|latest| latest <= mark.slot) => {
            format!("slot {newest} of `{lease}` already ran, under epoch {}", mark.epoch)
        }
        Some(_) => format!("slot {newest} of `{lease}` was passed over; see leasehold runs {lease}"),
        None => format!("no slot of `{lease}` is due"),
    }
}

/// Writes down that a slot was passed over, and says how that counts; none if it has been counted.
pub async fn skip(
    coordinator: &Coordinator,
    plan: &SlotPlan,
    lease: &LeaseName,
    slot: Slot,
    refusal: &Refusal,
) -> Option<Event> {
    let fate = match refusal {
        Refusal::Held { .. } => Fate::SkippedOverlap,
        Refusal::Paused(_) => Fate::Paused,
        _ => return Some(super::skip_event(refusal)),
    };
    let record = coordinator.inspect(lease).await.ok().map(|seen| seen.record);
    if record.as_ref().and_then(|record| record.slot).is_some_and(|mark| mark.slot == slot) {
        return Some(Event::AlreadyRun);
    }
    // Whoever took the lease after this slot came due, perhaps to run one before it again, may still run it.
    let is_left_to_holder = record.and_then(|record| record.tenure).is_some_and(|tenure| slot.0 <= tenure.granted_at);
    if fate == Fate::SkippedOverlap && is_left_to_holder {
        return Some(super::skip_event(refusal));
    }
    let _ = Journals::new(coordinator.clone()).skip(lease, slot, plan.before(slot), fate).await;
    None
}

/// Whether the slot is known to have succeeded, now that nobody else can be at it.
pub async fn is_over(coordinator: &Coordinator, lease: &LeaseName, slot: Option<Slot>) -> Result<bool> {
    let (journal, _) = Journals::new(coordinator.clone()).read(lease).await?;
    let record = coordinator.inspect(lease).await?.record;
    let history = coordinator.history(lease, &record).await?;
    let known = Known { record: &record, history: &history, journal: &journal };
    Ok(slot.is_some_and(|slot| known.has_succeeded(slot)))
}

/// A run of a slot that began, and when the job is due, if this run is how anybody can know it.
pub struct Begun {
    slot: Option<Slot>,
    epoch: Epoch,
    public: Option<(CatchUp, Timing)>,
}

impl Begun {
    pub fn new(plan: &SlotPlan, slot: Option<Slot>, epoch: Epoch) -> Self {
        let public = match plan {
            SlotPlan::Newest(_, catch_up, timing) => Some((*catch_up, (**timing).clone())),
            _ => None,
        };
        Begun { slot, epoch, public }
    }

    /// Writes it down, and publishes the job, so that others notice when nobody runs it. A run that cannot publish is tried again
    /// by the next. Returns what was known of the slot before.
    pub async fn note(self, coordinator: &Coordinator, lease: &LeaseName) -> Option<Entry> {
        let Begun { slot: Some(slot), epoch, public } = self else { return None };
        let begun = Journals::new(coordinator.clone()).begin(lease, slot, epoch).await;
        if let Err(error) = &begun
            && error.kind() == Kind::Corrupt
        {
            output::warn(&format!("slot {} of `{lease}` is not recorded: {error}", slot_text(slot)));
        }
        if let Some((catch_up, timing)) = public {
            let host = leasehold_system::host::name();
            let run = RunDefinition { name: lease.clone(), timing, catch_up, host };
            let _ = Definitions::new(coordinator.clone()).publish_run(&run, slot).await;
        }
        begun.ok().flatten()
    }
}
