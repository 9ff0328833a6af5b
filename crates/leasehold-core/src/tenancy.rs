//! What a keeper keeps: a right that is renewed in time, or lost.
//!
//! Promise: leases and queue items are kept by the same code, under the same trust window. Non-promise: a tenancy renews
//! when it is told to; when that is due is the keeper's to know.

use crate::clock::{Clock, Moment};
use crate::coordinator::Coordinator;
use crate::error::Result;
use crate::grant::Grant;
use crate::name::{Key, Shelf};
use crate::store::Store;
use crate::time::Ttl;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// A right that [`crate::Keeper`] can keep.
#[async_trait]
pub trait Tenancy: Send + Sync + 'static {
    /// What is given back when the keeping ends.
    type Grant: Send + 'static;

    /// The holder's own clock.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// The record that shows it, to be listened to; none if nothing can be.
    fn record(&self) -> Option<(Arc<dyn Store>, Key)>;

    /// How long each renewal lasts.
    fn ttl(&self) -> Ttl;

    /// The moment from which on somebody else may have it.
    fn trust_until(&self) -> Moment;

    /// Renews once. An error of kind [`crate::Kind::Lost`] or [`crate::Kind::Moved`] is final; a dropped call leaves it
    /// renewed or not.
    async fn renew(&mut self) -> Result<()>;

    /// Whether the record shows that it is no longer ours.
    async fn has_moved(&self) -> Result<bool>;

    /// How long ago progress was last reported in this tenure, if it ever was.
    async fn progress_age(&self) -> Result<Option<Duration>>;

    /// Ends the keeping.
    fn into_grant(self) -> Self::Grant;
}

/// A lease that is held.
#[derive(Debug)]
pub struct Held {
    pub(crate) coordinator: Coordinator,
    pub(crate) grant: Grant,
}

#[async_trait]
impl Tenancy for Held {
    type Grant = Grant;

    fn clock(&self) -> &Arc<dyn Clock> {
        self.coordinator.clock()
    }

    fn record(&self) -> Option<(Arc<dyn Store>, Key)> {
        Some((self.coordinator.store().clone(), Key::new(Shelf::Lease, &self.grant.token().lease)))
    }

    fn ttl(&self) -> Ttl {
        self.grant.ttl()
    }

    fn trust_until(&self) -> Moment {
        self.grant.trust_until()
    }

    async fn renew(&mut self) -> Result<()> {
        self.coordinator.renew(&mut self.grant, None).await
    }

    async fn has_moved(&self) -> Result<bool> {
        let token = self.grant.token();
        Ok(!self.coordinator.look(&token.lease).await?.record.is_held_by(token.claim()))
    }

    async fn progress_age(&self) -> Result<Option<Duration>> {
        let token = self.grant.token();
        let seen = self.coordinator.look(&token.lease).await?;
        Ok(seen.age(seen.record.progress.as_ref(), token.claim(), self.coordinator.grain()))
    }

    fn into_grant(self) -> Grant {
        self.grant
    }
}
