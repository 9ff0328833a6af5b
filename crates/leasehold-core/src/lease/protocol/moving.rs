//! A lease that moves between stores: the steps of [`crate::relocation`] on its record.
//!
//! Promise: no holder is evicted unless that was requested, and no epoch goes down. A copy
//! is taken in only where it continues the existing line of epochs, or where there is
//! none. Non-promise: two leases of one name are never merged; the operator has to choose.

use super::{Decided, Refusal, end_tenure, sign, transfer};
use crate::lease::record::{OperatorMark, Ownership};
use crate::lease::transfer::{Outcome, Reason};
use crate::nonce::Nonce;
use crate::relocation::{Address, Relocated, Relocation, Step, relocate};

/// What happens to the holder of a lease that is about to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The step is refused.
    Stays,
    /// It is evicted in the same step.
    Evicted,
}

/// How to treat a record of the new store whose holder has done nothing since it acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Newborn {
    /// It may be held, like any other lease.
    Keep,
    /// Its namespace had already left, so nothing was granted, and the arriving record replaces it.
    Discard,
}

/// Makes a step on an existing record.
pub(super) fn step(record: &Ownership, mark: OperatorMark, migration: Nonce, step: &Step, holder: Holder) -> Decided {
    let next = match relocate(record.relocation.as_ref(), step, migration) {
        Relocated::To(next) => next,
        Relocated::AlreadyDone => return Ok(None),
        Relocated::Invalid => return Err(elsewhere(record)),
    };
    let mut moved = match (step, record.live_tenure(mark.at)) {
        (Step::Leave { .. }, Some(tenure)) if holder == Holder::Stays => {
            return Err(Refusal::Held { tenure: tenure.clone(), epoch: record.epoch });
        }
        (Step::Leave { .. }, Some(_)) => signed(record, &mark, Reason::Revoked)?,
        // Above every epoch that was granted in the old store, and with a trace of who moved it and why.
        (Step::Settle, _) => signed(record, &mark, Reason::Advanced)?,
        _ => record.clone(),
    };
    // Otherwise a holder whose tenure expired could still complete its slot, and the copy would not have it.
    end_tenure(&mut moved, mark.at, Outcome::Expired);
    moved.relocation = next;
    // An operator who drains it waits at this store, by its clock.
    moved.drain = None;
    // The migration itself checks the namespace.
    moved.newborn = false;
    Ok(Some(moved))
}

fn signed(record: &Ownership, mark: &OperatorMark, reason: Reason) -> Result<Ownership, Refusal> {
    let mut next = transfer(record, mark.at, mark.nonce, reason, Outcome::Evicted)?;
    sign(&mut next, mark.clone());
    Ok(next)
}

/// Takes in the record of another store. It is granted only after [`Step::Settle`].
pub(super) fn arrive(
    record: &Ownership,
    migration: Nonce,
    other: &Ownership,
    from: &Address,
    newborn: Newborn,
) -> Decided {
    match &record.relocation {
        Some(Relocation::Arriving { migration: known, .. }) if *known == migration => return Ok(None),
        // It comes back. The record here is older, because nothing was granted here since it left.
        Some(Relocation::Moved { .. }) if record.lineage == other.lineage && record.epoch <= other.epoch => {}
        _ if record.is_unknown() => {}
        None if record.newborn && newborn == Newborn::Discard => {}
        None if record.lineage != other.lineage => {
            return Err(Refusal::OtherLineage { here: record.lineage, there: other.lineage });
        }
        _ => return Err(elsewhere(record)),
    }
    let mut next = other.clone();
    next.relocation = Some(Relocation::Arriving { from: from.clone(), migration });
    Ok(Some(next))
}

/// The refusal for a record that is moving or has moved.
pub(super) fn elsewhere(record: &Ownership) -> Refusal {
    match &record.relocation {
        Some(state) => Refusal::Elsewhere(state.clone()),
        None => Refusal::NotMoving { lineage: record.lineage, epoch: record.epoch },
    }
}
