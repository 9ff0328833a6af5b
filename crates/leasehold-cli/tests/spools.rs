//! Spools in the hands of hostile newcomers: what lies about in them, links, names twice, a folder that is not there.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, descendants, eventually, is_alive, signal};
use leasehold_work::spool::Spool;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

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
fn what_is_not_an_item_does_not_keep_anybody_busy() {
    let (home, spool) = littered();
    let mut work = home.start(&["work", &spool, "--until-idle", "--no-prefix", "--", "cat"]);
    eventually("the worker ends", || work.is_over());
    let done = work.end().expect(0);
    assert_eq!(done.stdout, "first");
    for odd in ["`lost+found`", "`a-link`", "`b-link`", "`pipe`"] {
        assert_eq!(done.stderr.matches(odd).count(), 1, "{odd}: {}", done.stderr);
    }
    let mut claim = home.start(&["queue", "claim", &spool]);
    eventually("the claim ends", || claim.is_over());
    claim.end().expect(11);
    let mut lanes = home.start(&["work", &spool, "-j", "2", "--until-idle", "--no-prefix", "--", "cat"]);
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
    let refused = home.done(&["work", &spool, "--until-idle", "--no-prefix", "--", "cat"]).expect(64);
    assert!(refused.stderr.contains("is a link or no folder"), "{}", refused.stderr);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn a_new_spool_is_reported_and_looking_creates_none() {
    let home = Home::new(On::Sqlite);
    let spool = spool(&home);
    home.done(&["queue", "ls", &spool]).expect(0);
    assert!(!home.path("mail").exists(), "looking made a spool");
    for (verb, first) in [(vec!["queue", "add", &spool, "--text", "x"], true), (vec!["queue", "claim", &spool], false)]
    {
        let said = home.done(&verb).expect(0).stderr;
        assert_eq!(said.contains("made a new spool at"), first, "{said}");
    }
    let typo = format!("spool:{}", home.path("typo").display());
    let said = home.done(&["work", &typo, "-j", "2", "--until-idle", "--no-prefix", "--", "cat"]).expect(0).stderr;
    assert_eq!(said.matches("made a new spool at").count(), 1, "{said}");
}

#[test]
fn a_name_that_comes_twice_is_two_items_with_keys_of_their_own() {
    let home = Home::new(On::Sqlite);
    let spool = spool(&home);
    home.done(&["queue", "add", &spool, "--text", "x", "--key", "taken"]).expect(0);
    let script = r#"echo "$LEASEHOLD_IDEMPOTENCY_KEY" >> keys"#;
    let work = ["work", &spool, "--until-idle", "--", "sh", "-c", script];
    home.done(&work).expect(0);
    for name in ["letter", "letter", "taken", "not a key", "not a key"] {
        fs::write(home.path("new"), name).unwrap();
        fs::rename(home.path("new"), home.path("mail/ready").join(name)).unwrap();
        home.done(&work).expect(0);
    }
    let keys = home.read("keys");
    let keys: Vec<&str> = keys.lines().collect();
    assert_eq!((keys.len(), keys[0], keys[1]), (6, "spool/k.taken", "spool/k.letter"), "{keys:?}");
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), 6, "{keys:?}");
    let again = home.done(&["queue", "add", &spool, "--text", "x", "--key", "letter"]).expect(0);
    assert!(again.stderr.contains("nothing was added"), "{}", again.stderr);
}

