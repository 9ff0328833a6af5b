//! Looking changes nothing: no command that only shows things leaves a trace in the store, whatever it finds there.

#![allow(clippy::unwrap_used)]

mod common;

use common::state::{changes, find, state, tamper, tamper_with};
use common::{Done, Home, On, PATIENCE, eventually};
use leasehold_core::{Ask, Coordinator, HolderId, Ttl};
use leasehold_testbed::SmallDisk;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;

const LOOKS: &[&[&str]] = &[
    &["ls"],
    &["ls", "--json"],
    &["ls", "--held"],
    &["ls", "no-such-prefix"],
    &["show", "held"],
    &["show", "expired", "--json"],
    &["show", "paused"],
    &["history", "expired"],
    &["history", "held", "--json"],
    &["stats"],
    &["stats", "--json"],
    &["stats", "--prometheus"],
    &["stats", "nobody"],
    &["advise", "free"],
    &["advise", "expired", "--json"],
    &["config"],
    &["config", "--json"],
    &["man"],
    &["completions", "bash"],
    &["--help"],
    &["--version"],
];

/// A store with a lease in every state.
fn lived(on: On) -> Home {
    let home = Home::new(on);
    home.done(&["acquire", "expired", "--ttl", "3s"]).expect(0);
    home.done(&["acquire", "held", "--ttl", "24h"]).expect(0);
    home.done(&["run", "free", "--", "leasehold", "progress", "half", "--checkpoint", "42"]).expect(0);
    home.done(&["run", "free", "--", "false"]).expect(1);
    home.done(&["pause", "paused", "--why", "maintenance"]).expect(0);
    eventually("the short lease is over", || home.show("expired")["state"] == "expired");
    home
}

#[test]
fn looking_leaves_every_byte_as_it_was() {
    for on in [On::Sqlite, On::Dir] {
        let home = lived(on);
        let before = state(home.folder.path());
        for look in LOOKS {
            home.done(look).expect(0);
            let changed = changes(&before, &state(home.folder.path()));
            assert!(changed.is_empty(), "{look:?} on {on:?} changed {changed:#?}");
        }
    }
}

#[test]
fn looking_where_there_is_no_store_makes_none() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let listed = home.done(&["ls"]).expect(0);
        assert!(listed.stderr.starts_with("leasehold: no leases yet: there is no store at `"), "{listed:?}");
        assert_eq!(home.done(&["ls", "--json"]).expect(0).stdout, "[]\n");
        assert_eq!(home.done(&["stats", "--json"]).expect(0).stdout, "[]\n");
        assert_eq!(home.count("nobody", "granted"), 0);
        home.done(&["config"]).expect(0);
        assert!(state(home.folder.path()).is_empty(), "{:?}", state(home.folder.path()));
    }
    // Nor does the default store come to be, nor the folder for it.
    let home = Home::new(On::Sqlite);
    let status = home.leasehold(&["ls"]).env_remove("LEASEHOLD_STORE").status().unwrap();
    assert!(status.success() && state(home.folder.path()).is_empty());
    // A folder that was made for a store is not furnished by looking at it.
    let home = Home::new(On::Dir);
    std::fs::create_dir(home.path("leases")).unwrap();
    home.done(&["ls"]).expect(0);
    assert_eq!(state(home.folder.path()).len(), 1);
}

#[test]
fn the_doctor_takes_its_scratch_away() {
    for on in [On::Sqlite, On::Dir] {
        let home = lived(on);
        std::fs::create_dir(home.path("folder")).unwrap();
        let before = state(home.folder.path());
        let told = home.done(&["doctor", "--folder", "folder"]).expect(0).stdout;
        // Both are of this machine only; a folder could be meant for several.
        let verdict = told.lines().last().unwrap_or_default();
        assert!(verdict.starts_with("fit for leases between processes of this machine: "), "{told}");
        let note = "the folder is on a disk of this machine, and other machines do not see it";
        assert_eq!(told.lines().any(|line| line.starts_with("note") && line.contains(note)), on == On::Dir, "{told}");
        let mut after = state(home.folder.path());
        // A directory store never forgets a number, so an erased scratch record leaves its trace on its own shelf.
        let probes: PathBuf = home.path("leases/probe");
        after.retain(|path, _| *path == probes || !path.starts_with(&probes));
        let changed = changes(&before, &after);
        assert!(changed.is_empty(), "doctor on {on:?} left {changed:#?}");
    }
}

#[test]
fn a_read_only_directory_can_be_looked_at() {
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let mut home = Home::new(On::Dir);
    home.store = format!("dir:{}/leases", disk.path().display());
    home.done(&["run", "job", "--", "true"]).expect(0);
    home.done(&["acquire", "held", "--ttl", "24h"]).expect(0);
    disk.remount("ro");
    let listed = home.done(&["ls"]).expect(0);
    assert_eq!(listed.stdout.lines().count(), 3, "{listed:?}");
    for look in [&["show", "held"][..], &["history", "job"], &["stats"], &["advise", "job"], &["config"]] {
        home.done(look).expect(0);
    }
}

