//! The contract of a store: where records are kept.
//!
//! A store is simple: it reads, compares and swaps, and tells the time. It decides nothing about ownership.
//! Applications use [`crate::Coordinator`]; this trait is for authors of stores.

use crate::error::{Error, Kind, Result};
use crate::item::protocol::Request as ItemRequest;
use crate::item::record::Item;
use crate::lease::protocol::Request as LeaseRequest;
use crate::name::{Key, LeaseName, Shelf};
use crate::nonce::Nonce;
use crate::time::{Timestamp, Ttl, format_duration};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tokio::sync::mpsc;

/// A store's tag of one stored value. Opaque: only the store that issued it interprets it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(pub String);

impl Revision {
    /// A fresh number for a store that keeps records in a table: 62 random bits, never negative. A counter would not
    /// do: a server that lost its last writes would issue the same numbers again. Then a forgotten holder would find
    /// its own revision on its successor's record, and renew over it.
    pub fn random_number() -> i64 {
        (Nonce::random().as_u128() >> 66) as i64
    }

    /// Its number; none if it is not a number.
    pub fn number<N: FromStr>(&self) -> Option<N> {
        self.0.parse().ok()
    }
}

/// A stored value and its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The value, as it was written.
    pub bytes: Vec<u8>,
    /// Its revision, to be expected by the next [`Change`].
    pub revision: Revision,
}

/// A change of one record, and of others in the same step.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The key of the record.
    pub key: &'a Key,
    /// The revision that the record must have for the change to apply; none if it must not exist.
    pub expected: Option<&'a Revision>,
    /// What becomes of the record.
    pub next: Next<'a>,
    /// Other changes, applied if and only if this one is: all or nothing, visible and durable in one step.
    pub along: Along<'a>,
    /// Whether to notify watchers. If not, a store for which hints are costly may skip them.
    pub notify: bool,
    /// The request behind it.
    pub verb: Verb<'a>,
}

/// The request behind a change.
///
/// A store writes the bytes of a change and ignores this. A server ([`Capabilities::by_verbs`])
/// is sent only the request: it decides by itself, on the record that it has, and writes what
/// it decided. So a client can never write a record that it built.
#[derive(Debug, Clone, Copy)]
pub enum Verb<'a> {
    /// Only for processes that have the store itself. A server refuses it.
    Direct,
    /// A request on a lease.
    Lease(&'a LeaseRequest),
    /// A request on an item.
    Item(&'a ItemRequest),
    /// A new item, unless it exists.
    Add(&'a Item),
    /// Take back an item that was just added, unless something has happened to it.
    TakeBack,
    /// Remove a finished item, or the record of a process that ends.
    Purge,
    /// Write the record again unchanged, because the answer to an earlier write was lost.
    Confirm,
    /// A record that decides nothing about who holds what: counters, journals, kept output, definitions of jobs,
    /// which processes there are.
    Document,
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy)]
pub enum Next<'a> {
    /// It has this value.
    Put(&'a [u8]),
    /// It is finished, and no longer there.
    Erase,
}

impl<'a> Next<'a> {
    /// The new value; none if erased.
    pub const fn value(self) -> Option<&'a [u8]> {
        match self {
            Next::Put(value) => Some(value),
            Next::Erase => None,
        }
    }
}

/// What changes in the same step as a record. Watchers are not notified of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Along<'a> {
    /// Stored with the revision that the change gets, unless the key has a value already.
    pub put: Option<(&'a Key, &'a [u8])>,
    /// Erased, if it exists.
    pub erase: Option<&'a Key>,
}

impl<'a> Change<'a> {
    /// Stores a value, and notifies watchers.
    pub fn put(key: &'a Key, expected: Option<&'a Revision>, value: &'a [u8]) -> Self {
        let (along, verb) = (Along::default(), Verb::Direct);
        Change { key, expected, next: Next::Put(value), along, notify: true, verb }
    }

    /// Erases a record that is finished.
    pub fn erase(key: &'a Key, expected: &'a Revision) -> Self {
        Change { next: Next::Erase, ..Change::put(key, Some(expected), &[]) }
    }

    /// Refuses what no store may do, and what this one cannot. Every [`Store::write`] calls it first.
    pub fn check(&self, store: &Capabilities) -> Result<()> {
        let erased = matches!(self.next, Next::Erase).then_some(self.key);
        for key in erased.into_iter().chain(self.along.erase) {
            refuse_erasing(key)?;
        }
        let key = self.key;
        if self.along.is_some() && (!store.writes_along || erased.is_some()) {
            let message = format!("store `{}` changes one record at a time; `{key}` was not changed", store.name);
            return Err(Error::new(Kind::Unsupported, message));
        }
        if erased.is_some() && self.expected.is_none() {
            return Err(Error::new(Kind::Invalid, format!("`{key}` can only be erased at a known revision")));
        }
        Ok(())
    }
}

impl Along<'_> {
    /// Whether it contains any change.
    pub const fn is_some(&self) -> bool {
        self.put.is_some() || self.erase.is_some()
    }
}

