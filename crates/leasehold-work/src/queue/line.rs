//! The line of a queue: entries whose names sort in the order in which items are to be claimed.
//!
//! Promise: none; an entry is a hint. It stays where it is while its item is claimed, so that an item whose claim ran out
//! is found at the head of the line by everybody. It carries the item's revision and, if that is small, the item, so that
//! claiming is one swap. Non-promise: entries may be stale, doubled or lost; the item's record is the truth.

use super::item::Item;
use super::name::{Place, Priority, QueueName};
use leasehold::store::{Swap, Watch, Watching};
use leasehold::{Key, LeaseName, Nonce, Result, Revision, Shelf, Store, Timestamp, codec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const KIND: &str = "line";
const BELL_KIND: &str = "bell";
/// An item with a larger payload is not copied into its entry: listing the line must stay cheap.
const COPIED_PAYLOAD: usize = 1024;
/// How often an entry is written when no answer comes: writing it twice does no harm.
const ENTERING: usize = 3;

/// The value of an entry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The item's revision when it came to stand in line.
    revision: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<Item>,
}

/// One place in line, as listed.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) place: Place,
    /// The entry's own tag.
    pub(super) tag: Revision,
    /// The item as it was when it came to stand in line, and its revision then.
    pub(super) copy: Option<(Item, Revision)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Bell {
    rung: Nonce,
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

    fn bell(&self) -> Result<Key> {
        Ok(Key::new(Shelf::Queue, &LeaseName::new(self.queue.as_str())?))
    }

    /// The store's time.
    pub(super) async fn now(&self) -> Result<Timestamp> {
        Ok(self.store.read(&self.bell()?).await?.now)
    }

    /// Puts an item in line, unless it stands there.
    pub(super) async fn enter(&self, place: &Place, revision: &Revision, item: &Item) -> Result<()> {
        let copy = (item.payload.bytes().len() <= COPIED_PAYLOAD).then(|| item.clone());
        let entry = codec::encode(KIND, &Entry { revision: revision.0.clone(), item: copy })?;
        let key = place.key()?;
        let mut last = Ok(());
        for _ in 0..ENTERING {
            match self.store.swap(&key, None, &entry).await {
                Ok(_) => return Ok(()),
                Err(error) => last = Err(error),
            }
        }
        last
    }

    /// Takes an entry out of the line.
    pub(super) async fn leave(&self, place: &Place, tag: Option<Revision>) -> Result<()> {
        let key = place.key()?;
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

    /// The places of this priority from the front, or from after a name, at most so many; and the store's time.
    pub(super) async fn front(
        &self,
        priority: Priority,
        after: Option<&LeaseName>,
        limit: usize,
    ) -> Result<(Vec<Standing>, Timestamp)> {
        let start = Place::before(&self.queue, priority)?;
        let page = self.store.list(Shelf::Line, Some(after.unwrap_or(&start)), limit).await?;
        let mut line = Vec::with_capacity(page.entries.len());
        for (name, value) in page.entries {
            let Some(place) = Place::parse(&self.queue, &name) else { break };
            // What cannot be read is only a hint less: the record is read instead.
            let entry: Option<Entry> = codec::decode(KIND, &value.bytes, name.as_str()).ok();
            let copy = entry.and_then(|entry| Some((entry.item?, Revision(entry.revision))));
            line.push(Standing { place, tag: value.revision, copy });
        }
        Ok((line, page.now))
    }

    /// Wakes whoever waits for work. Best effort: they look by themselves once a second.
    pub(super) async fn ring(&self) {
        let ring = async {
            let key = self.bell()?;
            let found = self.store.read(&key).await?.value.map(|value| value.revision);
            // Where nobody hears it, it only stands for the queue.
            if found.is_some() && self.store.capabilities().watch == Watching::None {
                return Ok(Swap::Mismatch);
            }
            let bell = codec::encode(BELL_KIND, &Bell { rung: Nonce::random() })?;
            // If another was faster, then it rang after our item stood in line: nobody has missed it.
            self.store.swap(&key, found.as_ref(), &bell).await
        };
        let _: Result<Swap> = ring.await;
    }

    /// Listens for the bell.
    pub(super) async fn listen(&self) -> Watch {
        match self.bell() {
            Ok(key) => self.store.watch(&key).await.unwrap_or_else(|_| Watch::silent()),
            Err(_) => Watch::silent(),
        }
    }
}
