//! The rules of Leasehold: what a lease and an item are, who may change them, and how long a holder may trust itself.
//!
//! A **lease** decides who may try: it is time-bounded, renewed while the work runs, and expires by itself.
//! A **fence** decides whose writes still count: every acquisition gets a strictly larger [`Epoch`], and the place that
//! is written to refuses smaller ones.
//!
//! - [`Coordinator`] acquires, renews and releases leases in any [`Store`].
//! - [`Keeper`] renews a grant in the background and tells when it is lost.
//! - [`lease::protocol::decide`] is the one pure function behind both, [`item::protocol::decide`] its twin for queues.
//! - [`guard`] has the predicate that every guarded resource applies.
//!
//! What is promised, and what is not, is in `docs/guarantees.md`. Stores are in `leasehold-stores`, guards in
//! `leasehold-guards`, queues and schedules in `leasehold-work`, the command in `leasehold-cli`. All of them are built
//! on this crate, which may change with any release.
//!
//! ```
//! use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Keeper, MemoryStore, Outcome};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
//! let leases = Coordinator::new(Arc::new(MemoryStore::default()));
//! let ask = Ask::new(HolderId::new(None), "90s".parse()?);
//! match leases.acquire(&"daily-publish".parse()?, &ask).await? {
//!     Acquired::Refused { refusal, .. } => println!("skipped: {refusal}"),
//!     Acquired::Granted(grant) => {
//!         let keeper = Keeper::start(leases.clone(), *grant);
//!         // ... the work, which ends early when `keeper.lost()` resolves ...
//!         let grant = keeper.stop().await;
//!         leases.release(&grant, Outcome::Succeeded).await?;
//!     }
//! }
//! # Ok(()) }
//! ```

mod backoff;
pub mod cell;
pub mod clock;
pub mod codec;
mod coordinator;
mod counters;
pub mod distribution;
pub mod document;
pub mod drain;
mod epoch;
mod error;
mod grant;
pub mod guard;
pub mod hints;
mod history;
mod holder;
pub mod holding;
pub mod item;
mod keeper;
pub mod lease;
mod masked;
pub mod measured;
mod memory;
pub mod migration;
mod name;
mod nonce;
#[doc(hidden)]
pub mod observe;
mod pattern;
pub mod relocation;
mod remedy;
mod resolve;
pub mod secret;
pub mod store;
mod tenancy;
mod text;
mod time;
mod token;
mod verbs;
mod wait;
pub mod wire;

pub use coordinator::{
    Acquired, Ask, Carried, Coordinator, Inspection, Listing, Operated, Released, Releasing, lost_error,
};
pub use counters::{Counters, EndedRun, Event, FENCED_KEPT, FencedMark, FencedWrite};
pub use distribution::Distribution;
pub use epoch::Epoch;
pub use error::{Error, Kind, Result, printable};
pub use grant::{Anchor, Grant, Tenured};
pub use history::{History, Retention, history_subject, masked_history};
pub use holder::HolderId;
pub use keeper::{Keeper, KeeperState, Loss, ProgressGate, asked_to_finish};
pub use lease::record::{
    Drain, OperatorMark, Ownership, Progress, SLOT_RUNS, Slot, SlotMark, SlotState, TRANSFERS_KEPT, Tenure,
};
pub use lease::transfer::{Outcome, Reason, Transfer};
pub use memory::MemoryStore;
pub use name::{Key, LeaseName, MAX_NAME_BYTES, PROXY_FOLDER, Shelf};
pub use nonce::{Jitter, Lineage, Nonce};
pub use pattern::{NamePattern, is_like};
pub use remedy::{Remedy, StoredLineage, Words, put_into_words};
pub use resolve::{Live, Resolved, Resolver, TokenKind, TokenState};
pub use store::{Capabilities, Revision, Store};
pub use tenancy::{Held, Tenancy, progress_age};
pub use text::{Checkpoint, Label, Line, Marker, Who, Why, breaks_a_line};
pub use time::{Timestamp, Ttl, format_duration, parse_duration};
pub use token::{Claim, Token};
pub use verbs::LeaseVerbs;
