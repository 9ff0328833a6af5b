//! What operators look at and order: listings, histories, dry runs, and orders that could not be carried out. The real binary.

#![allow(clippy::unwrap_used)]

mod common;

use common::slots::jobs;
use common::{Home, On, eventually};
use leasehold_core::store::{Change, Range};
use leasehold_core::{Key, LeaseName, Ownership, Shelf, Timestamp, codec};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn changed(home: &Home, shelf: Shelf, pick: impl Fn(&LeaseName) -> bool, change: impl Fn(&[u8]) -> Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = leasehold_stores::open(&home.store.parse().unwrap()).await.unwrap();
        let page = store.list(shelf, Range::new(None, 1_000)).await.unwrap();
        let (name, value) = page.entries.iter().find(|(name, _)| pick(name)).unwrap();
        let (key, bytes) = (Key::new(shelf, name), change(&value.bytes));
        store.write(&Change::put(&key, Some(&value.revision), &bytes)).await.unwrap();
    });
}

/// As if the last thing had happened to the lease so long ago.
fn age(home: &Home, name: &str, by: Duration) {
    let earlier = |at: Timestamp| Timestamp::from_millis(at.as_millis() - by.as_millis() as u64);
    changed(
        home,
        Shelf::Lease,
        |found| found.as_str() == name,
        |bytes| {
            let mut record: Ownership = codec::decode("ownership", bytes, name).unwrap();
            for transfer in &mut record.transfers {
                let transfer = Arc::make_mut(transfer);
                transfer.at = earlier(transfer.at);
            }
            if let Some(tenure) = &mut record.tenure {
                (tenure.granted_at, tenure.deadline) = (earlier(tenure.granted_at), earlier(tenure.deadline));
            }
            codec::encode("ownership", &record).unwrap()
        },
    );
}

const DAY: Duration = Duration::from_secs(86_400);

fn names(text: &str) -> Vec<&str> {
    text.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect()
}

#[test]
fn a_listing_shows_what_matters_first_and_leaves_out_what_has_been_free_for_long() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let ls = |args: &[&str]| home.done(&[&["ls"], args].concat()).expect(0);
        for name in ["a/old", "b/free", "c/paused", "e/expired"] {
            home.done(&["run", name, "--", "true"]).expect(0);
        }
        home.done(&["pause", "c/paused", "--why", "x"]).expect(0);
        home.done(&["acquire", "d/held", "--ttl", "1h"]).expect(0);
        home.done(&["acquire", "e/expired", "--ttl", "1h"]).expect(0);
        age(&home, "a/old", DAY + DAY);
        age(&home, "c/paused", DAY + DAY);
        age(&home, "e/expired", DAY * 3);
        let shown = ls(&[]);
        assert_eq!(names(&shown.stdout), ["d/held", "c/paused", "b/free"], "{shown:?}");
        assert!(shown.stderr.contains("2 leases that have been free for more than a day"), "{shown:?}");
        let all = ls(&["--all"]);
        assert_eq!(names(&all.stdout), ["d/held", "c/paused", "e/expired", "a/old", "b/free"], "{all:?}");
        assert_eq!(all.stderr, "");
        assert_eq!(names(&ls(&["--held"]).stdout), ["d/held"]);
        assert_eq!(names(&ls(&["--paused"]).stdout), ["c/paused"]);
        assert_eq!(names(&ls(&["--free"]).stdout), ["b/free"]);
        assert_eq!(names(&ls(&["--free", "--all"]).stdout), ["e/expired", "a/old", "b/free"]);
        assert_eq!(names(&ls(&["--held", "--paused"]).stdout), ["d/held", "c/paused"]);
        assert_eq!(names(&ls(&["a/old"]).stdout), ["a/old"], "who names it sees it");
        assert_eq!(names(&ls(&["?/*e*", "--all"]).stdout), ["d/held", "c/paused", "e/expired", "b/free"]);
        let json: Vec<serde_json::Value> = serde_json::from_str(&ls(&["--json"]).stdout).unwrap();
        assert_eq!(json.iter().map(|lease| &lease["name"]).collect::<Vec<_>>(), ["b/free", "c/paused", "d/held"]);
        let none = ls(&["a/"]);
        assert!(none.stderr.contains("no leases to show") && none.stderr.contains("1 lease that has"), "{none:?}");
    }
}

#[test]
fn the_records_of_a_backfill_are_nobodys_to_look_at() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = \"daily\"\ncron = \"0 3 * * *\"\ncommand = \"true\"\n");
    let span = ["--from", "2026-01-02T00:00:00Z", "--to", "2026-01-04T00:00:00Z", "--yes"];
    home.done(&[&["schedule", "backfill", "daily"], &span[..]].concat()).expect(0);
    for look in [&["ls", "--all"][..], &["ls", "--all", "--json"], &["stats"], &["stats", "--prometheus"]] {
        let seen = home.done(look).expect(0).stdout;
        assert!(seen.contains("daily") && !seen.contains("backfill"), "{look:?}: {seen}");
    }
}

