//! The verbs on leases, as keepers and schedules call them, wherever they are carried out.
//!
//! Promise: no verb names a store, a revision or the bytes of a record. [`Coordinator`] carries them
//! out in a store; a client that must not have a store's password can send them to a server, which
//! decides there. Each verb keeps the promises of the method of the same name on [`Coordinator`].
//! Non-promise: operators' orders, migrations and waiting are not here; they are added
//! when something that has no store calls them ([ADR 20](https://github.com/leasehold/leasehold/blob/main/docs/adr/0020-keepers-queues-and-schedules-call-verbs.md)).

use crate::clock::Clock;
use crate::coordinator::{Acquired, Ask, Coordinator, Inspection, Listing, Released};
use crate::counters::Event;
use crate::error::Result;
use crate::grant::Grant;
use crate::hints::{self, Opening};
use crate::lease::transfer::Outcome;
use crate::name::{Key, LeaseName, Shelf};
use crate::time::Timestamp;
use async_trait::async_trait;
use futures_util::future::join_all;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What can be done with leases without access to the store.
#[async_trait]
pub trait LeaseVerbs: fmt::Debug + Send + Sync {
    /// The caller's own clock, by which it counts its trust windows.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// The grain of the store's clock.
    fn grain(&self) -> Duration;

    /// The store's time.
    async fn now(&self) -> Result<Timestamp>;

    /// Tries once to become the holder.
    async fn acquire(&self, lease: &LeaseName, ask: &Ask) -> Result<Acquired>;

    /// Renews each of these grants, and returns an answer for each, in the same order.
    /// They are independent: one that fails leaves the others renewed. An error of
    /// kind [`crate::Kind::Lost`] or [`crate::Kind::Moved`] is final for its grant.
    async fn renew(&self, grants: &mut [&mut Grant]) -> Vec<Result<()>>;

    /// Ends the tenure with this outcome.
    async fn release(&self, grant: &Grant, outcome: Outcome) -> Result<Released>;

    /// Reads one record, without changing anything.
    async fn inspect(&self, lease: &LeaseName) -> Result<Inspection>;

    /// Reads records whose names come after `after`, a page at a time.
    async fn list(&self, after: Option<&LeaseName>, limit: usize) -> Result<Listing>;

    /// Counts an event that happened `times` times, best effort.
    async fn count_many(&self, lease: &LeaseName, event: Event, times: u64) -> Result<()>;

    /// Hints that a record may have changed; none where the store cannot push them.
    fn watch(&self, lease: &LeaseName) -> Opening;
}

#[async_trait]
impl LeaseVerbs for Coordinator {
    fn clock(&self) -> &Arc<dyn Clock> {
        Coordinator::clock(self)
    }

    fn grain(&self) -> Duration {
        self.store().capabilities().clock.grain()
    }

    async fn now(&self) -> Result<Timestamp> {
        // Not a lease's record, because a damaged one must not hide the time.
        let key = Key::new(Shelf::Probe, &"clock".parse()?);
        Ok(self.store().read(&key).await?.now)
    }

    async fn acquire(&self, lease: &LeaseName, ask: &Ask) -> Result<Acquired> {
        Coordinator::acquire(self, lease, ask).await
    }

    async fn renew(&self, grants: &mut [&mut Grant]) -> Vec<Result<()>> {
        join_all(grants.iter_mut().map(|grant| Coordinator::renew(self, grant, None))).await
    }

    async fn release(&self, grant: &Grant, outcome: Outcome) -> Result<Released> {
        Coordinator::release(self, grant, outcome).await
    }

    async fn inspect(&self, lease: &LeaseName) -> Result<Inspection> {
        Coordinator::inspect(self, lease).await
    }

    async fn list(&self, after: Option<&LeaseName>, limit: usize) -> Result<Listing> {
        Coordinator::list(self, after, limit).await
    }

    async fn count_many(&self, lease: &LeaseName, event: Event, times: u64) -> Result<()> {
        Coordinator::count_many(self, lease, event, times).await
    }

    fn watch(&self, lease: &LeaseName) -> Opening {
        hints::watch(self.store().clone(), Key::new(Shelf::Lease, lease))
    }
}

impl From<Coordinator> for Arc<dyn LeaseVerbs> {
    fn from(coordinator: Coordinator) -> Self {
        Arc::new(coordinator)
    }
}
