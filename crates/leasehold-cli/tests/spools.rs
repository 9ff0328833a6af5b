//! Spools in the hands of hostile newcomers: what lies about in them, links, names twice, a folder that is not there.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, descendants, eventually, is_alive, signal};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

fn spool(home: &Home) -> String {
    format!("spool:{}", home.path("mail").display())
}

/// A spool with everything in `ready/` that is no item.
fn littered() -> (Home, String) {
    let home = Home::new(On::Sqlite);
    let spool = spool(&home);
    home.done(&["queue", "ls", &spool]).expect(0);
    home.done(&["queue", "add", &spool, "--text", "first"]).expect(0);
    let ready = home.path("mail/ready");
    fs::create_dir(ready.join("lost+found")).unwrap();
    symlink(home.path("mail/done"), ready.join("a-link")).unwrap();
    symlink("/nowhere", ready.join("b-link")).unwrap();
    assert!(Command::new("mkfifo").arg(ready.join("pipe")).status().unwrap().success());
    (home, spool)
}

#[test]
fn what_is_no_item_does_not_keep_anybody_busy() {
    let (home, spool) = littered();
    let mut work = home.start(&["work", &spool, "--until-empty", "--", "cat"]);
    eventually("the worker ends", || work.is_over());
    let done = work.end().expect(0);
    assert_eq!(done.stdout, "first");
    assert_eq!(done.stderr.matches("passed over").count(), 1, "{}", done.stderr);
    let mut claim = home.start(&["queue", "claim", &spool]);
    eventually("the claim ends", || claim.is_over());
    claim.end().expect(11);
    let mut lanes = home.start(&["work", &spool, "-j", "2", "--until-empty", "--", "cat"]);
    eventually("the lanes end", || lanes.is_over());
    lanes.end().expect(0);
}

#[test]
fn a_worker_that_was_told_to_end_claims_nothing_more() {
    let (home, spool) = littered();
    // Told while the command runs: what was added meanwhile stays.
    let script = "touch started; while ! test -e go; do sleep 0.05; done; touch finished";
    let mut work = home.start(&["work", &spool, "--", "sh", "-c", script]);
    eventually("it runs", || home.path("started").exists());
    home.done(&["queue", "add", &spool, "--text", "second"]).expect(0);
    signal(work.pid(), "TERM");
    home.touch("go");
    eventually("the worker ends", || work.is_over());
    work.end().expect(0);
    assert!(home.path("finished").exists());
    let ready = home.done(&["queue", "ls", &spool, "--state", "ready", "--json"]).expect(0);
    let ready: Value = serde_json::from_str(&ready.stdout).unwrap();
    assert_eq!(ready.as_array().unwrap().len(), 1, "{ready}");
    assert_eq!(ready[0]["epoch"], 0, "a worker that was ending claimed it: {ready}");
}

#[test]
fn idle_lanes_end_with_their_parent_however_it_ends() {
    for how in ["TERM", "KILL"] {
        let (home, spool) = littered();
        let mut work = home.start(&["work", &spool, "-j", "2", "--", "sh", "-c", "touch started"]);
        eventually("it runs", || home.path("started").exists());
        let lanes = descendants(work.pid());
        assert!(lanes.len() >= 2, "{lanes:?}");
        signal(work.pid(), how);
        eventually(&format!("the manager is gone after {how}"), || work.is_over());
        eventually(&format!("the lanes are gone after {how}"), || lanes.iter().all(|pid| !is_alive(*pid)));
    }
}

#[test]
fn a_folder_of_a_spool_that_is_a_link_is_refused() {
    let home = Home::new(On::Sqlite);
    let spool = spool(&home);
    home.done(&["queue", "add", &spool, "--text", "x"]).expect(0);
    let (done, elsewhere) = (home.path("mail/done"), home.path("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::remove_dir(&done).unwrap();
    symlink(&elsewhere, &done).unwrap();
    let refused = home.done(&["work", &spool, "--until-empty", "--", "cat"]).expect(64);
    assert!(refused.stderr.contains("is a link or no folder"), "{}", refused.stderr);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}
