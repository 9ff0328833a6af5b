//! The place where records are kept.
//!
//! A store is dumb: it reads, compares and swaps, and tells the time. It decides nothing about ownership.
//! Users meet [`crate::Coordinator`]; this trait is for those who write a store.

use crate::error::{Error, Kind, Result};
use crate::name::{Key, LeaseName, Shelf};
use crate::time::{Timestamp, Ttl, format_duration};
use async_trait::async_trait;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc;

/// A store's tag of one stored value. Opaque: only the store that gave it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(pub String);

/// A stored value and its tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub bytes: Vec<u8>,
    /// Its tag, to be given to [`Store::swap_parts`].
    pub revision: Revision,
    /// How many bytes at the end lie in a part of their own, which [`Tail::Kept`] can leave as it is.
    pub tail_bytes: usize,
}

impl Versioned {
    /// A value that lies in one part.
    pub const fn whole(bytes: Vec<u8>, revision: Revision) -> Self {
        Versioned { bytes, revision, tail_bytes: 0 }
    }

    /// A value that lies in two.
    pub fn parted(mut head: Vec<u8>, tail: &[u8], revision: Revision) -> Self {
        head.extend_from_slice(tail);
        Versioned { bytes: head, revision, tail_bytes: tail.len() }
    }
}

/// A value to be stored: the head, and after it the tail. Two parts, because most swaps change a few bytes of a record
/// whose history is long.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// What every swap replaces.
    pub head: &'a [u8],
    /// What it may leave.
    pub tail: Tail<'a>,
    /// Whether those who watch want to know. A store that hints at a price need not hint at what is no news; another may.
    pub is_news: bool,
}

/// The second part of a value.
#[derive(Debug, Clone, Copy)]
pub enum Tail<'a> {
    /// To be stored with the head.
    New(&'a [u8]),
    /// What the expected revision has as its tail, byte for byte. A store that keeps parts apart need not write it.
    Kept(&'a [u8]),
}

impl<'a> Parts<'a> {
    /// A value without a tail, that is news.
    pub const fn whole(bytes: &'a [u8]) -> Self {
        Parts { head: bytes, tail: Tail::New(b""), is_news: true }
    }

    /// The tail, new or not.
    pub const fn tail(&self) -> &'a [u8] {
        match self.tail {
            Tail::New(bytes) | Tail::Kept(bytes) => bytes,
        }
    }

    /// The whole value, for a store that keeps it in one part.
    pub fn joined(&self) -> Cow<'a, [u8]> {
        match self.tail() {
            [] => Cow::Borrowed(self.head),
            tail => Cow::Owned([self.head, tail].concat()),
        }
    }
}

/// What a swap changes beside its own key, in the same step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Stored, with the revision that the swap gives, unless the key has a value.
    pub put: Option<(&'a Key, &'a [u8])>,
    /// Erased, if it is there.
    pub erased: Option<&'a Key>,
}

/// The answer of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The value, if the key has ever been written.
    pub value: Option<Versioned>,
    /// The store's own time, taken between the call and the answer.
    pub now: Timestamp,
}

/// The answer of a swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// Stored, durably.
    Done {
        /// The new value's tag.
        revision: Revision,
        /// The store's own time, taken between the call and the answer.
        now: Timestamp,
    },
    /// The key did not have the expected value; nothing changed.
    Mismatch,
}

/// One page of a listing, in the order of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<(LeaseName, Versioned)>,
    /// Whether there may be more after the last entry.
    pub more: bool,
    /// The store's own time.
    pub now: Timestamp,
}

/// How far a store's promise of rising epochs goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Epochs rise through crash and failover.
    A,
    /// An acknowledged epoch may be issued again after a failover; the nonce still protects guards.
    B,
}

/// Where a store's time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockSource {
    /// The store tells its own time, this exact.
    Store {
        /// How far a told time may lie behind the true one; it never lies ahead of it. At least a millisecond, for
        /// timestamps have no more than that.
        grain: Duration,
    },
    /// The store has no clock: each machine tells its own time. A holder gives up this much earlier, so that nobody
    /// whose clock is ahead of its own can have been granted the lease by then.
    Local {
        /// How far two machines' clocks may differ.
        margin: Duration,
    },
}

impl ClockSource {
    /// How far a told time may be from the true one.
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
    /// One process.
    Process,
    /// All processes of one machine.
    Host,
    /// A fleet.
    Network,
}

/// What a store can do, as data: docs and `doctor` print it, tests are chosen by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's name, as in its URL.
    pub name: &'static str,
    /// How far its promise of rising epochs goes.
    pub class: Class,
    /// Where its time comes from.
    pub clock: ClockSource,
    /// Who can share it.
    pub reach: Reach,
    /// Whether [`Store::watch`] gives hints.
    pub watch: Watching,
    /// What makes an answer durable, in words.
    pub durability: &'static str,
}

impl Capabilities {
    /// Refuses a TTL that this store's clock cannot tell, before anything is written.
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

/// What a store found out about the settings that its promises rest on: `doctor` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The class that these settings make it. Never better than what was seen.
    pub class: Class,
    /// What was looked at.
    pub remarks: Vec<Remark>,
}

/// One setting of the server behind a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// What it is called there.
    pub setting: String,
    /// Its value.
    pub found: String,
    /// What to change, and why; none if it is fine.
    pub advice: Option<String>,
}

