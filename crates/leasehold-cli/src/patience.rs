//! How long a verb waits for a remote that may not answer.
//!
//! Promise: after five seconds the user learns what the verb waits for, on standard error, once (on a terminal: on a line
//! that stays until the wait is over); and no wait outlasts the limit. Non-promise: a thread that is blocked for good, as by a
//! dead network mount, is not interrupted.

use crate::bar::Bar;
use crate::config::duration_of;
use crate::output;
use leasehold_core::{Error, Kind, Result, format_duration};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// Shorter waits are not worth a message.
const QUIET: Duration = Duration::from_secs(5);

/// A limit on the whole, and what is waited for at the moment. Copies share both.
#[derive(Debug, Clone)]
pub struct Patience {
    limit: Duration,
    step: Arc<watch::Sender<String>>,
    bar: Arc<OnceLock<Bar>>,
}

impl Patience {
    /// As `--timeout` has it, or else the default; beginning with a wait for `step`.
    pub fn from_flag(timeout: Option<&str>, default: Duration, step: impl Into<String>) -> Result<Self> {
        let limit = duration_of("--timeout", timeout)?.unwrap_or(default);
        if limit.is_zero() {
            return Err(Error::invalid("--timeout", "0", "use a duration such as 90s or 10m"));
        }
        Ok(Patience::new(limit, step))
    }

    /// No wait outlasts `limit`; `step` is what the verb waits for, in messages.
    pub fn new(limit: Duration, step: impl Into<String>) -> Self {
        Patience { limit, step: Arc::new(watch::Sender::new(step.into())), bar: Arc::default() }
    }

    /// How long it lasts.
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// From now on this is waited for: a noun, as in "still waiting for ...".
    pub fn at(&self, step: impl Into<String>) {
        let step = step.into();
        if let Some(bar) = self.bar.get() {
            bar.at(&step);
        }
        self.step.send_replace(step);
    }

    /// Returns when the time is up. Until then it says what takes long.
    pub async fn run_out(&self) {
        let mut step = self.step.subscribe();
        let line = Line(self.bar.get_or_init(Bar::begin));
        line.0.at(&step.borrow());
        let mut end = pin!(sleep(self.limit));
        loop {
            tokio::select! {
                () = &mut end => return,
                Ok(()) = step.changed() => continue,
                () = sleep(QUIET) => {}
            }
            if line.0.is_shown() {
                continue;
            }
            let (what, limit) = (step.borrow_and_update().clone(), format_duration(self.limit));
            output::say(&format!("still waiting for {what}; gives up after {limit} in all (see --timeout)"));
            tokio::select! {
                () = &mut end => return,
                Ok(()) = step.changed() => {}
            }
        }
    }

    /// The error when the time limit was reached.
    pub fn gave_up(&self, kind: Kind) -> Error {
        let (step, limit) = (self.step.borrow().clone(), format_duration(self.limit));
        Error::new(kind, format!("gave up after {limit}, still waiting for {step}; --timeout gives it more time"))
    }
}

/// The line on the terminal, which goes away with the wait, however that ends.
struct Line<'a>(&'a Bar);

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_takes_too_long_is_cut_off_and_named() {
        let patience = Patience::new(Duration::from_millis(50), "the first step");
        patience.at("a server that never answers");
        patience.run_out().await;
        let error = patience.gave_up(Kind::Unavailable);
        assert_eq!(error.kind(), Kind::Unavailable);
        let text = error.to_string();
        assert!(text.contains("after 50ms") && text.contains("a server that never answers"), "{text}");
    }

    #[test]
    fn the_limit_is_the_flags_or_the_default() {
        let limit = |flag| Patience::from_flag(flag, Duration::from_secs(60), "x").map(|patience| patience.limit);
        assert_eq!(limit(None).unwrap(), Duration::from_secs(60));
        assert_eq!(limit(Some("2s")).unwrap(), Duration::from_secs(2));
        for wrong in ["", "soon", "0s", "-1s"] {
            let error = limit(Some(wrong)).unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains("--timeout"), "{wrong}: {error}");
        }
    }
}
