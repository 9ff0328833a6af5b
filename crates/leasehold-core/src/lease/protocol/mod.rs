//! The one protocol: `decide(record, request, now)` is the only code that advances an epoch.
//!
//! Promise: a pure function. It reads no clock, draws no randomness and does no I/O, so the coordinator, the model
//! checker, the simulator and the property tests all run this very code.
//! Non-promise: it does not know whether the next record was stored. Only a store's swap makes it valid.
//!
//! Rules, each a property in `tests/protocol` and in the model in `sim/`:
//! - a transfer advances the epoch by at least one; nothing else moves it, and nothing moves it down;
//! - only the holder (epoch and nonce) renews, releases, reports or completes;
//! - time decides only when somebody else may try; completion and release depend on the epoch alone;
//! - a request that was already applied is recognised by its nonce and changes nothing.

mod acquire;
mod fate;
mod moving;
mod request;

pub use crate::cell::Fate;
pub use fate::fate;
pub use moving::{Holder, Newborn};
pub use request::{AfterFailure, Decision, Order, Refusal, Report, Request, RunRequest, SlotClaim};

use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::lease::record::{Drain, OperatorMark, Ownership, Progress, Slot, SlotMark, SlotState, Tenure};
use crate::lease::transfer::{Outcome, Reason, Transfer};
use crate::nonce::Nonce;
use crate::time::{Timestamp, Ttl};
use crate::token::Claim;
use acquire::{Condition, acquire, found_own_grant};
use std::sync::Arc;
use std::time::Duration;

