//! The one protocol: `decide(record, request, now)` is the only code that advances an epoch.
//!
//! Promise: a pure function. It reads no clock, draws no randomness and does no I/O, so the coordinator, the model
//! checker, the simulator and the property tests all run this very code.
//! Non-promise: it does not know whether the next record was stored. Only a store's swap makes it true.
//!
//! Rules, each a property in `tests/protocol.rs` and in the model in `sim/`:
//! - a transfer advances the epoch by at least one; nothing else moves it, and nothing moves it down;
//! - only the holder (epoch and nonce) renews, releases, reports or completes;
//! - time decides only when somebody else may try; completion and release depend on the epoch alone;
//! - a request that was already applied is recognised by its nonce and changes nothing.

mod import;

use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::nonce::{Lineage, Nonce};
use crate::ownership::{OperatorMark, Ownership, Progress, Slot, SlotMark, SlotState, TRANSFERS_KEPT, Tenure};
use crate::text::{Checkpoint, Marker, Who, Why};
use crate::time::{Timestamp, Ttl};
use crate::token::Claim;
use crate::transfer::{Outcome, Reason, Transfer};
use std::sync::Arc;

/// What somebody asks of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Become the holder.
    Acquire {
        /// The lineage of the record, if this turns out to write its first version.
        lineage: Lineage,
        /// Who asks; its nonce is the grant's.
        holder: HolderId,
        /// How long the grant lasts unless renewed.
        ttl: Ttl,
        /// The scheduled slot to claim in the same step.
        slot: Option<SlotClaim>,
    },
    /// Stay the holder.
    Renew {
        /// Which tenure.
        claim: Claim,
        /// How long from now.
        ttl: Ttl,
        /// Evidence that the work moves, if there is new evidence.
        progress: Option<Report>,
    },
    /// Stop being the holder.
    Release {
        /// Which tenure.
        claim: Claim,
        /// How the work went. [`Outcome::Expired`] and [`Outcome::Evicted`] are not the holder's to say, and are taken
        /// as [`Outcome::Lost`].
        outcome: Outcome,
    },
    /// Record how far the work has come.
    Checkpoint {
        /// Which tenure.
        claim: Claim,
        /// What to record.
        report: Report,
    },
    /// Record that the claimed slot's run is over, while staying the holder.
    Complete {
        /// Which tenure.
        claim: Claim,
        /// How it went: [`Outcome::Succeeded`] makes the slot done, [`Outcome::Failed`] failed; anything else leaves
        /// it open for another run to recover.
        outcome: Outcome,
    },
    /// An operator's request.
    Operate {
        /// Unique to this request, so that a lost reply does not apply it twice.
        nonce: Nonce,
        /// The lineage of the record, if this turns out to write its first version.
        lineage: Lineage,
        /// Who asks.
        by: Who,
        /// Why.
        why: Why,
        /// What for.
        order: Order,
    },
}

/// What an operator may order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Order {
    /// Take the lease from whoever holds it; anyone may acquire it next.
    Revoke,
    /// Take it from whoever holds it and give it to this one in the same step.
    HandOff {
        /// The new holder.
        to: HolderId,
        /// How long its grant lasts unless renewed.
        ttl: Ttl,
    },
    /// Keep new holders out. The present one goes on.
    Pause,
    /// Keep new holders out for good, whatever pause there was: the lease goes on elsewhere.
    Retire,
    /// Let holders in again.
    Resume,
    /// Move the epoch past this number: repairs a store that was restored from an old backup.
    Advance {
        /// The highest epoch that some guard has seen.
        past: Epoch,
        /// The lineage that guards know, where the record was lost and has begun a line of its own.
        lineage: Option<Lineage>,
    },
    /// Take over the record that this lease has in another store, so that its epochs go on from there. Refused while
    /// somebody holds the lease here. A lease that has a life of its own here keeps its history.
    Import {
        /// The record there.
        record: Box<Ownership>,
    },
}

/// A slot to be claimed with the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotClaim {
    /// The slot's nominal instant.
    pub slot: Slot,
    /// What to do when that slot already ran and failed.
    pub after_failure: AfterFailure,
}

