//! Logs that a store is away, and when it is back.
//!
//! Promise: however many requests fail, each kind of failure is logged once until the store answers again. That is logged too, with
//! the number of failures. Non-promise: a store that answers now and then is logged each time.

use leasehold_core::{Error, Kind};
use std::sync::{Mutex, PoisonError};

/// The failures since the store last answered.
#[derive(Debug, Default)]
pub struct Outage(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    count: u64,
    /// The kinds that were logged.
    logged: Vec<Kind>,
}

impl Outage {
    /// Logs a failure. `what` begins the message, such as `the store failed`.
    pub fn failed(&self, what: &str, error: &Error) {
        let kind = error.kind();
        let is_first = {
            let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            failures.count += 1;
            let is_first = !failures.logged.contains(&kind);
            if is_first {
                failures.logged.push(kind);
            }
            is_first
        };
        match is_first {
            true => tracing::warn!(error = kind.as_str(), "{what}: {error}"),
            false => tracing::debug!(error = kind.as_str(), "{what}: {error}"),
        }
    }

    /// The store has answered again.
    pub fn over(&self) {
        let count = {
            let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if failures.count == 0 {
                return;
            }
            std::mem::take(&mut *failures).count
        };
        let requests = if count == 1 { "1 request".to_owned() } else { format!("{count} requests") };
        tracing::info!(failed = count, "the store answers again; {requests} to it failed");
    }
}
