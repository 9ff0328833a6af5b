//! The named steps of a fenced push.
//!
//! Promise: every step is announced before it is taken. Non-promise: what happens on the remote between sending and the
//! reply is the remote's; its hooks can watch that.

use leasehold_core::observe::Observed;
use leasehold_core::{Error, Result};
use std::fmt;

/// One step of a seal or of a push. An error at [`GitStep::Reply`] is a lost answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GitStep {
    /// The fence is read from the remote.
    ReadFence,
    /// The commit that the fence is to point at is made.
    MakeFence,
    /// `git push` is started.
    Push,
    /// It has ended, and its answer is about to be judged.
    Reply,
    /// What the fence is now is written down for the next push.
    WriteCache,
}

impl GitStep {
    /// Every step, in the order in which a first push takes them.
    pub const ALL: [GitStep; 5] =
        [GitStep::ReadFence, GitStep::MakeFence, GitStep::Push, GitStep::Reply, GitStep::WriteCache];

    /// What the step does, for messages: "cannot ...".
    pub const fn as_str(self) -> &'static str {
        match self {
            GitStep::ReadFence => "read the fence",
            GitStep::MakeFence => "make the fence commit",
            GitStep::Push => "push",
            GitStep::Reply => "hear the remote's answer",
            GitStep::WriteCache => "write the fence down",
        }
    }
}

impl fmt::Display for GitStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Announces a step before anything is pushed, and fails if the observer says so.
pub(crate) fn reach(observed: &Observed<GitStep>, step: GitStep, resource: &str) -> Result<()> {
    observed
        .reach(step)
        .map_err(|e| Error::unavailable(format!("cannot {step}: resource=`{resource}`: nothing was pushed"), e))
}