/// Decides a request on a record at `now`, in store time.
///
/// ```
/// use leasehold_core::{lease::protocol::{Decision, Request, decide}, HolderId, Lineage, Ownership, Timestamp, Ttl};
/// let request = Request::Acquire { lineage: Lineage::random(), holder: HolderId::new(None), ttl: Ttl::MIN, slot: None, spacing: None, requested: None };
/// let Decision::Write(next) = decide(&Ownership::default(), &request, Timestamp::from_millis(0)) else { panic!() };
/// assert_eq!(next.epoch.get(), 1);
/// ```
pub fn decide(record: &Ownership, request: &Request, now: Timestamp) -> Decision {
    let is_a_migrations =
        matches!(request, Request::Operate { order: Order::Relocate { .. } | Order::Arrive { .. }, .. });
    if record.relocation.is_some() && !is_a_migrations {
        return Decision::Refuse(moving::elsewhere(record));
    }
    let decided = match request {
        Request::Acquire { holder, ttl, slot, spacing, requested, .. } => {
            let condition = Condition { slot: *slot, spacing: *spacing, requested: requested.as_ref() };
            acquire(record, holder, *ttl, &condition, now)
        }
        Request::Renew { claim, ttl, progress } => renew(record, *claim, *ttl, progress.as_ref(), now),
        Request::Release { claim, outcome } => release(record, *claim, *outcome, now),
        Request::Checkpoint { claim, report } => checkpoint(record, *claim, report, now),
        Request::Complete { claim, outcome } => complete(record, *claim, *outcome),
        Request::Operate { nonce, by, why, expected, order, .. } => {
            let mark = OperatorMark { by: by.clone(), why: why.clone(), at: now, nonce: *nonce };
            operate(record, mark, *expected, order)
        }
    };
    match decided {
        Ok(Some(mut next)) => {
            if record.is_unknown() && !is_a_migrations {
                next.newborn = true;
            }
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

fn renew(record: &Ownership, claim: Claim, ttl: Ttl, progress: Option<&Report>, now: Timestamp) -> Decided {
    if !record.is_held_by(claim) || record.live_tenure(now).is_none() {
        return Err(lost(record));
    }
    let mut next = proved(record);
    if let Some(tenure) = &mut next.tenure {
        tenure.deadline = now.plus(ttl.get());
        tenure.ttl = ttl;
    }
    if let Some(report) = progress {
        note_progress(&mut next, report, now);
    }
    Ok(Some(next))
}

/// The record after a change by its holder. By then the grant was checked against the namespace's mark.
fn proved(record: &Ownership) -> Ownership {
    Ownership { newborn: false, ..record.clone() }
}

fn release(record: &Ownership, claim: Claim, outcome: Outcome, now: Timestamp) -> Decided {
    if !record.is_held_by(claim) {
        return Err(
            outcome_of(record, claim).map_or_else(|| lost(record), |outcome| Refusal::AlreadyReleased { outcome })
        );
    }
    // A released tenure did not expire and was not evicted. Recording it so would make the history wrong, and a release
    // whose answer was lost could not be recognised.
    let outcome = if matches!(outcome, Outcome::Expired | Outcome::Evicted) { Outcome::Lost } else { outcome };
    let is_proof = matches!(outcome, Outcome::Succeeded | Outcome::Failed | Outcome::Drained);
    let mut next = if is_proof { proved(record) } else { record.clone() };
    end_tenure(&mut next, now, outcome);
    close_slot(&mut next, claim.epoch, outcome);
    Ok(Some(next))
}

/// How a holder released its tenure, if the record remembers that it did.
pub(crate) fn outcome_of(record: &Ownership, claim: Claim) -> Option<Outcome> {
    let own = record.transfers.iter().find(|t| t.epoch == claim.epoch && t.nonce == claim.nonce);
    own.and_then(|own| own.outcome).filter(|outcome| !matches!(outcome, Outcome::Expired | Outcome::Evicted))
}

fn checkpoint(record: &Ownership, claim: Claim, report: &Report, now: Timestamp) -> Decided {
    if !record.is_held_by(claim) {
        return Err(lost(record));
    }
    let mut next = proved(record);
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
            let mut next = proved(record);
            close_slot(&mut next, claim.epoch, outcome);
            Ok(Some(next))
        }
        (state, end) if end.is_none_or(|end| end == state) => Ok(None),
        // Of two completions that contradict each other, the first stands.
        _ => Err(Refusal::AlreadyRun(mark)),
    }
}

fn operate(record: &Ownership, mark: OperatorMark, expected: Option<Epoch>, order: &Order) -> Decided {
    let now = mark.at;
    // A hand-off is marked by the new holder's nonce, so that its later release finds the transfer that began it.
    let nonce = if let Order::HandOff { to, .. } = order { to.nonce } else { mark.nonce };
    if record.transfer_by(nonce).is_some() {
        return if let Order::HandOff { .. } = order { found_own_grant(record, nonce, now) } else { Ok(None) };
    }
    // Checked first, even if the lease has moved on since: the order was carried out.
    if has_mark(record, order, nonce) {
        return Ok(None);
    }
    if let Some(expected) = expected.filter(|expected| *expected != record.epoch) {
        return Err(Refusal::Changed { expected, seen: record.epoch });
    }
    match order {
        Order::Drain { within } => drain(record, mark, *within),
        Order::Forget { idle } => forget(record, mark, *idle),
        Order::Pause => match &record.paused {
            Some(old) => Err(Refusal::Paused(old.clone())),
            None => Ok(Some(Ownership { paused: Some(mark), forgotten: None, ..record.clone() })),
        },
        Order::Resume { pause } => match &record.paused {
            Some(old) if old.nonce == *pause => {
                Ok(Some(Ownership { paused: None, resumed: Some(mark), ..record.clone() }))
            }
            Some(old) => Err(Refusal::OtherPause(old.clone())),
            None => Err(Refusal::NotPaused),
        },
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
        Order::Advance { past, .. } if *past > Epoch::HIGHEST_ADVANCE => {
            Err(Refusal::TooFar { most: Epoch::HIGHEST_ADVANCE })
        }
        Order::Advance { past, lineage } => {
            let mut next = advance(record, mark, *past)?;
            if let Some(lineage) = lineage.filter(|lineage| Some(*lineage) != record.lineage) {
                if record.healed {
                    return Err(Refusal::LineageFixed { lineage: record.lineage });
                }
                (next.lineage, next.healed) = (Some(lineage), record.lineage.is_some());
                // The archive is stored by lineage, and the new lineage has none yet.
                (next.archived, next.dropped) = (Epoch::ZERO, Epoch::ZERO);
            }
            Ok(Some(next))
        }
        Order::Rewind if record.epoch == Epoch::ZERO => Err(Refusal::NeverHeld),
        Order::Rewind => {
            let mut next = transfer(record, now, nonce, Reason::Rewound, Outcome::Evicted)?;
            sign(&mut next, mark);
            if next.slot.is_some_and(|mark| mark.slot.0 > now) {
                next.slot = Some(SlotMark { slot: Slot(now), state: SlotState::Rewound, epoch: next.epoch, runs: 1 });
            }
            Ok(Some(next))
        }
        Order::Relocate { migration, step, holder } => moving::step(record, mark, *migration, step, *holder),
        Order::Arrive { migration, from, record: other, newborn } => {
            moving::arrive(record, *migration, other, from, *newborn)
        }
    }
}

/// Whether an order that does not move the epoch has left its mark.
fn has_mark(record: &Ownership, order: &Order, nonce: Nonce) -> bool {
    let mark = match order {
        Order::Pause => record.paused.as_ref(),
        Order::Resume { .. } => record.resumed.as_ref(),
        Order::Drain { .. } => record.drain.as_ref().map(|drain| &drain.asked),
        Order::Forget { .. } => record.forgotten.as_ref(),
        _ => None,
    };
    mark.is_some_and(|mark| mark.nonce == nonce)
}

/// Asks the holder to finish. Replaces an earlier request, but never shortens
/// the time in which nobody else gets the lease.
fn drain(record: &Ownership, asked: OperatorMark, within: Ttl) -> Decided {
    if record.live_tenure(asked.at).is_none() {
        return Err(Refusal::NotHeld);
    }
    let drain = Drain::new(record.drain.as_ref(), record.epoch, asked, within);
    Ok(Some(Ownership { drain: Some(drain), ..record.clone() }))
}

/// Leaves a tombstone: the epoch and the lineage, so that no epoch is issued
/// again, and the slot, so that no slot is run again.
fn forget(record: &Ownership, mark: OperatorMark, idle: Duration) -> Decided {
    let now = mark.at;
    match &record.forgotten {
        Some(old) => return Err(Refusal::Forgotten(old.clone())),
        None if record.is_unknown() => return Err(Refusal::NeverHeld),
        None => {}
    }
    if let Some(tenure) = record.live_tenure(now) {
        return Err(Refusal::Held { tenure: tenure.clone(), epoch: record.epoch });
    }
    if let Some(paused) = &record.paused {
        return Err(Refusal::Paused(paused.clone()));
    }
    if let Some(drain) = record.live_drain(now) {
        return Err(Refusal::Draining(drain.clone()));
    }
    if let Some(since) = record.idle_since().filter(|since| now < since.plus(idle)) {
        return Err(Refusal::Recent { since });
    }
    let mut over = record.clone();
    end_tenure(&mut over, now, Outcome::Expired);
    Ok(Some(Ownership {
        epoch: over.epoch,
        lineage: over.lineage,
        healed: over.healed,
        slot: over.slot,
        last_run: over.last_run,
        forgotten: Some(mark),
        // Nothing counts as unarchived: the archive is dropped with the rest.
        archived: over.epoch,
        dropped: over.epoch,
        ..Ownership::default()
    }))
}

fn advance(record: &Ownership, mark: OperatorMark, past: Epoch) -> Result<Ownership, Refusal> {
    let mut next = transfer(record, mark.at, mark.nonce, Reason::Advanced, Outcome::Evicted)?;
    if next.epoch <= past {
        let epoch = past.next().ok_or(Refusal::Exhausted)?;
        next.epoch = epoch;
        next.amend_last(|last| last.epoch = epoch);
    }
    // Even if the lease came that far by itself: an advance never uses up the last epochs.
    if next.epoch.get() > Epoch::HIGHEST_ADVANCE.get() + 1 {
        return Err(Refusal::TooFar { most: Epoch::HIGHEST_ADVANCE });
    }
    sign(&mut next, mark);
    Ok(next)
}

/// Advances the epoch: ends the previous tenure, as `ending` if it was not released, and begins a transfer.
fn transfer(
    record: &Ownership,
    now: Timestamp,
    nonce: Nonce,
    reason: Reason,
    ending: Outcome,
) -> Result<Ownership, Refusal> {
    let mut next = record.clone();
    if ending == Outcome::Evicted && record.live_tenure(now).is_some() {
        close_slot(&mut next, record.epoch, Outcome::Evicted);
    }
    let from = next.tenure.as_ref().map(|t| t.holder.clone());
    end_tenure(&mut next, now, ending);
    (next.drain, next.forgotten) = (None, None);
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
    Ok(next)
}

fn grant(next: &mut Ownership, to: &HolderId, ttl: Ttl, now: Timestamp) {
    next.tenure = Some(Tenure { holder: to.clone(), granted_at: now, deadline: now.plus(ttl.get()), ttl });
    next.amend_last(|last| last.to = Some(to.clone()));
}

fn sign(next: &mut Ownership, mark: OperatorMark) {
    next.amend_last(|last| (last.by, last.why) = (Some(mark.by), Some(mark.why)));
}

/// A slot that was running under `from` continues under the new epoch: the new holder takes the work over.
fn pass_slot_on(next: &mut Ownership, from: Epoch) {
    let Some(mark) = next.slot.as_mut().filter(|m| m.epoch == from && m.state == SlotState::Running) else { return };
    // The run that was ended for it does not count, and the new one does.
    (mark.epoch, mark.runs) = (next.epoch, mark.runs.saturating_add(1));
    let slot = mark.slot;
    next.amend_last(|last| last.slot = Some(slot));
}

/// Records the end of the present tenure, if there is one, in the transfer that began it.
fn end_tenure(next: &mut Ownership, now: Timestamp, outcome: Outcome) {
    let Some(tenure) = next.tenure.take() else { return };
    if outcome != Outcome::NotStarted {
        next.last_run = Some(tenure.granted_at);
    }
    // An expired tenure lasted until its deadline, not until it was noticed.
    let end = if outcome == Outcome::Expired { tenure.deadline.min(now) } else { now };
    if let Some(began) = next.transfers.iter_mut().rev().find(|t| t.epoch == next.epoch) {
        let began = Arc::make_mut(began);
        began.held_for_ms = Some(end.as_millis().saturating_sub(tenure.granted_at.as_millis()));
        began.outcome = Some(outcome);
    }
}

/// How an outcome ends a running slot. A run that lost its lease, was never started or was asked to finish did not
/// complete its slot, which stays open for another run.
fn slot_end(outcome: Outcome) -> Option<SlotState> {
    match outcome {
        Outcome::Succeeded => Some(SlotState::Done),
        Outcome::Failed => Some(SlotState::Failed),
        Outcome::Lost | Outcome::NotStarted | Outcome::Drained | Outcome::Expired | Outcome::Evicted => None,
    }
}

fn close_slot(next: &mut Ownership, epoch: Epoch, outcome: Outcome) {
    let running = next.slot.as_mut().filter(|m| m.epoch == epoch && m.state == SlotState::Running);
    match (running, slot_end(outcome)) {
        (Some(mark), Some(end)) => mark.state = end,
        // This claim does not count as one of the slot's runs.
        (Some(mark), None) if matches!(outcome, Outcome::NotStarted | Outcome::Drained | Outcome::Evicted) => {
            mark.runs = mark.runs.saturating_sub(1);
        }
        _ => {}
    }
}

fn note_progress(next: &mut Ownership, report: &Report, now: Timestamp) {
    let earlier = next.progress.take();
    // A checkpoint is for the next holder; an earlier holder's progress says nothing about this one.
    let marker = earlier.as_ref().filter(|p| p.epoch == next.epoch).and_then(|p| p.marker.clone());
    next.progress = Some(Progress {
        at: now,
        epoch: next.epoch,
        marker: report.marker.clone().or(marker),
        checkpoint: report.checkpoint.clone().or(earlier.and_then(|p| p.checkpoint)),
    });
}

/// Why a lease without a live tenure is free.
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

/// The answer to a request from a process that is not the holder.
pub(crate) fn lost(record: &Ownership) -> Refusal {
    Refusal::Lost {
        seen: record.epoch,
        holder: record.tenure.as_ref().map(|t| t.holder.clone()),
        last: record.transfers.last().cloned(),
    }
}

#[cfg(test)]
mod tests;
