//! Whether a slot may be run now: decided from the record of its lease alone.
//!
//! Promise: pure functions, at the store's time, so every machine comes to the same answer. Non-promise: they claim
//! nothing; the swap of the lease does, and it may fail.

use super::dispatch::{POLL, RETRY_AFTER};
use crate::schedule::job::{Busy, Job};
use crate::schedule::journal::Fate;
use leasehold_core::{Epoch, Inspection, Outcome, Ownership, Slot, SlotState, Timestamp, Transfer};
use std::sync::Arc;
use std::time::Duration;

/// The longest pause before a slot that could not be started is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What blocks a slot.
pub(super) enum Readiness {
    Clear,
    /// Check again at this time.
    Later(Timestamp),
    /// The slot is not run.
    Over(Fate),
}

/// When to check whether the present run has died.
pub(super) fn recheck(seen: &Inspection) -> Option<Timestamp> {
    let is_running = seen.record.slot.is_some_and(|mark| mark.state == SlotState::Running);
    seen.record.live_tenure(seen.now).filter(|_| is_running).map(|tenure| tenure.deadline)
}

/// What blocks this slot.
pub(super) fn readiness(job: &Job, slot: Slot, seen: &Inspection) -> Readiness {
    let now = seen.now;
    if let Some(tenure) = seen.record.live_tenure(now) {
        let waited = now.saturating_since(slot.0.plus(job.delay(slot)));
        return match job.busy {
            // It came due during a run. Slots that were due before that run began wait for their turn.
            Busy::Skip if slot.0 > tenure.granted_at => Readiness::Over(Fate::SkippedOverlap),
            Busy::Wait(limit) if waited >= limit && slot.0 > tenure.granted_at => Readiness::Over(Fate::SkippedOverlap),
            Busy::Retry(pause) if waited >= pause && slot.0 > tenure.granted_at => {
                Readiness::Over(Fate::SkippedOverlap)
            }
            Busy::Retry(pause) if waited < pause => Readiness::Later(now.plus(pause - waited)),
            _ => Readiness::Later(now.plus(POLL).min(tenure.deadline)),
        };
    }
    if seen.record.paused.is_some() {
        return Readiness::Over(Fate::Paused);
    }
    Readiness::Clear
}

/// Whether the last run of the newest slot ended on an operator's request.
pub(super) fn was_drained(record: &Ownership) -> bool {
    let of = |transfer: &&Arc<Transfer>| record.slot.is_some_and(|mark| mark.epoch == transfer.epoch);
    record.transfers.iter().find(of).is_some_and(|transfer| transfer.outcome == Some(Outcome::Drained))
}

/// When a slot that could not be started is tried again, by us or by others. The
/// pause grows with each failure in a row. It is computed from the record alone,
/// so that many machines, or one that was restarted, try no more often than one.
pub(super) fn try_again_at(record: &Ownership, slot: Slot) -> Option<Timestamp> {
    let is_one =
        |transfer: &&Arc<Transfer>| transfer.slot == Some(slot) && transfer.outcome == Some(Outcome::NotStarted);
    let times = record.transfers.iter().rev().take_while(is_one).count();
    let last = record.transfers.last().filter(|_| times > 0)?;
    // Transfers before those in the record may have been archived.
    let is_all = times == record.transfers.len() && record.archived > Epoch::ZERO;
    let pause = RETRY_AFTER.saturating_mul(1 << (times - 1).min(8)).min(LONGEST_PAUSE);
    let pause = if is_all { LONGEST_PAUSE } else { pause };
    Some(last.at.plus(Duration::from_millis(last.held_for_ms.unwrap_or(0))).plus(pause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Nonce, Reason};

    #[test]
    fn what_never_starts_is_tried_no_more_often_when_its_record_is_archived() {
        let slot = Slot(Timestamp::from_millis(1_000));
        let transfer = |number: u64| Transfer {
            epoch: Epoch::new(number).unwrap(),
            at: Timestamp::from_millis(0),
            reason: Reason::Recovered,
            nonce: Nonce::from_u128(u128::from(number)),
            from: None,
            to: None,
            by: None,
            why: None,
            slot: Some(slot),
            held_for_ms: Some(0),
            outcome: Some(Outcome::NotStarted),
        };
        let transfers: Vec<_> = (13..=16).map(|number| Arc::new(transfer(number))).collect();
        let young = Ownership { transfers: transfers.clone(), ..Ownership::default() };
        assert_eq!(try_again_at(&young, slot), Some(Timestamp::from_millis(0).plus(RETRY_AFTER * 8)));
        let old = Ownership { transfers, archived: Epoch::new(15).unwrap(), ..Ownership::default() };
        assert_eq!(try_again_at(&old, slot), Some(Timestamp::from_millis(0).plus(LONGEST_PAUSE)));
    }
}
