//! A store in front of another, with writes that can be seen and are not durable: as on a disk whose sync failed.
//!
//! Promise: such a write reads, lists and compares like any other, and is gone after [`Volatile::crash`], revision and
//! all, unless an answered write of its key came after it. Non-promise: nobody is hinted at it.

use async_trait::async_trait;
use leasehold_core::store::{
    Beside, Capabilities, Page, Parts, Reading, Store, Survey, Swap, Tail, Versioned, Watch, list_by_reading,
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

    /// A swap that everybody sees and that is not durable.
    pub async fn swap_unsynced(&self, key: &Key, expected: Option<&Revision>, next: Parts<'_>) -> Result<Swap> {
        let value = |revision| Versioned::parted(next.head.to_vec(), next.tail(), revision);
        self.change_unsynced(key, expected, |revision| Some(value(revision))).await
    }

    /// [`Volatile::swap_unsynced`] and what lies beside it, which is not durable either.
    pub async fn swap_beside_unsynced(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        next: &[u8],
        beside: Beside<'_>,
    ) -> Result<Swap> {
        let swap = self.swap_unsynced(key, expected, Parts::whole(next)).await?;
        if swap == Swap::Mismatch {
            return Ok(swap);
        }
        if let Some((put, bytes)) = beside.put {
            self.swap_unsynced(put, None, Parts::whole(bytes)).await?;
        }
        if let Some(erased) = beside.erased
            && let Some(value) = self.read(erased).await?.value
        {
            self.erase_unsynced(erased, &value.revision).await?;
        }
        Ok(swap)
    }

    /// An erase that everybody sees and that is not durable.
    pub async fn erase_unsynced(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        self.change_unsynced(key, Some(expected), |_| None).await
    }

    /// Takes back every write that is not durable.
    pub async fn crash(&self) {
        self.unsynced.lock().await.clear();
    }

    async fn change_unsynced(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        next: impl FnOnce(Revision) -> Option<Versioned> + Send,
    ) -> Result<Swap> {
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
        unsynced.insert(key.clone(), Unsynced { durable, seen: next(revision.clone()) });
        Ok(Swap::Done { revision, now: behind.now })
    }

    async fn everything(&self, shelf: Shelf, after: Option<&LeaseName>) -> Result<BTreeMap<LeaseName, Versioned>> {
        let (mut all, mut after) = (BTreeMap::new(), after.cloned());
        loop {
            let page = self.inner.list(shelf, after.as_ref(), PAGE).await?;
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

    async fn swap_parts(&self, key: &Key, expected: Option<&Revision>, next: Parts<'_>) -> Result<Swap> {
        let mut unsynced = self.unsynced.lock().await;
        let Some(cached) = unsynced.get(key) else { return self.inner.swap_parts(key, expected, next).await };
        let Some(behind) = cached.behind(expected) else { return Ok(Swap::Mismatch) };
        // The store behind may never have seen the tail that is to be kept.
        let next = Parts { tail: Tail::New(next.tail()), ..next };
        let swap = self.inner.swap_parts(key, behind, next).await?;
        unsynced.remove(key);
        Ok(swap)
    }

    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let unsynced = self.unsynced.lock().await;
        if !unsynced.keys().any(|key| key.shelf == shelf) {
            return self.inner.list(shelf, after, limit).await;
        }
        let now = self.inner.list(shelf, after, 1).await?.now;
        let mut all = self.everything(shelf, after).await?;
        for (key, cached) in unsynced.iter().filter(|(key, _)| key.shelf == shelf && Some(&key.name) > after) {
            match &cached.seen {
                Some(value) => all.insert(key.name.clone(), value.clone()),
                None => all.remove(&key.name),
            };
        }
        let more = all.len() > limit;
        Ok(Page { entries: all.into_iter().take(limit).collect(), more, now })
    }

    async fn list_skipping(&self, shelf: Shelf, after: Option<&LeaseName>, skip: usize, limit: usize) -> Result<Page> {
        if self.unsynced.lock().await.keys().any(|key| key.shelf == shelf) {
            return list_by_reading(self, shelf, after, skip, limit).await;
        }
        self.inner.list_skipping(shelf, after, skip, limit).await
    }

    fn writes_beside(&self) -> bool {
        self.inner.writes_beside()
    }

    async fn swap_beside(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        next: &[u8],
        beside: Beside<'_>,
    ) -> Result<Swap> {
        let mut unsynced = self.unsynced.lock().await;
        let behind = match unsynced.get(key).map(|cached| cached.behind(expected)) {
            None => expected,
            Some(Some(behind)) => behind,
            Some(None) => return Ok(Swap::Mismatch),
        };
        let swap = self.inner.swap_beside(key, behind, next, beside).await?;
        for written in [Some(key), beside.put.map(|(put, _)| put), beside.erased].into_iter().flatten() {
            unsynced.remove(written);
        }
        Ok(swap)
    }

    async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        let mut unsynced = self.unsynced.lock().await;
        let Some(cached) = unsynced.get(key) else { return self.inner.erase(key, expected).await };
        let swap = match cached.behind(Some(expected)) {
            None => return Ok(Swap::Mismatch),
            Some(Some(behind)) => self.inner.erase(key, behind).await?,
            Some(None) => Swap::Done { revision: expected.clone(), now: self.inner.read(key).await?.now },
        };
        unsynced.remove(key);
        Ok(swap)
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}
