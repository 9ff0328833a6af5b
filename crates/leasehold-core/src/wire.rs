//! What a client and a server send each other about records.
//!
//! Promise: a client asks for verbs, and never sends a record of a lease, an item or a fence:
//! [`Change::verb`] has everything that it can ask for. Both sides name the [`PROTOCOL`] that they
//! speak: a server in [`About`], a client in a [header](SPEAKS). A server refuses what it does not
//! know, instead of carrying out half of it; a client ignores unknown parts of an answer.
//! Non-promise: this is between our own client and server. Others use the API in docs/api.md.

use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::holder::HolderId;
use crate::item::name::Priority;
use crate::item::payload::Payload;
use crate::item::protocol::{Order as ItemOrder, Request as ItemRequest};
use crate::item::record::{Attempts, Item};
use crate::lease::protocol::{Order as LeaseOrder, Request as LeaseRequest};
use crate::name::{Key, LeaseName, Shelf};
use crate::nonce::Lineage;
use crate::store::{self, Capabilities, Class, ClockSource, Next, Reach, Revision, Swap, Watching};
use crate::time::Timestamp;
use crate::token::Claim;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The version of this protocol. The other side must speak it too.
pub const PROTOCOL: u32 = 1;
/// The header in which a client names its version. Without it, the client speaks version 1.
pub const SPEAKS: &str = "leasehold-protocol";
/// What to report and do if the two sides speak different versions; none if they speak the same.
pub fn disagreement(client: u32, server: u32) -> Option<String> {
    let older = match client.cmp(&server) {
        std::cmp::Ordering::Equal => return None,
        std::cmp::Ordering::Less => "the client is older: update it",
        std::cmp::Ordering::Greater => "the server is older: update it",
    };
    Some(format!("the client speaks protocol {client}, and the server {server}; {older}"))
}

/// How often a server sends a sign of life to a client that watches.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// What it sends as a hint.
pub const HINT: &[u8] = b"h";
/// What it sends as a sign of life.
pub const ALIVE: &[u8] = b".";

/// What a server says about itself and the store behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The version of this protocol that it speaks.
    pub protocol: u32,
    /// The store behind it, such as `postgres`.
    pub store: String,
    /// `A` or `B`.
    pub class: Class,
    /// The grain of that store's clock, in milliseconds.
    pub grain_ms: u64,
    /// Whether that store has a clock of its own.
    pub has_clock: bool,
    /// Whether that store can push hints.
    pub hints: bool,
    /// Whether an item and its entry in the line are written in one step there.
    pub writes_along: bool,
    /// What makes an answer durable there.
    pub durability: String,
}

impl From<Capabilities> for About {
    fn from(store: Capabilities) -> Self {
        About {
            protocol: PROTOCOL,
            store: store.name.to_owned(),
            class: store.class,
            grain_ms: u64::try_from(store.clock.grain().as_millis()).unwrap_or(u64::MAX),
            has_clock: matches!(store.clock, ClockSource::Store { .. }),
            hints: store.watch == Watching::Hints,
            writes_along: store.writes_along,
            durability: store.durability.to_owned(),
        }
    }
}

impl About {
    /// What a client of this server can do.
    pub fn capabilities(&self) -> Capabilities {
        let grain = Duration::from_millis(self.grain_ms.max(1));
        Capabilities {
            name: "leasehold",
            class: self.class,
            clock: if self.has_clock { ClockSource::Store { grain } } else { ClockSource::Local { margin: grain } },
            reach: Reach::Network,
            // Where its store cannot hint, the server itself does, about the changes that pass through it.
            watch: Watching::Hints,
            writes_along: self.writes_along,
            by_verbs: true,
            durability: "what the server's own store promises",
        }
    }
}

/// A stored value. Every record of ours is text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The record, header line included.
    pub text: String,
    /// The revision that a change must name as expected.
    pub revision: String,
}

impl Value {
    /// A value as a store gave it.
    pub fn of(value: store::Versioned, what: &Key) -> Result<Self> {
        let text = String::from_utf8(value.bytes)
            .map_err(|e| Error::new(Kind::Corrupt, format!("record `{what}` is not text")).with_source(e))?;
        Ok(Value { text, revision: value.revision.0 })
    }

