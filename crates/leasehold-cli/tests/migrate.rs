//! Moving house: every lease goes along, and no epoch ever goes down.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On};

/// Two homes: what is moved from, and what is moved to.
fn houses() -> (Home, Home) {
    (Home::new(On::Sqlite), Home::new(On::Dir))
}

fn migrate(from: &Home, to: &Home, flags: &[&str]) -> Done {
    from.done(&[&["migrate", &from.store, &to.store], flags].concat())
}

#[test]
fn epochs_history_and_counts_go_along_and_the_old_leases_are_paused() {
    let (old, new) = houses();
    for _ in 0..3 {
        old.done(&["run", "nightly", "--", "true"]).expect(0);
    }
    old.done(&["run", "team/report", "--", "false"]).expect(1);
    old.done(&["pause", "team/report", "--why", "broken"]).expect(0);
    let moved = migrate(&old, &new, &["--json"]).expect(0);
    let moved: serde_json::Value = serde_json::from_str(&moved.stdout).unwrap();
    assert_eq!(moved["leases"], 2);

    let history = new.history("nightly");
    assert_eq!(history.len(), 4);
    assert_eq!((&history[0]["reason"], &history[0]["epoch"]), (&"advanced".into(), &4.into()));
    assert!(history[0]["why"].as_str().unwrap().starts_with("moved from sqlite:"), "{history:?}");
    assert_eq!(new.count("nightly", "granted"), 3);
    let granted = new.done(&["acquire", "nightly", "--json"]).expect(0);
    let granted: serde_json::Value = serde_json::from_str(&granted.stdout).unwrap();
    assert_eq!(granted["epoch"], 5, "higher than every epoch that the old store granted");
    // A pause that an operator had ordered is still in force; the migration's own is not.
    assert_eq!(new.show("team/report")["paused"]["why"], "broken");
    assert!(new.show("nightly")["paused"].is_null());

    for lease in ["nightly", "team/report"] {
        let skipped = old.done(&["run", lease, "--", "true"]).expect(0);
        assert!(skipped.stderr.contains("moved to dir:"), "{skipped:?}");
    }
    migrate(&old, &new, &[]).expect(0);
    assert_eq!(new.show("team/report")["paused"]["why"], "broken", "nor is it lifted by a second run");
}

#[test]
fn a_held_lease_is_not_moved_unless_asked() {
    let (old, new) = houses();
    old.done(&["run", "free", "--", "true"]).expect(0);
    let token = old.done(&["acquire", "held", "--ttl", "24h"]).expect(0).stdout;
    let refused = migrate(&old, &new, &[]).expect(11);
    assert!(refused.stderr.contains("1 lease held: `held`") && refused.stderr.contains("--revoke-held"), "{refused:?}");
    assert!(old.show("free")["paused"].is_null(), "nothing changed");
    assert!(!new.path("leases").exists(), "nothing changed");

    migrate(&old, &new, &["--revoke-held"]).expect(0);
    old.done(&["renew", "--token", token.trim()]).expect(12);
    let granted = new.done(&["acquire", "held", "--json"]).expect(0);
    let granted: serde_json::Value = serde_json::from_str(&granted.stdout).unwrap();
    assert!(granted["epoch"].as_u64().unwrap() > 2, "the revocation was epoch 2: {granted}");
}

