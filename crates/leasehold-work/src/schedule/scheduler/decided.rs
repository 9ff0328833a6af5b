//! What a scheduler decides, and whom it tells.
//!
//! Promise: each decision is told once, when it is made. Non-promise: it decides nothing, and it does not wait for whoever is told.

use crate::schedule::due::Dropped;
use crate::schedule::job::Job;
use crate::schedule::journal::Fate;
use crate::schedule::requests::Requested;
use leasehold_core::{Epoch, Error, Outcome, Slot, Timestamp};
use std::time::Duration;

/// A decision about a job.
#[derive(Debug)]
pub enum Decided {
    /// This slot has to be claimed now.
    Due(Slot),
    /// This slot was claimed under this epoch and is being started.
    Started(Slot, Epoch),
    /// A run was requested, and is being started under this epoch.
    Requested(Box<Requested>, Epoch),
    /// The run of this slot under this epoch did not complete: its process or its machine died, or it lost its lease.
    /// It is run again. A loss during the run was already reported by that run.
    Interrupted(Slot, Epoch, Outcome),
    /// This slot is not run.
    Skipped(Slot, Fate),
    /// These slots are not caught up on.
    Dropped(Dropped),
    /// No slot can be run until this one's time has come, or an operator sets the mark back: it was claimed while the
    /// store's clock was ahead of its present time. Reported once.
    Ahead {
        /// The slot that is still in the future.
        until: Slot,
        /// The store's time.
        now: Timestamp,
    },
    /// An error that concerns this job, of its records or of the machine; the job is checked again soon. That the store
    /// does not answer concerns every job: see [`Watcher::store_away`].
    Trouble(Error),
}

/// Is notified of a scheduler's decisions.
pub trait Watcher: std::fmt::Debug + Send + Sync {
    /// Something was decided about this job.
    fn decided(&self, job: &Job, decided: Decided);

    /// The store does not answer, so nothing is decided about any job. Called once until it answers again.
    fn store_away(&self, _error: &Error) {}

    /// The store answers again, so long after that.
    fn store_back(&self, _away_for: Duration) {}
}