/// What a failed run of a slot means for a new claim on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AfterFailure {
    /// It ran: leave it.
    Leave,
    /// Run it again.
    Retry,
}

/// Evidence of progress.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Report {
    /// How far the work has come.
    pub marker: Option<Marker>,
    /// What the next attempt needs; the old checkpoint stays when this is none.
    pub checkpoint: Option<Checkpoint>,
}

/// The answer of [`decide`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Store this record; if the swap succeeds, the request is granted.
    Write(Box<Ownership>),
    /// The record shows that this very request was applied before: it is granted, nothing is to be written.
    AlreadyApplied,
    /// No.
    Refuse(Refusal),
}

/// Why a request is refused. None of these is an error of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody holds it.
    Held {
        /// The tenure in the way.
        tenure: Tenure,
        /// Its epoch.
        epoch: Epoch,
    },
    /// An operator keeps new holders out, or did so already when asked to pause.
    Paused(OperatorMark),
    /// That slot has run, or a later one was claimed; or the slot was completed with another outcome.
    AlreadyRun(SlotMark),
    /// The one who asks is not, or no longer, the holder.
    Lost {
        /// The record's epoch.
        seen: Epoch,
        /// Who holds it now, if anyone.
        holder: Option<HolderId>,
        /// Why the epoch last moved, if it did.
        reason: Option<Reason>,
    },
    /// The tenure had been released by the one who asks.
    AlreadyReleased {
        /// How it ended.
        outcome: Outcome,
    },
    /// Nobody ever held a lease of this name, so there is nothing to operate on.
    NeverHeld,
    /// There is no pause to end.
    NotPaused,
    /// There is no claimed slot to complete.
    NoSlot,
    /// An operator gave the record a lineage before; a second one would fence what the first has healed.
    LineageFixed {
        /// The lineage that it has.
        lineage: Option<Lineage>,
    },
    /// No epoch is left.
    Exhausted,
}

/// Decides a request against a record at a store time.
///
/// ```
/// use leasehold::{protocol::{Decision, Request, decide}, HolderId, Lineage, Ownership, Timestamp, Ttl};
/// let request = Request::Acquire { lineage: Lineage::random(), holder: HolderId::new(None), ttl: Ttl::MIN, slot: None };
/// let Decision::Write(next) = decide(&Ownership::default(), &request, Timestamp::from_millis(0)) else { panic!() };
/// assert_eq!(next.epoch.get(), 1);
/// ```
pub fn decide(record: &Ownership, request: &Request, now: Timestamp) -> Decision {
    let decided = match request {
        Request::Acquire { holder, ttl, slot, .. } => acquire(record, holder, *ttl, *slot, now),
        Request::Renew { claim, ttl, progress } => renew(record, *claim, *ttl, progress.as_ref(), now),
        Request::Release { claim, outcome } => release(record, *claim, *outcome, now),
        Request::Checkpoint { claim, report } => checkpoint(record, *claim, report, now),
        Request::Complete { claim, outcome } => complete(record, *claim, *outcome),
        Request::Operate { nonce, by, why, order, .. } => {
            operate(record, OperatorMark { by: by.clone(), why: why.clone(), at: now, nonce: *nonce }, order)
        }
    };
    match decided {
        Ok(Some(mut next)) => {
            if let (None, Request::Acquire { lineage, .. } | Request::Operate { lineage, .. }) = (next.lineage, request)
            {
                next.lineage = Some(*lineage);
            }
            Decision::Write(Box::new(next))
        }
        Ok(None) => Decision::AlreadyApplied,
        Err(refusal) => Decision::Refuse(refusal),
    }
}

/// `Ok(None)` is "already applied".
type Decided = Result<Option<Ownership>, Refusal>;

