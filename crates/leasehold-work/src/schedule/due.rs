//! What is due: which slots of a job are run, in which order, and which are dropped, given up or waited for.
//!
//! Promise: pure functions, the same for a scheduler, for `run --slot` and for `backfill`. A slot whose run died
//! precedes all newer ones, to be run again or given up, outside the bounds of catching up. Of the others, at most the
//! policy's count are run, and none that is older than its age. They come oldest first, and every other due slot is
//! listed as dropped, with a reason. A slot that the journal has settled, or has forgotten, is not due. Non-promise:
//! nothing is claimed here. Another process may claim first, and then the record's own rules refuse. A gap of very many
//! slots is counted up to a bound, and then reported as at least that many.

use crate::schedule::journal::Journal;
use crate::schedule::slots::Schedule;
use leasehold_core::{
    Epoch, Error, Event, History, Outcome, Ownership, Result, SLOT_RUNS, Slot, SlotMark, SlotState, Timestamp,
};
use std::time::Duration;

/// Slots claimed this far in the future were claimed while the store's clock was ahead.
const AHEAD: Duration = Duration::from_secs(60);
/// A slot this fresh cannot have been skipped by another machine whose lease is free again.
const FRESH: Duration = Duration::from_millis(500);
/// How many dropped slots are counted one by one.
pub const COUNTED: u64 = 10_000;

/// How many missed slots are caught up on after an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchUp {
    count: u32,
    max_age: Duration,
}

impl CatchUp {
    /// At most this many slots, none older than `max_age`.
    pub fn new(count: u32, max_age: Duration) -> Result<Self> {
        if !(1..=1_000).contains(&count) {
            return Err(Error::invalid("catch_up", count, "use 1 (the newest slot only) to 1000"));
        }
        if max_age < Duration::from_secs(1) {
            let age = leasehold_core::format_duration(max_age);
            return Err(Error::invalid("catch_up_max_age", age, "use 1s or more, such as 1h or 2d"));
        }
        Ok(CatchUp { count, max_age })
    }

    /// The most slots that are run.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The greatest age of a slot that is run.
    pub const fn max_age(&self) -> Duration {
        self.max_age
    }
}

impl Default for CatchUp {
    fn default() -> Self {
        CatchUp { count: 1, max_age: Duration::from_secs(86_400) }
    }
}

/// Up to when a job's slots are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// The job was never run, and nobody knows since when it exists: only its newest slot can be due.
    Never,
    /// Every slot up to this time is settled, or was before the job existed.
    Settled(Timestamp),
    /// Slots were claimed or settled while the store's clock was ahead of its present time, so none can be claimed
    /// until that time comes. Slots that came due after this time have no fate yet.
    Ahead(Timestamp),
}

/// Why a slot is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The slot is older than the policy's age.
    TooOld,
    /// A newer slot is run instead.
    Coalesced,
    /// A slot that is still in the future was claimed while the store's clock was ahead.
    ClockAhead,
}

impl DropReason {
    /// The counter for slots dropped for this reason.
    pub const fn event(self) -> Event {
        match self {
            DropReason::TooOld => Event::DroppedTooOld,
            DropReason::Coalesced => Event::DroppedCoalesced,
            DropReason::ClockAhead => Event::DroppedClockAhead,
        }
    }
}

/// Consecutive slots that are dropped for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// The oldest slot, or the oldest that was counted if not all were.
    pub first: Slot,
    /// The newest slot.
    pub last: Slot,
    /// How many slots were counted.
    pub count: u64,
    /// Whether there are more than were counted.
    pub more: bool,
    /// Why they are dropped.
    pub reason: DropReason,
    /// The slot before the oldest one, so that consecutive spans are recorded as one.
    pub before: Option<Slot>,
}

/// What to do about the slots that are due.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// Slots to run, oldest first.
    pub run: Vec<Slot>,
    /// Slots that are not run, oldest first.
    pub dropped: Vec<Dropped>,
}