/// The part of a shelf to list.
#[derive(Debug, Clone, Copy)]
pub struct Range<'a> {
    /// Only names after this one.
    pub after: Option<&'a LeaseName>,
    /// Only names before this one. A listing that ends there has no more.
    pub until: Option<&'a LeaseName>,
    /// How many entries to skip first.
    pub skip: usize,
    /// How many entries to return at most.
    pub limit: usize,
}

impl<'a> Range<'a> {
    /// At most `limit` entries whose names come after `after`.
    pub const fn new(after: Option<&'a LeaseName>, limit: usize) -> Self {
        Range { after, until: None, skip: 0, limit }
    }
}

/// The answer of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The value; none if the key was never written, or was erased.
    pub value: Option<Versioned>,
    /// The store's own time, taken between the call and the answer.
    pub now: Timestamp,
}

/// The answer of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// The change is stored, durably.
    Done {
        /// The new value's revision.
        revision: Revision,
        /// The store's own time, taken between the call and the answer.
        now: Timestamp,
    },
    /// The key did not have the expected revision; nothing changed.
    Mismatch,
}

/// One page of a listing, in the order of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries, with their values.
    pub entries: Vec<(LeaseName, Versioned)>,
    /// Whether there may be more after the last entry.
    pub more: bool,
    /// The store's own time.
    pub now: Timestamp,
}

impl Page {
    /// At most `limit` of these entries. `more` is right if the caller read one entry more than the limit.
    pub fn of(mut entries: Vec<(LeaseName, Versioned)>, limit: usize, now: Timestamp) -> Self {
        let more = entries.len() > limit;
        entries.truncate(limit);
        Page { entries, more, now }
    }

    /// The part of it before [`Range::until`], for a store that does not stop there by itself.
    #[must_use]
    pub fn until(mut self, until: Option<&LeaseName>) -> Self {
        let within = until.map_or(self.entries.len(), |until| self.entries.partition_point(|(name, _)| name < until));
        self.more &= within == self.entries.len();
        self.entries.truncate(within);
        self
    }
}

/// Whether a store's epochs can repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Epochs rise, even through crash and failover.
    A,
    /// An acknowledged epoch may be issued again after a failover; the nonce still protects guards.
    B,
}

/// Where a store's time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockSource {
    /// The store's own clock.
    Store {
        /// How far a time may be behind the true one; it is never ahead. At
        /// least 1 ms, because timestamps are no finer.
        grain: Duration,
    },
    /// The store has no clock: each machine uses its own. A holder gives up this much earlier, so that nobody whose
    /// clock is ahead can have been granted the lease by then.
    Local {
        /// How far two machines' clocks may differ.
        margin: Duration,
    },
}

impl ClockSource {
    /// How far a time may be from the true one.
    pub const fn grain(self) -> Duration {
        match self {
            ClockSource::Store { grain } => grain,
            ClockSource::Local { margin } => margin,
        }
    }
}

/// Who can share a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The processes that share its memory: one.
    Process,
    /// All processes of one machine.
    Host,
    /// Any machine that can reach it.
    Network,
}

/// What a store can do, as data: docs and `doctor` print it, and tests are chosen by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's name, as in its URL.
    pub name: &'static str,
    /// Whether its epochs can repeat.
    pub class: Class,
    /// Where its time comes from.
    pub clock: ClockSource,
    /// Who can share it.
    pub reach: Reach,
    /// Whether [`Store::watch`] gives hints.
    pub watch: Watching,
    /// Whether a [`Change`] may include others. It does not change while the store is open.
    pub writes_along: bool,
    /// Whether it is a server, which carries out the [`Verb`] of a change, and maintains lines and histories by itself.
    pub by_verbs: bool,
    /// What makes an answer durable, in words.
    pub durability: &'static str,
}

impl Capabilities {
    /// Refuses a TTL that is too short for this store's clock, before anything is written.
    pub fn check_ttl(&self, ttl: Ttl) -> Result<()> {
        let grain = self.clock.grain();
        if ttl.get() > grain * 2 {
            return Ok(());
        }
        let (store, grain) = (self.name, format_duration(grain));
        let form = format!("store `{store}` tells time to {grain} only; use a ttl of more than twice that");
        Err(Error::invalid("ttl", ttl, form))
    }
}

/// What a store found out about the settings on which its promises depend. `doctor` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The class that these settings allow, at best what was seen.
    pub class: Class,
    /// The settings that were read.
    pub remarks: Vec<Remark>,
}

/// One setting of the server behind a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Its name on that server.
    pub setting: String,
    /// Its value, as the server reports it.
    pub found: String,
    /// What to change, and why; none if it is fine.
    pub advice: Option<String>,
}

impl Survey {
    /// No remarks: the class is what [`Store::capabilities`] says.
    pub const fn plain(class: Class) -> Self {
        Survey { class, remarks: Vec::new() }
    }

    /// Adds a setting that is fine as it is.
    #[must_use]
    pub fn fine(mut self, setting: impl Into<String>, found: impl Into<String>) -> Self {
        self.remarks.push(Remark { setting: setting.into(), found: found.into(), advice: None });
        self
    }

