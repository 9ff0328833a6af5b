//! macOS. Written against the documented interfaces; docs/guarantees.md says what was not run here.

pub(crate) mod process;
pub mod rename;
pub(crate) mod volume;
pub(crate) mod watch;

use crate::clock::{self, Moment};
use std::time::Duration;

/// The system's name, as people say it.
pub const NAME: &str = "macos";

/// On Darwin `CLOCK_MONOTONIC` is the continuous clock: it goes on while the machine sleeps.
pub(crate) const SUSPEND_COUNTING_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// How late a wake-up after a system sleep may be noticed: Darwin has no timer on the continuous clock to wait on.
const RESUME_SLICE: Duration = Duration::from_millis(200);

pub(crate) async fn sleep_until(until: Moment) {
    loop {
        let left = until.saturating_since(clock::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(RESUME_SLICE)).await;
    }
}
