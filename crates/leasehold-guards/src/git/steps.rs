//! The named steps of a fenced push, and who may watch them.
//!
//! Promise: every step is announced before it is taken, so that tests can stop, kill or fail a pusher at each of them.
//! Non-promise: what happens on the remote between sending and the reply is the remote's; its hooks can watch that.

use std::fmt;
use std::io;

/// One step of a seal or of a push.
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

/// Watches a guard at work. An error makes the announced step fail with it; at [`GitStep::Reply`] it is a lost answer.
pub trait GitSteps: fmt::Debug + Send + Sync {
    /// Called before each step is taken.
    fn reach(&self, step: GitStep) -> io::Result<()>;
}

/// Nobody watches.
#[derive(Debug)]
pub(crate) struct Unwatched;

impl GitSteps for Unwatched {
    fn reach(&self, _: GitStep) -> io::Result<()> {
        Ok(())
    }
}
