//! The line of a queue: entries whose names sort in the order in which items are to be claimed.
//!
//! Promise: none; an entry is a hint. Where the store can move it in the same step, the entry of a claimed item sorts
//! by the time at which the claim expires. Elsewhere it stays. Either way, every worker finds an item whose claim has
//! expired. An entry has the item's revision and, if it is small, a copy of the item, so that claiming is one write.
//! Non-promise: entries may be stale, duplicated or lost; the item's record is the truth.

use super::grant::ItemSnapshot;
use leasehold_core::item::name::{ItemName, LinePosition, QueueName, Section};
use leasehold_core::item::record::Item;
use leasehold_core::store::{Along, Change, Range, Swap, Verb, Versioned, Watch, Watching};
use leasehold_core::{Key, LeaseName, Nonce, Result, Revision, Shelf, Store, Timestamp, codec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const KIND: &str = "line";
const WAKE_KIND: &str = "wake";
/// An item with a larger payload is not copied into its entry, because listing the line must stay cheap. In bytes.
const COPIED_PAYLOAD: usize = 1024;
/// How often an entry is written when no answer comes: writing it twice does no harm.
const ENTERING: usize = 3;

/// The value of an entry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The item's revision when it entered the line; none if the entry was
    /// written in the same step, and has the same revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<Item>,
}

/// An entry with its copy of the item as somebody may see it. What cannot be read has no copy then, and its item's record is read.
pub fn shown(bytes: &[u8], name: &str, shown: impl FnOnce(Item) -> Item) -> Result<Vec<u8>> {
    let entry = codec::decode(KIND, bytes, name).unwrap_or(Entry { revision: None, item: None });
    codec::encode(KIND, &Entry { item: entry.item.map(shown), ..entry })
}

/// One position in line, as listed.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) position: LinePosition,
    value: Versioned,
    /// Whether a claim by its copy has failed before, so that the record must be read.
    pub(super) is_suspect: bool,
}

impl Listed {
    /// The entry's own revision.
    pub(super) fn tag(&self) -> &Revision {
        &self.value.revision
    }

    /// The item as it was when it entered the line, and its revision then. None if the copy cannot be read.
    pub(super) fn copy(&self) -> Option<(Item, Revision)> {
        let entry: Entry = codec::decode(KIND, &self.value.bytes, self.position.item.id.as_str()).ok()?;
        Some((entry.item?, entry.revision.map_or_else(|| self.value.revision.clone(), Revision)))
    }
}

/// The front of a line, as listed.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) line: Vec<Listed>,
    /// The last name that was listed, after which to continue.
    pub(super) last: Option<LeaseName>,
    /// Whether the line has no more entries after this.
    pub(super) is_all: bool,
    pub(super) now: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
struct WakeRecord {
    nonce: Nonce,
}

/// The line of one queue.
#[derive(Debug, Clone)]
pub(super) struct Line {
    store: Arc<dyn Store>,
    queue: QueueName,
}

impl Line {
    pub(super) fn new(store: Arc<dyn Store>, queue: QueueName) -> Self {
        Line { store, queue }
    }

    fn wake_key(&self) -> Result<Key> {
        Ok(Key::new(Shelf::Queue, &LeaseName::new(self.queue.as_str())?))
    }

    /// The store's time.
    pub(super) async fn now(&self) -> Result<Timestamp> {
        Ok(self.store.read(&self.wake_key()?).await?.now)
    }

    /// Whether an item's record and its position in line change in one step.
    pub(super) fn is_one_step(&self) -> bool {
        self.store.capabilities().writes_along
    }

    /// Whether a server maintains the line.
    pub(super) fn is_served(&self) -> bool {
        self.store.capabilities().by_verbs
    }

    /// The position of an item that is in line.
    pub(super) fn position(&self, name: &ItemName, item: &Item) -> LinePosition {
        let aside = if self.is_one_step() { item.position_aside(name) } else { None };
        aside.unwrap_or_else(|| item.position(name))
    }

    /// Swaps an item's record, and moves its position in line in the same step where the store can.
    pub(super) async fn swap(
        &self,
        name: &ItemName,
        was: Option<&Item>,
        revision: Option<&Revision>,
        next: &Item,
        verb: Verb<'_>,
    ) -> Result<Swap> {
        let (key, bytes) = (name.key()?, next.encode()?);
        let verb = if was == Some(next) { Verb::Confirm } else { verb };
        let alone = Change { verb, ..Change::put(&key, revision, &bytes) };
        if !self.is_one_step() || self.is_served() {
            return self.store.write(&alone).await;
        }
        let before = was.filter(|item| item.is_open()).map(|item| self.position(name, item));
        let after = next.is_open().then(|| self.position(name, next));
        // Follow-ups that are still to be added are found through the entry, which therefore stays until they are.
        if before == after || !next.outbox.is_empty() {
            return self.store.write(&alone).await;
        }
        let put = after.as_ref().map(|position| Ok::<_, leasehold_core::Error>((position.key()?, entry(None, next)?)));
        let put = put.transpose()?;
        let erased = before.as_ref().map(LinePosition::key).transpose()?;
        let along = Along { put: put.as_ref().map(|(key, bytes)| (key, &bytes[..])), erase: erased.as_ref() };
        self.store.write(&Change { along, ..alone }).await
    }

