//! The holder's own clock, which counts suspended time.
//!
//! Promise: the keeper and the coordinator read time only through this trait, so that tests can set it.

use leasehold_system::clock as system;
pub use leasehold_system::clock::Moment;

use async_trait::async_trait;
use leasehold_system::sync::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A clock that counts suspended time and can wait.
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync {
    /// The present moment.
    fn now(&self) -> Moment;

    /// Waits until then; returns at once if it has passed.
    async fn sleep_until(&self, until: Moment);
}

/// This machine's clock, which counts suspended time.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Moment {
        system::now()
    }

    async fn sleep_until(&self, until: Moment) {
        system::sleep_until(until).await;
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<Mutex<Moment>>,
    moved: Arc<Notify>,
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock { now: Arc::new(Mutex::new(Moment::from_nanos(1_000_000_000))), moved: Arc::default() }
    }
}

impl ManualClock {
    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock();
        *now = *now + by;
        self.moved.notify_waiters();
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Moment {
        *self.now.lock()
    }

    async fn sleep_until(&self, until: Moment) {
        loop {
            let moved = self.moved.notified();
            if self.now() >= until {
                return;
            }
            moved.await;
        }
    }
}
