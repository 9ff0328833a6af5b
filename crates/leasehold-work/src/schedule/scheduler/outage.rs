//! Whether the store answers: news once when it does not, and once when it does again, however many jobs find out.
//!
//! Promise: a store that can be read and not be written is away until a job was settled. Non-promise: a store that is away
//! and that nobody asks; a scheduler asks at least every 10 seconds.

use leasehold_core::clock::Moment;
use leasehold_system::sync::Mutex;
use std::time::Duration;

/// What shows that the store is away, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sign {
    /// It was read.
    Look,
    /// A job was settled, for which it may have had to be written.
    Check,
}

/// Since when it is away, and the strongest sign of it.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<Option<(Moment, Sign)>>);

impl Outage {
    /// Notes that it did not answer; returns whether that is news.
    pub(super) fn begin(&self, sign: Sign, now: Moment) -> bool {
        let mut known = self.0.lock();
        let is_news = known.is_none();
        *known = Some(known.map_or((now, sign), |(since, strongest)| (since, strongest.max(sign))));
        is_news
    }

    /// Notes that it answered; returns how long it was away, if this shows that it is back.
    pub(super) fn end(&self, sign: Sign, now: Moment) -> Option<Duration> {
        let away = self.0.lock().take_if(|(_, strongest)| *strongest <= sign);
        away.map(|(since, _)| now.saturating_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::clock::{Clock, ManualClock};

    #[test]
    fn an_outage_is_news_once_and_its_end_too() {
        let (outage, clock) = (Outage::default(), ManualClock::default());
        let now = || clock.now();
        assert_eq!(outage.end(Sign::Check, now()), None);
        assert!(outage.begin(Sign::Look, now()));
        clock.advance(Duration::from_secs(3));
        assert!(!outage.begin(Sign::Look, now()));
        assert_eq!(outage.end(Sign::Look, now()), Some(Duration::from_secs(3)));
        // It can be read, and not written: a full disk.
        assert!(outage.begin(Sign::Check, now()) && !outage.begin(Sign::Look, now()));
        assert_eq!(outage.end(Sign::Look, now()), None);
        assert_eq!(outage.end(Sign::Check, now()), Some(Duration::ZERO));
        assert_eq!(outage.end(Sign::Check, now()), None);
    }
}