fn acquire(record: &Ownership, holder: &HolderId, ttl: Ttl, slot: Option<SlotClaim>, now: Timestamp) -> Decided {
    if record.transfer_by(holder.nonce).is_some() {
        return found_own_grant(record, holder.nonce, now);
    }
    let recovers = match slot {
        Some(claim) => slot_is_open(record, claim)?,
        None => false,
    };
    if let Some(tenure) = record.live_tenure(now) {
        return Err(Refusal::Held { tenure: tenure.clone(), epoch: record.epoch });
    }
    if let Some(mark) = &record.paused {
        return Err(Refusal::Paused(mark.clone()));
    }
    let reason = if recovers { Reason::Recovered } else { why_free(record) };
    let mut next = transfer(record, now, holder.nonce, reason, Outcome::Expired)?;
    grant(&mut next, holder, ttl, now);
    if let Some(claim) = slot {
        next.slot = Some(SlotMark { slot: claim.slot, state: SlotState::Running, epoch: next.epoch });
        next.amend_last(|last| last.slot = Some(claim.slot));
    }
    Ok(Some(next))
}

/// The grant under this nonce was made before and its reply was lost. It counts only while it lasts: whoever takes the
/// record's epoch for its own when another has been granted the lease since, has a token of another's epoch.
fn found_own_grant(record: &Ownership, nonce: Nonce, now: Timestamp) -> Decided {
    let still_ours = record.live_tenure(now).is_some_and(|t| t.holder.nonce == nonce);
    if still_ours { Ok(None) } else { Err(lost(record)) }
}

/// Whether a slot may be claimed, and if so whether that recovers a run that died.
fn slot_is_open(record: &Ownership, claim: SlotClaim) -> Result<bool, Refusal> {
    let Some(mark) = record.slot else { return Ok(false) };
    if claim.slot > mark.slot {
        return Ok(false);
    }
    if claim.slot < mark.slot {
        return Err(Refusal::AlreadyRun(mark));
    }
    match (mark.state, claim.after_failure) {
        (SlotState::Running, _) | (SlotState::Failed, AfterFailure::Retry) => Ok(true),
        (SlotState::Done, _) | (SlotState::Failed, AfterFailure::Leave) => Err(Refusal::AlreadyRun(mark)),
    }
}

fn renew(record: &Ownership, claim: Claim, ttl: Ttl, progress: Option<&Report>, now: Timestamp) -> Decided {
    if !record.is_held_by(claim) || record.live_tenure(now).is_none() {
        return Err(lost(record));
    }
    let mut next = record.clone();
    if let Some(tenure) = &mut next.tenure {
        tenure.deadline = now.plus(ttl.get());
        tenure.ttl = ttl;
    }
    if let Some(report) = progress {
        note_progress(&mut next, report, now);
    }
    Ok(Some(next))
}

fn release(record: &Ownership, claim: Claim, outcome: Outcome, now: Timestamp) -> Decided {
    if !record.is_held_by(claim) {
        let own = record.transfers.iter().find(|t| t.epoch == claim.epoch && t.nonce == claim.nonce);
        return Err(match own.and_then(|t| t.outcome) {
            Some(outcome @ (Outcome::Succeeded | Outcome::Failed | Outcome::Lost)) => {
                Refusal::AlreadyReleased { outcome }
            }
            _ => lost(record),
        });
    }
    // What ends by release did not expire and was not evicted: the audit trail would lie, and the release could not be
    // recognised when its reply is lost.
    let outcome = if matches!(outcome, Outcome::Expired | Outcome::Evicted) { Outcome::Lost } else { outcome };
    let mut next = record.clone();
    end_tenure(&mut next, now, outcome);
    close_slot(&mut next, claim.epoch, outcome);
    Ok(Some(next))
}

fn checkpoint(record: &Ownership, claim: Claim, report: &Report, now: Timestamp) -> Decided {
    if !record.is_held_by(claim) {
        return Err(lost(record));
    }
    let mut next = record.clone();
    note_progress(&mut next, report, now);
    Ok(Some(next))
}

