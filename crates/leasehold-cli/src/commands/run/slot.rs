//! The slot that a run is for.
//!
//! Promise: which slot is due is told by the store's clock alone, and the slot is claimed in the same swap as the lease.
//! Non-promise: the journal is best effort; a store that is slow to write it delays no command.

use super::PATIENCE;
use crate::args::RunSlot;
use crate::config::{blame_flag, duration_of};
use crate::output;
use crate::supervise::Signals;
use leasehold::clock::{Clock, SystemClock};
use leasehold::protocol::{AfterFailure, Refusal, SlotClaim};
use leasehold::{Coordinator, Epoch, Event, Inspection, LeaseName, Result, Slot, SlotState, Timestamp};
use leasehold_work::{CatchUp, Due, Fate, Journals, Last, RunEnd, Schedule, Zone, due, parse_instant, slot_text};
use std::time::Duration;

/// A trigger that fires a little early, because its machine's clock is ahead, means the slot that is about to come.
const EARLY_AT_MOST: Duration = Duration::from_secs(300);

/// Which slot.
#[derive(Debug)]
pub enum SlotPlan {
    /// None.
    Unscheduled,
    /// The newest that is due.
    Newest(Box<Schedule>, CatchUp),
    /// This one, to be claimed with the lease, or claimed already with the lease that is adopted.
    At(Slot),
    /// This one, only to be named to the command: `trigger` and `backfill` see to the rest.
    Named(Slot),
}

/// What was found due.
pub enum Found {
    /// Go on, for this slot if any.
    Go(Option<Slot>),
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
        Ok(SlotPlan::Newest(Box::new(schedule), policy.map_err(|e| blame_flag(e, "--slot-max-age"))?))
    }

    /// What to claim with the lease.
    pub fn claim(&self, found: Option<Slot>) -> Option<SlotClaim> {
        let slot = found.filter(|_| !matches!(self, SlotPlan::Named(_)))?;
        // Whoever names a slot, as `backfill` does, means it.
        let after_failure = if let SlotPlan::At(_) = self { AfterFailure::Retry } else { AfterFailure::Leave };
        Some(SlotClaim { slot, after_failure })
    }

    /// Finds the slot to run, by the store's clock.
    pub async fn find(&self, coordinator: &Coordinator, lease: &LeaseName, signals: &mut Signals) -> Result<Found> {
        let (schedule, policy) = match self {
            SlotPlan::Unscheduled => return Ok(Found::Go(None)),
            SlotPlan::At(slot) | SlotPlan::Named(slot) => return Ok(Found::Go(Some(*slot))),
            SlotPlan::Newest(schedule, policy) => (schedule, *policy),
        };
        let journals = Journals::new(coordinator.clone());
        loop {
            let (journal, _) = journals.read(lease).await?;
            let seen = coordinator.inspect(lease).await?;
            let last = last_of(&seen, journal.settled_to);
            let Due { run, dropped } = due(schedule, seen.now, last, policy, |slot| journal.is_settled(slot));
            if !dropped.is_empty() {
                for dropped in journals.drop_slots(lease, &dropped).await? {
                    let (reason, count) = (Fate::from(dropped.reason).as_str(), dropped.count);
                    output::say(&format!("{reason}: {count} slots of `{lease}` up to {}", slot_text(dropped.last)));
                }
            }
            if let Some(slot) = run.first() {
                return Ok(Found::Go(Some(*slot)));
            }
            let Some(wait) = soon(schedule, seen.now) else {
                return Ok(nothing(schedule, lease, &seen));
            };
            tokio::select! {
                () = SystemClock.sleep_until(SystemClock.now() + wait) => {}
                number = signals.next_ending() => return Ok(Found::Signal(number)),
            }
        }
    }
}

/// How long until a slot that is about to come; none if it is not.
fn soon(schedule: &Schedule, now: Timestamp) -> Option<Duration> {
    let next = schedule.next_after(now)?;
    let interval = schedule.before(next).map_or(EARLY_AT_MOST, |before| next.0.saturating_since(before.0));
    let wait = next.0.saturating_since(now);
    (wait <= (interval / 10).min(EARLY_AT_MOST)).then_some(wait)
}

fn last_of(seen: &Inspection, settled_to: Option<Slot>) -> Last {
    let Some(mark) = seen.record.slot else { return settled_to.map_or(Last::Never, |slot| Last::Settled(slot.0)) };
    let died = mark.state == SlotState::Running && seen.record.live_tenure(seen.now).is_none();
    if died && settled_to.is_none_or(|settled| mark.slot > settled) {
        return Last::Interrupted(mark.slot);
    }
    Last::Settled(settled_to.map_or(mark.slot, |settled| settled.max(mark.slot)).0)
}

fn nothing(schedule: &Schedule, lease: &LeaseName, seen: &Inspection) -> Found {
    let newest = schedule.latest(seen.now).map_or("none".into(), slot_text);
    let line = match seen.record.slot {
        Some(mark) if mark.slot.0 > seen.now => format!(
            "`{lease}` has run slot {}, which is still to come by the store's clock; was that set back?",
            slot_text(mark.slot)
        ),
        Some(mark) if mark.state == SlotState::Running => {
            format!("slot {} of `{lease}` is being run under epoch {}", slot_text(mark.slot), mark.epoch)
        }
        Some(mark) => format!("slot {newest} of `{lease}` was run already, under epoch {}", mark.epoch),
        None => format!("no slot of `{lease}` is due"),
    };
    Found::Nothing(line, Event::AlreadyRun)
}

/// Writes down that a slot was passed over, and says how that counts; none if it has been counted.
pub async fn pass_over(coordinator: &Coordinator, lease: &LeaseName, slot: Slot, refusal: &Refusal) -> Option<Event> {
    let fate = match refusal {
        Refusal::Held { .. } => Fate::SkippedOverlap,
        Refusal::Paused(_) => Fate::Paused,
        _ => return Some(super::skip_event(refusal)),
    };
    let running = coordinator.inspect(lease).await.ok().and_then(|seen| seen.record.slot);
    if running.is_some_and(|mark| mark.slot == slot) {
        return Some(Event::AlreadyRun);
    }
    let _ = Journals::new(coordinator.clone()).pass_over(lease, slot, fate).await;
    None
}

/// Writes down that a run of the slot began.
pub async fn note_begin(coordinator: &Coordinator, lease: &LeaseName, slot: Option<Slot>, epoch: Epoch) {
    if let Some(slot) = slot {
        let _ = Journals::new(coordinator.clone()).begin(lease, slot, epoch).await;
    }
}

/// Writes down how it ended.
pub async fn note_end(coordinator: &Coordinator, lease: &LeaseName, slot: Option<Slot>, epoch: Epoch, end: RunEnd) {
    if let Some(slot) = slot {
        let journals = Journals::new(coordinator.clone());
        let _ = tokio::time::timeout(PATIENCE, journals.end(lease, slot, epoch, end)).await;
    }
}
