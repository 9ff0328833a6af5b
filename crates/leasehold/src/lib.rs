//! One process does the work at a time, and what a stale process writes is refused.
//!
//! A **lease** decides who may try. It lasts for a bounded time, is renewed while the work runs, and expires by itself.
//! A **guard** decides whose writes count. Every acquisition gets a larger number, the *epoch*, and the place that is
//! written to refuses smaller ones.
//!
//! ```
//! use leasehold::Run;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let url = format!("sqlite:{}", folder.path().join("leases.db").display());
//! # let path = folder.path().join("out.json");
//! # fn report() -> String { "{}".into() }
//! # #[cfg(all(feature = "sqlite", feature = "file"))] {
//! let leases = leasehold::connect(&url).await?; // "postgres://db/jobs", "dir:/mnt/team/leases", ...
//! let out = leasehold::guard::file(&path)?;
//! let ran = leases
//!     .lease("nightly")
//!     .ttl("90s")
//!     .guard(&out)
//!     .run(async |held| out.write(&held, report()).await)
//!     .await?;
//! match ran {
//!     Run::Ran(_) => println!("done"),
//!     Run::Skipped(busy) => println!("skipped: {busy}"),
//!     Run::Lost(loss) => println!("stopped, the lease was lost: {loss}"),
//! }
//! # }
//! # Ok(()) }
//! ```
//!
//! By hand, where the work is not one future:
//!
//! ```
//! use leasehold::Outcome;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let leases = leasehold::Leases::on(leasehold::store::memory());
//! let held = leases.lease("nightly").wait("10m").acquire().await?;
//! println!("working under {}", held.token());
//! held.progress("3 of 10").await?;
//! held.release(Outcome::Succeeded).await?;
//! # Ok(()) }
//! ```
//!
//! # Dropping and cancelling
//! There is one rule: **what is dropped is no longer renewed, and expires after its TTL.** It is not released, because work that
//! was cut off may have left something running, and only the TTL bounds how long.
//!
//! - Dropping a [`Held`] stops its renewals. Nobody else is granted the lease before its TTL is over.
//! - Dropping the future of [`Lease::run`] drops the work first and the renewals after it.
//! - Dropping the future of [`Lease::acquire`] leaves nothing held, or a grant that nobody uses and that expires.
//! - Dropping the future of [`Held::release`] leaves the lease released, or about to expire.
//!
//! So all of them can be used in `select!` and `timeout`, and dropped at every await.
//!
//! # What stops a future
//! When the lease is lost, [`Lease::run`] drops the future at its next await. Code that never reaches an await, and tasks and
//! threads that it started, continue to run. Guards refuse what those write.
//!
//! # Runtime
//! Leases are renewed by a task of the tokio runtime in which they were acquired. A runtime that is blocked for longer than the
//! TTL loses its leases.
//!
//! # Features
//! `sqlite`, `dir`, `file`, `folder` and `work` (queues and schedules) are on by default. Other stores: `postgres`, `mysql`,
//! `redis`, `etcd`, `nats`, `object`, `dynamodb`, `firestore`, `durable`, and `remote` for a server. Other guards: `git`,
//! `mcp`, and with their stores `postgres`, `mysql`, `object`. `full` has them all.
//!
//! # Where to look
//! - [`guard`]: what can be written to under a lease, and how to write a guard of your own.
//! - [`store`]: the contract of a store, for those who write one.
#![cfg_attr(feature = "work", doc = "- [`queue`] and [`schedule`]: items and slots, each done once.")]
//! - [`Error`]: its [kind](Error::kind) says what to do next; [`error`] has the types of its details.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod busy;
pub mod error;
pub mod guard;
mod held;
mod lease;
mod leases;
#[cfg(feature = "work")]
pub mod queue;
#[cfg(feature = "work")]
pub mod schedule;
pub mod store;

pub use busy::Busy;
pub use held::{Held, Tenure};
pub use lease::{Lease, Run};
pub use leasehold_core::{Drain, Epoch, Error, HolderId, Kind, Loss, Outcome, Result, Token};
pub use leases::{Leases, connect};

/// The code of the pages for people, compiled.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/for/rust.md")]
    struct RustPage;
}