fn complete(record: &Ownership, claim: Claim, outcome: Outcome) -> Decided {
    if !record.is_held_by(claim) {
        return Err(lost(record));
    }
    let Some(mark) = record.slot.filter(|mark| mark.epoch == claim.epoch) else { return Err(Refusal::NoSlot) };
    match (mark.state, slot_end(outcome)) {
        (SlotState::Running, Some(_)) => {
            let mut next = record.clone();
            close_slot(&mut next, claim.epoch, outcome);
            Ok(Some(next))
        }
        (state, end) if end.is_none_or(|end| end == state) => Ok(None),
        // Two completions that contradict each other: the first stands.
        _ => Err(Refusal::AlreadyRun(mark)),
    }
}

fn operate(record: &Ownership, mark: OperatorMark, order: &Order) -> Decided {
    let now = mark.at;
    // The new holder's own nonce marks a hand-off, so that its later release finds the transfer that began it.
    let nonce = if let Order::HandOff { to, .. } = order { to.nonce } else { mark.nonce };
    if record.transfer_by(nonce).is_some() {
        return if let Order::HandOff { .. } = order { found_own_grant(record, nonce, now) } else { Ok(None) };
    }
    match order {
        Order::Pause => match &record.paused {
            Some(old) if old.nonce == nonce => Ok(None),
            Some(old) => Err(Refusal::Paused(old.clone())),
            None => Ok(Some(Ownership { paused: Some(mark), ..record.clone() })),
        },
        Order::Retire if record.paused.as_ref().is_some_and(|old| old.nonce == nonce) => Ok(None),
        Order::Retire => Ok(Some(Ownership { paused: Some(mark), ..record.clone() })),
        Order::Resume if record.paused.is_none() => match &record.resumed {
            Some(old) if old.nonce == nonce => Ok(None),
            _ => Err(Refusal::NotPaused),
        },
        Order::Resume => Ok(Some(Ownership { paused: None, resumed: Some(mark), ..record.clone() })),
        Order::Revoke if record.epoch == Epoch::ZERO => Err(Refusal::NeverHeld),
        Order::Revoke => {
            let mut next = transfer(record, now, nonce, Reason::Revoked, Outcome::Evicted)?;
            sign(&mut next, mark);
            Ok(Some(next))
        }
        Order::HandOff { to, ttl } => {
            let mut next = transfer(record, now, nonce, Reason::HandedOff, Outcome::Evicted)?;
            grant(&mut next, to, *ttl, now);
            sign(&mut next, mark);
            pass_slot_on(&mut next, record.epoch);
            Ok(Some(next))
        }
        Order::Advance { past, lineage } => {
            let mut next = advance(record, mark, *past)?;
            if let Some(lineage) = lineage.filter(|lineage| Some(*lineage) != record.lineage) {
                if record.healed {
                    return Err(Refusal::LineageFixed { lineage: record.lineage });
                }
                (next.lineage, next.healed) = (Some(lineage), record.lineage.is_some());
            }
            Ok(Some(next))
        }
        Order::Import { record: other } => import::import(record, mark, other),
    }
}

fn advance(record: &Ownership, mark: OperatorMark, past: Epoch) -> Result<Ownership, Refusal> {
    let mut next = transfer(record, mark.at, mark.nonce, Reason::Advanced, Outcome::Evicted)?;
    if next.epoch <= past {
        let epoch = past.next().ok_or(Refusal::Exhausted)?;
        next.epoch = epoch;
        next.amend_last(|last| last.epoch = epoch);
    }
    sign(&mut next, mark);
    Ok(next)
}

/// Advances the epoch: ends the tenure there was, as `ending` if it was not released, and opens a transfer.
fn transfer(
    record: &Ownership,
    now: Timestamp,
    nonce: Nonce,
    reason: Reason,
    ending: Outcome,
) -> Result<Ownership, Refusal> {
    let mut next = record.clone();
    let from = next.tenure.as_ref().map(|t| t.holder.clone());
    end_tenure(&mut next, now, ending);
    next.epoch = record.epoch.next().ok_or(Refusal::Exhausted)?;
    next.transfers.push(Arc::new(Transfer {
        epoch: next.epoch,
        at: now,
        reason,
        nonce,
        from,
        to: None,
        by: None,
        why: None,
        slot: None,
        held_for_ms: None,
        outcome: None,
    }));
    let excess = next.transfers.len().saturating_sub(TRANSFERS_KEPT);
    next.transfers.drain(..excess);
    Ok(next)
}