impl Survey {
    /// Nothing to look at beyond what [`Store::capabilities`] says.
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
    /// It can.
    Hints,
    /// It cannot: waiters poll.
    None,
}

/// Hints that a key may have changed. They may be late, doubled or lost: truth is always read.
#[derive(Debug)]
pub struct Watch(Option<mpsc::Receiver<()>>);

impl Watch {
    /// A watch that never hints.
    pub const fn silent() -> Self {
        Watch(None)
    }

    /// A watch, and the end that a store's task pushes hints into with `try_send`. The task should end when that
    /// says that the watch is gone.
    pub fn channel() -> (mpsc::Sender<()>, Self) {
        let (sender, receiver) = mpsc::channel(1);
        (sender, Watch(Some(receiver)))
    }

    /// Forgets a hint that has come: whoever looks now need not look for it again.
    pub fn forget(&mut self) {
        if let Some(receiver) = &mut self.0 {
            while receiver.try_recv().is_ok() {}
        }
    }

    /// Waits for the next hint; for ever if there will be none.
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
/// - `swap` is atomic per key: of any number of swaps that expect one revision, at most one is done (S1).
/// - A revision is never reused for a key, even after `erase`: a process that slept for any length cannot win with an
///   old one.
/// - `read` is linearizable: it sees every swap whose answer was given before the read was called.
/// - `Done` means durable. `Kind::Unavailable` means *surely not applied*; when that is not sure, the error is
///   `Kind::Indeterminate`. No error ever means applied.
/// - `now` is the store's clock, taken between call and answer. It may lie behind the true time by at most the grain,
///   and never ahead of it: round down.
/// - A value reads as its head followed by its tail, and both change in one step or not at all. What is said to be kept
///   is the tail of the expected revision: the caller vouches for that, and [`Versioned::tail_bytes`] tells it.
/// - A dropped future leaves the key swapped or not swapped, never half-written.
/// - Nothing on a shelf that [is permanent](Shelf::is_permanent) is ever deleted, not by `erase` and not by the store's
///   own expiry.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// Reads one record and the store's time.
    async fn read(&self, key: &Key) -> Result<Reading>;

    /// Stores `next` if the key still has the `expected` revision (`None`: if it was never written).
    async fn swap_parts(&self, key: &Key, expected: Option<&Revision>, next: Parts<'_>) -> Result<Swap>;

    /// Lists a shelf in the order of names, from just after `after`, at most `limit` entries.
    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page>;

    /// The same without the first `skip` entries. A store that cannot pass over them more cheaply than it can give them
    /// calls [`list_by_reading`].
    async fn list_skipping(&self, shelf: Shelf, after: Option<&LeaseName>, skip: usize, limit: usize) -> Result<Page>;

    /// Whether [`Store::swap_beside`] may be called. It must not change while the store is open.
    fn writes_beside(&self) -> bool;

    /// A swap of the whole value, and beside it, if and only if that is done, what is in `beside`: all of it or nothing, seen by
    /// others and made durable in one step. What lies beside has no tail, nobody is hinted at it, and nothing on a shelf
    /// that [is permanent](Shelf::is_permanent) is erased. A store that cannot do it calls [`refuse_beside`].
    async fn swap_beside(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        next: &[u8],
        beside: Beside<'_>,
    ) -> Result<Swap>;

    /// Deletes a record that is finished, if it still has this revision. Refused on a permanent shelf.
    async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap>;

    /// Hints when a key may have changed. A store without hints gives [`Watch::silent`].
    async fn watch(&self, key: &Key) -> Result<Watch>;

    /// Looks at the settings of the server that its class and durability rest on. Changes nothing.
    async fn survey(&self) -> Result<Survey>;
}

/// Conveniences, apart from the trait so that no store and no wrapper of one can write, or forget, a version of its own.
impl dyn Store + '_ {
    /// [`Store::swap_parts`] for a value without a tail, that is news.
    pub async fn swap(&self, key: &Key, expected: Option<&Revision>, next: &[u8]) -> Result<Swap> {
        self.swap_parts(key, expected, Parts::whole(next)).await
    }
}

/// [`Store::list_skipping`] for a store that passes over entries by reading them. A page may be shorter than was asked
/// for, so this reads on until there is something after the skipped ones, or nothing more.
pub async fn list_by_reading(
    store: &dyn Store,
    shelf: Shelf,
    after: Option<&LeaseName>,
    skip: usize,
    limit: usize,
) -> Result<Page> {
    let (mut after, mut left) = (after.cloned(), skip);
    loop {
        let mut page = store.list(shelf, after.as_ref(), left.saturating_add(limit)).await?;
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

/// [`Store::swap_beside`] of a store that cannot: the refusal, and nothing is changed.
pub fn refuse_beside(store: &dyn Store, key: &Key) -> Result<Swap> {
    let name = store.capabilities().name;
    let message = format!("store `{name}` changes one record at a time; `{key}` was not changed");
    Err(Error::new(Kind::Unsupported, message))
}

/// The refusal that every store's `erase` begins with.
pub fn refuse_erasing_a_lease(key: &Key) -> Result<()> {
    let what = match key.shelf {
        Shelf::Lease => "ownership record",
        // Without it, an epoch that was shut out would be let in again.
        Shelf::Fence => "fence",
        // Without it, a job could be born in a store that everybody has left.
        Shelf::Namespace => "record of the namespace",
        _ => return Ok(()),
    };
    Err(Error::new(Kind::Invalid, format!("{what} `{key}` is never erased")))
}
