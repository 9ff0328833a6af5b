//! From a token to its record, and what that record says about the token.
//!
//! A token belongs to a lease, to an item of a queue in the store, or to an item of a spool; its name says which. Every
//! verb, guard check, proxy and gate asks a [`Resolver`] and gets the same answer for the same token.
//!
//! Promise: the answer is what one read of the record shows, and each refusal is worded in one place. Non-promise: it
//! may be out of date when it arrives; a guard decides by its own fence.

use crate::clock::Moment;
use crate::coordinator::Coordinator;
use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::hints::Opening;
use crate::holding;
use crate::lease::record::Ownership;
use crate::name::LeaseName;
use crate::nonce::Lineage;
use crate::relocation::{Relocation, elsewhere};
use crate::remedy::Remedy;
use crate::time::Ttl;
use crate::token::Token;
use crate::verbs::LeaseVerbs;
use async_trait::async_trait;
use std::fmt;

/// What a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A lease in the store.
    Lease,
    /// An item of a queue in the store: `queue/QUEUE/ID`.
    Item,
    /// An item of a spool: `spool/ID`.
    SpoolFile,
}

impl TokenKind {
    /// What a token with this name belongs to.
    pub fn of(lease: &LeaseName) -> Self {
        match lease.as_str().split_once('/') {
            Some((LeaseName::ITEMS, _)) => TokenKind::Item,
            Some((LeaseName::SPOOL_ITEMS, _)) => TokenKind::SpoolFile,
            _ => TokenKind::Lease,
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            TokenKind::Lease => "lease",
            TokenKind::Item | TokenKind::SpoolFile => "item",
        }
    }
}

/// What a record says about a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenState {
    /// The token's grant is in force.
    Live(Live),
    /// It expired, and there is no newer grant. Writes still count, but it cannot be renewed.
    Expired,
    /// Its holder ended it.
    Ended {
        /// How: `released`, `completed`, `failed` or `given back`.
        how: &'static str,
    },
    /// A newer epoch was granted, or an operator took it away.
    Superseded {
        /// Who has it now and why, for people.
        by: String,
    },
    /// The lineage matches, but the record does not know this grant: the store went back in time.
    NeverGranted,
    /// The record has another lineage: it is another lease of the same name.
    OtherLineage {
        /// The lineage of the record.
        seen: Lineage,
    },
    /// The record is moving to another store, or has moved there.
    Moved(Relocation),
    /// There is no such record.
    Missing,
}

/// A grant that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// How long each renewal lasts.
    pub ttl: Ttl,
    /// The moment on this machine's clock from which somebody else may hold it.
    pub trust_until: Moment,
}

/// What was found for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// What the token belongs to.
    pub kind: TokenKind,
    /// The epoch of the record; zero if there is none.
    pub epoch: Epoch,
    /// What the record says about the token.
    pub state: TokenState,
    /// Where the record was searched, for messages.
    pub location: String,
}

/// Finds the record of a token.
#[async_trait]
pub trait Resolver: fmt::Debug + Send + Sync {
    /// Looks the token up. An error means that the record could not be read.
    async fn resolve(&self, token: &Token) -> Result<Resolved>;

    /// Hints that the record may have changed; none where the store cannot push them.
    fn watch(&self, token: &Token) -> Opening;
}

/// Resolves leases only; `leasehold_work::Tokens` resolves items too.
#[async_trait]
impl Resolver for Coordinator {
    async fn resolve(&self, token: &Token) -> Result<Resolved> {
        if TokenKind::of(&token.lease) != TokenKind::Lease {
            let message = format!("token `{token}` is of a queue's item; this program knows leases only");
            return Err(Error::new(Kind::Unsupported, message));
        }
        let seen = holding::reading_for(Some(token.claim()), self.look(&token.lease)).await?;
        let record = self.with_transfer(&token.lease, &seen.record, token.epoch).await;
        let trust_until = seen.trust(self.grain());
        let is_over = seen.has_run_out() || self.clock().now() >= trust_until;
        let state = match state_of(&record, token) {
            TokenState::Live(_) if is_over => TokenState::Expired,
            TokenState::Live(live) => TokenState::Live(Live { trust_until, ..live }),
            other => other,
        };
        let location = format!("store `{}`", self.store().capabilities().name);
        Ok(Resolved { kind: TokenKind::Lease, epoch: seen.record.epoch, state, location })
    }

    fn watch(&self, token: &Token) -> Opening {
        LeaseVerbs::watch(self, &token.lease)
    }
}