/// Decides about every slot up to `now`. `settled` returns whether a slot's fate is already known.
pub fn due(schedule: &Schedule, now: Timestamp, last: Last, policy: CatchUp, settled: impl Fn(Slot) -> bool) -> Due {
    let after = match last {
        Last::Never => None,
        Last::Settled(at) | Last::Ahead(at) => Some(at),
    };
    let is_ahead = matches!(last, Last::Ahead(_));
    let mut due = Due::default();
    let mut counted = 0;
    let mut next = schedule.latest(now);
    while let Some(slot) = next.filter(|slot| after.is_none_or(|after| slot.0 > after)) {
        next = if last == Last::Never { None } else { schedule.before(slot) };
        if settled(slot) {
            continue;
        }
        let too_old = now.saturating_since(slot.0) > policy.max_age;
        if !is_ahead && !too_old && due.run.len() < policy.count as usize {
            due.run.push(slot);
            continue;
        }
        let reason = match (is_ahead, too_old) {
            (true, _) => DropReason::ClockAhead,
            (false, true) => DropReason::TooOld,
            (false, false) => DropReason::Coalesced,
        };
        counted += 1;
        let more = counted == COUNTED && next.is_some_and(|next| after.is_none_or(|after| next.0 > after));
        match due.dropped.last_mut().filter(|dropped| dropped.reason == reason) {
            Some(dropped) => (dropped.first, dropped.count, dropped.more) = (slot, dropped.count + 1, more),
            None => due.dropped.push(Dropped { first: slot, last: slot, count: 1, more, reason, before: None }),
        }
        if counted == COUNTED {
            break;
        }
    }
    for dropped in &mut due.dropped {
        dropped.before = schedule.before(dropped.first);
    }
    due.run.reverse();
    due.dropped.reverse();
    due
}

/// What to do about a slot whose run died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// Run it again, before newer ones.
    Again(Slot),
    /// It was run as often as allowed, or is too old: record that it is not run again.
    Died(Slot),
    /// Its fate is recorded: newer slots may be claimed.
    Settled(Slot),
}

/// A slot to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The slot that may be run.
    pub slot: Slot,
    /// The older slot whose run died, and which this claim gives up.
    pub gives_up: Option<Slot>,
    /// Whether its own run died before. Then it is run in addition to those that are due.
    pub is_recovery: bool,
}

/// What to do about a job's slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The slot whose run died, if there is one.
    pub interrupted: Option<Interrupted>,
    /// The slots that came after it.
    pub due: Due,
    /// The newest slot that is claimed or settled although it is in the future: the store's clock was ahead. Nothing is
    /// run until that time has come, or an operator sets the mark back.
    pub ahead: Option<Slot>,
}

impl Plan {
    /// The plan for a job whose lease has this record and which has this journal, at the store's time.
    pub fn of(schedule: &Schedule, record: &Ownership, journal: &Journal, policy: CatchUp, now: Timestamp) -> Self {
        let last = record.slot.map(|mark| mark.slot).max(journal.settled_until());
        let ahead = last.filter(|last| last.0 > now.plus(AHEAD));
        let from = match (last, ahead) {
            (None, _) => Last::Never,
            (Some(last), None) => Last::Settled(last.0),
            (Some(_), Some(_)) => Last::Ahead(journal.told_until(now)),
        };
        let interrupted = record.interrupted_slot(now).filter(|_| ahead.is_none());
        Plan {
            interrupted: interrupted.map(|mark| recovery(mark, journal, policy, now)),
            due: due(schedule, now, from, policy, |slot| journal.is_settled(slot)),
            ahead,
        }
    }

    /// The same in the usual case, which needs no journal: the previous slot is settled, and this one has just come.
    pub fn without_journal(schedule: &Schedule, record: &Ownership, policy: CatchUp, now: Timestamp) -> Option<Self> {
        let mark = record.slot.filter(|mark| mark.state != SlotState::Running && mark.slot.0 <= now)?;
        let due = due(schedule, now, Last::Settled(mark.slot.0), policy, |_| false);
        let is_fresh = |slot: &Slot| now.saturating_since(slot.0) < FRESH;
        let is_usual = due.dropped.is_empty() && due.run.iter().all(is_fresh);
        is_usual.then_some(Plan { interrupted: None, due, ahead: None })
    }

    /// What to claim, in order. A paused job does not resume a slot whose run died.
    pub fn candidates(&self, record: &Ownership) -> Vec<Candidate> {
        let again = match self.interrupted {
            Some(Interrupted::Again(slot)) if record.paused.is_none() => Some(slot),
            _ => None,
        };
        let recovery = again.map(|slot| Candidate { slot, gives_up: None, is_recovery: true });
        let gives_up = self.gives_up();
        let due = self.due.run.iter().map(|slot| Candidate { slot: *slot, gives_up, is_recovery: false });
        recovery.into_iter().chain(due).collect()
    }

    /// Whether a slot whose run died waits only because the job is paused.
    pub const fn waits_for_resume(&self, record: &Ownership) -> bool {
        record.paused.is_some() && matches!(self.interrupted, Some(Interrupted::Again(_)))
    }

    /// The slot that a claim of a newer one gives up.
    pub const fn gives_up(&self) -> Option<Slot> {
        match self.interrupted {
            Some(Interrupted::Died(slot) | Interrupted::Settled(slot)) => Some(slot),
            Some(Interrupted::Again(_)) | None => None,
        }
    }
}

