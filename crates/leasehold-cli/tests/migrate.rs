//! Moving house: every lease goes along, and no epoch ever goes down.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, eventually};

/// Two homes: what is moved from, and what is moved to.
fn houses() -> (Home, Home) {
    (Home::new(On::Sqlite), Home::new(On::Dir))
}

fn migrate(from: &Home, to: &Home, flags: &[&str]) -> Done {
    from.done(&[&["migrate", &from.store, &to.store], flags].concat())
}

#[test]
fn epochs_history_and_counts_go_along_and_the_old_leases_say_where_they_went() {
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
    // A pause that an operator had ordered is still in force.
    assert_eq!(new.show("team/report")["paused"]["why"], "broken");
    assert!(new.show("nightly")["paused"].is_null());

    // A forgotten crontab must not stop in silence.
    for lease in ["nightly", "team/report"] {
        let refused = old.done(&["run", lease, "--", "true"]).expect(78);
        assert!(refused.stderr.contains("has moved to `dir:"), "{refused:?}");
        assert_eq!(old.show(lease)["state"], "moved");
    }
    let again = migrate(&old, &new, &[]).expect(0);
    assert!(again.stderr.contains("already; nothing changed"), "{again:?}");
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
    old.done(&["renew", "--token", token.trim()]).expect(78);
    let granted = new.done(&["acquire", "held", "--json"]).expect(0);
    let granted: serde_json::Value = serde_json::from_str(&granted.stdout).unwrap();
    assert!(granted["epoch"].as_u64().unwrap() > 2, "the revocation was epoch 2: {granted}");
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
    // A lease of this name that is another one.
    new.done(&["acquire", "job", "--ttl", "24h"]).expect(0);
    let before = old.done(&["show", "job"]).expect(0).stdout;
    let stranger = migrate(&old, &new, &[]).expect(64);
    assert!(stranger.stderr.contains("is in TO already and is another one"), "{stranger:?}");
    assert_eq!(old.show("job")["state"], "free", "{before}");
    old.done(&["run", "job", "--", "true"]).expect(0);
}