#[test]
fn an_item_whose_token_nobody_got_is_given_back() {
    let home = Home::new(On::Sqlite);
    for queue in ["mail", &spool(&home)] {
        let id = home.done(&["queue", "add", queue, "--text", "x"]).expect(0).stdout.trim().to_owned();
        let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let show = || -> Value {
            serde_json::from_str(&home.done(&["queue", "show", queue, &id, "--json"]).expect(0).stdout).unwrap()
        };
        let refused = home.leasehold(&["queue", "claim", queue]).stdout(full()).output().unwrap();
        assert_eq!(refused.status.code(), Some(74), "{refused:?}");
        assert_eq!((&show()["state"], &show()["tried"]), (&Value::from("ready"), &Value::from(0)), "{}", show());
        home.done(&["queue", "claim", queue, "--payload", "/nowhere/payload"]).expect(69);
        assert_eq!(show()["state"], "ready", "{}", show());
        let words = ["queue", "hand-off", queue, &id, "--to", "ada", "--why", "test"];
        let told = home.leasehold(&words).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(74), "{said}");
        assert!(said.contains("was handed off, epoch"), "{said}");
        assert!(said.contains(&format!("leasehold queue retry {queue} {id}")), "{said}");
        home.done(&["queue", "retry", queue, &id, "--why", "test"]).expect(0);
        home.done(&["queue", "claim", queue]).expect(0);
    }
}

