//! The horizon: until when requests that were sent may still be running upstream. It is stored in the fence.
//!
//! A request is over when it is answered, or when the upstream's time has passed, whatever happened to connections and
//! proxies. A proxy knows that of its own requests. The next proxy knows it by the horizon: a proxy completes no
//! request unless the fence in the store says that one may be running until then. The horizon is half of
//! [`super::Limits::upstream_timeout`] later than needed, and is moved on when two thirds of that are used up. So a
//! busy proxy writes to the store every third of the timeout, and an idle one never.
//!
//! Promise: when the horizon has passed, nothing that was sent before is running upstream, if the upstream keeps its
//! time. Non-promise: it is in the store's clock; if that is set forward meanwhile, the horizon passes too early.

use super::fence::{Fence, Ticket};
use super::flight::{Fault, LineEpoch};
use leasehold_core::clock::Moment;
use leasehold_core::guard::HighWater;
use leasehold_core::{Error, Kind, Result};
use leasehold_guards::stored::{FenceRecord, FenceSnapshot, Horizon};
use std::sync::Arc;
use std::time::Duration;

/// The pause after a store that did not take the horizon.
const PAUSE: Duration = Duration::from_millis(100);

/// Whose requests, sent by another proxy or under another lease, may still be running, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited {
    pub(crate) of: LineEpoch,
    pub(crate) until: Moment,
}

/// A horizon that is about to be written, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) horizon: Horizon,
    asked: Moment,
}

impl Ticket {
    /// Whether the request may be completed now. If little time is left, the horizon is moved on.
    pub(crate) fn is_covered(&self, now: Moment) -> bool {
        let fence = self.fence();
        let send_until = fence.state().active.as_ref().map_or(now, |active| active.send_until);
        if now + fence.reserve() >= send_until {
            fence.horizon_wanted.notify_one();
        }
        now < send_until
    }

    /// Waits until the request may be completed.
    pub(crate) async fn covered(&self) -> Result<(), Fault> {
        loop {
            let moved = self.fence().horizon_moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.flight().is_cut() {
                return Err(self.flight().fault().unwrap_or(Fault::Deposed));
            }
            let Some(now) = self.still_trusted() else {
                self.flight().cut(Fault::Deposed);
                return Err(Fault::Deposed);
            };
            if self.is_covered(now) {
                return Ok(());
            }
            moved.await;
        }
    }
}

impl Fence {
    /// How long requests may be sent under one horizon.
    fn window(&self) -> Duration {
        self.upstream_timeout / 2
    }

    /// How much of that is left when the horizon is moved on.
    fn reserve(&self) -> Duration {
        self.window() / 3
    }

    /// The horizon for requests that are sent from now on.
    pub(crate) fn ahead(&self, seen: &FenceSnapshot, of: LineEpoch) -> Ahead {
        let now = self.coordinator.clock().now();
        let inherited = self.state().active.as_ref().and_then(|active| active.inherited);
        let left =
            inherited.filter(|inherited| inherited.of == of).map(|inherited| inherited.until.saturating_since(now));
        let length = (self.window() + self.upstream_timeout).max(left.unwrap_or_default());
        let until = seen.anchor.at_latest(now, self.document.grain()).plus(length);
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        Ahead { horizon: Horizon { lineage: of.lineage, epoch: of.epoch, until, length_ms }, asked: now }
    }

    /// Until when requests may be completed under a horizon that was written.
    pub(crate) fn send_until(&self, ahead: &Ahead, written: &FenceSnapshot) -> Moment {
        // By the time in the answer too: the store's clock may have been set forward since it was last seen.
        let surely = written.anchor.trust(ahead.horizon.until, self.document.grain());
        (surely - self.upstream_timeout).min(ahead.asked + self.window())
    }

    /// Until when what other proxies have sent may still be running, if it may.
    pub(crate) fn inherited(&self, seen: &FenceSnapshot) -> Option<Inherited> {
        let (horizon, left) = (seen.record.horizon?, seen.record.horizon_left(seen.anchor.now));
        let of = LineEpoch { lineage: horizon.lineage, epoch: horizon.epoch };
        (!left.is_zero()).then(|| Inherited { of, until: self.coordinator.clock().now() + left })
    }

    /// The same when nobody knows: the fence itself was lost with the store.
    pub(crate) fn inherited_unknown(&self, high: &HighWater) -> Inherited {
        let until = self.coordinator.clock().now() + self.window() + self.upstream_timeout;
        Inherited { of: high.into(), until }
    }

    /// Moves the horizon on whenever a request needs it, until dropped.
    pub(crate) async fn keep_horizon(self: Arc<Self>) {
        loop {
            self.horizon_wanted.notified().await;
            if self.extend().await.is_err() {
                tokio::time::sleep(PAUSE).await;
                // Requests still wait for it.
                self.horizon_wanted.notify_one();
            }
        }
    }

    async fn extend(&self) -> Result<()> {
        let _writing = self.writing.lock().await;
        let now = self.coordinator.clock().now();
        let seen = match &self.state().active {
            Some(active) if now + self.reserve() >= active.send_until => active.seen.clone(),
            _ => return Ok(()),
        };
        let Some(high) = &seen.record.high else { return Ok(()) };
        let ahead = self.ahead(&seen, high.into());
        let next = FenceRecord { horizon: Some(ahead.horizon), ..seen.record.clone() };
        match self.document.put(&seen, next).await? {
            Some(written) => {
                let _ = self.take_over(&seen, written, &ahead);
                self.wake(&self.state());
            }
            // It is another proxy's now, or the next try finds what it is.
            None => {
                let _ = self.read_again(&seen).await;
                return Err(Error::new(Kind::Contended, "the fence has moved"));
            }
        }
        Ok(())
    }

    /// Removes the horizon when nothing that this proxy or an earlier one has sent can be running, so that the next
    /// one need not wait.
    pub(crate) async fn withdraw_horizon(&self) -> Result<()> {
        let _writing = self.writing.lock().await;
        let now = self.coordinator.clock().now();
        let seen = {
            let mut state = self.state();
            let is_quiet = state.flights.is_empty() && state.unanswered.values().all(|until| now >= *until);
            match state.active.as_mut() {
                Some(active) if is_quiet && active.inherited.is_none_or(|inherited| now >= inherited.until) => {
                    // Nothing is sent from here on, though the write may fail.
                    active.send_until = now;
                    active.seen.clone()
                }
                _ => return Ok(()),
            }
        };
        if seen.record.horizon.is_some() {
            self.document.put(&seen, FenceRecord { horizon: None, ..seen.record.clone() }).await?;
        }
        Ok(())
    }
}
