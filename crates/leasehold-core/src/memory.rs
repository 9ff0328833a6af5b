//! A store in memory, for tests, models and examples. One process; nothing is durable.

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::name::{Key, LeaseName, Shelf};
use crate::store::{
    Beside, Capabilities, Class, ClockSource, Page, Parts, Reach, Reading, Revision, Store, Survey, Swap, Tail,
    Versioned, Watch, Watching, list_by_reading, refuse_erasing_a_lease,
};
use crate::time::Timestamp;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The time at which a memory store's clock begins, so that timestamps look like real ones.
const BEGINNING_MS: u64 = 1_700_000_000_000;

/// Records in memory. Clones share them.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    contents: Arc<Mutex<Contents>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Contents {
    records: BTreeMap<Key, Kept>,
    // One counter for all keys: a revision is never reused, not even after an erase.
    last_revision: u64,
    watchers: Vec<(Key, mpsc::Sender<()>)>,
}

#[derive(Debug)]
struct Kept {
    revision: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Kept {
    fn versioned(&self) -> Versioned {
        Versioned::parted(self.head.clone(), &self.tail, Revision(self.revision.to_string()))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::with_clock(Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// An empty store that tells this clock's time.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryStore { contents: Arc::default(), clock }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(BEGINNING_MS + self.clock.now().as_nanos() / 1_000_000)
    }
}

impl Contents {
    fn matches(&self, key: &Key, expected: Option<&Revision>) -> bool {
        let current = self.records.get(key).map(|kept| kept.revision.to_string());
        current.as_ref() == expected.map(|r| &r.0)
    }

    fn notify(&mut self, key: &Key) {
        self.watchers.retain(|(watched, sender)| {
            if watched == key {
                let _ = sender.try_send(());
            }
            !sender.is_closed()
        });
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "memory",
            class: Class::A,
            clock: ClockSource::Store { grain: Duration::from_millis(1) },
            reach: Reach::Process,
            watch: Watching::Hints,
            durability: "none: gone when the process ends",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let value = self.contents().records.get(key).map(Kept::versioned);
        Ok(Reading { value, now: self.now() })
    }

    async fn swap_parts(&self, key: &Key, expected: Option<&Revision>, next: Parts<'_>) -> Result<Swap> {
        let mut contents = self.contents();
        if !contents.matches(key, expected) {
            return Ok(Swap::Mismatch);
        }
        contents.last_revision += 1;
        let revision = contents.last_revision;
        // Kept apart as a store would: a caller that vouches for a tail that is not there is found out.
        let tail = match next.tail {
            Tail::New(bytes) => bytes.to_vec(),
            Tail::Kept(_) => contents.records.remove(key).map(|kept| kept.tail).unwrap_or_default(),
        };
        contents.records.insert(key.clone(), Kept { revision, head: next.head.to_vec(), tail });
        contents.notify(key);
        Ok(Swap::Done { revision: Revision(revision.to_string()), now: self.now() })
    }

    fn writes_beside(&self) -> bool {
        true
    }

    async fn swap_beside(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        next: &[u8],
        beside: Beside<'_>,
    ) -> Result<Swap> {
        beside.erased.map_or(Ok(()), refuse_erasing_a_lease)?;
        let mut contents = self.contents();
        if !contents.matches(key, expected) {
            return Ok(Swap::Mismatch);
        }
        contents.last_revision += 1;
        let revision = contents.last_revision;
        let kept = |bytes: &[u8]| Kept { revision, head: bytes.to_vec(), tail: Vec::new() };
        contents.records.insert(key.clone(), kept(next));
        if let Some(erased) = beside.erased {
            contents.records.remove(erased);
        }
        if let Some((put, bytes)) = beside.put {
            contents.records.entry(put.clone()).or_insert_with(|| kept(bytes));
        }
        contents.notify(key);
        Ok(Swap::Done { revision: Revision(revision.to_string()), now: self.now() })
    }

    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let contents = self.contents();
        let mut entries: Vec<_> = contents
            .records
            .iter()
            .filter(|(key, _)| key.shelf == shelf && after.is_none_or(|after| key.name > *after))
            .take(limit.saturating_add(1))
            .map(|(key, kept)| (key.name.clone(), kept.versioned()))
            .collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(Page { entries, more, now: self.now() })
    }

    async fn list_skipping(&self, shelf: Shelf, after: Option<&LeaseName>, skip: usize, limit: usize) -> Result<Page> {
        list_by_reading(self, shelf, after, skip, limit).await
    }

    async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        refuse_erasing_a_lease(key)?;
        let mut contents = self.contents();
        if !contents.matches(key, Some(expected)) {
            return Ok(Swap::Mismatch);
        }
        contents.records.remove(key);
        contents.notify(key);
        Ok(Swap::Done { revision: expected.clone(), now: self.now() })
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        let (sender, watch) = Watch::channel();
        self.contents().watchers.push((key.clone(), sender));
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        Ok(Survey::plain(self.capabilities().class))
    }
}
