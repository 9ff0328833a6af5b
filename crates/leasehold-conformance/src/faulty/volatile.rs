//! A wrapper with writes that are visible and not durable, as on a disk whose sync failed.
//!
//! Promise: such a write reads, lists and compares like any other, and is gone after [`Volatile::crash`], revision and
//! all, unless an answered write of its key came after it. Non-promise: it gives no hints.

use async_trait::async_trait;
use leasehold_core::store::{
    Capabilities, Change, Next, Page, Range, Reading, Store, Survey, Swap, Versioned, Watch, skip_by_reading,
};
use leasehold_core::{Key, LeaseName, Nonce, Result, Revision, Shelf};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Mutex;

/// How many entries of the store behind are listed at once.
const PAGE: usize = 500;

/// A store with a cache that a crash empties.
#[derive(Debug)]
pub struct Volatile {
    inner: Arc<dyn Store>,
    unsynced: Mutex<BTreeMap<Key, Unsynced>>,
}

/// What is seen of a key, and what a crash leaves of it.
#[derive(Debug)]
struct Unsynced {
    durable: Option<Revision>,
    seen: Option<Versioned>,
}

impl Unsynced {
    /// What the store behind must have, if this is what the caller expects to see.
    fn behind(&self, expected: Option<&Revision>) -> Option<Option<&Revision>> {
        let seen = self.seen.as_ref().map(|value| &value.revision);
        (seen == expected).then_some(self.durable.as_ref())
    }
}

impl Volatile {
    /// Everything in `inner` is durable.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Volatile { inner, unsynced: Mutex::default() }
    }

    /// A change that everybody sees and that is not durable, and neither is what changes along with it.
    pub async fn write_unsynced(&self, change: &Change<'_>) -> Result<Swap> {
        let swap = self.change_unsynced(change.key, change.expected, change.next).await?;
        if swap == Swap::Mismatch {
            return Ok(swap);
        }
        if let Some((put, bytes)) = change.along.put {
            self.change_unsynced(put, None, Next::Put(bytes)).await?;
        }
        if let Some(erased) = change.along.erase
            && let Some(value) = self.read(erased).await?.value
        {
            self.change_unsynced(erased, Some(&value.revision), Next::Erase).await?;
        }
        Ok(swap)
    }

    /// Takes back every write that is not durable.
    pub async fn crash(&self) {
        self.unsynced.lock().await.clear();
    }

    async fn change_unsynced(&self, key: &Key, expected: Option<&Revision>, next: Next<'_>) -> Result<Swap> {
        let mut unsynced = self.unsynced.lock().await;
        let behind = self.inner.read(key).await?;
        let durable = behind.value.map(|value| value.revision);
        let seen = match unsynced.get(key) {
            Some(cached) => cached.seen.as_ref().map(|value| value.revision.clone()),
            None => durable.clone(),
        };
        if seen.as_ref() != expected {
            return Ok(Swap::Mismatch);
        }
        let revision = Revision(format!("unsynced-{}", Nonce::random()));
        let seen = next.value().map(|bytes| Versioned { bytes: bytes.to_vec(), revision: revision.clone() });
        unsynced.insert(key.clone(), Unsynced { durable, seen });
        Ok(Swap::Done { revision, now: behind.now })
    }

    async fn everything(&self, shelf: Shelf, after: Option<&LeaseName>) -> Result<BTreeMap<LeaseName, Versioned>> {
        let (mut all, mut after) = (BTreeMap::new(), after.cloned());
        loop {
            let page = self.inner.list(shelf, Range::new(after.as_ref(), PAGE)).await?;
            after = page.entries.last().map(|(name, _)| name.clone());
            all.extend(page.entries);
            if !page.more || after.is_none() {
                return Ok(all);
            }
        }
    }
}

#[async_trait]
impl Store for Volatile {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let unsynced = self.unsynced.lock().await;
        let mut reading = self.inner.read(key).await?;
        if let Some(cached) = unsynced.get(key) {
            reading.value.clone_from(&cached.seen);
        }
        Ok(reading)
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let mut unsynced = self.unsynced.lock().await;
        let expected = match unsynced.get(change.key).map(|cached| cached.behind(change.expected)) {
            None => change.expected,
            Some(Some(behind)) => behind,
            Some(None) => return Ok(Swap::Mismatch),
        };
        let swap = match (change.next, expected, change.expected) {
            // What is erased was never durable.
            (Next::Erase, None, Some(seen)) => {
                change.check(&self.capabilities())?;
                Swap::Done { revision: seen.clone(), now: self.inner.read(change.key).await?.now }
            }
            _ => self.inner.write(&Change { expected, ..*change }).await?,
        };
        let along = [change.along.put.map(|(put, _)| put), change.along.erase];
        for written in along.into_iter().flatten().chain([change.key]) {
            unsynced.remove(written);
        }
        Ok(swap)
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let unsynced = self.unsynced.lock().await;
        if !unsynced.keys().any(|key| key.shelf == shelf) {
            return self.inner.list(shelf, range).await;
        }
        if range.skip > 0 {
            drop(unsynced);
            return skip_by_reading(self, shelf, range).await;
        }
        let Range { after, until, limit, .. } = range;
        let now = self.inner.list(shelf, Range::new(after, 1)).await?.now;
        let mut all = self.everything(shelf, after).await?;
        for (key, cached) in unsynced.iter().filter(|(key, _)| key.shelf == shelf && Some(&key.name) > after) {
            match &cached.seen {
                Some(value) => all.insert(key.name.clone(), value.clone()),
                None => all.remove(&key.name),
            };
        }
        let more = all.len() > limit;
        Ok(Page { entries: all.into_iter().take(limit).collect(), more, now }.until(until))
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}
