//! Local clocks. This is the only file that reads them.
//!
//! Promise: a [`Moment`] counts the time for which the machine slept, so a laptop that wakes after an hour knows that
//! its lease is gone. Non-promise: moments of two machines, or of two boots, cannot be compared.

use crate::native;
use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant on the clock that counts suspended time: nanoseconds since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// A moment from nanoseconds since boot, as received from another process on this machine.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn saturating_since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The present moment.
pub fn now() -> Moment {
    let t = rustix::time::clock_gettime(native::SUSPEND_COUNTING_CLOCK);
    Moment((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64))
}

/// The wall clock in milliseconds since 1970. For showing times to people, and
/// for stores that live on this machine; never compared with another machine's.
pub fn wall_ms() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (t.tv_sec.max(0) as u64).saturating_mul(1000).saturating_add(t.tv_nsec as u64 / 1_000_000)
}

/// Sleeps until `until`. If the machine sleeps past it, this wakes at once when the machine resumes.
pub async fn sleep_until(until: Moment) {
    native::sleep_until(until).await;
}