#[test]
fn a_damaged_record_hides_no_other() {
    let flip = |bytes: &mut Vec<u8>| {
        let at = find(bytes, b"\"epoch\"") + 8;
        bytes[at] ^= 1;
    };
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    let empty = |bytes: &mut Vec<u8>| bytes.clear();
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut Vec<u8>));
    let damages: [Damage<'_>; 3] = [("flipped", &flip), ("cut", &cut), ("emptied", &empty)];
    for on in [On::Sqlite, On::Dir] {
        for (how, damage) in damages {
            let home = Home::new(on);
            for lease in ["a", "b", "c"] {
                home.done(&["acquire", lease, "--ttl", "24h"]).expect(0);
            }
            tamper(&home, "b", damage);
            let before = state(home.folder.path());
            let listed = home.done(&["ls", "--json"]).expect(65);
            let leases: Vec<serde_json::Value> = serde_json::from_str(&listed.stdout).unwrap();
            let names: Vec<_> = leases.iter().map(|lease| lease["name"].as_str().unwrap()).collect();
            assert_eq!(names, ["a", "c"], "{how} on {on:?}");
            assert_eq!(listed.stderr.lines().count(), 1, "{how} on {on:?}: {listed:?}");
            assert!(listed.stderr.contains("`b`"), "{how} on {on:?}: {listed:?}");
            let text = home.done(&["ls"]).expect(65);
            assert_eq!(text.stdout.lines().count(), 3, "{text:?}");
            assert!(changes(&before, &state(home.folder.path())).is_empty());
        }
    }
}

#[test]
fn a_damaged_count_hides_no_other() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        for lease in ["a", "b", "c"] {
            home.done(&["run", lease, "--", "true"]).expect(0);
        }
        tamper_with(&home, "counters", "b", |bytes| bytes.truncate(bytes.len() - 1));
        let counted = home.done(&["stats", "--json"]).expect(65);
        let counts: Vec<serde_json::Value> = serde_json::from_str(&counted.stdout).unwrap();
        assert_eq!(counts.len(), 2, "{counted:?}");
        assert_eq!(counts[1]["counts"]["granted"], 1);
        assert_eq!(counted.stderr.lines().count(), 1, "{counted:?}");
        // It stands in nobody's way.
        home.done(&["run", "b", "--", "true"]).expect(0);
    }
}

#[test]
fn a_live_listing_shows_changes_as_they_happen() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let mut watch = home.leasehold(&["ls", "--watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(watch.stdout.take().unwrap());
        let reading = std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|l| sender.send(l)));
        let next = |what: &str| -> serde_json::Value {
            let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} is not shown"));
            serde_json::from_str(&line).unwrap()
        };
        assert_eq!(next("the empty list"), serde_json::json!([]));
        let token = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout;
        assert_eq!(next("the grant")[0]["state"], "held");
        home.done(&["release", "--token", token.trim()]).expect(0);
        assert_eq!(next("the release")[0]["state"], "free");
        watch.kill().unwrap();
        watch.wait().unwrap();
        reading.join().unwrap().unwrap();
    }
}

#[test]
fn a_live_listing_ends_when_nobody_reads_it() {
    let home = Home::new(On::Sqlite);
    let mut watch =
        home.leasehold(&["ls", "--watch", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(watch.stdout.take());
    let mut number = 0;
    eventually("it has ended", || {
        number += 1;
        home.done(&["acquire", &format!("n{number}")]).expect(0);
        watch.try_wait().unwrap().is_some()
    });
    let output = watch.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_reader_that_went_away_is_not_an_error() {
    let home = lived(On::Sqlite);
    for look in LOOKS {
        let mut child = home.leasehold(look).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{look:?}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{look:?}: {output:?}");
    }
    // A disk that takes no more is one.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = home.leasehold(&["ls"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
}

#[test]
fn a_long_list_is_whole_and_in_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let mut names: Vec<String> = (0..1200)
            .map(|n| format!("{}/job{}{}", ["a", "B", "c.d"][n % 3], ["-", "_", ".", "X"][n % 4], n))
            .collect();
        runtime.block_on(async {
            let store = leasehold_stores::open(&home.store.parse().unwrap()).await.unwrap();
            let leases = Coordinator::new(store);
            for name in &names {
                leases.acquire(&name.parse().unwrap(), &Ask::new(HolderId::new(None), Ttl::MAX)).await.unwrap();
            }
        });
        names.sort();
        let listed: Vec<serde_json::Value> =
            serde_json::from_str(&home.done(&["ls", "--json"]).expect(0).stdout).unwrap();
        let listed: Vec<_> = listed.iter().map(|lease| lease["name"].as_str().unwrap()).collect();
        assert_eq!(listed, names, "on {on:?}");
        let some = home.done(&["ls", "B/job_", "--held"]).expect(0).stdout;
        let wanted = names.iter().filter(|name| name.starts_with("B/job_")).count();
        assert!(wanted > 90);
        assert_eq!(some.lines().count(), 1 + wanted);
    }
}

#[test]
fn the_doctor_empties_no_namespace_that_somebody_lives_in() {
    let home = Home::new(On::Sqlite);
    let store = format!("{}?namespace=doctor", home.store);
    home.done(&["run", "job", "--store", &store, "--", "true"]).expect(0);
    let before = home.done(&["stats", "job", "--json", "--store", &store]).expect(0).stdout;
    let refused = home.done(&["doctor"]).expect(78);
    assert!(refused.stderr.contains("`doctor` is for the doctor, but has leases"), "{refused:?}");
    assert_eq!(home.done(&["stats", "job", "--json", "--store", &store]).expect(0).stdout, before);
}

#[test]
fn a_lease_whose_token_nobody_reads_is_released() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        for words in [&["acquire", "job"][..], &["acquire", "job", "--json"]] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let told = Done::from(home.leasehold(words).stdout(writer).output().unwrap()).expect(69);
            let last = told.stderr.lines().last();
            assert_eq!(last, Some("leasehold: nobody reads the token: the lease was released"), "{told:?}");
            assert_eq!(home.show("job")["state"], "free");
        }
        home.done(&["acquire", "job"]).expect(0);
        assert_eq!(home.show("job")["epoch"], 3);
    }
}