fn grant(next: &mut Ownership, to: &HolderId, ttl: Ttl, now: Timestamp) {
    next.tenure = Some(Tenure { holder: to.clone(), granted_at: now, deadline: now.plus(ttl.get()), ttl });
    next.amend_last(|last| last.to = Some(to.clone()));
}

fn sign(next: &mut Ownership, mark: OperatorMark) {
    next.amend_last(|last| (last.by, last.why) = (Some(mark.by), Some(mark.why)));
}

/// A slot that was running under `from` goes on under the new epoch: who takes the lease over takes the work over.
fn pass_slot_on(next: &mut Ownership, from: Epoch) {
    let Some(mark) = next.slot.as_mut().filter(|m| m.epoch == from && m.state == SlotState::Running) else { return };
    mark.epoch = next.epoch;
    let slot = mark.slot;
    next.amend_last(|last| last.slot = Some(slot));
}

/// Writes the end of the present tenure, if there is one, into the transfer that began it.
fn end_tenure(next: &mut Ownership, now: Timestamp, outcome: Outcome) {
    let Some(tenure) = next.tenure.take() else { return };
    // A tenure that ran out lasted until its deadline, not until somebody noticed.
    let end = if outcome == Outcome::Expired { tenure.deadline.min(now) } else { now };
    if let Some(began) = next.transfers.iter_mut().rev().find(|t| t.epoch == next.epoch) {
        let began = Arc::make_mut(began);
        began.held_for_ms = Some(end.as_millis().saturating_sub(tenure.granted_at.as_millis()));
        began.outcome = Some(outcome);
    }
}

/// What an outcome makes of a running slot. A run that lost its lease did not finish its slot: that stays open for
/// another to recover.
fn slot_end(outcome: Outcome) -> Option<SlotState> {
    match outcome {
        Outcome::Succeeded => Some(SlotState::Done),
        Outcome::Failed => Some(SlotState::Failed),
        Outcome::Lost | Outcome::Expired | Outcome::Evicted => None,
    }
}

fn close_slot(next: &mut Ownership, epoch: Epoch, outcome: Outcome) {
    let running = next.slot.as_mut().filter(|m| m.epoch == epoch && m.state == SlotState::Running);
    if let (Some(mark), Some(end)) = (running, slot_end(outcome)) {
        mark.state = end;
    }
}

fn note_progress(next: &mut Ownership, report: &Report, now: Timestamp) {
    let kept = next.progress.take().and_then(|p| p.checkpoint);
    next.progress = Some(Progress {
        at: now,
        epoch: next.epoch,
        marker: report.marker.clone(),
        checkpoint: report.checkpoint.clone().or(kept),
    });
}

/// Why a lease that nobody holds in time is there to be had.
fn why_free(record: &Ownership) -> Reason {
    if record.tenure.is_some() {
        return Reason::Expired;
    }
    match record.transfers.last() {
        None => Reason::First,
        Some(last) if last.to.is_none() => last.reason,
        Some(_) => Reason::Released,
    }
}

