//! Backoff: pauses that grow, with jitter.
//!
//! Promise: pauses double up to a limit, and each is random, so that contenders do not collide again.
//! Non-promise: it does not sleep.

use crate::nonce::{Jitter, Nonce};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    last: Duration,
    /// Created at the first pause: most callers never pause.
    jitter: Option<Jitter>,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Backoff { first, most, last: Duration::ZERO, jitter: None }
    }

    /// Makes the next pause the shortest again.
    pub(crate) const fn reset(&mut self) {
        self.last = Duration::ZERO;
    }

    /// A random pause below a bound that doubles each time. For few contenders.
    pub(crate) fn any(&mut self) -> Duration {
        self.last = (self.last * 2).clamp(self.first, self.most);
        self.below(self.last)
    }

    /// The same, but at least half of the bound. For many contenders.
    pub(crate) fn at_least_half(&mut self) -> Duration {
        self.last = (self.last * 2).clamp(self.first, self.most);
        let half = self.last / 2;
        half + self.below(half)
    }

    /// A random time below `bound`.
    pub(crate) fn below(&mut self, bound: Duration) -> Duration {
        let jitter = self.jitter.get_or_insert_with(|| Jitter::new(Nonce::random()));
        Duration::from_micros(jitter.below((bound.as_micros() as u64).max(1)))
    }
}
