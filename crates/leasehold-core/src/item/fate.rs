//! Whether a request on an item was applied, after its answer was lost.
//!
//! Promise: the record proves `Applied` and `NotApplied`; what it no longer shows is `Unknown`. Non-promise: `Applied`
//! says that the write is visible, not that it is durable.

use super::protocol::{Decision, Order, Refusal, Request, decide};
use super::record::Item;
use crate::Timestamp;
use crate::cell::{Fate, Protocol};
use std::time::Duration;

impl Protocol for Request {
    type Record = Item;
    type Refusal = Refusal;

    fn decide(&self, item: &Item, now: Timestamp) -> Decision {
        decide(item, self, now)
    }

    fn fate(&self, base: &Item, seen: &Item) -> Fate {
        fate(base, seen, self)
    }

    fn memory(base: &Item, seen: &Item) -> String {
        let (base, now) = (base.epoch, seen.epoch);
        format!("it was asked for at epoch {base}, and the item is at epoch {now} and remembers no further back")
    }

    /// A renewal must not come too late, so it is judged at the latest time that it can be.
    fn margin(&self, grain: Duration) -> Duration {
        if let Request::Renew { .. } = self { grain } else { Duration::ZERO }
    }

    fn needs_confirmation(&self) -> bool {
        !matches!(self, Request::Reap | Request::Settle)
    }

    fn is_caused_by_own_write(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::Stale { .. })
    }
}

/// Whether a request without an answer was applied. It was based on the record `base`; the record now is `seen`.
pub fn fate(base: &Item, seen: &Item, request: &Request) -> Fate {
    if seen.lineage != base.lineage || seen.epoch < base.epoch {
        return Fate::Unknown;
    }
    // Every claim and every order raises the epoch by one. The record has the nonces of the last claim and order.
    let raised = |is_ours: bool| match is_ours {
        true => Fate::Applied,
        false if Some(seen.epoch) <= base.epoch.next() => Fate::NotApplied,
        false => Fate::Unknown,
    };
    match request {
        // Repeated, they write the same, or are refused because of what happened since.
        Request::Renew { .. } | Request::Progress { .. } | Request::Reap | Request::Settle => Fate::NotApplied,
        Request::Operate { order: Order::Drain { .. } | Order::Relocate { .. } | Order::Arrive { .. }, .. } => {
            Fate::NotApplied
        }
        Request::Operate { nonce, .. } => raised(seen.ordered == Some(*nonce)),
        Request::Claim { holder, .. } => {
            let is_over = seen.ended.is_some_and(|ended| ended.nonce == holder.nonce);
            raised(is_over || seen.tenure().is_some_and(|tenure| tenure.holder.nonce == holder.nonce))
        }
        Request::Complete { claim, .. } | Request::Fail { claim, .. } | Request::Return { claim, .. } => {
            let ended = seen.ended.filter(|ended| (ended.epoch, ended.nonce) == (claim.epoch, claim.nonce));
            match ended {
                Some(_) => Fate::Applied,
                None if seen.epoch == claim.epoch => Fate::NotApplied,
                None => Fate::Unknown,
            }
        }
    }
}
