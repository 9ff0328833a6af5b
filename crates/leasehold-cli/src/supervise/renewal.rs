//! A lease that is not renewed in time, told while there is still time.
//!
//! Promise: when half of the trust that the last renewal gave is gone, it is said what fails, since when, and when the
//! command will be stopped for it; and that it is over, if it is. Non-promise: a renewal that goes well at its second try is
//! not worth a word.

use super::deadlines::Deadlines;
use crate::log;
use crate::output::{rfc3339, rough};
use leasehold_core::Timestamp;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_system::clock::wall_ms;
use std::time::Duration;

/// When to warn, and whether that was done.
#[derive(Debug)]
pub struct Renewal {
    deadlines: Deadlines,
    trust_until: Moment,
    /// When trust was given last.
    since: Moment,
    warn_at: Option<Moment>,
    is_told: bool,
}

impl Renewal {
    pub fn new(deadlines: Deadlines, trust_until: Moment) -> Self {
        let since = SystemClock.now();
        Renewal { deadlines, trust_until, since, warn_at: Some(half_way(since, trust_until)), is_told: false }
    }

    /// The lease was renewed.
    pub fn renewed(&mut self, trust_until: Moment) {
        let now = SystemClock.now();
        if self.is_told {
            let (what, away) = (log::subject(), rough(now.saturating_since(self.since)));
            tracing::info!(target: log::SAY, "{what} is renewed again, after {away}");
        }
        *self = Renewal::new(self.deadlines, trust_until);
    }

    /// When to warn, if it is not renewed by then.
    pub fn warn_at(&self) -> Option<Moment> {
        self.warn_at
    }

    /// Warns, with what the last try to renew came to.
    pub fn warn(&mut self, trouble: Option<String>) {
        (self.warn_at, self.is_told) = (None, true);
        let (now, stop_at) = (SystemClock.now(), self.deadlines.term_at(self.trust_until));
        let left = stop_at.saturating_since(now);
        let error = trouble.unwrap_or_else(|| "the store does not answer".into());
        let (what, since) = (log::subject(), wall_time(now, self.since));
        let stop = format!("{} (in {})", wall_time(now, stop_at), rough(left));
        tracing::warn!(
            error,
            "{what} has not been renewed since {since}; unless that succeeds, its command will be stopped at {stop}: {error}"
        );
    }
}

fn half_way(now: Moment, trust_until: Moment) -> Moment {
    now + trust_until.saturating_since(now) / 2
}

/// What the wall clock shows at a moment, to the second, as it shows the present.
fn wall_time(now: Moment, at: Moment) -> String {
    let ms = |duration: Duration| duration.as_millis() as u64;
    let wall = wall_ms().saturating_add(ms(at.saturating_since(now))).saturating_sub(ms(now.saturating_since(at)));
    rfc3339(Timestamp::from_millis(wall / 1000 * 1000))
}
