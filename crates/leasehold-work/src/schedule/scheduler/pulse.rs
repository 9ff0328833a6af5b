//! Whether a scheduler's main loop is alive: for watchdogs and for readiness checks.

use leasehold_core::clock::{Clock, Moment};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// When a scheduler's main loop last turned. It turns at least twice a minute, even if nothing is due. Clones share it.
#[derive(Debug, Clone)]
pub struct Pulse {
    last: Arc<Mutex<Option<Moment>>>,
    started: watch::Sender<bool>,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Pulse { last: Arc::default(), started: watch::Sender::new(false) }
    }

    pub(super) fn beat(&self, now: Moment) {
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if before.is_none() {
            self.started.send_replace(true);
        }
    }

    /// Waits until the scheduler has read the store and its loop turns for the first time.
    pub async fn started(&self) {
        let _ = self.started.subscribe().wait_for(|started| *started).await;
    }

    /// How long ago the loop last turned; none if it has not started.
    pub fn age(&self, clock: &dyn Clock) -> Option<Duration> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|last| clock.now().saturating_since(last))
    }
}
