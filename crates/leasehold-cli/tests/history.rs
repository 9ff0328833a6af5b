//! The archive of old transfers, by the real binary: what is damaged stops nobody and is named, what is erased is gone, and what
//! is archived still counts.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On};
use std::path::PathBuf;

/// A lease with an archive, in a folder.
fn home() -> Home {
    let home = Home::new(On::Dir);
    for epoch in 1..=6 {
        let past = (epoch * 16).to_string();
        home.done(&["run", "job", "--", "true"]).expect(0);
        home.done(&["advance", "job", "--past", &past, "--why", &format!("reason {epoch}")]).expect(0);
    }
    for _ in 0..36 {
        home.done(&["run", "job", "--", "true"]).expect(0);
    }
    home
}

/// The folders of the segments, oldest first.
fn segments(home: &Home) -> Vec<PathBuf> {
    let found = std::fs::read_dir(home.path("leases/history")).unwrap();
    let mut found: Vec<PathBuf> = found.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Cuts the newest version in this folder short, as a full disk does.
fn cut(segment: &PathBuf) {
    let versions = std::fs::read_dir(segment).unwrap();
    let newest = versions.map(|entry| entry.unwrap().path()).max().unwrap();
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..100]).unwrap();
}

#[test]
fn a_damaged_segment_stops_nobody_and_is_named() {
    let home = home();
    let all = home.history("job").len();
    cut(segments(&home).last().unwrap());
    cut(&segments(&home)[1]);
    for _ in 0..60 {
        home.done(&["run", "job", "--", "true"]).expect(0);
    }
    let record = std::fs::read_dir(home.path("leases/lease/job")).unwrap();
    let newest = record.map(|entry| entry.unwrap().path()).max().unwrap();
    assert!(std::fs::metadata(newest).unwrap().len() < 8_192, "the record does not grow");

    let shown = home.done(&["history", "job", "--limit", "0", "--json"]).expect(65);
    let transfers: Vec<serde_json::Value> = serde_json::from_str(&shown.stdout).unwrap();
    assert!(transfers.len() > all && transfers.len() < all + 60, "{}", transfers.len());
    assert_eq!(shown.stderr.matches("what its history had under").count(), 2, "{}", shown.stderr);
    let advised = home.done(&["advise", "job"]).expect(65);
    assert!(advised.stdout.contains("use --ttl"), "{advised:?}");
    let examined = home.done(&["doctor"]).expect(0);
    assert_eq!(examined.stdout.matches("what its history had under").count(), 2, "{examined:?}");
}

#[test]
fn a_damaged_segment_is_left_behind_by_a_migration_and_named() {
    let (old, new) = (home(), Home::new(On::Sqlite));
    old.done(&["run", "other", "--", "true"]).expect(0);
    let all = old.history("job").len();
    cut(&segments(&old)[0]);
    let rehearsed = old.done(&["migrate", &old.store, &new.store, "--dry-run"]).expect(0);
    assert!(rehearsed.stderr.contains("not moved: "), "{rehearsed:?}");
    let moved = old.done(&["migrate", &old.store, &new.store]).expect(0);
    assert!(moved.stderr.contains("not moved: "), "{moved:?}");
    new.done(&["run", "other", "--", "true"]).expect(0);
    let there: Vec<serde_json::Value> =
        serde_json::from_str(&new.done(&["history", "job", "--limit", "0", "--json"]).stdout).unwrap();
    assert!(there.len() < all + 1 && there.len() > all / 2, "{} of {all}", there.len());
}

#[test]
fn what_is_erased_from_a_history_is_gone_from_the_disk() {
    let home = Home::new(On::Dir);
    std::fs::write(home.path("leasehold.toml"), "history_transfers = 100\n").unwrap();
    home.done(&["run", "job", "--", "true"]).expect(0);
    home.done(&["revoke", "job", "--why", "the-secret-reason"]).expect(0);
    for turn in 1..=125 {
        home.done(&["advance", "job", "--past", &(turn * 16).to_string(), "--why", "next"]).expect(0);
    }
    let shown = home.done(&["history", "job", "--limit", "0"]).expect(0);
    assert!(!shown.stdout.contains("the-secret-reason"), "{shown:?}");
    let mut files = segments(&home).into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let still_there = files.find(|file| {
        let text = std::fs::read(file.as_ref().unwrap().path()).unwrap();
        String::from_utf8_lossy(&text).contains("the-secret-reason")
    });
    assert!(still_there.is_none(), "{still_there:?}");
}

/// The journal missed how a run ended, because that was killed; the lease's record has dropped it since.
#[test]
fn a_slot_whose_success_only_the_archive_knows_is_not_run_again() {
    let home = Home::new(On::Dir);
    let command = "echo $LEASEHOLD_SLOT >> ran";
    let job = format!("[[job]]\nname = 'job'\ncron = '0 3 * * *'\ncommand = '{command}'\n");
    std::fs::write(home.path("leasehold.toml"), job).unwrap();
    let slot = "2026-05-01T03:00:00Z";
    for slot in [slot, "2026-05-02T03:00:00Z"] {
        home.done(&["run", "job", "--slot-at", slot, "--", "true"]).expect(0);
    }
    for _ in 0..50 {
        home.done(&["run", "job", "--", "true"]).expect(0);
    }
    std::fs::remove_dir_all(home.path("leases/runs/job")).unwrap();
    let fill = ["schedule", "backfill", "job", "--from", slot, "--to", slot, "--yes"];
    let nothing = home.done(&fill).expect(0);
    assert!(nothing.stderr.contains("in that span is left to run"), "{nothing:?}");
    // Nor is it when the archive can no longer tell.
    cut(&segments(&home)[0]);
    let unclear = home.done(&fill).expect(64);
    assert!(unclear.stderr.contains("left out: 1 slot"), "{unclear:?}");
    assert_eq!(home.read("ran"), "");
}

/// Nobody who acquires for a script can say in the record how far it is archived, except by acquiring.
#[test]
fn leases_that_scripts_hold_are_archived_once() {
    let home = Home::new(On::Dir);
    for _ in 0..64 {
        let token = home.done(&["acquire", "job"]).expect(0).stdout;
        home.done(&["release", "--token", token.trim()]).expect(0);
    }
    let versions: usize = segments(&home).iter().map(|folder| std::fs::read_dir(folder).unwrap().count()).sum();
    assert!(versions <= segments(&home).len() + 1, "{versions} versions of {}", segments(&home).len());
}