    /// The value, as a store would return it.
    pub fn versioned(self) -> store::Versioned {
        store::Versioned { bytes: self.text.into_bytes(), revision: Revision(self.revision) }
    }
}

/// Names a record that its sender holds, and by which claim. Such a read is served before others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldRecord {
    /// The record, of a lease or an item.
    pub record: Key,
    /// The tenure or claim that the caller says it has.
    pub claim: Claim,
}

/// The answer to a read of a [`HeldRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReading {
    /// The record; none if it says that the claim is not in force. Then it can be read as by anybody else.
    pub held: Option<Reading>,
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The value, if there is one.
    pub value: Option<Value>,
    /// The store's time.
    pub now: Timestamp,
}

/// The part of a shelf to list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    /// The kind of records that are listed.
    pub shelf: Shelf,
    /// Only names after this one.
    pub after: Option<LeaseName>,
    /// Continues there instead; see [`Page::continued_from`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_from: Option<String>,
    /// How many entries to skip first.
    pub skip: usize,
    /// How many to return at most.
    pub limit: usize,
}

/// The answer to a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Names and values, in the order of names.
    pub entries: Vec<(LeaseName, Value)>,
    /// Whether there may be more.
    pub more: bool,
    /// Where to continue, if there is more: entries after the last one may have been left out, because the key may not
    /// see them. It is encrypted, because the key may not see their names either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_from: Option<String>,
    /// The store's time.
    pub now: Timestamp,
}

/// A change that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The record to change.
    pub record: Key,
    /// The revision that the record must have; none if it must not exist.
    pub expected: Option<String>,
    /// The request on it.
    pub verb: Verb,
}

/// What can be asked for. See [`store::Verb`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "see store::Verb")]
pub enum Verb {
    Lease(LeaseRequest),
    Item(Box<ItemRequest>),
    Add(Box<Addition>),
    TakeBack,
    Purge,
    Confirm,
    Document { text: String },
}

