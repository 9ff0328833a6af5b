//! A held lease or item, and until when it may be trusted.
//!
//! # Trust
//! Deadlines are in the store's clock, which only the store reads. Every answer brings the holder a time `now`, and the
//! holder knows the local moment at which it asked. At that moment the store's clock showed at most `now` plus the
//! clock's grain. So until `asked + (deadline - now) - grain` on the local clock, the store's clock has not reached the
//! deadline, however slow the network was. That moment is [`Grant::trust_until`]; the rule is [`Anchor::trust`]. A
//! renewal's deadline is computed from the answer before it and trusted by both answers, whichever ends sooner: the
//! store's clock may have been set forward in between.

use crate::cell::Snapshot;
use crate::clock::Moment;
use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::history::Mark;
use crate::item::record::Item;
use crate::lease::record::{Ownership, Tenure};
use crate::resolve::Live;
use crate::time::{Timestamp, Ttl, format_duration};
use crate::token::Token;
use std::borrow::Cow;
use std::time::Duration;

/// A time of the store, and the local moment at which it was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    /// The store's time in the answer.
    pub now: Timestamp,
    /// When it was asked for.
    pub asked: Moment,
}

impl Anchor {
    /// Until this local moment, the store's clock has surely not reached `deadline`.
    pub fn trust(self, deadline: Timestamp, grain: Duration) -> Moment {
        self.asked + deadline.saturating_since(self.now) - grain
    }

    /// A store time that the store's clock has surely not passed at the local moment `at`.
    pub fn at_latest(self, at: Moment, grain: Duration) -> Timestamp {
        self.now.plus(at.saturating_since(self.asked) + grain)
    }

    /// Why a renewal with this answer leaves no time. The store's clock should have shown at most `latest` by now.
    fn why_too_late(self, latest: Timestamp, ttl: Ttl) -> String {
        if self.now > latest {
            let by = format_duration(self.now.saturating_since(latest));
            format!("the store's clock was set forward by {by} or more, and by its own time the deadline has passed")
        } else {
            format!("the answer took too long for a ttl of {ttl}")
        }
    }
}

/// A record that says who holds something, and until when.
pub trait Tenured {
    /// Its tenure, whether expired or not; none if it was released or never granted.
    fn tenure(&self) -> Option<&Tenure>;

    /// The epoch of the last tenure.
    fn epoch(&self) -> Epoch;
}

