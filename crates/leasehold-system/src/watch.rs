//! Hints that a folder or file has changed.
//!
//! Promise: a change by a process of this machine gives a hint soon. Non-promise: changes by other machines on a
//! network file system give none; a hint may come twice or without a change.

pub use crate::native::watch::PathWatch;
