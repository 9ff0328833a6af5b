//! A URL leads to a store, or to a message that says what to do.

#![allow(clippy::unwrap_used)]

use leasehold_core::store::Range;
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Key, Kind, Outcome, Released, Shelf, Ttl};
use leasehold_stores::{StoreUrl, open};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn url(text: &str) -> StoreUrl {
    text.parse().unwrap()
}

async fn refusal(text: &str) -> (Kind, String) {
    let error = open(&url(text)).await.unwrap_err();
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    (error.kind(), message)
}

#[tokio::test]
async fn a_lease_can_be_acquired_renewed_and_released_in_every_store() {
    let folder = tempfile::tempdir().unwrap();
    for text in [format!("sqlite:{}/x.db", folder.path().display()), format!("dir:{}/d", folder.path().display())] {
        let leases = Coordinator::new(open(&url(&text)).await.unwrap());
        let name = "team/Daily".parse().unwrap();
        for epoch in 1..=40 {
            let Acquired::Granted(mut grant) =
                leases.acquire(&name, &Ask::new(HolderId::new(None), Ttl::MIN)).await.unwrap()
            else {
                panic!("{text} refused")
            };
            assert_eq!(grant.token().epoch.get(), epoch);
            leases.renew(&mut grant, None).await.unwrap();
            assert_eq!(leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
        }
        // What one handle wrote, another that is opened later sees.
        let again = Coordinator::new(open(&url(&text)).await.unwrap());
        assert_eq!(again.inspect(&name).await.unwrap().record.epoch.get(), 40);
    }
}

#[tokio::test]
async fn a_new_database_is_for_its_user_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    open(&url(&format!("sqlite:{}", path.display()))).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["x.db", "x.db-shm", "x.db-wal"]);
}

#[tokio::test]
async fn what_is_not_a_store_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "dear diary, ".repeat(500)).unwrap();
    let (kind, message) = refusal(&format!("sqlite:{}", text.display())).await;
    assert_eq!(kind, Kind::Corrupt, "{message}");
    assert_eq!(std::fs::read_to_string(&text).unwrap(), "dear diary, ".repeat(500));

    let (kind, message) = refusal(&format!("dir:{root}")).await;
    assert_eq!(kind, Kind::Invalid);
    assert!(message.contains("notes.txt") && message.contains("an empty or a new folder"), "{message}");

    let (kind, message) = refusal(&format!("dir:{}", text.display())).await;
    assert_eq!(kind, Kind::Invalid, "{message}");
    let (kind, message) = refusal(&format!("dir:{root}/no/such")).await;
    assert_eq!(kind, Kind::Invalid);
    assert!(message.contains("create the folder"), "{message}");
    let (kind, message) = refusal(&format!("sqlite:{root}/no/such.db")).await;
    assert_eq!(kind, Kind::Invalid);
    assert!(message.contains("create it first"), "{message}");
    let (kind, _) = refusal(&format!("sqlite:{root}")).await;
    assert_eq!(kind, Kind::Invalid);
}

