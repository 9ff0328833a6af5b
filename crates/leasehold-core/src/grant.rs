//! A held lease, and until when it may be believed in.
//!
//! # Trust
//! Deadlines are in the store's clock, which only the store reads. The holder gets a time `now` with every answer, and
//! knows the local moment at which it asked. When it asked, the store's clock showed at most `now` plus the clock's
//! grain; so until `asked + (deadline - now) - grain` on the local clock, the store's clock has not reached the
//! deadline, however slow the network was. That moment is [`Grant::trust_until`]; the rule is [`Anchor::trust`]. A renewal's
//! deadline is reckoned from the answer before it and trusted by both answers, whichever ends sooner: the store's clock may
//! have been set forward in between.

use crate::clock::Moment;
use crate::lease::record::Ownership;
use crate::sheet::Old;
use crate::store::Revision;
use crate::time::{Timestamp, Ttl, format_duration};
use crate::token::Token;
use std::time::Duration;

/// The store's time as it was told, and the local moment at which it was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    /// The store's time in the answer.
    pub now: Timestamp,
    /// When it was asked for.
    pub asked: Moment,
}

impl Anchor {
    /// Until when, locally, the store's clock has surely not reached `deadline`.
    pub fn trust(self, deadline: Timestamp, grain: Duration) -> Moment {
        self.asked + deadline.saturating_since(self.now) - grain
    }

    /// A store time that is surely not behind the store's clock at the local moment `at`.
    pub fn at_latest(self, at: Moment, grain: Duration) -> Timestamp {
        self.now.plus(at.saturating_since(self.asked) + grain)
    }

    /// Why a renewal with this answer leaves no time, where the store's clock should have shown at most `latest` by now.
    pub fn why_too_late(self, latest: Timestamp, ttl: Ttl) -> String {
        if self.now > latest {
            let by = format_duration(self.now.saturating_since(latest));
            format!("the store's clock was set forward by {by} or more, and by its own time the deadline has passed")
        } else {
            format!("the answer took too long for a ttl of {ttl}")
        }
    }
}

/// A held lease: the token, and what is needed to renew and release it in one swap.
#[derive(Debug, Clone)]
pub struct Grant {
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
    pub(crate) known: Known,
    pub(crate) trust_until: Moment,
}

impl Grant {
    /// The proof to show to guards.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// How long each renewal lasts.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The moment of this machine's clock from which on somebody else may have been granted the lease. Work is under
    /// its protection strictly before it.
    pub fn trust_until(&self) -> Moment {
        self.trust_until
    }

    /// The record as last written: history, progress and checkpoint of earlier tenures are in it.
    pub fn record(&self) -> &Ownership {
        &self.known.record
    }
}

/// A record as last seen, its tag and the time it was seen at.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) record: Ownership,
    pub(crate) revision: Option<Revision>,
    /// What of the record lies in a part of its own.
    pub(crate) old: Old,
    pub(crate) anchor: Anchor,
}
