//! The named steps of a fenced push.
//!
//! Promise: every step is announced before it is taken. Non-promise: what happens on the remote between sending and the
//! reply is the remote's; its hooks can watch that.

use leasehold_core::observe::Observed;
use leasehold_core::{Error, Result};

leasehold_system::words! {
    /// One step of a seal or of a push. An error at [`GitStep::Reply`] is a lost answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum GitStep {
        /// The fence is read from the remote.
        ReadFence = "read the fence",
        /// The commit that the fence is to point at is made.
        MakeFence = "make the fence commit",
        /// `git push` is started.
        Push = "push",
        /// It has ended, and its answer is about to be judged.
        Reply = "hear the remote's answer",
        /// What the fence is now is written down for the next push.
        WriteCache = "write the fence down",
    }
}

/// Announces a step before anything is pushed, and fails if the observer says so.
pub(crate) fn reach(observed: &Observed<GitStep>, step: GitStep, resource: &str) -> Result<()> {
    observed
        .reach(step)
        .map_err(|e| Error::unavailable(format!("cannot {step}: resource=`{resource}`: nothing was pushed"), e))
}
