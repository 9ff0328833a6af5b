//! A lease that moves from another store to this one.
//!
//! Promise: no epoch goes down, no slot that has run elsewhere runs again, no pause is lifted, and nobody who holds the lease
//! here is evicted. Non-promise: of two lives of one name, history and progress of the one here are kept.

use super::{Decided, Refusal, advance, end_tenure};
use crate::ownership::{OperatorMark, Ownership, SlotMark, SlotState};
use crate::transfer::Outcome;

/// The record of another store goes on here under a higher epoch than it had there, so that whoever still holds a token
/// from there is fenced by the first grant from here.
pub(super) fn import(record: &Ownership, mark: OperatorMark, other: &Ownership) -> Decided {
    let slot = further(other.slot, record.slot);
    let paused = other.paused.clone().or_else(|| record.paused.clone());
    if record.epoch > other.epoch && slot == record.slot && paused == record.paused {
        // Done before, or here it is further on: either way its epochs cannot go down.
        return Ok(None);
    }
    if let Some(tenure) = record.live_tenure(mark.at) {
        return Err(Refusal::Held { tenure: tenure.clone(), epoch: record.epoch });
    }
    let mut next = record.clone();
    if goes_on(record, other) {
        end_tenure(&mut next, mark.at, Outcome::Expired);
        next = joined(&next, other);
    }
    (next.slot, next.paused) = (slot, paused);
    advance(&next, mark, other.epoch).map(Some)
}

/// Whether what happened elsewhere came after all that is remembered here: nothing did here, or it had left from here. Else
/// both had a life of their own, and the one here is kept.
fn goes_on(record: &Ownership, other: &Ownership) -> bool {
    let last = record.transfers.last().map(|transfer| transfer.nonce);
    let is_later = other.transfers.first().is_none_or(|first| first.epoch > record.epoch);
    other.epoch >= record.epoch && (is_later || other.transfers.iter().any(|transfer| Some(transfer.nonce) == last))
}

/// The record of another store, with what is remembered here from before.
fn joined(record: &Ownership, other: &Ownership) -> Ownership {
    let mut next = other.clone();
    // The other store's clock is not this one's: what it would be here cannot be told.
    if let Some(deadline) = next.tenure.as_ref().map(|tenure| tenure.deadline) {
        end_tenure(&mut next, deadline, Outcome::Expired);
    }
    let first = other.transfers.first().map(|transfer| transfer.epoch);
    let before = record.transfers.iter().filter(|transfer| first.is_none_or(|first| transfer.epoch < first));
    next.transfers.splice(0..0, before.cloned());
    next.progress = next.progress.or_else(|| record.progress.clone());
    next.resumed = record.resumed.clone().or(next.resumed);
    next
}

/// Of two marks the one that keeps more slots from running again; the second if they are alike.
fn further(one: Option<SlotMark>, other: Option<SlotMark>) -> Option<SlotMark> {
    let ends = |state| match state {
        SlotState::Running => 0,
        SlotState::Failed => 1,
        SlotState::Done => 2,
    };
    one.into_iter().chain(other).max_by_key(|mark| (mark.slot, ends(mark.state)))
}