#[test]
fn an_expired_holder_completes_nothing_behind_the_copys_back() {
    let (old, new) = houses();
    let token = old.done(&["acquire", "job", "--ttl", "3s"]).expect(0).stdout;
    eventually("it has run out", || old.show("job")["state"] == "expired");
    migrate(&old, &new, &[]).expect(0);
    old.done(&["release", "--token", token.trim()]).expect(78);
    assert_eq!((&old.show("job")["epoch"], &old.show("job")["holder"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!(new.show("job")["epoch"], 2);
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
    assert!(home.show("job")["relocation"]["store"].as_str().unwrap().contains("namespace=team"));
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
    old.done(&["queue", "complete", "mail", "--token", &token]).expect(78);
    new.done(&["queue", "complete", "mail", "--token", &token]).expect(13);
    for verb in [&["claim", "mail"][..], &["add", "mail", "--text", "late"]] {
        let refused = old.done(&[&["queue"], verb].concat()).expect(78);
        assert!(refused.stderr.contains("has moved to `dir:"), "{refused:?}");
    }
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

    migrate(&old, &new, &[]).expect(0);
    new.done(&["queue", "claim", "mail"]).expect(11);
}

#[test]
fn what_comes_home_is_awake_there_and_only_there() {
    let (old, new) = houses();
    old.done(&["run", "nightly", "--", "true"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    let refused = old.done(&["resume", "nightly", "--why", "oops"]).expect(78);
    assert!(refused.stderr.contains("has moved to `dir:"), "{refused:?}");
    // Its old record is not moved on to a third store, where it would be asleep or awake twice.
    let third = Home::new(On::Dir);
    let refused = migrate(&old, &third, &[]).expect(78);
    assert!(refused.stderr.contains("FROM is moved to `dir:"), "{refused:?}");
    let other = Home::new(On::Sqlite);
    other.done(&["run", "nightly", "--", "true"]).expect(0);
    let refused = migrate(&other, &old, &[]).expect(78);
    assert!(refused.stderr.contains("of TO has moved to `dir:"), "{refused:?}");
    other.done(&["run", "nightly", "--", "true"]).expect(0);

    migrate(&new, &old, &[]).expect(0);
    let ran = old.done(&["run", "nightly", "--", "echo", "ran"]).expect(0);
    assert_eq!(ran.stdout, "ran\n", "{ran:?}");
    let refused = new.done(&["run", "nightly", "--", "echo", "ran"]).expect(78);
    assert!(refused.stdout.is_empty() && refused.stderr.contains("moved to `sqlite:"), "{refused:?}");
    migrate(&old, &new, &[]).expect(0);
    assert_eq!(new.done(&["run", "nightly", "--", "echo", "ran"]).expect(0).stdout, "ran\n");
}

#[test]
fn an_item_that_was_moved_away_comes_back() {
    let (old, new) = houses();
    old.done(&["queue", "add", "pages", "--text", "one"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    migrate(&new, &old, &[]).expect(0);
    new.done(&["work", "pages", "--until-idle", "--no-prefix", "--", "cat"]).expect(78);
    let claimed = old.done(&["work", "pages", "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(claimed.stdout, "one");
}

/// What was done and ordered away from home comes home too.
#[test]
fn a_pause_and_everything_that_was_done_elsewhere_come_home() {
    let (old, new) = houses();
    old.done(&["run", "job", "--slot", "* * * * * *", "--", "true"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    // In the next slot, for this one has run.
    let again = ["run", "job", "--slot", "* * * * * *", "--", "false"];
    eventually("the next slot has come", || new.done(&again).code == 1);
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

/// Every verb that would change something.
fn verbs(token: &str) -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>();
    let mut verbs: Vec<Vec<String>> = [
        "run job -- true",
        "run job --slot @daily -- true",
        "acquire job",
        "revoke job --why x",
        "hand-off job --to me --why x",
        "pause job --why x",
        "resume job --why x",
        "advance job --past 9 --why x",
        "rewind job --why x",
        "run brand-new -- true",
        "queue claim mail",
        "queue add mail --text x",
        "queue retry mail k.dead --why x",
        "queue cancel mail k.waits --why x",
        "queue hand-off mail k.waits --to me --why x",
        "work mail --until-idle -- true",
    ]
    .map(words)
    .into();
    for verb in ["renew", "release", "progress"] {
        verbs.push([verb, "--token", token].map(ToOwned::to_owned).into());
    }
    verbs
}

/// A store with a lease that was held, an item that waits and a dead one; and the token of the lease.
fn lived_in() -> (Home, Home, String) {
    let (old, new) = houses();
    let token = old.done(&["acquire", "job", "--ttl", "3s"]).expect(0).stdout.trim().to_owned();
    old.done(&["queue", "add", "mail", "--text", "a", "--key", "dead", "--attempts", "1"]).expect(0);
    old.done(&["work", "mail", "--until-idle", "--", "false"]).expect(0);
    old.done(&["queue", "add", "mail", "--text", "b", "--key", "waits"]).expect(0);
    eventually("it has run out", || old.show("job")["state"] == "expired");
    (old, new, token)
}

#[test]
fn every_verb_in_the_old_store_is_refused_and_says_where_to_go() {
    let (old, new, token) = lived_in();
    migrate(&old, &new, &[]).expect(0);
    let (lease, item) = (old.show("job"), old.done(&["queue", "show", "mail", "k.dead", "--json"]).expect(0).stdout);
    for verb in verbs(&token) {
        let words: Vec<&str> = verb.iter().map(String::as_str).collect();
        let refused = old.done(&words).expect(78);
        assert!(refused.stderr.contains("has moved to `dir:"), "{words:?}: {refused:?}");
    }
    assert_eq!(old.show("job")["epoch"], lease["epoch"]);
    assert_eq!(old.done(&["queue", "show", "mail", "k.dead", "--json"]).expect(0).stdout, item);
    // In the new one everything works.
    new.done(&["queue", "retry", "mail", "k.dead", "--why", "again"]).expect(0);
    let worked = new.done(&["work", "mail", "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(worked.stdout.len(), 2, "each once: {worked:?}");
}

#[test]
fn a_migration_that_is_killed_anywhere_is_carried_on_or_given_up_and_never_grants_twice() {
    for round in 0..12 {
        let (old, new) = houses();
        for name in 0..6 {
            old.done(&["run", &format!("job-{name}"), "--", "true"]).expect(0);
            old.done(&["queue", "add", "mail", "--text", &name.to_string()]).expect(0);
        }
        let mut child = old.leasehold(&["migrate", &old.store, &new.store]).spawn().unwrap();
        // Another point in every round: nothing is waited for here.
        std::thread::sleep(std::time::Duration::from_millis(round * 9));
        let _ = child.kill();
        let _ = child.wait();
        let abort = round % 2 == 0 && migrate(&old, &new, &["--abort"]).code == 0;
        if !abort {
            migrate(&old, &new, &[]).expect(0);
        }
        let (here, there) = if abort { (&old, &new) } else { (&new, &old) };
        for name in 0..6 {
            let name = format!("job-{name}");
            here.done(&["run", &name, "--", "true"]).expect(0);
            let granted = there.done(&["acquire", &name]);
            // A store that was never written to knows nothing of it; one that was says where it is.
            assert!(granted.code == 78 || abort, "round {round}: both stores grant {name}: {granted:?}");
            if granted.code == 0 {
                let shown = there.show(&name);
                assert_ne!(shown["lineage"], here.show(&name)["lineage"], "round {round}: {shown}");
            }
        }
        let worked = here.done(&["work", "mail", "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
        assert_eq!(worked.stdout.len(), 6, "round {round}: every item once: {worked:?}");
    }
}

#[test]
fn of_two_migrations_at_once_one_is_refused_before_it_changes_anything() {
    for _ in 0..4 {
        let (old, new) = houses();
        let third = Home::new(On::Dir);
        for name in 0..8 {
            old.done(&["run", &format!("job-{name}"), "--", "true"]).expect(0);
        }
        let start = |to: &Home| old.leasehold(&["migrate", &old.store, &to.store]).spawn().unwrap();
        let mut both = [start(&new), start(&third)];
        let codes = both.each_mut().map(|child| child.wait().unwrap().code().unwrap());
        assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
        let grants = [&new, &third].map(|home| home.done(&["ls", "--json"]).expect(0).stdout.contains("job-1"));
        assert_eq!(grants.iter().filter(|there| **there).count(), 1, "{codes:?} {grants:?}");
    }
}

#[test]
fn what_is_given_up_is_as_it_was_and_can_be_moved_again() {
    let (old, new, _) = lived_in();
    let nothing = migrate(&old, &new, &["--abort"]).expect(64);
    assert!(nothing.stderr.contains("nothing to give up"), "{nothing:?}");
    // Held while it is marked: given up by itself.
    let token = old.done(&["acquire", "busy", "--ttl", "1h"]).expect(0).stdout;
    migrate(&old, &new, &[]).expect(11);
    old.done(&["run", "job", "--", "true"]).expect(0);
    old.done(&["release", "--token", token.trim()]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    let late = migrate(&old, &new, &["--abort"]).expect(64);
    assert!(late.stderr.contains("can no longer be given up"), "{late:?}");
    new.done(&["run", "job", "--", "true"]).expect(0);
}

#[test]
fn a_lease_of_the_old_stores_name_in_a_lost_store_is_another_lease() {
    let (old, new) = houses();
    old.done(&["run", "job", "--", "true"]).expect(0);
    let before = old.show("job")["lineage"].clone();
    migrate(&old, &new, &[]).expect(0);
    assert_eq!(new.show("job")["lineage"], before, "a migration keeps the lineage");
}
