//! Hints that a folder or file has changed.
//!
//! Promise: a change made by this machine's own processes is hinted at, soon. Non-promise: changes that other machines
//! make on a network file system are not; a hint may come twice or for nothing.

pub use crate::native::watch::PathWatch;
