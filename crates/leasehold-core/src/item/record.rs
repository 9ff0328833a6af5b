//! The record of one item: the truth about it.
//!
//! Promise: what may be done to an item is decided on this record alone, in one
//! swap. Non-promise: it is plain data; only [`super::protocol`] changes it.

use super::name::{ItemName, LinePosition, Priority, Section};
use super::payload::Payload;
use crate::lease::record::Drain;
use crate::relocation::Relocation;
pub use crate::time::SKEW;
use crate::{Claim, Epoch, Line, Lineage, Nonce, Progress, Tenure, Timestamp, Who, codec};
use leasehold_system::undo::{Fix, is_disabled};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kind of an item's record, as its header line says.
pub const KIND: &str = "item";
/// How many events a record keeps, if they fit.
pub const EVENTS_KEPT: usize = 24;
/// The longest pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(3_600);

/// Why an attempt failed.
pub type Reason = Line<500>;

/// The state of an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In line: not claimed, but perhaps not due yet.
    Ready,
    /// A worker has it, until the deadline unless renewed.
    Claimed(Tenure),
    /// The work was completed; the item is not worked on again.
    Done {
        /// When, in store time.
        at: Timestamp,
    },
    /// Given up: a dead letter.
    Dead {
        /// When, in store time.
        at: Timestamp,
        /// Why it was given up.
        why: Reason,
    },
    /// Taken out by an operator.
    Cancelled {
        /// When, in store time.
        at: Timestamp,
    },
    /// Purged: what is left of an item that was added under a key, so that the
    /// key's epochs continue when it is used again.
    Purged {
        /// When, in store time.
        at: Timestamp,
    },
}

impl State {
    /// The word in JSON and output.
    pub const fn as_str(&self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Claimed(_) => "claimed",
            State::Done { .. } => "done",
            State::Dead { .. } => "dead",
            State::Cancelled { .. } => "cancelled",
            State::Purged { .. } => "purged",
        }
    }

    /// When it was finished, if it was.
    pub const fn finished_at(&self) -> Option<Timestamp> {
        match self {
            State::Ready | State::Claimed(_) | State::Purged { .. } => None,
            State::Done { at } | State::Dead { at, .. } | State::Cancelled { at } => Some(*at),
        }
    }
}

/// How often an item is tried, and how long it waits in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attempts {
    /// The most attempts.
    pub most: u32,
    /// The pause after the first failure, in milliseconds. It doubles with each failure, up to an hour.
    pub backoff_ms: u64,
}

impl Default for Attempts {
    fn default() -> Self {
        Attempts { most: 5, backoff_ms: 10_000 }
    }
}

impl Attempts {
    /// The pause after the failure of attempt number `made`, which counts from 1.
    pub fn pause(self, made: u32) -> Duration {
        let doubled = self.backoff_ms.saturating_mul(1 << made.saturating_sub(1).min(30));
        Duration::from_millis(doubled).min(MAX_BACKOFF)
    }
}

/// An item that is to be added when another is completed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FollowUp {
    /// Its name, fixed in advance so that it is added only once.
    pub name: ItemName,
    /// What it carries, at most [`Payload::MAX_BYTES`].
    pub payload: Payload,
    /// How urgent it is.
    pub priority: Priority,
    /// How long after the completion it may be claimed, in milliseconds.
    pub delay_ms: u64,
    /// How often it is tried, and with what pauses.
    pub attempts: Attempts,
}

/// How a claim ended. It tells a lost answer from a stale request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ended {
    /// The claim's epoch.
    pub epoch: Epoch,
    /// The nonce of the claim's holder.
    pub nonce: Nonce,
    /// What the worker did.
    pub how: How,
}

/// How a claim ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The item was completed.
    Completed,
    /// The attempt failed.
    Failed,
    /// It was given back untried.
    Returned,
}

/// What happened to an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// When, in store time.
    pub at: Timestamp,
    /// The epoch after it.
    pub epoch: Epoch,
    /// The kind of event.
    pub what: What,
    /// The worker or the operator that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
    /// The reason of a failure, or the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Reason>,
}

leasehold_system::words! {
    /// What can happen to an item.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum What {
        /// A worker claimed it.
        Claimed = "claimed",
        /// Its claim expired.
        Expired = "expired",
        /// It was completed.
        Completed = "completed",
        /// An attempt failed.
        Failed = "failed",
        /// It was given back untried.
        Returned = "returned",
        /// It became a dead letter.
        Died = "died",
        /// An operator put it back in line.
        Retried = "retried",
        /// An operator took it out.
        Cancelled = "cancelled",
        /// An operator gave it to another holder.
        HandedOff = "handed_off",
        /// An operator took it from its worker, to move it to another store.
        Evicted = "evicted",
        /// It left for another store, or came from one.
        Moved = "moved",
    }
}

