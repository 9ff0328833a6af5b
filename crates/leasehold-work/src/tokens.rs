//! Tokens of all kinds: of a lease, an item of a queue in the store, or an item of a spool.
//!
//! Promise: a token is looked up, renewed and reported on where its name says its record is. Non-promise: ending an
//! item takes more than its token, and is done by [`crate::queue::Queue`] and [`crate::spool::Spool`].

use crate::backlog::Backlog;
use crate::queue::{ItemName, Queue, watch_item};
use crate::spool::Spool;
use async_trait::async_trait;
use leasehold_core::hints::Opening;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Coordinator, Drain, Error, Kind, Live, Remedy, Resolved, Resolver, Result, Token, TokenKind};

/// Where the records of tokens may be: in a store, and in spools.
///
/// ```
/// use leasehold_core::{Coordinator, Kind, MemoryStore, Resolver};
/// use leasehold_work::{Tokens, queue::{Claimer, NewItem, Queue}};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
/// let leases = Coordinator::new(Arc::new(MemoryStore::default()));
/// let queue = Queue::new(leases.store().clone(), "mail".parse()?);
/// queue.add(NewItem::default()).await?;
/// let item = Claimer::new(queue.clone(), None, "90s".parse()?)?.next().await?;
///
/// let tokens = Tokens::new(leases);
/// tokens.renew(item.token()).await?;
/// queue.complete(&item, None, Vec::new()).await?;
/// let error = tokens.resolve(item.token()).await?.in_force(item.token()).unwrap_err();
/// assert_eq!(error.kind(), Kind::Lost);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    coordinator: Option<Coordinator>,
    spools: Vec<Spool>,
    location: Option<String>,
}

/// The result of a renewal.
#[derive(Debug, Clone)]
pub struct Renewed {
    /// The TTL and the trust window.
    pub live: Live,
    /// An operator's request to its holder to finish, if there is one.
    pub asked: Option<Drain>,
}

impl Tokens {
    /// Tokens of the leases and items in this coordinator's store.
    pub fn new(coordinator: Coordinator) -> Self {
        Tokens { coordinator: Some(coordinator), ..Tokens::default() }
    }

    /// Tokens of this spool's items too.
    #[must_use]
    pub fn with_spool(mut self, spool: Spool) -> Self {
        self.spools.push(spool);
        self
    }

    /// Sets the store's name in messages.
    #[must_use]
    pub fn with_store_name(mut self, location: impl Into<String>) -> Self {
        self.location = Some(location.into());
        self
    }

    fn coordinator(&self, token: &Token) -> Result<&Coordinator> {
        self.coordinator.as_ref().ok_or_else(|| {
            Error::new(
                Kind::Invalid,
                format!("token `{token}` is not of a spool's item; name the store that it came from"),
            )
        })
    }

    fn queue(&self, token: &Token) -> Result<Queue> {
        let coordinator = self.coordinator(token)?;
        let queue = ItemName::of(token)?.queue;
        Ok(Queue::with_clock(coordinator.store().clone(), queue, coordinator.clock().clone()))
    }

    /// The spool of the token's lineage, or else the first one.
    fn spool(&self, token: &Token) -> Result<Spool> {
        let own = self.spools.iter().find(|spool| spool.lineage() == token.lineage);
        own.or(self.spools.first()).cloned().ok_or_else(|| {
            let message = format!("token `{token}` is of a spool's item, and no spool is named here");
            Error::new(Kind::Invalid, message).with_remedy(Remedy::NameSpool)
        })
    }

    /// Renews the token's lease or claim by another TTL.
    pub async fn renew(&self, token: &Token) -> Result<Renewed> {
        self.resolve(token).await?.in_force(token)?;
        match TokenKind::of(&token.lease) {
            TokenKind::Lease => {
                let coordinator = self.coordinator(token)?;
                let mut grant = coordinator.clone().for_others().adopt(token).await?;
                coordinator.renew(&mut grant, None).await?;
                let seen = grant.seen();
                Ok(Renewed { live: grant.live(), asked: seen.record.live_drain(seen.anchor.now).cloned() })
            }
            TokenKind::Item => {
                let queue = self.queue(token)?;
                let mut grant = queue.adopt(token).await?;
                queue.renew(&mut grant).await?;
                Ok(Renewed { live: grant.live(), asked: Queue::asked_to_finish(&grant).cloned() })
            }
            TokenKind::SpoolFile => {
                let (spool, token) = (self.spool(token)?, token.clone());
                off_runtime(move || {
                    let mut grant = spool.adopt(&token).map_err(as_lost)?;
                    spool.renew(&mut grant).map(|()| Renewed { live: grant.live(), asked: None })
                })
                .await
            }
        }
    }

    /// Records how far the work has come. That counts by the epoch alone: an expired token may still report, as long as
    /// there is no newer grant. A spool stores only checkpoints.
    pub async fn progress(&self, token: &Token, report: Report) -> Result<()> {
        let found = self.resolve(token).await?;
        if !found.is_newest() {
            return Err(found.refusal(token));
        }
        match found.kind {
            TokenKind::Lease => self.coordinator(token)?.checkpoint_by_token(token, report).await,
            TokenKind::Item => self.queue(token)?.progress(token, report).await,
            TokenKind::SpoolFile => {
                let (spool, token) = (self.spool(token)?, token.clone());
                let Some(checkpoint) = report.checkpoint else { return Ok(()) };
                off_runtime(move || spool.checkpoint(&spool.adopt(&token).map_err(as_lost)?, &checkpoint)).await
            }
        }
    }
}

#[async_trait]
impl Resolver for Tokens {
    async fn resolve(&self, token: &Token) -> Result<Resolved> {
        let mut found = match TokenKind::of(&token.lease) {
            TokenKind::Lease => self.coordinator(token)?.resolve(token).await?,
            TokenKind::Item => self.queue(token)?.resolve(token).await?,
            TokenKind::SpoolFile => {
                let (spool, token) = (self.spool(token)?, token.clone());
                return off_runtime(move || spool.resolve(&token)).await;
            }
        };
        if let Some(location) = &self.location {
            found.location.clone_from(location);
        }
        Ok(found)
    }

    fn watch(&self, token: &Token) -> Opening {
        match (TokenKind::of(&token.lease), &self.coordinator, ItemName::of(token)) {
            (TokenKind::Lease, Some(leases), _) => leases.watch(token),
            (TokenKind::Item, Some(leases), Ok(name)) => watch_item(leases.store(), &name),
            _ => Box::pin(std::future::ready(None)),
        }
    }
}

/// A claim that cannot be renewed is lost; only a refusal at its end means fenced.
pub(crate) fn as_lost(error: Error) -> Error {
    if error.kind() == Kind::Fenced { Error::new(Kind::Lost, error.to_string()) } else { error }
}

/// Runs outside the runtime, so that a share that does not answer delays nothing else.
pub(crate) async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Error::unavailable("the look at the spool was interrupted", e))?
}