fn recovery(mark: SlotMark, journal: &Journal, policy: CatchUp, now: Timestamp) -> Interrupted {
    if journal.is_settled(mark.slot) {
        return Interrupted::Settled(mark.slot);
    }
    let may_run = mark.runs < SLOT_RUNS && now.saturating_since(mark.slot.0) <= policy.max_age();
    if may_run { Interrupted::Again(mark.slot) } else { Interrupted::Died(mark.slot) }
}

/// Whether a past slot still has to be run, when an operator asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackfillNeed {
    /// No: it has succeeded.
    Done,
    /// Yes: it failed, or was never run.
    Needed,
    /// Unknown: it has a fate that the journal no longer knows.
    Unknown,
}

impl BackfillNeed {
    /// Decides by everything known about the job, and by the slot's fate in an earlier backfill.
    pub fn of(known: &Known<'_>, backfilled: Option<SlotState>, slot: Slot) -> Self {
        match backfilled {
            _ if known.has_succeeded(slot) => BackfillNeed::Done,
            Some(SlotState::Done) => BackfillNeed::Done,
            Some(_) => BackfillNeed::Needed,
            None if known.may_have_succeeded(slot) || known.journal.has_forgotten(slot) => BackfillNeed::Unknown,
            None => BackfillNeed::Needed,
        }
    }
}

/// Everything known about a job.
#[derive(Debug)]
pub struct Known<'a> {
    /// The record of its lease.
    pub record: &'a Ownership,
    /// Every transfer of the lease, including those that the record has dropped.
    pub history: &'a History,
    /// What became of its slots.
    pub journal: &'a Journal,
}

