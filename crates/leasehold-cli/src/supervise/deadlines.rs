//! When a command must be told to end, and when it is ended, so that it is dead before its lease can be granted again.

use leasehold_core::clock::Moment;
use leasehold_core::{Error, Result, Ttl, format_duration};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Killing takes time: signals must be delivered, the tree walked, the dead reaped.
const MIN_MARGIN: Duration = Duration::from_millis(50);
const MAX_MARGIN: Duration = Duration::from_secs(2);
const MAX_DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How the end of a trust window is used: first a polite signal, then, a margin before the end, the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// How long a command has between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// How long before the end of trust the SIGKILL is sent.
    pub margin: Duration,
}

impl Deadlines {
    /// The deadlines for this TTL. The grace is at most a sixth of it by default and must fit between the second missed
    /// renewal and the end, or every hiccup of the store would end the command.
    pub fn new(ttl: Ttl, grace: Option<Duration>) -> Result<Self> {
        let ttl = ttl.get();
        let margin = (ttl / 20).clamp(MIN_MARGIN, MAX_MARGIN);
        let longest = ttl / 3;
        let grace = grace.unwrap_or_else(|| (ttl / 6).min(MAX_DEFAULT_GRACE));
        if grace + margin > longest {
            let form = format!(
                "with a ttl of {} use at most {}, or a longer ttl",
                format_duration(ttl),
                format_duration(longest.saturating_sub(margin))
            );
            return Err(Error::invalid("grace", format_duration(grace), form));
        }
        Ok(Deadlines { grace, margin })
    }

    /// When SIGTERM is due if trust ends at `trust_until`.
    pub fn term_at(self, trust_until: Moment) -> Moment {
        trust_until - self.margin - self.grace
    }

    /// When SIGKILL is due if trust ends at `trust_until`.
    pub fn kill_at(self, trust_until: Moment) -> Moment {
        trust_until - self.margin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_signal_is_always_before_the_end_of_trust_and_after_two_renewals() {
        for ttl in ["1s", "5s", "90s", "80m", "24h"] {
            let ttl: Ttl = ttl.parse().unwrap();
            let deadlines = Deadlines::new(ttl, None).unwrap();
            let end = Moment::from_nanos(0) + Duration::from_secs(200_000);
            assert!(deadlines.kill_at(end) < end);
            assert!(deadlines.term_at(end) < deadlines.kill_at(end));
            assert!(deadlines.term_at(end) >= end - ttl.get() / 3);
        }
    }

    #[test]
    fn a_grace_that_does_not_fit_is_refused() {
        assert!(Deadlines::new("1s".parse().unwrap(), Some(Duration::from_secs(1))).is_err());
        assert!(Deadlines::new("90s".parse().unwrap(), Some(Duration::from_secs(20))).is_ok());
    }
}