#[test]
fn a_second_run_changes_nothing_and_a_life_of_its_own_is_kept() {
    let (old, new) = houses();
    for _ in 0..5 {
        old.done(&["run", "job", "--", "true"]).expect(0);
    }
    new.done(&["run", "job", "--", "true"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    let after = new.show("job");
    assert_eq!(after["epoch"], 6);
    let reasons: Vec<String> =
        new.history("job").iter().map(|transfer| transfer["reason"].as_str().unwrap().to_owned()).collect();
    assert_eq!(reasons, ["advanced", "first"]);
    migrate(&old, &new, &[]).expect(0);
    assert_eq!(new.show("job")["epoch"], 6);
    assert!(new.show("job")["paused"].is_null());
}

#[test]
fn what_cannot_be_moved_changes_nothing() {
    let (old, new) = houses();
    let same = old.done(&["migrate", &old.store, &old.store]).expect(64);
    assert!(same.stderr.contains("it is the store to move from"), "{same:?}");
    let missing = migrate(&old, &new, &[]).expect(64);
    assert!(missing.stderr.contains("there is no store"), "{missing:?}");
    old.done(&["run", "job", "--", "true"]).expect(0);
    let dry = migrate(&old, &new, &["--dry-run"]).expect(0);
    assert!(dry.stderr.contains("1 lease would be moved") && dry.stderr.contains("nothing changed"), "{dry:?}");
    assert!(!new.path("leases").exists());
    new.done(&["acquire", "job", "--ttl", "24h"]).expect(0);
    let held = migrate(&old, &new, &[]).expect(69);
    assert!(held.stderr.contains("held in the new store"), "{held:?}");
}

#[test]
fn who_ran_out_of_time_completes_nothing_behind_the_copys_back() {
    let (old, new) = houses();
    let token = old.done(&["acquire", "job", "--ttl", "1s"]).expect(0).stdout;
    std::thread::sleep(std::time::Duration::from_millis(1200));
    migrate(&old, &new, &[]).expect(0);
    old.done(&["release", "--token", token.trim()]).expect(12);
    assert_eq!(old.show("job")["epoch"], 2, "it was taken away there");
    assert_eq!(new.show("job")["epoch"], 3);
}

#[test]
fn two_ways_to_one_store_are_noticed() {
    let old = Home::new(On::Dir);
    old.done(&["run", "job", "--", "true"]).expect(0);
    std::os::unix::fs::symlink(old.path("leases"), old.path("alias")).unwrap();
    let alias = format!("dir:{}", old.path("alias").display());
    let refused = old.done(&["migrate", &old.store, &alias]).expect(64);
    assert!(refused.stderr.contains("both urls lead to one store"), "{refused:?}");
    assert!(old.show("job")["paused"].is_null() && old.show("job")["epoch"] == 1);
}

#[test]
fn a_namespace_can_be_moved_to_another_of_the_same_store() {
    let home = Home::new(On::Dir);
    home.done(&["run", "job", "--", "true"]).expect(0);
    let team = format!("{}?namespace=team", home.store);
    home.done(&["migrate", &home.store, &team]).expect(0);
    let shown = home.done(&["show", "job", "--json", "--store", &team]).expect(0);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&shown["epoch"], shown["paused"].is_null()), (&2.into(), true));
    assert!(home.show("job")["paused"]["why"].as_str().unwrap().contains("namespace=team"));
}

#[test]
fn queues_and_journals_go_along_and_nothing_is_claimed_in_both_stores() {
    let (old, new) = houses();
    for text in ["first", "second"] {
        old.done(&["queue", "add", "mail", "--text", text]).expect(0);
    }
    old.done(&["queue", "add", "mail", "--text", "third", "--key", "k3"]).expect(0);
    let claimed = old.done(&["queue", "claim", "mail", "--ttl", "24h", "--json"]).expect(0);
    let claimed: serde_json::Value = serde_json::from_str(&claimed.stdout).unwrap();
    let token = claimed["token"].as_str().unwrap().to_owned();
    old.done(&["run", "nightly", "--slot", "@daily", "--", "true"]).expect(0);

    let refused = migrate(&old, &new, &[]).expect(11);
    assert!(refused.stderr.contains("1 queue item held: `mail/"), "{refused:?}");
    let dry = migrate(&old, &new, &["--revoke-held", "--dry-run"]).expect(0);
    assert!(dry.stderr.contains("1 lease and 3 queue items would be moved"), "{dry:?}");
    let moved = migrate(&old, &new, &["--revoke-held", "--json"]).expect(0);
    let moved: serde_json::Value = serde_json::from_str(&moved.stdout).unwrap();
    assert_eq!((&moved["leases"], &moved["journals"], &moved["items"]), (&1.into(), &1.into(), &3.into()));

    // Whoever had it is fenced, in the old store and in the new one, and nothing can be claimed in the old one.
    old.done(&["queue", "complete", "mail", "--token", &token]).expect(13);
    new.done(&["queue", "complete", "mail", "--token", &token]).expect(13);
    old.done(&["queue", "claim", "mail"]).expect(11);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let claimed = new.done(&["queue", "claim", "mail", "--json"]).expect(0);
        let claimed: serde_json::Value = serde_json::from_str(&claimed.stdout).unwrap();
        seen.push(claimed["payload"].as_str().unwrap().to_owned());
        new.done(&["queue", "complete", "mail", "--token", claimed["token"].as_str().unwrap()]).expect(0);
    }
    assert_eq!(seen, ["first", "second", "third"], "in the order they were added");
    let runs = new.done(&["runs", "nightly", "--json"]).expect(0);
    assert!(runs.stdout.contains("succeeded"), "{runs:?}");

    let again = migrate(&old, &new, &["--json"]).expect(0);
    let again: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(again["items"], 0, "a second run brings nothing back");
    new.done(&["queue", "claim", "mail"]).expect(11);
}