fn lost(record: &Ownership) -> Refusal {
    Refusal::Lost {
        seen: record.epoch,
        holder: record.tenure.as_ref().map(|t| t.holder.clone()),
        reason: record.transfers.last().map(|t| t.reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(nonce: u128) -> HolderId {
        HolderId {
            host: "h".into(),
            pid: 1,
            nonce: Nonce::from_u128(nonce),
            label: crate::text::Label::lossy("x", "x"),
        }
    }

    fn written(decision: Decision) -> Ownership {
        match decision {
            Decision::Write(next) => *next,
            other => panic!("nothing to write: {other:?}"),
        }
    }

    #[test]
    fn a_hand_off_whose_reply_was_lost_claims_no_later_epoch() {
        let (start, late) = (Timestamp::from_millis(0), Timestamp::from_millis(5_000));
        let hand_off = Request::Operate {
            nonce: Nonce::from_u128(9),
            lineage: Lineage::from_u128(1),
            by: Who::lossy("ops", "ops"),
            why: Why::lossy("drill", "drill"),
            order: Order::HandOff { to: holder(1), ttl: Ttl::MIN },
        };
        let handed = written(decide(&Ownership::default(), &hand_off, start));
        assert_eq!(decide(&handed, &hand_off, start), Decision::AlreadyApplied);
        let acquire = Request::Acquire { lineage: Lineage::from_u128(1), holder: holder(2), ttl: Ttl::MIN, slot: None };
        let taken = written(decide(&handed, &acquire, late));
        assert!(matches!(decide(&taken, &hand_off, late), Decision::Refuse(Refusal::Lost { .. })));
    }

    #[test]
    fn an_import_goes_on_above_both_epochs_and_never_takes_a_held_lease() {
        let start = Timestamp::from_millis(0);
        let acquire = |nonce| Request::Acquire {
            lineage: Lineage::from_u128(1),
            holder: holder(nonce),
            ttl: Ttl::MIN,
            slot: None,
        };
        let import = |record: &Ownership| Request::Operate {
            nonce: Nonce::from_u128(9),
            lineage: Lineage::from_u128(1),
            by: Who::lossy("ops", "ops"),
            why: Why::lossy("moved", "moved"),
            order: Order::Import { record: Box::new(record.clone()) },
        };
        let mut there = Ownership::default();
        for turn in 1..=5 {
            there = written(decide(&there, &acquire(turn), Timestamp::from_millis(turn as u64 * 10_000)));
        }
        let fresh = written(decide(&Ownership::default(), &import(&there), start));
        assert_eq!((fresh.epoch.get(), fresh.tenure.is_none(), fresh.transfers.len()), (6, true, 6));
        assert_eq!(decide(&fresh, &import(&there), start), Decision::AlreadyApplied);

        let here = written(decide(&Ownership::default(), &acquire(7), start));
        assert!(matches!(decide(&here, &import(&there), start), Decision::Refuse(Refusal::Held { .. })));
        let late = Timestamp::from_millis(5_000);
        let both = written(decide(&here, &import(&there), late));
        assert_eq!((both.epoch.get(), both.transfers.len()), (6, 2));
        assert_eq!(decide(&there, &import(&here), Timestamp::from_millis(0)), Decision::AlreadyApplied);
    }

    #[test]
    fn a_slot_that_ran_elsewhere_does_not_run_again_where_the_lease_is_moved_to() {
        let at = Timestamp::from_millis;
        let claim = |slot| SlotClaim { slot: Slot(at(slot)), after_failure: AfterFailure::Retry };
        let acquire = |nonce, slot| Request::Acquire {
            lineage: Lineage::from_u128(1),
            holder: holder(nonce),
            ttl: Ttl::MIN,
            slot: Some(claim(slot)),
        };
        let ran = |nonce: u128, slot, record: &Ownership| {
            let held = written(decide(record, &acquire(nonce, slot), at(slot)));
            let claim = Claim { epoch: held.epoch, nonce: Nonce::from_u128(nonce) };
            let release = Request::Release { claim, outcome: Outcome::Succeeded };
            written(decide(&held, &release, at(slot)))
        };
        let there = ran(1, 9_000, &Ownership::default());
        let here = ran(3, 5_000, &ran(2, 4_000, &Ownership::default()));
        assert!(here.epoch > there.epoch);
        let import = Request::Operate {
            nonce: Nonce::from_u128(9),
            lineage: Lineage::from_u128(1),
            by: Who::lossy("ops", "ops"),
            why: Why::lossy("moved", "moved"),
            order: Order::Import { record: Box::new(there) },
        };
        let both = written(decide(&here, &import, at(9_500)));
        assert!(both.epoch > here.epoch);
        let again = decide(&both, &acquire(4, 9_000), at(9_600));
        assert!(matches!(again, Decision::Refuse(Refusal::AlreadyRun(_))), "{again:?}");
        assert_eq!(decide(&both, &import, at(9_700)), Decision::AlreadyApplied);
    }
}
