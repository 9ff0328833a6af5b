//! The named steps of every guard, announced before each is taken, so that tests can stop, kill or fail a writer there.
//!
//! Promise: without an observer a step costs nothing. Non-promise: an observer is for tests; users have none.

#[cfg(any(feature = "sql", feature = "object"))]
pub(crate) mod stages;
#[cfg(feature = "file")]
pub(crate) mod steps;

#[cfg(any(feature = "sql", feature = "object"))]
pub use stages::*;
#[cfg(feature = "file")]
pub use steps::*;
