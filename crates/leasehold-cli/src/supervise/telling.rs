//! Telling the store how work ended, while the store may be away.
//!
//! Nobody renews meanwhile: an end is a write of the same record as a renewal, so where one would be answered the other is.
//!
//! Promise: it is tried until the store has answered, for as long as the lease or the item is trusted; then, or when a
//! signal comes, it is given up, and the caller is told that it is not recorded. Non-promise: that it was not applied. An
//! attempt without an answer may have been.

use crate::output;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Error, Kind, Result, format_duration};
use leasehold_system::undo::{Mend, undone};
use std::pin::pin;
use std::time::Duration;

/// How long the telling may take where trust ends sooner, and how long an attempt that is under way has when a signal
/// comes: most stores answer well within it.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Between two attempts, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A store that is back by then is not worth a word.
const QUIET: Duration = Duration::from_millis(500);

/// Why the end could not be told.
#[derive(Debug)]
pub enum Untold {
    /// The store answered, and trying again would not help.
    Refused(Error),
    /// Nobody knows of it: for this reason.
    Unrecorded(String),
}

/// How long there is to tell it, and of what.
#[derive(Debug, Clone)]
pub struct Telling {
    /// What has ended, for people: "the end of `job:7`".
    pub what: String,
    /// The end of the trust window.
    pub trust_until: Moment,
}

/// Tries until it is told. `stop` ends the waiting.
pub async fn tell<T>(
    telling: &Telling,
    stop: impl Future<Output = ()>,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T, Untold> {
    let until = telling.trust_until.max(SystemClock.now() + LAST_WORD);
    let begun = SystemClock.now();
    let (mut stop, mut is_stopped, mut is_quiet, mut pause) = (pin!(stop), false, true, FIRST_PAUSE);
    let mut trouble: Option<Error> = None;
    loop {
        let attempted = {
            let mut attempting = pin!(attempt());
            tokio::select! {
                biased;
                attempted = &mut attempting => Some(attempted),
                () = SystemClock.sleep_until(until) => None,
                () = &mut stop, if !is_stopped => {
                    is_stopped = true;
                    let last = SystemClock.now() + LAST_WORD;
                    tokio::select! {
                        biased;
                        attempted = &mut attempting => Some(attempted),
                        () = SystemClock.sleep_until(last.min(until)) => None,
                    }
                }
            }
        };
        match attempted {
            Some(Ok(told)) => return Ok(told),
            Some(Err(error)) if !passes(error.kind()) => return Err(Untold::Refused(error)),
            Some(Err(error)) => trouble = Some(error),
            None => return Err(given_up(is_stopped, trouble)),
        }
        let now = SystemClock.now();
        if is_stopped || now + pause >= until || undone(Mend::EndToldOnce) {
            return Err(given_up(is_stopped, trouble));
        }
        if is_quiet && now.saturating_since(begun) >= QUIET {
            is_quiet = false;
            let (what, left) = (&telling.what, format_duration(rounded(until.saturating_since(now))));
            let trouble = trouble.as_ref().map(ToString::to_string).unwrap_or_default();
            output::say(&format!("cannot record {what} yet, trying again for up to {left}: {trouble}"));
        }
        tokio::select! {
            () = SystemClock.sleep_until(now + pause) => {}
            () = &mut stop => return Err(given_up(true, trouble)),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Nobody reads milliseconds.
const fn rounded(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + 1)
}

fn given_up(is_stopped: bool, trouble: Option<Error>) -> Untold {
    let trouble = trouble.map_or_else(|| "the store did not answer".to_owned(), |error| error.to_string());
    Untold::Unrecorded(if is_stopped { format!("told to end while the store was away: {trouble}") } else { trouble })
}

/// Whether it may go well the next time.
pub const fn passes(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Contended | Kind::Indeterminate)
}
