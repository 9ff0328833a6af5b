//! A store in memory, for tests, models and examples. One process; nothing is durable.

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::name::{Key, Shelf};
use crate::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching,
};
use crate::time::Timestamp;
use async_trait::async_trait;
use leasehold_system::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// When a memory store's clock starts, in milliseconds since 1970, so that timestamps look like real ones.
const BEGINNING_MS: u64 = 1_700_000_000_000;

/// Records in memory. Clones share the records.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    contents: Arc<Mutex<Contents>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Contents {
    records: BTreeMap<Key, Record>,
    // One counter for all keys: a revision is never reused, not even after an erase.
    last_revision: u64,
    watchers: Vec<(Key, mpsc::Sender<()>)>,
}

#[derive(Debug)]
struct Record {
    revision: u64,
    bytes: Vec<u8>,
}

impl Record {
    fn versioned(&self) -> Versioned {
        Versioned { bytes: self.bytes.clone(), revision: Revision(self.revision.to_string()) }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::with_clock(Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// An empty store with this clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryStore { contents: Arc::default(), clock }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(BEGINNING_MS + self.clock.now().as_nanos() / 1_000_000)
    }
}

impl Contents {
    fn matches(&self, key: &Key, expected: Option<&Revision>) -> bool {
        let current = self.records.get(key).map(|record| record.revision.to_string());
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
            writes_along: true,
            by_verbs: false,
            durability: "none: gone when the process ends",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let value = self.contents.lock().records.get(key).map(Record::versioned);
        Ok(Reading { value, now: self.now() })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let mut contents = self.contents.lock();
        if !contents.matches(change.key, change.expected) {
            return Ok(Swap::Mismatch);
        }
        contents.last_revision += 1;
        let revision = contents.last_revision;
        let record = |bytes: &[u8]| Record { revision, bytes: bytes.to_vec() };
        match change.next {
            Next::Put(bytes) => contents.records.insert(change.key.clone(), record(bytes)),
            Next::Erase => contents.records.remove(change.key),
        };
        if let Some(erased) = change.along.erase {
            contents.records.remove(erased);
        }
        if let Some((put, bytes)) = change.along.put {
            contents.records.entry(put.clone()).or_insert_with(|| record(bytes));
        }
        contents.notify(change.key);
        Ok(Swap::Done { revision: Revision(revision.to_string()), now: self.now() })
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let contents = self.contents.lock();
        let mut entries: Vec<_> = contents
            .records
            .iter()
            .filter(|(key, _)| key.shelf == shelf && range.after.is_none_or(|after| key.name > *after))
            .filter(|(key, _)| range.until.is_none_or(|until| key.name < *until))
            .skip(range.skip)
            .take(range.limit.saturating_add(1))
            .map(|(key, record)| (key.name.clone(), record.versioned()))
            .collect();
        let more = entries.len() > range.limit;
        entries.truncate(range.limit);
        Ok(Page { entries, more, now: self.now() })
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        let (sender, watch) = Watch::channel();
        self.contents.lock().watchers.push((key.clone(), sender));
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        Ok(Survey::plain(self.capabilities().class))
    }
}
