//! Notifications: who is told that a job is down, that it is back, or that something was refused.
//!
//! What happened is read from the records that are written anyway: a lease's transfers, a job's journal and definition, its
//! counters. What was made of it, and what was told, is one small record per name, changed by the one loop; what is to be told
//! is put into that record in the same write, and from there into a queue, from which any machine delivers it.
//!
//! Promise: each end of a run is judged once, by whoever comes first, whichever machines die; what is to be told is told at
//! least once, under the same id each time. Non-promise: nobody is told while no machine looks. How a message is delivered is
//! the deliverer's; see [`Board::queue`].

pub(crate) mod board;
#[cfg(test)]
mod board_tests;
mod cause;
mod facts;
mod notice;
mod rule;
mod standing;
mod sweep;
#[cfg(test)]
mod tests;

pub use board::Board;
pub use cause::{Cause, Causes};
pub use facts::{Detail, Facts, Place, Subject};
pub use notice::Notice;
pub use rule::{Channel, Rule};
pub use sweep::{Overdue, overdue};