#[test]
fn a_history_says_how_a_lease_was_taken_and_how_that_ended_and_shows_the_rest_of_a_damaged_one() {
    let home = Home::new(On::Sqlite);
    for turn in 0..100 {
        if turn == 97 {
            home.done(&["revoke", "job", "--by", "ann", "--why", "drill"]).expect(0);
        } else {
            let ended = if turn % 2 == 0 { "true" } else { "false" };
            home.done(&["run", "job", "--", ended]).expect(turn % 2);
        }
    }
    let page = home.done(&["history", "job"]).expect(0).stdout;
    let lines: Vec<&str> = page.lines().collect();
    for (line, words) in [
        (0, &["EPOCH", "TAKEN", "ENDED"][..]),
        (1, &["100", "after release", "failed after"]),
        (2, &["99", "after revoke", "succeeded after"]),
        (3, &["98", "nobody", "revoked", "drill (ann)"]),
    ] {
        assert!(words.iter().all(|word| lines[line].contains(word)), "{}", lines[line]);
    }
    assert_eq!(home.done(&["history", "job", "--limit", "0"]).expect(0).stdout.lines().count(), 101);
    changed(&home, Shelf::History, |name| name.as_str().ends_with("/0000000000000002"), |_| b"rubbish".to_vec());
    let rest = home.done(&["history", "job", "--limit", "0"]).expect(65);
    assert_eq!(rest.stdout.lines().count(), 101 - 16, "{rest:?}");
    assert!(rest.stderr.contains("of epochs 32 to 47 of lease `job`, what its history had"), "{rest:?}");
    let json: Vec<serde_json::Value> =
        serde_json::from_str(&home.done(&["history", "job", "--limit", "0", "--json"]).expect(65).stdout).unwrap();
    assert_eq!(json.len(), 100 - 16);
    // It stops nobody.
    home.done(&["run", "job", "--", "true"]).expect(0);
    home.done(&["advise", "job"]).expect(65);
}

/// Every file below a folder, and what is in it.
fn contents(folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            contents(&path, found);
        } else {
            found.insert(path.display().to_string(), std::fs::read(path).unwrap());
        }
    }
}

#[test]
fn a_dry_run_says_what_would_happen_and_changes_nothing() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let dry = |args: &[&str]| home.done(&[&["run", "job", "--dry-run"], args, &["--", "touch", "ran"]].concat());
        assert!(dry(&[]).expect(0).stdout.contains("would run under `job`, epoch 1"));
        assert_eq!(std::fs::read_dir(home.folder.path()).unwrap().count(), 0, "no store was made");
        home.done(&["run", "job", "--", "true"]).expect(0);
        let before = || {
            let mut found = BTreeMap::new();
            contents(home.folder.path(), &mut found);
            found.retain(|name, _| !name.ends_with("-shm"));
            found
        };
        let was = before();
        assert!(dry(&[]).expect(0).stdout.contains("would run under `job`, epoch 2"));
        dry(&["--slot", "0 3 * * *", "--slot-max-age", "100d"]).expect(0);
        assert!(dry(&["--min-interval", "1h"]).expect(11).stdout.contains("the last run of `job` began"));
        assert_eq!(before(), was);
        home.done(&["acquire", "job", "--label", "ann", "--ttl", "1h"]).expect(0);
        let was = before();
        let held = dry(&["--held-exit-code", "9"]).expect(11);
        assert!(held.stdout.contains("would not run: `job` has been held by ann"), "{held:?}");
        assert!(dry(&["--or", "other"]).expect(0).stdout.contains("`other`, epoch 1"));
        assert!(dry(&["--limit", "2"]).expect(0).stdout.contains("`job/seat-2`, epoch 1"));
        let json: serde_json::Value = serde_json::from_str(&dry(&["--json"]).expect(11).stdout).unwrap();
        assert_eq!((&json["would_run"], &json["name"]), (&false.into(), &"job".into()), "{json}");
        assert_eq!(before(), was);
        home.done(&["pause", "job", "--why", "x"]).expect(0);
        assert!(dry(&["--limit", "2"]).expect(11).stdout.contains("was paused by"));
        assert!(!home.path("ran").exists());
        assert_eq!(home.count("job", "skipped_overlap"), 0);
    }
}