/// The record of an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// The fencing number: rises with every claim and every operator's order.
    pub epoch: Epoch,
    /// The line of epochs that the number belongs to.
    pub lineage: Lineage,
    /// Where it is in its life.
    pub state: State,
    /// Set while it is moving to another store, or after it moved there. Then it cannot be claimed or changed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relocation: Option<Relocation>,
    /// The epoch at which it last entered the line.
    pub turn: Epoch,
    /// How urgent it is.
    pub priority: Priority,
    /// The time from which it may be claimed; none means at once, so that a clock that is set back hides no item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// Since when it waits. Orders it among items of its priority, unless it is due later.
    pub since: Timestamp,
    /// When it was added.
    pub added: Timestamp,
    /// What it carries, at most [`Payload::MAX_BYTES`].
    pub payload: Payload,
    /// How often it was claimed since it was added or retried, without attempts that were given back.
    pub tried: u32,
    /// How often it may be tried, and with what pauses.
    pub attempts: Attempts,
    /// The item whose completion added this one, and that item's epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The last report of progress, with the checkpoint that the next attempt gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The result of its completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// The items that its completion added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follow_ups: Vec<ItemName>,
    /// The follow-ups that its completion has yet to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outbox: Vec<FollowUp>,
    /// How the last claim ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The nonce of the last operator's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Nonce>,
    /// An operator's request to finish, to the worker that has claimed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// The last events, oldest first, at most [`EVENTS_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Event>,
}

impl Item {
    /// A new item, in line at once or from `due` on, at the beginning of a lineage.
    pub fn new(
        lineage: Lineage,
        payload: Payload,
        priority: Priority,
        attempts: Attempts,
        added: Timestamp,
        due: Option<Timestamp>,
    ) -> Self {
        Item {
            epoch: Epoch::ZERO,
            lineage,
            state: State::Ready,
            relocation: None,
            turn: Epoch::ZERO,
            priority,
            due,
            since: added,
            added,
            payload,
            tried: 0,
            attempts,
            origin: None,
            progress: None,
            result: None,
            follow_ups: Vec::new(),
            outbox: Vec::new(),
            ended: None,
            ordered: None,
            drain: None,
            history: Vec::new(),
        }
    }

    /// Its state at `now` in one word, for people and programs. A ready item that is not due yet is `delayed`; an item
    /// that is being migrated has the word of its relocation.
    pub fn word(&self, now: Timestamp) -> &'static str {
        match &self.relocation {
            Some(relocation) => relocation.as_str(),
            None if matches!(self.state, State::Ready) && !self.is_due(now) => "delayed",
            None => self.state.as_str(),
        }
    }

    /// Its position in line, which it keeps while it is claimed, unless it is put aside.
    pub fn position(&self, name: &ItemName) -> LinePosition {
        let (section, at) = match self.due {
            Some(due) => (Section::Later(self.priority), due),
            None => (Section::Waiting(self.priority), self.since),
        };
        LinePosition { item: name.clone(), section, at, turn: self.turn }
    }

    /// Whether its wait is over.
    pub fn is_due(&self, now: Timestamp) -> bool {
        if is_disabled(Fix::ItemsWaitForTheClock) {
            return self.due.unwrap_or(self.added) <= now;
        }
        self.due.is_none_or(|due| due <= now)
    }

    /// Whether its times are from before the store's clock was set back, so
    /// that it would wait longer than was ever requested.
    pub fn has_future_times(&self, now: Timestamp) -> bool {
        match &self.state {
            State::Ready => self.due.is_some() && self.since > now.plus(SKEW),
            State::Claimed(tenure) => tenure.deadline > now.plus(tenure.ttl.get() + SKEW),
            _ => false,
        }
    }

    /// Its position aside while it is claimed; none otherwise.
    pub fn position_aside(&self, name: &ItemName) -> Option<LinePosition> {
        let at = self.tenure()?.deadline;
        Some(LinePosition { item: name.clone(), section: Section::Aside, at, turn: self.epoch })
    }

    /// The claim, expired or not.
    pub fn tenure(&self) -> Option<&Tenure> {
        if let State::Claimed(tenure) = &self.state { Some(tenure) } else { None }
    }

    /// The request to finish, while it is in force. Until it ends, nobody else can claim the item.
    pub fn live_drain(&self, now: Timestamp) -> Option<&Drain> {
        self.drain.as_ref().filter(|drain| drain.is_live(self.epoch, now))
    }

    /// Whether this claim is the present one, expired or not.
    pub fn is_held_by(&self, claim: Claim) -> bool {
        claim.holds(self.epoch, self.tenure())
    }

    /// Whether it is in line, or would be if its claim expired.
    pub fn is_open(&self) -> bool {
        self.relocation.is_none() && matches!(self.state, State::Ready | State::Claimed(_))
    }

    /// What is left when an item with a key is purged.
    pub fn tombstone(&self, at: Timestamp) -> Self {
        let mut left = Item::new(self.lineage, Payload::default(), self.priority, self.attempts, self.added, None);
        (left.epoch, left.turn, left.state) = (self.epoch, self.epoch, State::Purged { at });
        left
    }

    /// A new item under the key of a purged one: its epochs continue where those ended.
    pub fn after(&self, purged: &Item) -> Self {
        Item { lineage: purged.lineage, epoch: purged.epoch, turn: purged.epoch, ..self.clone() }
    }

    /// The record's bytes.
    pub fn encode(&self) -> crate::Result<Vec<u8>> {
        codec::encode(KIND, self)
    }

    /// Reads a record's bytes; `name` names the record in messages.
    pub fn decode(bytes: &[u8], name: &str) -> crate::Result<Self> {
        codec::decode(KIND, bytes, name)
    }
}