#[test]
fn what_comes_home_is_awake_there_and_only_there() {
    let (old, new) = houses();
    old.done(&["run", "nightly", "--", "true"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    let refused = old.done(&["resume", "nightly", "--why", "oops"]).expect(64);
    assert!(refused.stderr.contains("was moved to `dir:"), "{refused:?}");
    // Its old record is not moved on to a third store, where it would be asleep or awake twice.
    let third = Home::new(On::Dir);
    let refused = migrate(&old, &third, &[]).expect(64);
    assert!(refused.stderr.contains("of FROM was moved to `dir:"), "{refused:?}");
    let other = Home::new(On::Sqlite);
    other.done(&["run", "another", "--", "true"]).expect(0);
    let refused = migrate(&other, &old, &[]).expect(64);
    assert!(refused.stderr.contains("of TO was moved to `dir:"), "{refused:?}");

    migrate(&new, &old, &[]).expect(0);
    let ran = old.done(&["run", "nightly", "--", "echo", "ran"]).expect(0);
    assert_eq!(ran.stdout, "ran\n", "{ran:?}");
    let skipped = new.done(&["run", "nightly", "--", "echo", "ran"]).expect(0);
    assert!(skipped.stdout.is_empty() && skipped.stderr.contains("moved to sqlite:"), "{skipped:?}");
    migrate(&old, &new, &[]).expect(0);
    assert_eq!(new.done(&["run", "nightly", "--", "echo", "ran"]).expect(0).stdout, "ran\n");
}

#[test]
fn an_item_that_was_moved_away_is_not_lost_on_the_way_back() {
    let (old, new) = houses();
    old.done(&["queue", "add", "pages", "--text", "one"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    let refused = migrate(&new, &old, &[]).expect(78);
    assert!(refused.stderr.contains("was moved away from TO before"), "{refused:?}");
    let claimed = new.done(&["work", "pages", "--until-empty", "--", "cat"]).expect(0);
    assert_eq!(claimed.stdout, "one", "nothing changed");
    migrate(&new, &old, &[]).expect(0);
}

/// What was done and ordered away from home comes home too.
#[test]
fn a_pause_and_everything_that_was_done_elsewhere_come_home() {
    let (old, new) = houses();
    old.done(&["run", "job", "--slot", "* * * * * *", "--", "true"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    // The next slot, for this one has run.
    std::thread::sleep(std::time::Duration::from_secs(1));
    new.done(&["run", "job", "--slot", "* * * * * *", "--", "false"]).expect(1);
    let token = new.done(&["acquire", "job"]).expect(0).stdout;
    new.done(&["progress", "step 3", "--checkpoint", "cp3", "--token", token.trim()]).expect(0);
    new.done(&["release", "--token", token.trim()]).expect(0);
    new.done(&["pause", "job", "--why", "do not run"]).expect(0);
    let there = (new.history("job"), new.show("job"), new.done(&["runs", "job", "--json"]).expect(0).stdout);

    migrate(&new, &old, &[]).expect(0);
    let shown = old.show("job");
    assert_eq!(shown["paused"]["why"], "do not run");
    assert_eq!(shown["progress"], there.1["progress"]);
    assert!(shown["progress"]["checkpoint"] == "cp3", "{shown}");
    let ran = old.done(&["run", "job", "--", "echo", "ran"]).expect(0);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("do not run"), "{ran:?}");
    let history = old.history("job");
    assert_eq!(history[1..], there.0[..], "what happened there, and before");
    assert_eq!((old.count("job", "granted"), old.count("job", "failed")), (3, 1));
    assert_eq!(old.done(&["runs", "job", "--json"]).expect(0).stdout, there.2);
}

#[test]
fn a_pause_goes_along_to_a_store_that_is_further_on() {
    let (old, new) = houses();
    old.done(&["run", "job", "--", "true"]).expect(0);
    old.done(&["pause", "job", "--why", "do not run"]).expect(0);
    for _ in 0..3 {
        new.done(&["run", "job", "--", "true"]).expect(0);
    }
    migrate(&old, &new, &[]).expect(0);
    assert_eq!(new.show("job")["paused"]["why"], "do not run");
    assert_eq!(new.history("job").len(), 4, "its own life is kept");
}