/// Who orders in advance may do so, and who mistypes a name hears of it.
#[test]
fn an_order_about_a_name_that_nobody_has_held_is_carried_out_and_says_so() {
    let home = Home::new(On::Sqlite);
    let says = "nobody has ever held it, and it is paused anyway. Is the name correct?";
    assert!(home.done(&["pause", "nihgtly", "--why", "x"]).expect(0).stderr.contains(says));
    assert_eq!(home.show("nihgtly")["state"], "paused");
    let as_json = home.done(&["pause", "other", "--why", "x", "--json"]).expect(0);
    assert!(as_json.stderr.contains(says) && as_json.stdout.starts_with('{'), "{as_json:?}");
    let resumed = home.done(&["resume", "nihgtly", "--why", "x"]).expect(0);
    assert!(!resumed.stderr.contains("nobody"), "{resumed:?}");
    let handed = home.done(&["hand-off", "new", "--to", "ann", "--why", "x"]).expect(0);
    assert!(handed.stderr.contains("nobody has ever held it, and it is handed off anyway"), "{handed:?}");
    // One that was held, and a job of the file, are no typing errors.
    home.done(&["run", "held", "--", "true"]).expect(0);
    jobs(&home, "[[job]]\nname = \"daily\"\ncron = \"0 3 * * *\"\ncommand = \"true\"\n");
    for line in [&["pause", "held", "--why", "x"][..], &["schedule", "pause", "daily", "--why", "x"]] {
        let paused = home.done(line).expect(0);
        assert!(!paused.stderr.contains("nobody"), "{paused:?}");
    }
}

#[test]
fn an_order_that_could_not_be_carried_out_fails() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = \"daily\"\ncron = \"0 3 * * *\"\ncommand = \"touch ran\"\n");
    let token = home.done(&["acquire", "daily", "--label", "ann", "--ttl", "1h"]).expect(0).stdout.trim().to_owned();
    let busy = home.done(&["schedule", "trigger", "daily"]).expect(11);
    assert!(busy.stderr.contains("has been held by ann"), "{busy:?}");
    home.done(&["release", "--token", &token]).expect(0);
    home.done(&["pause", "daily", "--why", "x"]).expect(0);
    let paused = home.done(&["schedule", "trigger", "daily"]).expect(11);
    assert!(paused.stderr.contains("was paused by"), "{paused:?}");
    assert!(!home.path("ran").exists());
    home.done(&["queue", "add", "mail", "--text", "one", "--key", "k"]).expect(0);
    let to = format!("sqlite:{}", home.path("new.db").display());
    home.done(&["migrate", &home.store, &to]).expect(0);
    for more in [&[][..], &["--key", "k"], &["--key", "new"]] {
        let moved = home.done(&[&["queue", "add", "mail", "--text", "two"], more].concat()).expect(78);
        assert!(moved.stdout.is_empty() && moved.stderr.contains("new.db"), "{moved:?}");
    }
    let mut lines = home.leasehold(&["queue", "add", "mail", "--each-line"]);
    let lines = lines.stdin(std::fs::File::open("/etc/hostname").unwrap()).output().unwrap();
    assert_eq!(lines.status.code(), Some(78), "{lines:?}");
    home.done(&["queue", "add", "other", "--text", "two"]).expect(78);
}

#[test]
fn a_run_that_is_cut_off_ends_with_124_whatever_else_happens() {
    let home = Home::new(On::Sqlite);
    let cut = |job: &str| home.done(&["run", "job", "--ttl", "6s", "--max-runtime", "300ms", "--", "sh", "-c", job]);
    for job in [
        "exec sleep 1000",
        "trap 'exit 0' TERM; while :; do sleep 0.02; done",
        "trap 'exit 7' TERM; while :; do sleep 0.02; done",
        "trap '' TERM; while :; do sleep 0.02; done",
        "trap 'kill -INT $$' TERM; while :; do sleep 0.02; done",
    ] {
        assert!(cut(job).expect(124).stderr.contains("longer than 300ms (--max-runtime)"), "{job}");
        assert_eq!(home.history("job")[0]["outcome"], "failed", "{job}");
    }
    // Also when the lease is taken while the command has its grace.
    let job = "trap 'echo asked > asked' TERM; while :; do sleep 0.02; done";
    let args = ["run", "job", "--ttl", "60s", "--grace", "15s", "--max-runtime", "3s", "--", "sh", "-c", job];
    let run = home.start(&args);
    home.words("asked");
    home.done(&["revoke", "job", "--why", "enough"]).expect(0);
    let ended = run.end().expect(124);
    assert!(ended.stderr.contains("lost `job:"), "{ended:?}");
    eventually("it is free", || home.show("job")["state"] == "free");
}