#[test]
fn what_a_killed_worker_left_of_payloads_goes_with_the_next_ones_start() {
    let home = Home::new(On::Sqlite);
    let temp = home.path("temp");
    fs::create_dir(&temp).unwrap();
    let start = |words: &[&str]| home.leasehold(words).env("TMPDIR", &temp).spawn().unwrap();
    for text in ["secret", "other"] {
        home.done(&["queue", "add", "mail", "--text", text]).expect(0);
    }
    // One folder for all of this user's.
    let ours = || fs::read_dir(&temp).unwrap().flatten().map(|entry| entry.path()).next();
    let has_payload = |entry: &fs::DirEntry| entry.path().join("payload").exists();
    let left = || ours().into_iter().flat_map(fs::read_dir).flatten().flatten().filter(has_payload).count();
    let wait = "touch started-$LEASEHOLD_ITEM; exec sleep 60";
    let mut killed = start(&["work", "mail", "--ttl", "5m", "--", "sh", "-c", wait]);
    eventually("it runs", || left() == 1);
    let mut living = start(&["work", "mail", "--ttl", "5m", "--", "sh", "-c", wait]);
    eventually("both run", || left() == 2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    // What it left goes with the next start, or with the last one, whose look at others' folders may not be over yet.
    // Others' things that look alike stay.
    let kept = home.path("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("alive"), "").unwrap();
    let folder = ours().unwrap();
    symlink(&kept, folder.join(format!("leasehold-run-{}", "0".repeat(32)))).unwrap();
    fs::create_dir(folder.join("leasehold-run-mine")).unwrap();
    fs::write(folder.join("leasehold-run-mine/alive"), "").unwrap();
    // Of a process that was killed before it had put anything into its folder.
    let empty = folder.join(format!("leasehold-run-{}", "1".repeat(32)));
    fs::create_dir(&empty).unwrap();
    let mut next = start(&["work", "other", "--until-idle", "--no-prefix", "--", "cat"]);
    assert!(next.wait().unwrap().success());
    assert_eq!(left(), 1, "the dead one's is gone, the living one's is not");
    assert!(!empty.exists());
    assert!(kept.join("alive").exists() && folder.join("leasehold-run-mine/alive").exists());
    living.kill().unwrap();
    living.wait().unwrap();
}

#[test]
fn a_slow_producer_keeps_its_file_and_a_dead_ones_is_removed() {
    let home = Home::new(On::Sqlite);
    let spool = spool(&home);
    home.done(&["queue", "add", &spool, "--text", "first"]).expect(0);
    let staged = || fs::read_dir(home.path("mail/tmp")).unwrap().flatten().next().map(|entry| entry.path());
    let begin = || {
        let mut command = home.leasehold(&["queue", "add", &spool]);
        let mut producer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = producer.stdin.take().unwrap();
        input.write_all(b"half ").unwrap();
        eventually("it is being written", || {
            staged().is_some_and(|path| fs::metadata(path).is_ok_and(|m| m.len() == 5))
        });
        (producer, input)
    };
    let silence = Duration::from_millis(200);
    let janitor = Spool::open(&home.path("mail")).unwrap().abandoning_after(silence);
    let (mut slow, mut input) = begin();
    let path = staged().unwrap();
    // A stopped producer lives too. What was cut off later is removed meanwhile: it has been silent for long enough.
    for how in ["CONT", "STOP", "STOP"] {
        signal(slow.id() as i32, how);
        let (cut_off, key) = (home.path("mail/tmp/cut-off"), home.path("mail/keys/cut-off"));
        fs::write(&cut_off, "x").unwrap();
        fs::hard_link(&cut_off, &key).unwrap();
        eventually("what was cut off is removed with its key", || {
            janitor.clean().unwrap();
            !cut_off.exists() && !key.exists()
        });
        assert!(path.exists(), "the file of a living producer was removed ({how})");
    }
    signal(slow.id() as i32, "CONT");
    input.write_all(b"a letter").unwrap();
    drop(input);
    assert!(slow.wait().unwrap().success());
    let (mut dead, _input) = begin();
    dead.kill().unwrap();
    dead.wait().unwrap();
    eventually("a dead producer's file is removed", || {
        janitor.clean().unwrap();
        staged().is_none()
    });
    let done = home.done(&["work", &spool, "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(done.stdout, "firsthalf a letter");
}

#[test]
fn a_payload_of_any_size_is_claimed_by_hand_and_shown_in_part() {
    let home = Home::new(On::Sqlite);
    let spool = spool(&home);
    home.done(&["queue", "add", &spool, "--text", "", "--key", "empty"]).expect(0);
    home.done(&["queue", "claim", &spool, "--payload", "payload"]).expect(0);
    assert_eq!(fs::metadata(home.path("payload")).unwrap().len(), 0);
    let large = fs::File::create(home.path("mail/ready/large")).unwrap();
    large.set_len(3 << 20).unwrap();
    drop(large);
    let claimed = home.done(&["queue", "claim", &spool, "--payload", "payload", "--json"]).expect(0);
    assert_eq!(fs::metadata(home.path("payload")).unwrap().len(), 3 << 20);
    let claimed: Value = serde_json::from_str(&claimed.stdout).unwrap();
    assert_eq!(claimed["payload"]["bytes"], 3 << 20);
    // As long as the disk is wide: looking reads no more than can be shown.
    let huge = fs::File::create(home.path("mail/ready/huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    drop(huge);
    home.done(&["queue", "claim", &spool]).expect(0);
    let shown = home.done(&["queue", "show", &spool, "k.huge", "--json"]).expect(0);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["payload"]["bytes"].as_u64(), Some(1 << 40));
}

#[test]
fn what_waits_under_a_plain_name_is_listed_as_ready() {
    let home = Home::new(On::Sqlite);
    let spool = spool(&home);
    home.done(&["queue", "add", &spool, "--text", "x", "--key", "taken"]).expect(0);
    for name in ["letter-1", "taken", "not a key"] {
        fs::write(home.path("mail/ready").join(name), "x").unwrap();
    }
    let list = |words: &[&str]| -> Vec<Value> {
        serde_json::from_str(&home.done(&[&["queue", "ls", &spool, "--json"], words].concat()).expect(0).stdout)
            .unwrap()
    };
    let ready = list(&["--state", "ready"]);
    let pairs: Vec<_> = ready.iter().map(|item| (item["id"].as_str(), item["file"].as_str().unwrap())).collect();
    assert_eq!(pairs[0].0, Some("k.taken"));
    let plain = [(Some("k.letter-1"), "ready/letter-1"), (None, "ready/not a key"), (None, "ready/taken")];
    assert_eq!(pairs[1..], plain, "{ready:?}");
    assert!(list(&["--state", "done"]).is_empty());
    let text = home.done(&["queue", "ls", &spool]).expect(0).stdout;
    assert!(text.contains("k.letter-1") && text.contains("ready/, as not a key"), "{text}");
    let done = home.done(&["work", &spool, "--until-idle", "--", "true"]).expect(0);
    let ids: std::collections::HashSet<_> =
        list(&["--state", "done"]).iter().map(|item| item["id"].to_string()).collect();
    assert!(ids.len() == 4 && ids.contains("\"k.letter-1\""), "{ids:?} {done:?}");
}