    /// Puts an item in line, or updates its entry.
    pub(super) async fn enter(&self, position: &LinePosition, seen: &ItemSnapshot) -> Result<()> {
        if self.is_served() {
            return Ok(());
        }
        let entry = entry(seen.revision.as_ref(), &seen.record)?;
        let key = position.key()?;
        let mut last = Ok(());
        for _ in 0..ENTERING {
            match self.store.swap(&key, None, &entry).await {
                Ok(Swap::Done { .. }) => return Ok(()),
                Ok(Swap::Mismatch) => return self.refresh(&key, &entry).await,
                Err(error) => last = Err(error),
            }
        }
        last
    }

    /// Replaces an entry: the copy in it may be older than the record, and a worker that claims by it would believe
    /// that another worker was faster, and leave the item for later.
    async fn refresh(&self, key: &Key, entry: &[u8]) -> Result<()> {
        if let Some(found) = self.store.read(key).await?.value.filter(|found| found.bytes != entry) {
            self.store.swap(key, Some(&found.revision), entry).await?;
        }
        Ok(())
    }

    /// Removes an entry from the line.
    pub(super) async fn leave(&self, position: &LinePosition, tag: Option<Revision>) -> Result<()> {
        if self.is_served() {
            return Ok(());
        }
        let key = position.key()?;
        if let Some(tag) = tag
            && let Swap::Done { .. } = self.store.erase(&key, &tag).await?
        {
            return Ok(());
        }
        if let Some(found) = self.store.read(&key).await?.value {
            self.store.erase(&key, &found.revision).await?;
        }
        Ok(())
    }

    /// The positions from the front of a part of the line, or from after a
    /// name, without the first `skip`, and at most `limit`.
    pub(super) async fn front(
        &self,
        from: Section,
        after: Option<&LeaseName>,
        skip: usize,
        limit: usize,
    ) -> Result<Front> {
        let start = LinePosition::before(&self.queue, from)?;
        let range = Range { skip, ..Range::new(Some(after.unwrap_or(&start)), limit) };
        let page = self.store.list(Shelf::Line, range).await?;
        let mut front =
            Front { line: Vec::with_capacity(page.entries.len()), last: None, is_all: !page.more, now: page.now };
        for (name, value) in page.entries {
            if !self.is_ours(&name) {
                front.is_all = true;
                break;
            }
            // A name that is not a position must not hide those behind it.
            if let Some(position) = LinePosition::parse(&self.queue, &name) {
                front.line.push(Listed { position, value, is_suspect: false });
            }
            front.last = Some(name);
        }
        Ok(front)
    }

    fn is_ours(&self, name: &LeaseName) -> bool {
        name.as_str().strip_prefix(self.queue.as_str()).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Wakes workers that wait. Best effort: they also look by themselves once a second.
    pub(super) async fn wake_workers(&self) {
        if self.is_served() {
            return;
        }
        let wake = async {
            let key = self.wake_key()?;
            let found = self.store.read(&key).await?.value.map(|value| value.revision);
            // If nobody can be woken, the record only shows that the queue exists.
            if found.is_some() && self.store.capabilities().watch == Watching::None {
                return Ok(Swap::Mismatch);
            }
            let record = codec::encode(WAKE_KIND, &WakeRecord { nonce: Nonce::random() })?;
            // If another process was faster, it woke them after our item had entered the line, so nobody has missed it.
            self.store.swap(&key, found.as_ref(), &record).await
        };
        let _: Result<Swap> = wake.await;
    }

    /// Hints that there is new work.
    pub(super) async fn listen(&self) -> Watch {
        match self.wake_key() {
            Ok(key) => self.store.watch(&key).await.unwrap_or_else(|_| Watch::silent()),
            Err(_) => Watch::silent(),
        }
    }
}

/// The bytes of an entry. A claimed item's record is read before the item is claimed again, so it is not copied.
fn entry(revision: Option<&Revision>, item: &Item) -> Result<Vec<u8>> {
    let is_copied = item.tenure().is_none() && item.payload.bytes().len() <= COPIED_PAYLOAD;
    let revision = revision.map(|revision| revision.0.clone());
    codec::encode(KIND, &Entry { revision, item: is_copied.then(|| item.clone()) })
}
