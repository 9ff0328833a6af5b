//! The named steps of every guard, announced to an [`Observer`](leasehold_core::observe::Observer) before each is taken, so
//! that tests can stop, kill or fail a writer there. The words of a step are those that follow "cannot" in a message.
//!
//! Promise: without an observer a step costs nothing. Non-promise: an observer is for tests and for saying how far a
//! write has come; it cannot let a refused write through.

#[cfg(feature = "file")]
pub(crate) mod file;
#[cfg(feature = "git")]
pub(crate) mod git;
#[cfg(any(feature = "sql", feature = "object"))]
pub(crate) mod write;
