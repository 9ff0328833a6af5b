//! What a keeper keeps: a lease or an item that is renewed in time, or lost.
//!
//! Promise: leases and queue items are kept by the same code, under the same trust
//! window. Non-promise: a tenancy does not know when to renew; the keeper does.

use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::grant::Grant;
use crate::hints::Opening;
use crate::holding;
use crate::lease::record::{Drain, Progress};
use crate::time::{Timestamp, Ttl};
use crate::token::Claim;
use crate::verbs::LeaseVerbs;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// What [`crate::Keeper`] can keep.
#[async_trait]
pub trait Tenancy: Send + Sync + 'static {
    /// What [`Tenancy::into_grant`] returns at the end.
    type Grant: Send + 'static;

    /// The holder's own clock.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// Hints that its record may have changed; none where the store cannot push them.
    fn watch(&self) -> Opening;

    /// How long the grant lasts after each renewal.
    fn ttl(&self) -> Ttl;

    /// The moment from which somebody else may have it.
    fn trust_until(&self) -> Moment;

    /// Renews once. An error of kind [`crate::Kind::Lost`] or [`crate::Kind::Moved`]
    /// is final. If the call is dropped, it may or may not have renewed.
    async fn renew(&mut self) -> Result<()>;

    /// Whether the record shows something new to the holder: that the lease was
    /// lost, or that an operator asks it to finish.
    async fn has_news(&self) -> Result<bool>;

    /// The request to finish, as the last renewal found it.
    fn asked_to_finish(&self) -> Option<&Drain>;

    /// How long ago progress was last reported in this tenure, if it ever was.
    async fn progress_age(&self) -> Result<Option<Duration>>;

    /// Returns the grant, which is no longer kept.
    fn into_grant(self) -> Self::Grant;
}

/// How long before `now` this progress was reported, if it was reported under
/// this claim. Both times are in the store's clock, which is exact to `grain`.
pub fn progress_age(progress: Option<&Progress>, claim: Claim, now: Timestamp, grain: Duration) -> Option<Duration> {
    let progress = progress.filter(|progress| progress.epoch == claim.epoch)?;
    Some(now.saturating_since(progress.at).saturating_sub(grain))
}

/// A held lease.
#[derive(Debug)]
pub struct Held {
    pub(crate) leases: Arc<dyn LeaseVerbs>,
    pub(crate) grant: Grant,
}

#[async_trait]
impl Tenancy for Held {
    type Grant = Grant;

    fn clock(&self) -> &Arc<dyn Clock> {
        self.leases.clock()
    }

    fn watch(&self) -> Opening {
        self.leases.watch(&self.grant.token().lease)
    }

    fn ttl(&self) -> Ttl {
        self.grant.ttl()
    }

    fn trust_until(&self) -> Moment {
        self.grant.trust_until()
    }

    async fn renew(&mut self) -> Result<()> {
        self.leases.renew(&mut [&mut self.grant]).await.into_iter().collect()
    }

    async fn has_news(&self) -> Result<bool> {
        let token = self.grant.token();
        let seen = holding::reading_for(Some(token.claim()), self.leases.inspect(&token.lease)).await?;
        let asked = seen.record.live_drain(seen.now).is_some_and(|drain| self.asked_to_finish() != Some(drain));
        Ok(asked || !seen.record.is_held_by(token.claim()))
    }

    fn asked_to_finish(&self) -> Option<&Drain> {
        let seen = self.grant.seen();
        seen.record.live_drain(seen.anchor.now)
    }

    async fn progress_age(&self) -> Result<Option<Duration>> {
        let token = self.grant.token();
        let seen = holding::reading_for(Some(token.claim()), self.leases.inspect(&token.lease)).await?;
        Ok(progress_age(seen.record.progress.as_ref(), token.claim(), seen.now, self.leases.grain()))
    }

    fn into_grant(self) -> Grant {
        self.grant
    }
}
