//! Whether a request was applied, after its answer was lost.
//!
//! Promise: the record proves `Applied` and `NotApplied`. If it does not remember far enough back, the fate is
//! `Unknown`, and the request must not be applied a second time. Non-promise: `Applied` says that the write is visible,
//! not that it is durable. Nothing may rely on it before a new write was answered.

use super::{Decision, Order, Refusal, Request, decide};
use crate::cell::{Fate, Protocol};
use crate::epoch::Epoch;
use crate::lease::record::Ownership;
use crate::lease::transfer::Outcome;
use crate::nonce::Nonce;
use crate::time::Timestamp;

impl Protocol for Request {
    type Record = Ownership;
    type Refusal = Refusal;

    fn decide(&self, record: &Ownership, now: Timestamp) -> Decision {
        decide(record, self, now)
    }

    fn fate(&self, base: &Ownership, seen: &Ownership) -> Fate {
        fate(base, seen, self)
    }

    fn memory(base: &Ownership, seen: &Ownership) -> String {
        let (base, now) = (base.epoch, seen.epoch);
        format!("it was asked for at epoch {base}, and the record is at epoch {now} and remembers no further back")
    }

    fn is_caused_by_own_write(&self, refusal: &Refusal) -> bool {
        match self {
            // A hand-off that is over, or an order on a lease that has moved since: it was carried out.
            Request::Operate { .. } => matches!(refusal, Refusal::Lost { .. } | Refusal::Elsewhere(_)),
            _ => matches!(refusal, Refusal::AlreadyReleased { .. }),
        }
    }

    fn is_already_satisfied(&self, refusal: &Refusal) -> bool {
        match (self, refusal) {
            (Request::Release { .. }, Refusal::AlreadyReleased { .. }) => true,
            (Request::Operate { order, .. }, Refusal::Paused(_)) => matches!(order, Order::Pause),
            (Request::Operate { order, .. }, Refusal::NotPaused) => matches!(order, Order::Resume { .. }),
            _ => false,
        }
    }
}

/// Whether a request without an answer was applied. It was based on the record `base`; the record now is `seen`.
pub fn fate(base: &Ownership, seen: &Ownership, request: &Request) -> Fate {
    match request {
        // Repeated, they write the same, or are refused because of what happened since.
        Request::Renew { .. } | Request::Checkpoint { .. } | Request::Complete { .. } => Fate::NotApplied,
        Request::Acquire { holder, .. } => transferred(base, seen, holder.nonce),
        Request::Release { claim, .. } => {
            if seen.is_held_by(*claim) {
                return Fate::NotApplied;
            }
            let own = seen.transfers.iter().find(|t| t.epoch == claim.epoch && t.nonce == claim.nonce);
            match own.map(|transfer| transfer.outcome) {
                Some(None | Some(Outcome::Expired | Outcome::Evicted)) => Fate::NotApplied,
                Some(Some(_)) => Fate::Applied,
                None => Fate::Unknown,
            }
        }
        Request::Operate { nonce, order, .. } => match order {
            Order::Revoke | Order::Advance { .. } | Order::Rewind => transferred(base, seen, *nonce),
            Order::HandOff { to, .. } => transferred(base, seen, to.nonce),
            // Repeated, it only asks again.
            Order::Drain { .. } => Fate::NotApplied,
            Order::Forget { .. } => forgotten(base, seen, *nonce),
            Order::Pause => paused(base, seen, *nonce),
            Order::Resume { pause } => resumed(seen, *nonce, *pause),
            // Each step is recognised by its migration's number, and a repeated step changes nothing.
            Order::Relocate { .. } | Order::Arrive { .. } => Fate::NotApplied,
        },
    }
}

/// For a request that moves the epoch: its transfer has its nonce.
fn transferred(base: &Ownership, seen: &Ownership, nonce: Nonce) -> Fate {
    if seen.transfer_by(nonce).is_some() {
        return Fate::Applied;
    }
    if remembers(seen, base.epoch) { Fate::NotApplied } else { Fate::Unknown }
}

/// Whether every transfer after this epoch is remembered.
fn remembers(seen: &Ownership, epoch: Epoch) -> bool {
    let first = seen.transfers.first().map(|transfer| transfer.epoch);
    seen.epoch == epoch || (seen.epoch > epoch && first.is_some_and(|first| Some(first) <= epoch.next()))
}

/// A pause keeps its nonce in the record until it is ended. The record also remembers who ended the last one.
fn paused(base: &Ownership, seen: &Ownership, nonce: Nonce) -> Fate {
    match &seen.paused {
        Some(mark) if mark.nonce == nonce => Fate::Applied,
        _ if seen.resumed == base.resumed => Fate::NotApplied,
        _ => Fate::Unknown,
    }
}

/// Forgetting sets `dropped` to the epoch that it was decided on.
fn forgotten(base: &Ownership, seen: &Ownership, nonce: Nonce) -> Fate {
    match &seen.forgotten {
        Some(mark) if mark.nonce == nonce => Fate::Applied,
        _ if seen.lineage == base.lineage && seen.dropped < base.epoch => Fate::NotApplied,
        _ => Fate::Unknown,
    }
}

fn resumed(seen: &Ownership, nonce: Nonce, pause: Nonce) -> Fate {
    if seen.paused.as_ref().is_some_and(|mark| mark.nonce == pause) {
        return Fate::NotApplied;
    }
    if seen.resumed.as_ref().is_some_and(|mark| mark.nonce == nonce) { Fate::Applied } else { Fate::Unknown }
}
