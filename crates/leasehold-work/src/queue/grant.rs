//! A claimed item, and until when it may be believed in.
//!
//! Promise: the trust window of a lease holds for an item too: see `leasehold_core::Grant`. Non-promise: a grant that is not
//! kept runs out.

use super::queue::Queue;
use crate::backlog::Backlog;
use async_trait::async_trait;
use leasehold_core::clock::{Clock, Moment};
use leasehold_core::hints::{self, Opening};
use leasehold_core::item::name::ItemName;
use leasehold_core::item::record::Item;
use leasehold_core::{Grant, Result, Revision, Store, Tenancy, Ttl, progress_age};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// An item as last seen.
pub(super) type Seen = leasehold_core::cell::Seen<Item>;

/// A claimed item, and where it stood in line.
#[derive(Debug, Clone)]
pub struct ItemGrant {
    pub(super) name: ItemName,
    pub(super) grant: Grant<Item>,
    /// The tag of its entry in the line, if it was found there.
    pub(super) entry: Option<Revision>,
}

impl ItemGrant {
    /// The item.
    pub fn name(&self) -> &ItemName {
        &self.name
    }

    /// The record as last written.
    pub fn item(&self) -> &Item {
        self.grant.record()
    }
}

impl Deref for ItemGrant {
    type Target = Grant<Item>;

    fn deref(&self) -> &Grant<Item> {
        &self.grant
    }
}

/// Hints that an item may have changed.
pub(crate) fn watch_item(store: &Arc<dyn Store>, name: &ItemName) -> Opening {
    match name.key() {
        Ok(key) => hints::watch(store.clone(), key),
        Err(_) => Box::pin(std::future::ready(None)),
    }
}

/// What a keeper keeps of a queue.
#[derive(Debug)]
pub struct ItemTenancy {
    /// The queue.
    pub queue: Queue,
    /// The claim.
    pub grant: ItemGrant,
}

#[async_trait]
impl Tenancy for ItemTenancy {
    type Grant = ItemGrant;

    fn clock(&self) -> &Arc<dyn Clock> {
        self.queue.clock()
    }

    fn watch(&self) -> Opening {
        watch_item(self.queue.store(), &self.grant.name)
    }

    fn ttl(&self) -> Ttl {
        self.grant.ttl()
    }

    fn trust_until(&self) -> Moment {
        self.grant.trust_until()
    }

    async fn renew(&mut self) -> Result<()> {
        Backlog::renew(&self.queue, &mut [&mut self.grant]).await.into_iter().collect()
    }

    async fn has_moved(&self) -> Result<bool> {
        Ok(!self.queue.read(&self.grant.name).await?.record.is_held_by(self.grant.token().claim()))
    }

    async fn progress_age(&self) -> Result<Option<Duration>> {
        let seen = self.queue.read(&self.grant.name).await?;
        let (progress, claim) = (seen.record.progress.as_ref(), self.grant.token().claim());
        Ok(progress_age(progress, claim, seen.anchor.now, self.queue.grain()))
    }

    fn into_grant(self) -> ItemGrant {
        self.grant
    }
}
