//! The store in memory keeps every promise, at full effort.

use async_trait::async_trait;
use leasehold_conformance::{Bench, Effort, PROMISES, exercise};
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Key, MemoryStore, Result, Shelf, Ttl};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_every_promise() {
    let store = MemoryStore::default();
    let bench = Bench::new(Effort::FULL, move || {
        let handle = store.clone();
        async move { Ok(Arc::new(handle) as _) }
    });
    exercise(&bench).await.assert_kept();
}

#[test]
fn every_promise_has_a_name_of_its_own() {
    let names: HashSet<_> = PROMISES.iter().map(|promise| promise.name).collect();
    assert_eq!(names.len(), PROMISES.len());
}

/// A store whose first write of a lease takes longer than the shortest lease lasts, as on a disk that others keep busy.
#[derive(Debug, Clone)]
struct Late {
    inner: MemoryStore,
    is_late: Arc<AtomicBool>,
}

#[async_trait]
impl Store for Late {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let swap = self.inner.write(change).await;
        let is_it = change.key.name.as_str().contains("/expiry/") && change.key.shelf == Shelf::Lease;
        if is_it && self.is_late.swap(false, Ordering::SeqCst) {
            tokio::time::sleep(Ttl::MIN.get() * 11 / 10).await;
        }
        swap
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_answers_late_breaks_no_promise() {
    let late = Late { inner: MemoryStore::default(), is_late: Arc::new(AtomicBool::new(true)) };
    let is_late = late.is_late.clone();
    let effort = Effort { clients: 2, swaps_each: 4, tenures: 4 };
    let bench = Bench::new(effort, move || {
        let handle = late.clone();
        async move { Ok(Arc::new(handle) as _) }
    });
    exercise(&bench).await.assert_kept();
    assert!(!is_late.load(Ordering::SeqCst), "nothing was late");
}