impl Tenured for Ownership {
    fn tenure(&self) -> Option<&Tenure> {
        self.tenure.as_ref()
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Tenured for Item {
    fn tenure(&self) -> Option<&Tenure> {
        self.tenure()
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl<R: Tenured> Snapshot<R> {
    /// The local moment until which its tenure is surely in force; the moment of asking
    /// if it has none. Never longer than a TTL from asking: otherwise a store whose
    /// clock was set back between two answers would be trusted for that much longer.
    pub fn trust(&self, grain: Duration) -> Moment {
        let until =
            |tenure: &Tenure| self.anchor.trust(tenure.deadline, grain).min(self.anchor.asked + tenure.ttl.get());
        self.record.tenure().map_or(self.anchor.asked, until)
    }

    /// Whether it had a tenure that had already expired when it was seen.
    pub fn has_run_out(&self) -> bool {
        self.record.tenure().is_some_and(|tenure| self.anchor.now >= tenure.deadline)
    }
}

/// A held lease or a claimed item: the token, and what is needed to renew and release it in one swap.
#[derive(Debug, Clone)]
pub struct Grant<R = Ownership> {
    token: Token,
    ttl: Ttl,
    seen: Snapshot<R>,
    trust_until: Moment,
    archived: Mark,
}

impl<R> Grant<R> {
    /// The proof to show to guards.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// How long the grant lasts after each renewal.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The moment on this machine's clock from which somebody else may hold it. Work is protected strictly before it.
    pub fn trust_until(&self) -> Moment {
        self.trust_until
    }

    /// Its TTL and trust window, without the record.
    pub fn live(&self) -> Live {
        Live { ttl: self.ttl, trust_until: self.trust_until }
    }

    /// The record as last written. It includes the history, progress and checkpoint of earlier tenures.
    pub fn record(&self) -> &R {
        &self.seen.record
    }

    /// The record as last written, with its revision and its time.
    pub fn seen(&self) -> &Snapshot<R> {
        &self.seen
    }
}

impl Grant<Ownership> {
    /// Shared with the archiver, which stores there how far the record was archived since.
    pub(crate) fn mark(&self) -> &Mark {
        &self.archived
    }

    /// The record as last written, with the mark of how far it was archived since.
    pub(crate) fn seen_and_archived(&self) -> Cow<'_, Snapshot<Ownership>> {
        match self.archived.get() {
            Some(archived) if archived > self.seen.record.archived => {
                let mut seen = self.seen.clone();
                seen.record.archived = archived;
                Cow::Owned(seen)
            }
            _ => Cow::Borrowed(&self.seen),
        }
    }
}

impl<R: Tenured> Grant<R> {
    /// The grant that a record gives to the holder of a token, at the local
    /// moment `now`. `what` names the record in messages.
    pub fn new(what: &str, token: Token, ttl: Ttl, seen: Snapshot<R>, grain: Duration, now: Moment) -> Result<Self> {
        // The epoch in the record is this holder's only if the tenure in it is: a token that paired one grant's nonce
        // with another's epoch would pass every guard.
        if !token.claim().holds(seen.record.epoch(), seen.record.tenure()) {
            return Err(Error::new(Kind::Lost, format!("{what} was granted and has moved on since")));
        }
        let grant = Self::unchecked(token, ttl, seen, grain);
        // A slow exchange may have used up the whole tenure. Then nothing is granted, whatever the store answered.
        if now >= grant.trust_until {
            let message = format!("{what} was granted too late: the answer took longer than its ttl of {ttl}");
            return Err(Error::new(Kind::Lost, message));
        }
        Ok(grant)
    }

    /// The same without these checks, for requests that the record decides anyway.
    pub fn unchecked(token: Token, ttl: Ttl, seen: Snapshot<R>, grain: Duration) -> Self {
        let trust_until = seen.trust(grain);
        Grant { token, ttl, seen, trust_until, archived: Mark::default() }
    }

    /// Continues from an answered write that was decided on what was seen at `before`. A write that does not move the
    /// deadline does not extend the trust window.
    pub fn follow(&mut self, before: Anchor, written: Snapshot<R>, grain: Duration) {
        let trust_until = self.trust_until;
        self.move_on(before, written, grain);
        self.trust_until = self.trust_until.min(trust_until);
    }

    /// The same for a renewal, at the local moment `now`. An error if the
    /// exchange took longer than the window that it gained.
    pub fn renew(
        &mut self,
        what: &str,
        before: Anchor,
        written: Snapshot<R>,
        grain: Duration,
        now: Moment,
    ) -> Result<()> {
        let latest = self.seen.anchor.at_latest(now, grain);
        self.move_on(before, written, grain);
        if now < self.trust_until {
            return Ok(());
        }
        let why = self.seen.anchor.why_too_late(latest, self.ttl);
        Err(Error::new(Kind::Lost, format!("{what} was renewed too late: {why}")))
    }

    /// Ends the trust window at the earlier of two moments: by the time that the deadline was computed from, and by the
    /// answer's own. If the store's clock was set forward in between, part of the time is used up, or all of it.
    fn move_on(&mut self, before: Anchor, written: Snapshot<R>, grain: Duration) {
        if let Some(tenure) = written.record.tenure() {
            self.trust_until = before.trust(tenure.deadline, grain).min(written.trust(grain));
        }
        self.seen = written;
    }
}
