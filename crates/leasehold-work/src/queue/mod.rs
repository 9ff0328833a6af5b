//! Queues: an item is a lease with a payload.
//!
//! Each item has one permanent record, in which every claim, heartbeat, completion and operator's order is one swap that
//! [`protocol::decide`] decided. Beside it stands an entry in the queue's line, a mere hint by which the next item is
//! found ([ADR 10](https://github.com/leasehold/leasehold/blob/main/docs/adr/0010-an-items-record-is-the-truth-and-its-place-in-line-a-hint.md)).
//!
//! Promise: at most one accepted completion per item, whatever crashes, pauses or clocks do; the follow-ups of a
//! completion are added if and only if it counts; no item that was added is lost. Non-promise: a command may run more
//! than once, if a worker dies or stalls; its epoch tells guards which run counts.
//!
//! ```
//! use leasehold_core::MemoryStore;
//! use leasehold_work::queue::{Claimer, NewItem, Payload, Queue};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
//! let queue = Queue::new(Arc::new(MemoryStore::default()), "mail".parse()?);
//! queue.add(NewItem { payload: Payload::new("to: ada")?, ..NewItem::default() }).await?;
//!
//! let mut claimer = Claimer::new(queue.clone(), None, "90s".parse()?)?;
//! let grant = claimer.next().await?;
//! assert_eq!(grant.item().payload.bytes(), b"to: ada");
//! queue.complete(&grant, Some(Payload::result("sent")?), Vec::new()).await?;
//! # Ok(()) }
//! ```

mod apply;
mod backlog;
mod claimer;
mod counting;
mod draining;
mod grant;
mod janitor;
mod line;
#[allow(clippy::module_inception, reason = "it holds the type of that name")]
mod queue;
mod resolving;
mod served;
mod view;

pub use claimer::{Claimed, Claimer};
pub use grant::ItemGrant;
pub(crate) use grant::watch_item;
pub use janitor::{Chores, Items, Purged, Sweep};
pub use leasehold_core::item::{
    Attempts, DedupeKey, Event, FollowUp, Item, ItemId, ItemName, LinePosition, Payload, Priority, QueueName, Reason,
    Section, State, What, protocol,
};
pub use line::shown as shown_in_line;
pub use queue::{Added, Inspection, NewItem, Queue};
