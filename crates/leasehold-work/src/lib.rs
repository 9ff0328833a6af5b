//! Work on top of leases: schedules, whose slots run once each, and queues, whose items are completed once each.
//!
//! Promise: at most one accepted run per job and nominal slot instant, and at most one accepted
//! completion per item and attempt, whatever clocks, crashes or pauses do. Non-promise: a
//! command that was started twice is not undone; guards decide which of its writes count.

pub mod backlog;
pub mod digest;
pub mod documents;
pub mod notify;
pub mod output;
pub mod presence;
pub mod queue;
pub mod schedule;
pub mod spool;
pub mod tally;
mod tokens;

pub use backlog::Backlog;
pub use tokens::{Renewed, Tokens};