impl Known<'_> {
    /// Whether this slot is known to have succeeded. The lease's own transfers show successes that the journal missed
    /// because the store was unreachable or the run was killed.
    pub fn has_succeeded(&self, slot: Slot) -> bool {
        let is_done = self.record.slot.is_some_and(|mark| mark.slot == slot && mark.state == SlotState::Done);
        let mut runs = self.history.transfers.iter().filter(|transfer| transfer.slot == Some(slot));
        let ran_well = runs.any(|transfer| transfer.outcome == Some(Outcome::Succeeded));
        is_done || ran_well || self.journal.has_succeeded(slot)
    }

    /// Whether a transfer is missing that could show a success which the journal missed.
    fn may_have_succeeded(&self, slot: Slot) -> bool {
        let is_known = |epoch: &Epoch| self.history.transfers.iter().any(|transfer| transfer.epoch == *epoch);
        let begun = self.journal.entries.iter().filter(|entry| entry.slot == slot && entry.last.is_none());
        let is_lost = begun.filter_map(|entry| entry.epoch).any(|epoch| !is_known(&epoch));
        (is_lost || !self.history.damaged.is_empty()) && !self.journal.is_settled(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::lease::protocol::{AfterFailure, Decision, Order, Request, SlotClaim, decide};
    use leasehold_core::{Claim, HolderId, Lineage, Nonce, Ttl};

    const HOUR: u64 = 3_600_000;

    fn slot(hour: u64) -> Slot {
        Slot(Timestamp::from_millis(1_800_000_000_000 + hour * HOUR))
    }

    fn hourly() -> Schedule {
        Schedule::every(Duration::from_millis(HOUR)).unwrap()
    }

    fn after(record: &Ownership, request: &Request, now: Timestamp) -> Ownership {
        match decide(record, request, now) {
            Decision::Write(next) => *next,
            other => panic!("{other:?}"),
        }
    }

    fn begun(record: &Ownership, at: Slot, gives_up: Option<Slot>) -> Ownership {
        let claim = SlotClaim { gives_up, ..SlotClaim::new(at, AfterFailure::Leave) };
        let holder = HolderId::new(None);
        let (lineage, slot) = (Lineage::from_u128(1), Some(claim));
        let request = Request::Acquire { lineage, holder, ttl: Ttl::MIN, slot, spacing: None, requested: None };
        after(record, &request, at.0)
    }

    fn ended(record: &Ownership, outcome: Outcome) -> Ownership {
        let tenure = record.tenure.as_ref().unwrap();
        let claim = Claim { epoch: record.epoch, nonce: tenure.holder.nonce() };
        after(record, &Request::Release { claim, outcome }, tenure.granted_at)
    }

    #[test]
    fn a_slot_whose_run_died_is_claimed_before_the_newest_one_that_is_due() {
        let record = begun(&Ownership::default(), slot(1), None);
        let plan = Plan::of(&hourly(), &record, &Journal::default(), CatchUp::default(), slot(3).0);
        let recovery = Candidate { slot: slot(1), gives_up: None, is_recovery: true };
        let newest = Candidate { slot: slot(3), gives_up: None, is_recovery: false };
        assert_eq!(plan.candidates(&record), [recovery, newest]);
        assert_eq!(
            plan.due.dropped.iter().map(|d| (d.first, d.reason)).collect::<Vec<_>>(),
            [(slot(2), DropReason::Coalesced)]
        );
    }

    #[test]
    fn a_paused_job_does_not_take_up_what_died_and_a_given_up_slot_goes_with_the_next_claim() {
        let record = begun(&Ownership::default(), slot(1), None);
        let pause = Request::Operate {
            by: "ann".parse().unwrap(),
            why: "upgrade".parse().unwrap(),
            nonce: Nonce::random(),
            lineage: Lineage::from_u128(1),
            expected: None,
            order: Order::Pause,
        };
        let paused = after(&record, &pause, slot(2).0);
        let plan = Plan::of(&hourly(), &paused, &Journal::default(), CatchUp::default(), slot(2).0);
        assert_eq!(plan.candidates(&paused).iter().map(|c| c.slot).collect::<Vec<_>>(), [slot(2)]);
        let policy = CatchUp::new(1, Duration::from_secs(60)).unwrap();
        let plan = Plan::of(&hourly(), &record, &Journal::default(), policy, slot(2).0);
        let expected = Candidate { slot: slot(2), gives_up: Some(slot(1)), is_recovery: false };
        assert_eq!((plan.interrupted, plan.candidates(&record)), (Some(Interrupted::Died(slot(1))), vec![expected]));
    }

    #[test]
    fn a_fresh_slot_after_a_settled_one_needs_no_journal_and_an_older_one_does() {
        let record = ended(&begun(&Ownership::default(), slot(1), None), Outcome::Succeeded);
        let look = |now| Plan::without_journal(&hourly(), &record, CatchUp::default(), now);
        let fresh = look(slot(2).0).unwrap();
        assert_eq!(fresh, Plan::of(&hourly(), &record, &Journal::default(), CatchUp::default(), slot(2).0));
        assert!(look(slot(2).0.plus(FRESH)).is_none() && look(slot(3).0).is_none());
    }

    #[test]
    fn nothing_is_claimed_while_the_stores_clock_was_ahead() {
        let record = ended(&begun(&Ownership::default(), slot(9), None), Outcome::Succeeded);
        let plan = Plan::of(&hourly(), &record, &Journal::default(), CatchUp::default(), slot(3).0);
        assert_eq!((plan.ahead, plan.candidates(&record)), (Some(slot(9)), Vec::new()));
    }

    #[test]
    fn a_backfill_runs_what_failed_and_asks_about_what_was_forgotten() {
        let record = ended(&begun(&Ownership::default(), slot(1), None), Outcome::Succeeded);
        let journal = Journal { forgotten_to: Some(slot(3)), ..Journal::default() };
        let history = History { transfers: record.transfers.clone(), damaged: Vec::new() };
        let need = |journal: &Journal, backfilled, at| {
            BackfillNeed::of(&Known { record: &record, history: &history, journal }, backfilled, at)
        };
        assert_eq!(need(&Journal::default(), Some(SlotState::Failed), slot(1)), BackfillNeed::Done);
        assert_eq!(need(&journal, Some(SlotState::Done), slot(2)), BackfillNeed::Done);
        assert_eq!(need(&journal, Some(SlotState::Failed), slot(2)), BackfillNeed::Needed);
        assert_eq!(need(&journal, None, slot(2)), BackfillNeed::Unknown);
        assert_eq!(need(&Journal::default(), None, slot(2)), BackfillNeed::Needed);
    }

    #[test]
    fn a_backfill_runs_nothing_that_the_archive_knows_to_have_succeeded_or_may_have_known() {
        let mut record = ended(&begun(&Ownership::default(), slot(1), None), Outcome::Succeeded);
        record = ended(&begun(&record, slot(2), None), Outcome::Failed);
        let transfers = std::mem::take(&mut record.transfers);
        let need = |history: &History, at| {
            BackfillNeed::of(&Known { record: &record, history, journal: &Journal::default() }, None, at)
        };
        let archived = History { transfers, damaged: Vec::new() };
        assert_eq!((need(&archived, slot(1)), need(&archived, slot(2))), (BackfillNeed::Done, BackfillNeed::Needed));
        let lost = Error::new(leasehold_core::Kind::Corrupt, "a segment is damaged");
        let damaged = History { transfers: Vec::new(), damaged: vec![lost] };
        assert_eq!(need(&damaged, slot(1)), BackfillNeed::Unknown);
    }
}
