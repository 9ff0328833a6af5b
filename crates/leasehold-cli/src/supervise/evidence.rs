//! Evidence that the work moves, apart from the fact that its process exists.
//!
//! Only what was asked for counts: a `leasehold progress` call always does (it shows in the record), output and
//! touched files only when named, for a spinner prints for ever.

use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_system::sync::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Which evidence counts, and when the last was seen.
#[derive(Debug, Clone)]
pub struct Evidence {
    output: Output,
    files: Vec<PathBuf>,
    last_output: Arc<AtomicU64>,
}

/// Whether output counts as progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// What the command prints is progress.
    Counts,
    /// It does not, and is not looked at.
    Ignored,
}

impl Evidence {
    /// Evidence from these sources, besides `leasehold progress`.
    pub fn new(output: Output, files: Vec<PathBuf>) -> Self {
        Evidence { output, files, last_output: Arc::default() }
    }

    /// Whether the command's output must pass through us.
    pub fn wants_output(&self) -> bool {
        self.output == Output::Counts
    }

    /// What tells the keeper the latest moment of evidence.
    pub fn reader(&self) -> Arc<dyn Fn() -> Option<Moment> + Send + Sync> {
        let this = self.clone();
        // A file's time is in some other clock: only that it changed since we last looked is evidence.
        let seen: Mutex<(Vec<Option<SystemTime>>, Option<Moment>)> = Mutex::new((this.touched(), None));
        Arc::new(move || {
            let mut seen = seen.lock();
            let touched = this.touched();
            if touched != seen.0 {
                *seen = (touched, Some(SystemClock.now()));
            }
            let output = match this.last_output.load(Ordering::Relaxed) {
                0 => None,
                nanos => Some(Moment::from_nanos(nanos)),
            };
            seen.1.max(output)
        })
    }

    fn touched(&self) -> Vec<Option<SystemTime>> {
        self.files.iter().map(|file| std::fs::metadata(file).and_then(|m| m.modified()).ok()).collect()
    }

    /// There was output just now.
    pub fn note_output(&self) {
        self.last_output.store(SystemClock.now().as_nanos(), Ordering::Relaxed);
    }
}
