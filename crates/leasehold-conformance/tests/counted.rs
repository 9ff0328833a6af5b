//! The suite and its fault store reach every call of the store itself.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::counting::{CountingStore, Counts};
use leasehold_conformance::faulty::{Fault, FaultyStore, Gate, Volatile};
use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Along, Change, Range, Store};
use leasehold_core::{Key, Kind, MemoryStore, Revision, Shelf};
use std::sync::Arc;

const EFFORT: Effort = Effort { clients: 2, swaps_each: 4, tenures: 4 };

fn key(name: &str) -> Key {
    Key::new(Shelf::Probe, &name.parse().unwrap())
}

#[tokio::test]
async fn the_suite_reaches_every_call_of_the_store() {
    let (store, counts) = (MemoryStore::default(), Counts::default());
    let counted = counts.clone();
    let bench = Bench::new(EFFORT, move || {
        let handle = CountingStore::new(Arc::new(store.clone()), &counted);
        async move { Ok(Arc::new(handle) as _) }
    });
    exercise(&bench).await.assert_kept();
    // What a server is set to is asked by `doctor`, and promised to nobody.
    assert_eq!(counts.missed(), ["survey"]);
    assert!(counts.of("put, along") > 3 && counts.of("list, skipping") > 3, "{counts:?}");
}

#[tokio::test]
async fn the_fault_store_forwards_every_call() {
    let counts = Counts::default();
    let behind = Arc::new(CountingStore::new(Arc::new(MemoryStore::default()), &counts));
    let store: Arc<dyn Store> = Arc::new(FaultyStore::new(behind, Fault::Refused, u64::MAX));
    assert!(store.capabilities().writes_along);
    store.swap(&key("a"), None, b"1").await.unwrap();
    let along = Along { put: Some((&key("c"), b"along")), erase: None };
    store.write(&Change { along, ..Change::put(&key("b"), None, b"1") }).await.unwrap();
    let value = store.read(&key("b")).await.unwrap().value.unwrap();
    assert_eq!(store.list(Shelf::Probe, Range::new(None, 9)).await.unwrap().entries.len(), 3);
    assert_eq!(store.list(Shelf::Probe, Range { skip: 1, ..Range::new(None, 9) }).await.unwrap().entries.len(), 2);
    store.erase(&key("b"), &value.revision).await.unwrap();
    store.watch(&key("a")).await.unwrap();
    store.survey().await.unwrap();
    assert_eq!(counts.missed(), [""; 0]);
}

/// What is read of a key.
async fn seen(store: &dyn Store, name: &str) -> Option<(Vec<u8>, Revision)> {
    store.read(&key(name)).await.unwrap().value.map(|value| (value.bytes, value.revision))
}

#[tokio::test]
async fn a_write_that_is_not_durable_is_seen_until_a_crash_unless_another_follows() {
    let behind = MemoryStore::default();
    let store = Volatile::new(Arc::new(behind.clone()));
    let volatile: &dyn Store = &store;
    volatile.swap(&key("a"), None, b"1").await.unwrap();
    let (_, first) = seen(volatile, "a").await.unwrap();
    store.write_unsynced(&Change::put(&key("a"), Some(&first), b"2")).await.unwrap();
    store.write_unsynced(&Change::put(&key("b"), None, b"new")).await.unwrap();
    let (bytes, second) = seen(volatile, "a").await.unwrap();
    assert_eq!((bytes, seen(&behind, "a").await.unwrap().0), (b"2".to_vec(), b"1".to_vec()));
    assert_eq!(volatile.list(Shelf::Probe, Range::new(None, 9)).await.unwrap().entries.len(), 2);
    assert_eq!(volatile.list(Shelf::Probe, Range { skip: 1, ..Range::new(None, 9) }).await.unwrap().entries.len(), 1);
    let old = volatile.swap(&key("a"), Some(&first), b"x").await.unwrap();
    assert_eq!(old, leasehold_core::store::Swap::Mismatch);
    store.crash().await;
    assert_eq!(seen(volatile, "a").await.unwrap(), (b"1".to_vec(), first.clone()));
    assert_eq!(seen(volatile, "b").await, None);
    assert_eq!(volatile.swap(&key("a"), Some(&second), b"x").await.unwrap(), leasehold_core::store::Swap::Mismatch);
    // A write that is answered makes durable what it follows.
    store.write_unsynced(&Change::put(&key("a"), Some(&first), b"3")).await.unwrap();
    let (_, third) = seen(volatile, "a").await.unwrap();
    volatile.swap(&key("a"), Some(&third), b"4").await.unwrap();
    store.crash().await;
    assert_eq!(seen(volatile, "a").await.unwrap().0, b"4");
}

#[tokio::test]
async fn an_answer_is_held_back_until_the_gate_is_open() {
    let (behind, gate) = (MemoryStore::default(), Gate::default());
    let store = FaultyStore::new(Arc::new(behind.clone()), Fault::ReplyLost, 1).held_at(gate.clone());
    let call = tokio::spawn(async move { store.write(&Change::put(&key("a"), None, b"1")).await });
    gate.reached().await;
    assert_eq!(seen(&behind, "a").await.unwrap().0, b"1");
    assert!(!call.is_finished());
    gate.open();
    assert_eq!(call.await.unwrap().unwrap_err().kind(), Kind::Indeterminate);
}
