//! The store in memory keeps every promise, at full effort.

use leasehold_conformance::{Bench, Effort, PROMISES, exercise};
use leasehold_core::MemoryStore;
use std::collections::HashSet;
use std::sync::Arc;

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