#[test]
fn a_forgotten_lease_is_no_longer_listed_and_its_epochs_continue() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let forget =
            |more: &[&str]| home.done(&[&["forget", "job", "--by", "ann", "--why", "done with"], more].concat());
        forget(&["--yes"]).expect(64);
        let token = home.done(&["acquire", "job", "--ttl", "1h"]).expect(0).stdout.trim().to_owned();
        let held = forget(&["--yes"]).expect(64);
        assert!(held.stderr.contains("has been held by"), "{held:?}");
        home.done(&["progress", "half", "--checkpoint", "7", "--token", &token]).expect(0);
        home.done(&["write", "out", "--from", "/etc/hostname", "--token", &token]).expect(0);
        home.done(&["release", "--token", &token]).expect(0);
        for _ in 0..20 {
            home.done(&["run", "job", "--", "true"]).expect(0);
        }
        let young = forget(&["--yes"]).expect(64);
        assert!(young.stderr.contains("is forgotten only after a day"), "{young:?}");
        age(&home, "job", DAY + DAY);
        // Nobody is there to be asked.
        let unasked = forget(&[]).expect(64);
        assert!(unasked.stderr.contains("add --yes") && unasked.stderr.contains("history"), "{unasked:?}");
        forget(&["--yes", "--if-epoch", "3"]).expect(13);
        assert_eq!(home.show("job")["state"], "free");
        let done = forget(&["--yes"]).expect(0);
        assert!(done.stderr.contains("its epochs continue from 21"), "{done:?}");
        assert!(forget(&["--yes"]).expect(0).stderr.contains("was forgotten by ann"));
        assert_eq!(names(&home.done(&["ls"]).expect(0).stdout), Vec::<&str>::new());
        assert_eq!(home.done(&["stats"]).expect(0).stdout.lines().filter(|line| line.contains("job")).count(), 0);
        assert!(home.done(&["ls", "--all"]).expect(0).stdout.contains("forgotten"));
        let shown = home.show("job");
        assert_eq!((&shown["state"], &shown["epoch"]), (&"forgotten".into(), &21.into()), "{shown}");
        assert!(shown["progress"].is_null() && shown["forgotten"]["by"] == "ann", "{shown}");
        assert_eq!(home.history("job").len(), 0);
        // Old tokens are refused as before, and the fence stays.
        home.done(&["write", "out", "--from", "/etc/hostname", "--token", &token]).expect(13);
        let next = home.done(&["acquire", "job"]).expect(0).stdout.trim().to_owned();
        assert!(next.starts_with("job:22:") && next.split(':').nth(2) == token.split(':').nth(2), "{next}");
        home.done(&["write", "out", "--from", "/etc/hostname", "--token", &next]).expect(0);
        assert_eq!((home.show("job")["state"].as_str(), home.history("job").len()), (Some("held"), 1));
    }
}

#[test]
fn a_job_that_makes_no_sense_hides_no_other_from_check() {
    let home = Home::new(On::Sqlite);
    for job in ["bad", "good"] {
        home.done(&["run", job, "--slot", "@hourly", "--", "true"]).expect(0);
    }
    let redefine = |job: &str, with: &[(&str, serde_json::Value)]| {
        changed(
            &home,
            Shelf::Job,
            |found| found.as_str() == job,
            |bytes| {
                let mut record: serde_json::Value = codec::decode("job", bytes, job).unwrap();
                with.iter().for_each(|(field, value)| record["definition"][field] = value.clone());
                codec::encode("job", &record).unwrap()
            },
        );
    };
    redefine("bad", &[("catch_up", u32::MAX.into())]);
    let asked = home.done(&["check", "--missed"]).expect(65);
    assert!(
        asked.stderr.contains("cannot tell whether job `bad` is late") && asked.stderr.contains("catch_up"),
        "{asked:?}"
    );
    assert_eq!(home.done(&["check", "--missed", "--json"]).expect(65).stdout, "[]\n");
    redefine("good", &[("timing", serde_json::json!({ "every": "1s" })), ("late_after_ms", 0.into())]);
    eventually("the other job is late", || home.done(&["check", "--missed"]).code == 1);
    let asked = home.done(&["check", "--missed"]).expect(1);
    assert!(asked.stdout.contains("good") && asked.stderr.contains("job `bad`"), "{asked:?}");
}

#[test]
fn what_is_released_by_hand_is_counted() {
    let home = Home::new(On::Sqlite);
    for (flags, event) in [(&[][..], "succeeded"), (&["--failed"], "failed")] {
        let token = home.done(&["acquire", "by-hand"]).expect(0).stdout;
        let release = [&["release", "--token", token.trim()], flags].concat();
        home.done(&release).expect(0);
        // A second time changes nothing, and counts nothing.
        home.done(&release).expect(0);
        assert_eq!(home.count("by-hand", event), 1);
    }
    assert_eq!(home.count("by-hand", "granted"), 2);
}
