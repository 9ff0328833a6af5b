//! Flipped bits in every file that a store keeps, and a database that stays busy: an error or the truth, never a
//! made-up record.

#![allow(clippy::unwrap_used)]

use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Kind, LeaseName, Outcome, Ownership, Result, Ttl};
use leasehold_stores::{StoreUrl, open};
use std::path::{Path, PathBuf};

fn lease() -> LeaseName {
    "damaged".parse().unwrap()
}

async fn run_a_while(url: &StoreUrl) -> Ownership {
    let leases = Coordinator::new(open(url).await.unwrap());
    for _ in 0..3 {
        let ask = Ask::new(HolderId::new(None), Ttl::MIN);
        let Acquired::Granted(grant) = leases.acquire(&lease(), &ask).await.unwrap() else { panic!("refused") };
        leases.release(&grant, Outcome::Succeeded).await.unwrap();
    }
    leases.inspect(&lease()).await.unwrap().record
}

async fn look(url: &StoreUrl) -> Result<Ownership> {
    Ok(Coordinator::new(open(url).await?).inspect(&lease()).await?.record)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test]
async fn a_flipped_bit_in_a_directory_is_noticed_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let url: StoreUrl = format!("dir:{}/store", folder.path().display()).parse().unwrap();
    let truth = run_a_while(&url).await;
    let mut noticed = 0;
    for file in files(folder.path()) {
        let sound = std::fs::read(&file).unwrap();
        for at in (0..sound.len()).step_by(3) {
            let mut damaged = sound.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(&file, &damaged).unwrap();
            match look(&url).await {
                Ok(record) => assert_eq!(record, truth, "{} byte {at}", file.display()),
                Err(e) => {
                    noticed += 1;
                    assert!(matches!(e.kind(), Kind::Corrupt | Kind::Unsupported), "{} byte {at}: {e}", file.display());
                }
            }
        }
        std::fs::write(&file, &sound).unwrap();
    }
    assert!(noticed > 0);
    assert_eq!(look(&url).await.unwrap(), truth);
}

/// Flips bits all over one of the files. Gives how many of the flips were answered with an error.
async fn flip_bits_in_database(folder: &Path, name: &str, truth: &Ownership) -> usize {
    let home = folder.join("sound");
    let sound = std::fs::read(home.join(name)).unwrap();
    let mut noticed = 0;
    for at in (0..sound.len()).step_by(101) {
        let copy = folder.join(format!("{name}-{at}"));
        std::fs::create_dir(&copy).unwrap();
        for file in ["x.db", "x.db-wal"] {
            std::fs::copy(home.join(file), copy.join(file)).unwrap();
        }
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(copy.join(name), &damaged).unwrap();
        match look(&format!("sqlite:{}/x.db", copy.display()).parse().unwrap()).await {
            Ok(record) if record.epoch == truth.epoch => assert_eq!(record.transfers.len(), truth.transfers.len()),
            // SQLite takes its log up to the damage, or misses the row: an older record is possible, another is not.
            Ok(record) => assert!(record.epoch < truth.epoch),
            Err(e) => {
                noticed += 1;
                assert!(!e.to_string().contains('\n'), "{name} byte {at}: {e}");
            }
        }
        std::fs::remove_dir_all(&copy).unwrap();
    }
    noticed
}

#[tokio::test]
async fn a_flipped_bit_in_a_database_gives_no_made_up_record() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("sound");
    std::fs::create_dir(&home).unwrap();
    let truth = run_a_while(&format!("sqlite:{}/x.db", home.display()).parse().unwrap()).await;
    flip_bits_in_database(folder.path(), "x.db-wal", &truth).await;
    // Once the log is copied into the file, damage there is found by the record's own checksum.
    let other = rusqlite::Connection::open(home.join("x.db")).unwrap();
    other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    assert!(flip_bits_in_database(folder.path(), "x.db", &truth).await > 0);
}

#[tokio::test]
async fn a_database_that_stays_busy_is_unavailable_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let url: StoreUrl = format!("sqlite:{}", path.display()).parse().unwrap();
    let truth = run_a_while(&url).await;
    let leases = Coordinator::new(open(&url).await.unwrap());
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(leases.inspect(&lease()).await.unwrap().record, truth, "readers do not wait for a writer");
    let error = leases.acquire(&lease(), &Ask::new(HolderId::new(None), Ttl::MAX)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("busy"), "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(leases.inspect(&lease()).await.unwrap().record, truth);
}
