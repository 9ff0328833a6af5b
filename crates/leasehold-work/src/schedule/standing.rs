//! Where a job stands: what its lease's record and its journal say of its slots, and what is to be done about them.
//!
//! Promise: a pure function, the same for a scheduler and for `run --slot`. A slot whose run died is named before anything
//! newer, to be run again or to be given up, and stands outside the bounds of catching up; a slot that was settled, by
//! whatever the journal says or has forgotten, is not due. Non-promise: it claims nothing. Between looking and claiming
//! another may have been faster, and then the record's own rules refuse.

use crate::schedule::due::{CatchUp, Due, Last, due};
use crate::schedule::journal::Journal;
use crate::schedule::slots::Schedule;
use leasehold_core::{Outcome, Ownership, SLOT_RUNS, Slot, SlotMark, SlotState, Timestamp};
use std::time::Duration;

/// Slots that are claimed by so much more than the store's clock shows were claimed while it was ahead.
const AHEAD: Duration = Duration::from_secs(60);

/// What is to be done about a slot whose run died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// It is run again, before newer ones.
    Again(Slot),
    /// It was run as often as it may be, or is too old: it is written down that it is not run again.
    Died(Slot),
    /// What became of it is written down: newer ones may be claimed.
    Settled(Slot),
}

/// What was found on looking at a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The slot whose run died, if there is one.
    pub interrupted: Option<Interrupted>,
    /// The slots that came after it.
    pub due: Due,
    /// The newest slot that is claimed or settled although it is still to come: the store's clock was ahead, and nothing is
    /// run until an operator sets the mark back or that time has come.
    pub ahead: Option<Slot>,
}

impl Standing {
    /// Looks at a job whose lease has this record and which has this journal, at the store's time.
    pub fn of(schedule: &Schedule, record: &Ownership, journal: &Journal, policy: CatchUp, now: Timestamp) -> Self {
        let last = record.slot.map(|mark| mark.slot).max(journal.settled_until());
        let ahead = last.filter(|last| last.0 > now.plus(AHEAD));
        let from = match (last, ahead) {
            (None, _) => Last::Never,
            (Some(last), None) => Last::Settled(last.0),
            (Some(_), Some(_)) => Last::Ahead(journal.told_until(now)),
        };
        let interrupted = record.interrupted_slot(now).filter(|_| ahead.is_none());
        Standing {
            interrupted: interrupted.map(|mark| recovery(mark, journal, policy, now)),
            due: due(schedule, now, from, policy, |slot| journal.is_settled(slot)),
            ahead,
        }
    }

    /// The slot that a claim on a newer one gives up.
    pub const fn gives_up(&self) -> Option<Slot> {
        match self.interrupted {
            Some(Interrupted::Died(slot) | Interrupted::Settled(slot)) => Some(slot),
            Some(Interrupted::Again(_)) | None => None,
        }
    }
}

/// Whether anybody knows that this slot has succeeded. What the journal missed because the store was away, the lease's own
/// record may remember.
pub fn has_succeeded(record: &Ownership, journal: &Journal, slot: Slot) -> bool {
    let is_done = record.slot.is_some_and(|mark| mark.slot == slot && mark.state == SlotState::Done);
    let mut runs = record.transfers.iter().filter(|transfer| transfer.slot == Some(slot));
    is_done || journal.has_succeeded(slot) || runs.any(|transfer| transfer.outcome == Some(Outcome::Succeeded))
}

fn recovery(mark: SlotMark, journal: &Journal, policy: CatchUp, now: Timestamp) -> Interrupted {
    if journal.is_settled(mark.slot) {
        return Interrupted::Settled(mark.slot);
    }
    let may_run = mark.runs < SLOT_RUNS && now.saturating_since(mark.slot.0) <= policy.max_age();
    if may_run { Interrupted::Again(mark.slot) } else { Interrupted::Died(mark.slot) }
}
