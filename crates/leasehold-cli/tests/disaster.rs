//! The classic disaster, with real processes: a holder stalls, loses its lease, wakes up and writes.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, descendants, eventually, is_alive, signal};

/// Writes its epoch to `out` once `go` is there, and notes how that went.
const WRITER: &str = "echo $$ $LEASEHOLD_EPOCH > started; while [ ! -e go ]; do sleep 0.02; done; \
                      echo A | leasehold write out 2> refusal; echo $? > wrote";

fn zombie_is_fenced(on: On) {
    let home = Home::new(on);
    let a = home.start(&["run", "job", "--ttl", "2s", "--label", "A", "--guard", "file:out", "--", "sh", "-c", WRITER]);
    let writer: i32 = home.words("started")[0].parse().unwrap();

    // The whole of A stands still, as on a laptop that sleeps.
    let frozen = [vec![a.pid()], descendants(a.pid())].concat();
    for pid in &frozen {
        signal(*pid, "STOP");
    }
    let b = home.leasehold(&["run", "job", "--ttl", "30s", "--label", "B", "--wait", "20s", "--guard", "file:out"]);
    let mut b = b;
    let b = b.args(["--", "sh", "-c", "echo B | leasehold write out"]).output().unwrap();
    assert_eq!(common::code(b.status), 0, "{b:?}");
    assert_eq!(home.read("out"), "B\n");

    // The zombie's worker wakes first and writes before anybody could stop it.
    home.touch("go");
    for pid in descendants(a.pid()) {
        if pid != frozen[1] {
            signal(pid, "CONT");
        }
    }
    assert_eq!(home.words("wrote"), ["13"], "{}", home.read("refusal"));
    assert!(home.read("refusal").contains("stale epoch refused: resource=`file:"), "{}", home.read("refusal"));
    assert!(home.read("refusal").contains("held=1 seen=2"), "{}", home.read("refusal"));
    assert_eq!(home.read("out"), "B\n");

    for pid in &frozen {
        signal(*pid, "CONT");
    }
    let a = a.end();
    assert_eq!(a.code, 75, "{a:?}");
    assert!(a.stderr.contains("lost `job:1`"), "{a:?}");
    eventually("the zombie is gone", || !is_alive(writer));
    assert_eq!(home.read("out"), "B\n");

    let history = home.history("job");
    assert_eq!(history[0]["reason"], "expired");
    assert_eq!(history[0]["to"]["label"], "B");
    assert_eq!(history[1]["outcome"], "expired");
    assert_eq!(home.count("job", "fenced"), 1);
    assert_eq!(home.count("job", "lost"), 1);
}

#[test]
fn a_zombie_is_fenced_on_sqlite() {
    zombie_is_fenced(On::Sqlite);
}

#[test]
fn a_zombie_is_fenced_on_a_shared_folder() {
    zombie_is_fenced(On::Dir);
}

#[test]
fn a_sealed_zombie_cannot_write_even_before_the_new_holder_has_written() {
    let home = Home::new(On::Sqlite);
    let a = home.done(&["acquire", "job", "--ttl", "3s"]).expect(0);
    let token = a.stdout.trim().to_owned();
    let b = home.done(&["run", "job", "--wait", "20s", "--guard", "file:out", "--", "true"]).expect(0);
    assert_eq!(b.stderr, "");
    let late = home.done(&["write", "out", "--from", "/etc/hostname", "--token", &token]).expect(13);
    assert!(late.stderr.contains("held=1 seen=2"), "{late:?}");
    assert!(!home.path("out").exists());
}