/// What a record says about a token, as if its tenure had not expired. The caller checks that, and sets the trust window.
fn state_of(record: &Ownership, token: &Token) -> TokenState {
    let Some(lineage) = record.lineage else { return TokenState::Missing };
    if lineage != token.lineage {
        return TokenState::OtherLineage { seen: lineage };
    }
    match &record.relocation {
        // Evicted for the move: that tenure is over, however the migration ends.
        Some(Relocation::Moving { .. } | Relocation::Arriving { .. }) if token.epoch < record.epoch => {}
        Some(relocation) => return TokenState::Moved(relocation.clone()),
        None => {}
    }
    let began = record.transfers.iter().rev().find(|transfer| transfer.epoch == token.epoch);
    let is_other = began.is_some_and(|transfer| transfer.to.as_ref().is_none_or(|to| to.nonce != token.nonce));
    if token.epoch > record.epoch || is_other {
        return TokenState::NeverGranted;
    }
    if token.epoch < record.epoch {
        return TokenState::Superseded { by: succession(record, token.epoch) };
    }
    match &record.tenure {
        None => TokenState::Ended { how: "released" },
        Some(tenure) if tenure.holder.nonce != token.nonce => TokenState::NeverGranted,
        Some(tenure) => TokenState::Live(Live { ttl: tenure.ttl, trust_until: Moment::from_nanos(0) }),
    }
}

/// How the lease moved on from an epoch, and its present holder.
fn succession(record: &Ownership, held: Epoch) -> String {
    let next = record.transfers.iter().find(|transfer| transfer.epoch > held);
    let how = next.map(|transfer| transfer.order_told()).unwrap_or_default();
    match &record.tenure {
        Some(tenure) => format!("{how}now held by {}", tenure.holder),
        None => format!("{how}free now"),
    }
}

impl Resolved {
    /// The grant, if it is in force. For operations that need the lease itself, such as renewing it.
    pub fn in_force(&self, token: &Token) -> Result<Live> {
        match &self.state {
            TokenState::Live(live) => Ok(*live),
            _ => Err(self.refusal(token)),
        }
    }

    /// Refuses a write that cannot count, before the guarded resource is asked.
    /// An expired token still counts by its epoch, until a newer one was granted.
    pub fn may_write(&self, token: &Token, resource: &str) -> Result<()> {
        match &self.state {
            TokenState::Live(_) | TokenState::Expired => Ok(()),
            TokenState::Superseded { by } => {
                let message = format!(
                    "stale epoch refused: resource=`{resource}` held={} seen={}; {} `{}`: {by}. Nothing was written; stop \
                     this run",
                    token.epoch,
                    self.epoch,
                    self.kind.noun(),
                    token.lease
                );
                Err(Error::new(Kind::Fenced, message).with_epochs(token.epoch, self.epoch))
            }
            _ => {
                let refusal = self.refusal(token);
                Err(Error::new(refusal.kind(), format!("resource=`{resource}` was not written")).with_source(refusal))
            }
        }
    }

    /// Whether the record shows this token as the newest grant, expired or not.
    pub fn is_newest(&self) -> bool {
        matches!(self.state, TokenState::Live(_) | TokenState::Expired)
    }

    /// Why the token is not in force.
    pub fn refusal(&self, token: &Token) -> Error {
        let (noun, lease, held, seen) = (self.kind.noun(), &token.lease, token.epoch, self.epoch);
        let lost =
            |what: String| Error::new(Kind::Lost, format!("{noun} `{lease}` was lost: {what}")).with_epochs(held, seen);
        match &self.state {
            TokenState::Live(_) => lost(format!("epoch {held} ran out meanwhile")),
            TokenState::Expired => lost(format!("epoch {held} ran out before it was renewed")),
            TokenState::Ended { how } => lost(format!("epoch {held} was {how} before")),
            TokenState::Superseded { by } => lost(format!("held={held} seen={seen}, {by}")),
            TokenState::NeverGranted => {
                let what = if held > seen {
                    format!("where the newest epoch is {seen}")
                } else {
                    format!("which granted epoch {held} to somebody else")
                };
                let message = format!(
                    "store regressed: token `{token}` was never granted by {}, {what}, and yet it is of its lineage: the store \
                     was restored from an old copy. Stop the job first, then move it past that epoch",
                    self.location
                );
                Error::new(Kind::Regressed, message).with_epochs(held, seen).with_remedy(Remedy::restored(lease, held))
            }
            TokenState::OtherLineage { seen: lineage } => {
                let message = format!(
                    "not this {noun}: {} has a {noun} `{lease}` of lineage {lineage} (epoch {seen}), the token is of a {noun} \
                     `{lease}` of lineage {}; nothing was changed. Name the store that the token came from",
                    self.location, token.lineage
                );
                Error::new(Kind::Invalid, message)
            }
            TokenState::Moved(relocation) => elsewhere(&format!("{noun} `{lease}`"), relocation),
            TokenState::Missing => {
                let gone = match self.kind {
                    TokenKind::Lease => "",
                    TokenKind::Item | TokenKind::SpoolFile => ", or no longer: it may have been purged",
                };
                let message = format!(
                    "token `{token}` was never granted by {}: there is no {noun} `{lease}` in it{gone}; nothing was changed. \
                     Name the store that the token came from",
                    self.location
                );
                Error::new(Kind::Invalid, message)
            }
        }
    }
}
