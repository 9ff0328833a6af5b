//! Notifications: who is told that a job is down, that it is up again, or that a write was refused.
//!
//! The facts are read from records that exist anyway: a lease's transfers, a job's journal and definition, its
//! counters. The judgment and the messages sent are in one small record per name, changed by the one loop. A message is
//! put into that record by the same write, and from there into a queue, from which any machine delivers it.
//!
//! Promise: each end of a run is judged once, by whichever machine comes first, even if machines die; each message is
//! sent at least once, under the same id each time. Non-promise: nobody is notified while no machine judges. How a
//! message is delivered is up to the deliverer; see [`Board::queue`].

pub(crate) mod board;
#[cfg(test)]
mod board_tests;
mod cause;
mod facts;
mod notice;
mod rule;
mod rule_state;
mod sweep;
#[cfg(test)]
mod tests;

pub use board::Board;
pub use cause::{Cause, Causes};
pub use facts::{Detail, Facts, StoreLocation, Subject};
pub use notice::Notice;
pub use rule::{Channel, Rule};
pub use sweep::{Overdue, overdue};
