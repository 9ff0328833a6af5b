//! The named stages of a guarded write that goes over a network or into a database, and who may watch them.
//!
//! Promise: every stage is announced before it is taken, so that tests can stop or kill a writer at each of them.
//! Non-promise: production never watches.

use leasehold_core::{Error, Kind, Result};
use std::fmt;
use std::io;
use std::sync::Arc;

/// One stage of a guarded write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
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

impl Stage {
    /// Those of a database.
    pub const SQL: [Stage; 4] = [Stage::Connect, Stage::Admit, Stage::Apply, Stage::Commit];
    /// Those of an object.
    pub const OBJECT: [Stage; 2] = [Stage::Look, Stage::Put];
}

/// Watches a guard at work. An error makes the announced stage fail with it.
pub trait Stages: fmt::Debug + Send + Sync {
    /// Called before each stage is taken.
    fn reach(&self, stage: Stage) -> io::Result<()>;
}

/// Whoever watches, or nobody.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watched(Option<Arc<dyn Stages>>);

impl Watched {
    pub(crate) fn by(stages: Arc<dyn Stages>) -> Self {
        Watched(Some(stages))
    }

    pub(crate) fn reach(&self, stage: Stage, resource: &str) -> Result<()> {
        let Some(stages) = &self.0 else { return Ok(()) };
        stages.reach(stage).map_err(|e| {
            Error::new(Kind::Unavailable, format!("stopped before {stage:?}: resource=`{resource}`")).with_source(e)
        })
    }
}
