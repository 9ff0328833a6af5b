//! How far a long command has come, on one line of the terminal that is gone when it ends.
//!
//! Promise: drawn on standard error, and only if that is a terminal; elsewhere nothing is written, and no thread is started.
//! What is logged meanwhile gets lines of its own. Non-promise: it is no record of what was done. It is not drawn while a
//! command runs whose output goes to the terminal.

use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often the clock on the line moves.
const TICK: Duration = Duration::from_millis(200);

/// The line that was begun last.
static LAST: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Writes to standard error while no line is drawn there.
pub fn aside(write: impl FnOnce()) {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(WeakProgressBar::upgrade);
    match last {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// A line that says what is being done. Copies are the same line.
#[derive(Debug, Clone)]
pub struct Bar(ProgressBar);

impl Bar {
    /// Draws nothing unless standard error is a terminal.
    pub fn begin() -> Self {
        if !std::io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4}  {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.downgrade());
        Bar(bar)
    }

    /// Begins it with what is done first.
    pub fn saying(what: &str) -> Self {
        let bar = Bar::begin();
        bar.at(what);
        bar
    }

    /// Whether anybody sees it.
    pub fn is_shown(&self) -> bool {
        !self.0.is_hidden()
    }

    /// What is being done now, on one line.
    pub fn at(&self, what: &str) {
        self.0.set_message(leasehold_core::printable(what));
    }

    /// Takes the line away.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}