    /// Adds a setting that should be changed.
    #[must_use]
    pub fn advise(mut self, setting: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Self {
        self.remarks.push(Remark { setting: setting.into(), found: found.into(), advice: Some(advice.into()) });
        self
    }
}

/// Whether a store can push hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watching {
    /// It can push hints.
    Hints,
    /// It cannot: waiters poll.
    None,
}

/// Hints that a key may have changed. They may be late, duplicated or lost: always read the record.
#[derive(Debug)]
pub struct Watch(Option<mpsc::Receiver<()>>);

impl Watch {
    /// A watch that never hints.
    pub const fn silent() -> Self {
        Watch(None)
    }

    /// A watch, and the sender by which a store's task pushes hints, with `try_send`. The task should end when the
    /// sender reports that the watch was dropped.
    pub fn channel() -> (mpsc::Sender<()>, Self) {
        let (sender, receiver) = mpsc::channel(1);
        (sender, Watch(Some(receiver)))
    }

    /// Drops a pending hint, before a read that makes it unnecessary.
    pub fn forget(&mut self) {
        if let Some(receiver) = &mut self.0 {
            while receiver.try_recv().is_ok() {}
        }
    }

    /// Waits for the next hint; for ever if none can come.
    pub async fn hint(&mut self) {
        if let Some(receiver) = &mut self.0
            && receiver.recv().await.is_some()
        {
            return;
        }
        self.0 = None;
        std::future::pending().await
    }
}

/// A linearizable compare-and-swap over named records, with a clock.
///
/// # Contract
/// - `write` is atomic per key: of any number of changes that expect one revision, at most one is applied (S1).
/// - A revision is never reused for a key, even after it was erased: a process
///   that was suspended for any time cannot win with an old one.
/// - `read` is linearizable: it sees every change that was answered before the read was called.
/// - `Done` means durable. `Kind::Unavailable` means *certainly not applied*; otherwise the error is
///   `Kind::Indeterminate`. No error ever means applied.
/// - `now` is the store's clock, taken between call and answer. It may be behind
///   the true time by at most the grain, and never ahead of it: round down.
/// - A dropped future leaves the key changed or unchanged, never half-written.
/// - Nothing on a shelf that [is permanent](Shelf::is_permanent) is ever deleted, not by a change and not by the store's
///   own expiry.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// Reads one record and the store's time.
    async fn read(&self, key: &Key) -> Result<Reading>;

    /// Makes a change, if the record still has the expected revision. It calls [`Change::check`] first.
    async fn write(&self, change: &Change<'_>) -> Result<Swap>;

    /// Lists a part of a shelf in the order of names. A store for which
    /// skipping costs as much as reading calls [`skip_by_reading`].
    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page>;

    /// Hints when a key may have changed. A store without hints returns [`Watch::silent`].
    async fn watch(&self, key: &Key) -> Result<Watch>;

    /// Reads the server's settings on which its class and durability depend. Changes nothing.
    async fn survey(&self) -> Result<Survey>;
}

/// Conveniences, not in the trait, so that no store and no wrapper can override or forget one.
impl dyn Store + '_ {
    /// Stores a value and notifies watchers, if the key still has the expected revision (`None`: if it does not exist).
    pub async fn swap(&self, key: &Key, expected: Option<&Revision>, next: &[u8]) -> Result<Swap> {
        self.write(&Change::put(key, expected, next)).await
    }

    /// The same, for a record that decides nothing about who holds what.
    pub async fn document(&self, key: &Key, expected: Option<&Revision>, next: &[u8]) -> Result<Swap> {
        self.write(&Change { verb: Verb::Document, ..Change::put(key, expected, next) }).await
    }

    /// Erases a record that is finished, if it still has this revision. Refused on a permanent shelf.
    pub async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        self.write(&Change::erase(key, expected)).await
    }
}

/// [`Store::list`] for a store that skips entries by reading them. Such a store may return short pages, so this reads
/// until it has an entry after the skipped ones, or there are no more.
pub async fn skip_by_reading(store: &dyn Store, shelf: Shelf, range: Range<'_>) -> Result<Page> {
    let (mut after, mut left, limit) = (range.after.cloned(), range.skip, range.limit);
    loop {
        let mut page = store
            .list(shelf, Range { after: after.as_ref(), skip: 0, limit: left.saturating_add(limit), ..range })
            .await?;
        after = page.entries.last().map(|(name, _)| name.clone());
        let skipped = left.min(page.entries.len());
        page.entries.drain(..skipped);
        left -= skipped;
        let is_over = !page.more || after.is_none();
        if is_over || limit == 0 || !page.entries.is_empty() {
            return Ok(page);
        }
    }
}

fn refuse_erasing(key: &Key) -> Result<()> {
    let what = match key.shelf {
        Shelf::Lease => "ownership record",
        // Without it, an old epoch would be admitted again.
        Shelf::Fence => "fence",
        // Without it, a lease could be created in a store that has moved.
        Shelf::Namespace => "record of the namespace",
        _ => return Ok(()),
    };
    Err(Error::new(Kind::Invalid, format!("{what} `{key}` is never erased")))
}
