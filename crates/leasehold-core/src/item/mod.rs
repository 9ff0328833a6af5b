//! An item of a queue: its record, and the one function that changes it. An item is a lease with a payload.
//!
//! Promise: [`protocol::decide`] is the only code that changes an item. Non-promise: nothing here reads a clock or does I/O;
//! the queue in `leasehold-work` does that.

mod budget;
mod fate;
pub mod name;
pub mod payload;
pub mod protocol;
pub mod record;
mod refusal;

pub use name::{DedupeKey, ItemId, ItemName, LinePosition, Priority, QueueName, Section};
pub use payload::Payload;
pub use record::{Attempts, Event, FollowUp, Item, Reason, State, What};
