//! A claimed item, and until when it may be believed in.
//!
//! Promise: the trust window of a lease holds for an item too: see `leasehold_core::Grant`. Non-promise: a grant that is not
//! kept runs out.

use super::queue::Queue;
use async_trait::async_trait;
use leasehold_core::clock::{Clock, Moment};
use leasehold_core::item::name::ItemName;
use leasehold_core::item::record::Item;
use leasehold_core::{Anchor, Key, Result, Revision, Store, Tenancy, Token, Ttl};
use std::sync::Arc;
use std::time::Duration;

/// A record as last seen, its tag and the time it was seen at.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) item: Item,
    pub(super) revision: Revision,
    pub(super) anchor: Anchor,
}

impl Known {
    /// Whether somebody had the item, and the claim has run out.
    pub(super) fn has_run_out(&self) -> bool {
        self.item.tenure().is_some_and(|t| self.anchor.now >= t.deadline)
    }

    /// Until when, locally, the claim in it surely stands.
    pub(super) fn trust(&self, grain: Duration) -> Moment {
        self.item.tenure().map_or(self.anchor.asked, |t| self.anchor.trust(t.deadline, grain))
    }
}

/// A claimed item: the token, and what is needed to renew and complete it in one swap.
#[derive(Debug, Clone)]
pub struct ItemGrant {
    pub(super) name: ItemName,
    pub(super) token: Token,
    pub(super) ttl: Ttl,
    pub(super) known: Known,
    pub(super) trust_until: Moment,
    /// The tag of its entry in the line, if it was found there.
    pub(super) entry: Option<Revision>,
}

impl ItemGrant {
    /// The item.
    pub fn name(&self) -> &ItemName {
        &self.name
    }

    /// The proof to show to guards, and to complete it by.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// How long each renewal lasts.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The moment of this machine's clock from which on somebody else may have claimed it.
    pub fn trust_until(&self) -> Moment {
        self.trust_until
    }

    /// The record as last written.
    pub fn item(&self) -> &Item {
        &self.known.item
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

    fn record(&self) -> Option<(Arc<dyn Store>, Key)> {
        Some((self.queue.store().clone(), self.grant.name.key().ok()?))
    }

    fn ttl(&self) -> Ttl {
        self.grant.ttl
    }

    fn trust_until(&self) -> Moment {
        self.grant.trust_until
    }

    async fn renew(&mut self) -> Result<()> {
        self.queue.renew(&mut self.grant).await
    }

    async fn has_moved(&self) -> Result<bool> {
        let seen = self.queue.inspect(&self.grant.name.id).await?;
        Ok(!seen.item.is_held_by(self.grant.token.claim()))
    }

    async fn progress_age(&self) -> Result<Option<Duration>> {
        let seen = self.queue.inspect(&self.grant.name.id).await?;
        let progress = seen.item.progress.filter(|p| p.epoch == self.grant.token.epoch);
        Ok(progress.map(|p| seen.now.saturating_since(p.at).saturating_sub(self.queue.grain())))
    }

    fn into_grant(self) -> ItemGrant {
        self.grant
    }
}
