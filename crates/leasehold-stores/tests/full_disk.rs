//! A disk that is full or read-only: a clear error, nothing half-written, and all is well once it is over.
//!
//! Needs the right to mount a small file system of its own; without it the tests say so and pass, except in CI.

#![allow(clippy::unwrap_used)]

use leasehold_core::store::{Range, Revision, Store, Swap};
use leasehold_core::{Error, Key, Kind, Shelf};
use leasehold_stores::open;
use leasehold_testbed::SmallDisk;
use std::sync::Arc;

fn key() -> Key {
    Key::new(Shelf::Probe, &"full".parse().unwrap())
}

/// Stores ever longer values until one is refused. Gives the last that was stored, and the refusal.
async fn fill(store: &Arc<dyn Store>) -> (Vec<u8>, Option<Revision>, Error) {
    let (mut stored, mut revision) = (Vec::new(), None);
    loop {
        let next = vec![b'x'; stored.len() + 8 * 1024];
        match store.swap(&key(), revision.as_ref(), &next).await {
            Ok(Swap::Done { revision: new, .. }) => (stored, revision) = (next, Some(new)),
            Ok(Swap::Mismatch) => panic!("nobody else writes here"),
            Err(error) => return (stored, revision, error),
        }
    }
}

async fn a_full_disk_changes_nothing(disk: &SmallDisk, url: &str) {
    let store = open(&url.parse().unwrap()).await.unwrap();
    let (stored, revision, error) = fill(&store).await;
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("no space"), "{error}");
    for store in [&store, &open(&url.parse().unwrap()).await.unwrap()] {
        let value = store.read(&key()).await.unwrap().value.unwrap();
        assert_eq!(value.bytes.len(), stored.len());
        assert_eq!(Some(value.revision), revision);
    }
    disk.remount("size=4m");
    assert!(matches!(store.swap(&key(), revision.as_ref(), b"again").await.unwrap(), Swap::Done { .. }));
    assert_eq!(open(&url.parse().unwrap()).await.unwrap().read(&key()).await.unwrap().value.unwrap().bytes, b"again");
}

#[tokio::test]
async fn a_full_disk_changes_no_database() {
    let Some(disk) = SmallDisk::mount("512k") else { return };
    a_full_disk_changes_nothing(&disk, &format!("sqlite:{}/x.db", disk.path().display())).await;
}

#[tokio::test]
async fn a_full_disk_changes_no_directory() {
    let Some(disk) = SmallDisk::mount("512k") else { return };
    a_full_disk_changes_nothing(&disk, &format!("dir:{}/store", disk.path().display())).await;
    assert_eq!(std::fs::read_dir(disk.path().join("store/tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_read_only_directory_can_be_looked_at() {
    let Some(disk) = SmallDisk::mount("512k") else { return };
    let url = format!("dir:{}/store", disk.path().display());
    let store = open(&url.parse().unwrap()).await.unwrap();
    store.swap(&key(), None, b"before").await.unwrap();
    disk.remount("ro");
    let store = open(&url.parse().unwrap()).await.unwrap();
    let value = store.read(&key()).await.unwrap().value.unwrap();
    assert_eq!(value.bytes, b"before");
    assert_eq!(store.list(Shelf::Probe, Range::new(None, 10)).await.unwrap().entries.len(), 1);
    let error = store.swap(&key(), Some(&value.revision), b"after").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("read-only"), "{error}");
    let error = open(&format!("dir:{}/another", disk.path().display()).parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
}

#[tokio::test]
async fn a_read_only_database_says_that_it_must_be_writable() {
    let Some(disk) = SmallDisk::mount("512k") else { return };
    let url = format!("sqlite:{}/x.db", disk.path().display());
    let store = open(&url.parse().unwrap()).await.unwrap();
    store.swap(&key(), None, b"before").await.unwrap();
    drop(store);
    disk.remount("ro");
    let refused = match open(&url.parse().unwrap()).await {
        Err(error) => error,
        Ok(store) => store.swap(&key(), None, b"after").await.unwrap_err(),
    };
    assert_eq!(refused.kind(), Kind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("writable"), "{refused}");
    let error = open(&format!("sqlite:{}/new.db", disk.path().display()).parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
}