impl Verb {
    /// Refuses values that no server accepts.
    pub fn check(&self) -> Result<()> {
        let pause = |pause: Option<Duration>| match pause.filter(|pause| *pause > MAX_DELAY) {
            Some(pause) => Err(too_long(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))),
            None => Ok(()),
        };
        match self {
            Verb::Add(addition) => addition.check(),
            Verb::Item(request) => match &**request {
                ItemRequest::Complete { follow_ups, .. } => {
                    follow_ups.iter().try_for_each(|it| check_tries(it.attempts, it.delay_ms))
                }
                ItemRequest::Fail { retry_in, .. } => pause(*retry_in),
                ItemRequest::Return { wait, .. } => pause(*wait),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Who is to hold something by it.
    pub fn holder(&self) -> Option<&HolderId> {
        match self {
            Verb::Lease(
                LeaseRequest::Acquire { holder, .. }
                | LeaseRequest::Operate { order: LeaseOrder::HandOff { to: holder, .. }, .. },
            ) => Some(holder),
            Verb::Item(request) => match &**request {
                ItemRequest::Claim { holder, .. }
                | ItemRequest::Operate { order: ItemOrder::HandOff { to: holder, .. }, .. } => Some(holder),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether only the holder may make it.
    pub fn needs_a_claim(&self) -> bool {
        match self {
            Verb::Lease(request) => request.needs_a_claim(),
            Verb::Item(request) => request.needs_a_claim(),
            _ => false,
        }
    }
}

/// The longest delay of an item, and the longest backoff, that may be requested.
pub const MAX_DELAY: Duration = Duration::from_secs(366 * 86_400);

/// A new item, as a client describes it: the server makes the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Addition {
    /// The lineage of the new record.
    pub lineage: Lineage,
    /// What it carries, at most [`Payload::MAX_BYTES`].
    pub payload: Payload,
    /// How urgent it is.
    pub priority: Priority,
    /// How often it is tried.
    pub attempts: Attempts,
    /// How long it waits before it may be claimed, in milliseconds.
    pub delay_ms: u64,
}

impl Addition {
    /// The addition that a client sends for this item.
    pub fn of(item: &Item) -> Self {
        let delay = item.due.map_or(Duration::ZERO, |due| due.saturating_since(item.added));
        Addition {
            lineage: item.lineage,
            payload: item.payload.clone(),
            priority: item.priority,
            attempts: item.attempts,
            delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Refuses values that no server accepts.
    pub fn check(&self) -> Result<()> {
        check_tries(self.attempts, self.delay_ms)
    }

    /// The record that a server makes of it, at its store's time `now`.
    pub fn item(self, now: Timestamp) -> Item {
        let due = (self.delay_ms > 0).then(|| now.plus(Duration::from_millis(self.delay_ms)));
        Item::new(self.lineage, self.payload, self.priority, self.attempts, now, due)
    }
}

fn check_tries(attempts: Attempts, delay_ms: u64) -> Result<()> {
    let longest = u64::try_from(MAX_DELAY.as_millis()).unwrap_or(u64::MAX);
    if attempts.most == 0 {
        return Err(Error::invalid("attempts", "0", "an item is tried once at least"));
    }
    if delay_ms > longest || attempts.backoff_ms > longest { Err(too_long(delay_ms)) } else { Ok(()) }
}

fn too_long(ms: u64) -> Error {
    Error::invalid("delay", format!("{ms} ms"), "it is a year at most, and so is a backoff")
}

impl Change {
    /// What to ask a server for. An error if only a process that has the store can make the change.
    pub fn of(change: &store::Change<'_>) -> Result<Self> {
        let verb = match (change.verb, change.next) {
            (store::Verb::Lease(request), _) => Verb::Lease(request.clone()),
            (store::Verb::Item(request), _) => Verb::Item(Box::new(request.clone())),
            (store::Verb::Add(item), _) => Verb::Add(Box::new(Addition::of(item))),
            (store::Verb::TakeBack, _) => Verb::TakeBack,
            (store::Verb::Purge, _) => Verb::Purge,
            (store::Verb::Confirm, _) => Verb::Confirm,
            (store::Verb::Document, Next::Put(bytes)) => {
                let text = std::str::from_utf8(bytes)
                    .map_err(|e| Error::new(Kind::Invalid, "a document is text").with_source(e))?;
                Verb::Document { text: text.to_owned() }
            }
            (store::Verb::Document, Next::Erase) | (store::Verb::Direct, _) => return Err(direct(change.key)),
        };
        Ok(Change { record: change.key.clone(), expected: change.expected.map(|revision| revision.0.clone()), verb })
    }
}

/// The error for a change that a client may not make.
pub fn direct(key: &Key) -> Error {
    let message = format!(
        "this cannot be done through a server (it would change `{key}`); run it where the store itself can be opened, with its \
         own URL"
    );
    Error::new(Kind::Unsupported, message)
}

/// The answer to a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The new revision and the store's time. None if the record did not have the expected revision, or the request
    /// would be refused: the client must read the record.
    pub done: Option<Done>,
}

/// See [`Changed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see Swap::Done")]
pub struct Done {
    pub revision: String,
    pub now: Timestamp,
}

impl From<Changed> for Swap {
    fn from(changed: Changed) -> Self {
        changed.done.map_or(Swap::Mismatch, |done| Swap::Done { revision: Revision(done.revision), now: done.now })
    }
}

impl From<Option<Swap>> for Changed {
    fn from(swap: Option<Swap>) -> Self {
        let done = match swap {
            Some(Swap::Done { revision, now }) => Some(Done { revision: revision.0, now }),
            Some(Swap::Mismatch) | None => None,
        };
        Changed { done }
    }
}

/// An error, as a server sends it (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong, in a few words that do not change.
    pub title: String,
    /// The status code of the response.
    pub status: u16,
    /// What happened, why, and what to do.
    pub detail: String,
    /// The error's [`Kind`], which says what to do next.
    pub kind: String,
    /// The field of the request that is wrong, or the part of its path that names nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The epoch that the request held, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_epoch: Option<Epoch>,
    /// The epoch that was found instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_epoch: Option<Epoch>,
}
