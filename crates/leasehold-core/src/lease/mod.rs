//! A lease: its record, and the one function that changes it.
//!
//! Promise: [`protocol::decide`] is the only code that advances an epoch. Non-promise: nothing here reads a clock, draws
//! randomness or does I/O; [`crate::Coordinator`] does that.

pub mod protocol;
pub mod record;
pub mod transfer;
