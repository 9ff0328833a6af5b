//! The named steps of a guarded write that goes over a network or into a database.
//!
//! Promise: every step is announced before it is taken. Non-promise: in production nobody listens.

use leasehold_core::observe::Observed;
use leasehold_core::{Error, Kind, Result};

/// One step of a write that goes over a network or into a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteStep {
    /// A connection is made.
    Connect,
    /// The transaction begins, with the admit as its first act.
    Admit,
    /// The user's statements run.
    Apply,
    /// The transaction is seen to be the same, and commits.
    Commit,
    /// The object and its fence are looked at.
    Look,
    /// The object is put, under a condition.
    Put,
    /// The answer to a commit is heard; if this fails, it is lost.
    Reply,
    /// What became of a write without an answer is found out, by a new write.
    ReadBack,
}

impl WriteStep {
    /// Those of a database.
    pub const SQL: [WriteStep; 4] = [WriteStep::Connect, WriteStep::Admit, WriteStep::Apply, WriteStep::Commit];
    /// Those of an object.
    pub const OBJECT: [WriteStep; 2] = [WriteStep::Look, WriteStep::Put];
}

/// Announces a step, and fails if the observer says so.
pub(crate) fn reach(observed: &Observed<WriteStep>, step: WriteStep, resource: &str) -> Result<()> {
    observed.reach(step).map_err(|e| {
        Error::new(Kind::Unavailable, format!("stopped before {step:?}: resource=`{resource}`")).with_source(e)
    })
}