/// What a person does who pastes a line into a shell.
fn pasted(home: &Home, line: &str) -> Done {
    let words = home.leasehold(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", line]).current_dir(home.folder.path()).env_clear();
    shell.envs(words.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Done::from(shell.output().unwrap())
}

#[test]
fn a_store_that_was_lost_is_distinguished_from_a_stale_token_and_can_be_healed_once() {
    let home = Home::new(On::Sqlite);
    for _ in 0..3 {
        home.done(&["run", "job", "--guard", "file:out", "--", "sh", "-c", "echo old | leasehold write out"]).expect(0);
    }
    for file in ["leases.db", "leases.db-wal", "leases.db-shm"] {
        let _ = std::fs::remove_file(home.path(file));
    }
    let run = ["run", "job", "--guard", "file:out", "--", "sh", "-c", "echo new | leasehold write out"];
    let refused = home.done(&run).expect(64);
    assert!(refused.stderr.contains("not this lease"), "{refused:?}");
    assert_eq!(home.read("out"), "old\n");
    // The message has the command that heals, as it can be pasted, and it heals that store: in another one it changes nothing.
    let heal = refused.stderr.split("heal with: ").nth(1).unwrap().trim();
    assert!(heal.starts_with("leasehold advance job --past 3 --lineage "), "{heal}");
    let elsewhere = Home::new(On::Sqlite);
    elsewhere.done(&["run", "job", "--", "true"]).expect(0);
    let before = elsewhere.show("job")["lineage"].clone();
    let there = pasted(&elsewhere, &heal.replace(&home.store, &elsewhere.store)).expect(64);
    assert!(there.stderr.contains("nothing was changed"), "{there:?}");
    assert_eq!((&elsewhere.show("job")["lineage"], &elsewhere.show("job")["epoch"]), (&before, &1.into()));
    let healed = pasted(&elsewhere, heal).expect(0);
    assert!(healed.stderr.contains(&home.store), "{healed:?}");
    home.done(&run).expect(0);
    assert_eq!(home.read("out"), "new\n");
    assert_eq!(home.show("job")["epoch"], 5);
    let other = "7".repeat(32);
    let again = ["advance", "job", "--past", "9", "--lineage", &other, "--why", "again"];
    let unsaid = home.done(&again).expect(64);
    assert!(unsaid.stderr.contains("add --if-lineage"), "{unsaid:?}");
    let now = home.show("job")["lineage"].as_str().unwrap().to_owned();
    let twice = home.done(&[&again[..], &["--if-lineage", &now]].concat()).expect(64);
    assert!(twice.stderr.contains("that can be done once"), "{twice:?}");
    home.done(&run).expect(0);
}

#[test]
fn an_item_of_a_restored_store_is_healed_by_the_line_in_the_message() {
    let home = Home::new(On::Dir);
    let copy = |from: &str, to: &str| {
        let _ = std::fs::remove_dir_all(home.path(to));
        let done = std::process::Command::new("cp").arg("-a").args([home.path(from), home.path(to)]).status().unwrap();
        assert!(done.success());
    };
    let claimed = || home.done(&["queue", "claim", "q"]).expect(0).stdout.trim().to_owned();
    let written = |token: &str| home.done(&["write", "out", "--from", "/etc/hostname", "--token", token]);
    home.done(&["queue", "add", "q", "--key", "k", "--text", "x"]).expect(0);
    copy("leases", "backup");
    for _ in 0..3 {
        home.done(&["queue", "retry", "q", "k.k", "--why", "again"]).expect(0);
    }
    written(&claimed()).expect(0);
    copy("backup", "leases");
    let refused = written(&claimed()).expect(65);
    pasted(&home, refused.stderr.split("heal with: ").nth(1).unwrap().trim()).expect(0);
    written(&claimed()).expect(0);
    let mistyped = home.done(&["queue", "retry", "q", "k.k", "--past", "1000001", "--why", "typo"]).expect(64);
    assert!(mistyped.stderr.contains("--past"), "{mistyped:?}");
}

#[test]
fn a_mistyped_advance_does_not_use_the_epochs_up() {
    let home = Home::new(On::Sqlite);
    home.done(&["run", "job", "--", "true"]).expect(0);
    let mistyped = home.done(&["advance", "job", "--past", "9007199254740989", "--why", "typo"]).expect(64);
    assert!(mistyped.stderr.contains("cannot be moved that far"), "{mistyped:?}");
    let far = home.done(&["advance", "job", "--past", "1000002", "--why", "typo"]).expect(64);
    assert!(far.stderr.contains("--force"), "{far:?}");
    home.done(&["advance", "job", "--past", "1000001", "--why", "as far as it goes"]).expect(0);
    home.done(&["advance", "job", "--past", "3000000", "--force", "--why", "a guard has seen it"]).expect(0);
    assert_eq!(home.show("job")["epoch"], 3_000_001);
    home.done(&["run", "job", "--", "true"]).expect(0);
}
