//! How far a long command has come, on one line of the terminal that is gone when it ends.
//!
//! Promise: drawn on standard error, and only if that is a terminal; elsewhere nothing is written, and no thread is started.
//! Non-promise: it is no record of what was done.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How often the clock on the line moves.
const TICK: Duration = Duration::from_millis(200);

/// A line that says what is being done. Copies are the same line.
#[derive(Debug, Clone)]
pub struct Bar(ProgressBar);

impl Bar {
    /// Begins it.
    pub fn begin() -> Self {
        if !std::io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4}  {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Bar(bar)
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
