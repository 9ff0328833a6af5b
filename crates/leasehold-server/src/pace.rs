//! How often something may happen: so many at once, then one at a time.
//!
//! Promise: no more passes against one mark than the burst, and one for each interval since then.

use leasehold_core::clock::Moment;
use std::time::Duration;

/// How often something may happen.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The time between two, in the long run.
    pub every: Duration,
    /// How far ahead of that it may run.
    pub ahead: Duration,
}

impl Pace {
    /// Counts one against `due`, the time at which all so far would have been due. If it is too early, returns how long to wait.
    pub fn take(self, due: &mut Moment, now: Moment) -> Result<(), Duration> {
        let ahead = due.saturating_since(now);
        if ahead > self.ahead {
            return Err(ahead - self.ahead);
        }
        *due = (*due).max(now) + self.every;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_at_a_time() {
        let pace = Pace { every: Duration::from_secs(10), ahead: Duration::from_secs(30) };
        let now = Moment::from_nanos(1_000_000_000);
        let mut due = now;
        assert!((0..4).all(|_| pace.take(&mut due, now).is_ok()));
        assert_eq!(pace.take(&mut due, now), Err(Duration::from_secs(10)));
        let later = now + Duration::from_secs(10);
        assert!(pace.take(&mut due, later).is_ok() && pace.take(&mut due, later).is_err());
        let much_later = now + Duration::from_secs(1_000);
        assert!((0..4).all(|_| pace.take(&mut due, much_later).is_ok()));
        assert!(pace.take(&mut due, much_later).is_err());
    }
}