#[tokio::test]
async fn another_programs_or_a_newer_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (sql, kind, says) in [
        ("CREATE TABLE theirs (x)", Kind::Invalid, "another program's"),
        ("PRAGMA application_id = 7", Kind::Invalid, "another program's"),
        ("PRAGMA application_id = 1279806532; PRAGMA user_version = 2", Kind::Unsupported, "upgrade leasehold"),
    ] {
        let path = folder.path().join(format!("{}.db", says.len()));
        let _ = std::fs::remove_file(&path);
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let before = std::fs::read(&path).unwrap();
        let (found, message) = refusal(&format!("sqlite:{}", path.display())).await;
        assert_eq!(found, kind, "{message}");
        assert!(message.contains(says), "{message}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}

#[tokio::test]
async fn a_folder_whose_shelves_are_gone_takes_no_writes() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("dir:{}/d", folder.path().display());
    let store = open(&url(&text)).await.unwrap();
    for shelf in Shelf::ALL {
        let key = Key::new(shelf, &"x".parse().unwrap());
        std::fs::remove_dir(folder.path().join("d").join(shelf.as_str())).unwrap();
        // Its records were lost, and none is issued anew.
        assert_eq!(store.swap(&key, None, b"1").await.unwrap_err().kind(), Kind::Unavailable, "{key}");
        assert_eq!(store.list(shelf, Range::new(None, 10)).await.unwrap_err().kind(), Kind::Unavailable, "{key}");
    }
    // A share that is not mounted has no marker either: nothing is made below its mount point.
    std::fs::remove_dir_all(folder.path().join("d")).unwrap();
    for root in [false, true] {
        if root {
            std::fs::create_dir(folder.path().join("d")).unwrap();
        }
        let key = Key::new(Shelf::Item, &"y".parse().unwrap());
        assert_eq!(store.swap(&key, None, b"1").await.unwrap_err().kind(), Kind::Unavailable);
    }
    assert_eq!(std::fs::read_dir(folder.path().join("d")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_directory_of_a_newer_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("leasehold-store"), "leasehold directory store, format 2\n").unwrap();
    let (kind, message) = refusal(&format!("dir:{}", folder.path().display())).await;
    assert_eq!(kind, Kind::Unsupported, "{message}");
}

#[tokio::test]
async fn a_database_that_was_replaced_takes_no_more_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let leases = Coordinator::new(open(&url(&format!("sqlite:{}", path.display()))).await.unwrap());
    let (name, ask) = ("a".parse().unwrap(), Ask::new(HolderId::new(None), Ttl::MIN));
    std::fs::rename(&path, folder.path().join("old.db")).unwrap();
    let error = leases.acquire(&name, &ask).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("bring it back"), "{error}");
}

#[tokio::test]
async fn what_is_read_from_a_file_that_was_replaced_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let leases = Coordinator::new(open(&url(&format!("sqlite:{}", path.display()))).await.unwrap());
    let (name, ask) = ("a".parse().unwrap(), Ask::new(HolderId::new(None), Ttl::MAX));
    leases.acquire(&name, &ask).await.unwrap();
    // Restored from a copy, as a backup is.
    std::fs::copy(&path, folder.path().join("copy.db")).unwrap();
    std::fs::rename(folder.path().join("copy.db"), &path).unwrap();
    for error in [leases.inspect(&name).await.unwrap_err(), leases.list(None, 10).await.unwrap_err()] {
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("was replaced by another file; bring the first one back"), "{error}");
    }
}

/// As by a copy that is put back while processes have the database open: new ones would begin a log of their own.
#[tokio::test]
async fn a_database_whose_log_was_removed_takes_no_more_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let leases = Coordinator::new(open(&url(&format!("sqlite:{}", path.display()))).await.unwrap());
    let (name, ask) = ("a".parse().unwrap(), Ask::new(HolderId::new(None), Ttl::MAX));
    leases.acquire(&name, &ask).await.unwrap();
    for log in ["x.db-wal", "x.db-shm"] {
        std::fs::remove_file(folder.path().join(log)).unwrap();
    }
    let other = "b".parse().unwrap();
    for error in [leases.acquire(&other, &ask).await.unwrap_err(), leases.inspect(&name).await.unwrap_err()] {
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("was removed or replaced under this process"), "{error}");
    }
}

/// Every file below a folder with its content, except SQLite's index of its log, which is memory and not a record.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(snapshot(&path));
        } else if path.extension().is_none_or(|extension| extension != "db-shm") {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

#[tokio::test]
async fn looking_leaves_every_file_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for text in [format!("sqlite:{}/x.db", folder.path().display()), format!("dir:{}/d", folder.path().display())] {
        let name = "a".parse().unwrap();
        let leases = Coordinator::new(open(&url(&text)).await.unwrap());
        leases.acquire(&name, &Ask::new(HolderId::new(None), Ttl::MAX)).await.unwrap();
        drop(leases);
        let before = snapshot(folder.path());
        let leases = Coordinator::new(open(&url(&text)).await.unwrap());
        leases.inspect(&name).await.unwrap();
        leases.inspect(&"never-held".parse().unwrap()).await.unwrap();
        assert_eq!(leases.list(None, 10).await.unwrap().entries.len(), 1);
        leases.store().watch(&Key::new(Shelf::Lease, &name)).await.unwrap();
        drop(leases);
        assert!(snapshot(folder.path()) == before, "{text} was changed by looking");
    }
}
