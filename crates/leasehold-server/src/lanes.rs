//! The calls of one store, by urgency.
//!
//! Promise: calls of holders never wait here. Other calls are limited to what the store can carry out besides, and those of waiting
//! requests to a part of that. So neither a flood of requests nor thousands of waiters that wake together keep a holder from the
//! store, and waiters do not keep out new requests. Non-promise: a slow store stays slow.

use async_trait::async_trait;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Key, Result, Shelf};
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Waiting requests may have one in this many of the calls.
const WAITERS_PART: usize = 4;

/// One store for each kind of caller.
#[derive(Debug, Clone)]
pub struct Lanes {
    /// For those who renew or end what they hold.
    pub holders: Arc<dyn Store>,
    /// For those who neither hold something nor wait.
    pub others: Arc<dyn Store>,
    /// For those who were refused and wait.
    pub waiters: Arc<dyn Store>,
}

impl Lanes {
    /// Lanes to this store, on which callers other than holders may have `calls` calls under way at once.
    pub fn new(store: Arc<dyn Store>, calls: usize) -> Self {
        let all = Arc::new(Semaphore::new(calls.max(1)));
        let waiters = Arc::new(Semaphore::new((calls / WAITERS_PART).max(1)));
        let lane = |turns: Vec<Arc<Semaphore>>| -> Arc<dyn Store> { Arc::new(Lane { store: store.clone(), turns }) };
        Lanes { holders: lane(Vec::new()), others: lane(vec![all.clone()]), waiters: lane(vec![waiters, all]) }
    }

    /// Whether anybody else uses one of them.
    pub fn is_used(&self) -> bool {
        [&self.holders, &self.others, &self.waiters].into_iter().any(|store| Arc::strong_count(store) > 1)
    }
}

/// The store of one kind of caller.
#[derive(Debug)]
struct Lane {
    store: Arc<dyn Store>,
    /// A call takes one permit of each, in this order.
    turns: Vec<Arc<Semaphore>>,
}

impl Lane {
    async fn turn(&self) -> Vec<SemaphorePermit<'_>> {
        let mut permits = Vec::with_capacity(self.turns.len());
        for turns in &self.turns {
            // These semaphores are never closed.
            permits.extend(turns.acquire().await);
        }
        permits
    }
}

#[async_trait]
impl Store for Lane {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let _turn = self.turn().await;
        self.store.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let _turn = self.turn().await;
        self.store.write(change).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let _turn = self.turn().await;
        self.store.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        let _turn = self.turn().await;
        self.store.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        let _turn = self.turn().await;
        self.store.survey().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use leasehold_core::MemoryStore;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A store whose reads wait for the test.
    #[derive(Debug)]
    struct Slow {
        store: MemoryStore,
        open: Semaphore,
        begun: AtomicUsize,
    }

    #[async_trait]
    impl Store for Slow {
        fn capabilities(&self) -> Capabilities {
            self.store.capabilities()
        }

        async fn read(&self, key: &Key) -> Result<Reading> {
            self.begun.fetch_add(1, Ordering::AcqRel);
            self.open.acquire().await.unwrap().forget();
            self.store.read(key).await
        }

        async fn write(&self, change: &Change<'_>) -> Result<Swap> {
            self.store.write(change).await
        }

        async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
            self.store.list(shelf, range).await
        }

        async fn watch(&self, key: &Key) -> Result<Watch> {
            self.store.watch(key).await
        }

        async fn survey(&self) -> Result<Survey> {
            self.store.survey().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_of_a_holder_never_waits_for_those_of_others() {
        let slow =
            Arc::new(Slow { store: MemoryStore::default(), open: Semaphore::new(0), begun: AtomicUsize::new(0) });
        let lanes = Lanes::new(slow.clone(), 8);
        let key = Key::new(Shelf::Lease, &"x".parse().unwrap());
        let begin = |store: &Arc<dyn Store>, count: usize| -> Vec<_> {
            let read = |_| {
                let (store, key) = (store.clone(), key.clone());
                tokio::spawn(async move { store.read(&key).await.is_ok() })
            };
            (0..count).map(read).collect()
        };
        let begun = async |count: usize| {
            // The clock stands still while there is something to do.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(slow.begun.load(Ordering::Acquire), count);
        };
        let mut all = begin(&lanes.waiters, 100);
        begun(2).await;
        all.extend(begin(&lanes.others, 100));
        begun(8).await;
        all.extend(begin(&lanes.holders, 5));
        begun(13).await;
        slow.open.add_permits(all.len());
        assert!(join_all(all).await.into_iter().all(|read| read.unwrap()));
    }
}
