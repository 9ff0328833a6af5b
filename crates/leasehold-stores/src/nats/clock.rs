//! The leader's clock, as last reported.
//!
//! Promise: a time was sent by the leader before the caller's call ends, and was requested at most [`FRESH`] before
//! that call. So it is never ahead, and behind by less than [`GRAIN`]. Nothing is added to it, so our own clock only
//! measures those few milliseconds. Non-promise: a lone call asks each time. Only concurrent calls share an answer.

use leasehold_core::Timestamp;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_system::sync::Mutex;
use std::time::Duration;
use tokio::sync::watch;

/// How long before a call its time may have been requested.
const FRESH: Duration = Duration::from_millis(40);
/// How far a time may be behind: [`FRESH`], and some slack for a clock that is being adjusted.
pub(super) const GRAIN: Duration = Duration::from_millis(50);

/// The last request for the time, answered or not.
#[derive(Debug)]
struct TimeRequest {
    at: Moment,
    told: watch::Receiver<Option<Timestamp>>,
}

/// The last request for the time, shared by concurrent calls.
#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<Option<TimeRequest>>);

/// What a caller has to do.
pub(super) enum Next {
    /// Wait for the answer to a request that was just sent.
    Wait(watch::Receiver<Option<Timestamp>>),
    /// Ask, and share the answer.
    Ask(watch::Sender<Option<Timestamp>>),
}

impl Pulse {
    /// Call it before anything is sent.
    pub(super) fn next(&self) -> Next {
        self.next_at(SystemClock.now())
    }

    fn next_at(&self, now: Moment) -> Next {
        let mut last = self.0.lock();
        if let Some(asked) = last.as_ref().filter(|asked| now.saturating_since(asked.at) <= FRESH) {
            return Next::Wait(asked.told.clone());
        }
        let (sender, told) = watch::channel(None);
        *last = Some(TimeRequest { at: now, told });
        Next::Ask(sender)
    }
}

/// The time; none if the request got no answer.
pub(super) async fn answer(mut told: watch::Receiver<Option<Timestamp>>) -> Option<Timestamp> {
    told.wait_for(Option::is_some).await.ok().and_then(|time| *time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_time_is_shared_for_a_moment_only() {
        let (pulse, start) = (Pulse::default(), Moment::from_nanos(1_000_000_000));
        let Next::Ask(teller) = pulse.next_at(start) else { panic!("the first asks") };
        let Next::Wait(told) = pulse.next_at(start + FRESH) else { panic!("the second need not ask") };
        teller.send(Some(Timestamp::from_millis(7))).unwrap();
        assert_eq!(answer(told).await, Some(Timestamp::from_millis(7)));
        let late = start + FRESH + Duration::from_millis(1);
        let Next::Ask(teller) = pulse.next_at(late) else { panic!("an old answer is not used") };
        let Next::Wait(told) = pulse.next_at(late) else { panic!("the next waits") };
        drop(teller);
        assert_eq!(answer(told).await, None, "whoever asked is gone");
    }
}
