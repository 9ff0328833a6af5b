//! What operators see of queues and spools, and what they do to many items at once, with the real binary.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, eventually};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// A queue in a store and one in a folder, each in a home of its own.
fn both() -> [(Home, String); 2] {
    ["mail", "spool"].map(|kind| {
        let home = Home::new(On::Sqlite);
        let spool = format!("spool:{}", home.path("spool").display());
        (home, if kind == "mail" { kind.to_owned() } else { spool })
    })
}

fn add(home: &Home, queue: &str, text: &str, words: &[&str]) -> String {
    home.done(&[&["queue", "add", queue, "--text", text], words].concat()).expect(0).stdout.trim().to_owned()
}

fn claim(home: &Home, queue: &str) -> String {
    home.done(&["queue", "claim", queue, "--ttl", "10m"]).expect(0).stdout.trim().to_owned()
}

fn bury(home: &Home, queue: &str, why: &str) {
    let token = claim(home, queue);
    home.done(&["queue", "fail", queue, "--token", &token, "--for-good", "--why", why]).expect(0);
}

fn json(done: Done) -> Value {
    serde_json::from_str(&done.expect(0).stdout).unwrap()
}

fn ids(listed: &Value) -> Vec<String> {
    listed.as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn queues_are_counted_by_state() {
    let home = Home::new(On::Sqlite);
    add(&home, "mail", "dead", &[]);
    bury(&home, "mail", "no such user");
    add(&home, "mail", "claimed", &[]);
    claim(&home, "mail");
    add(&home, "mail", "a", &[]);
    add(&home, "mail", "b", &[]);
    add(&home, "mail", "later", &["--delay", "1h"]);
    add(&home, "pages", "only later", &["--delay", "1h"]);
    let listed = json(home.done(&["queue", "ls", "--json"]));
    let mail = &listed[0];
    let counts =
        ["ready", "claimed", "delayed", "dead", "done", "cancelled"].map(|state| mail[state].as_u64().unwrap());
    assert_eq!((mail["queue"].as_str().unwrap(), counts), ("mail", [2, 1, 1, 1, 0, 0]), "{listed}");
    assert!(mail["oldest"].is_string(), "{listed}");
    assert_eq!((&listed[1]["delayed"], &listed[1]["oldest"]), (&1.into(), &Value::Null));
    let page = home.done(&["queue", "ls"]).expect(0).stdout;
    let rows: Vec<Vec<&str>> = page.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["QUEUE", "READY", "CLAIMED", "DELAYED", "DEAD", "OLDEST"]);
    assert_eq!(rows[1][..5], ["mail", "2", "1", "1", "1"]);
    assert_eq!(rows[2], ["pages", "0", "0", "1", "0", "-"]);
}

#[test]
fn items_are_listed_in_the_order_of_claiming_with_what_they_carry() {
    for (home, queue) in both() {
        let low = add(&home, &queue, "low", &["--priority", "1"]);
        let first = add(&home, &queue, "to: ada\nfirst", &[]);
        let second = add(&home, &queue, &"x".repeat(100), &[]);
        let later = add(&home, &queue, "later", &["--delay", "1h", "--priority", "9"]);
        let urgent = add(&home, &queue, "\u{1b}[31murgent", &["--priority", "9"]);
        let listed = json(home.done(&["queue", "ls", &queue, "--json"]));
        assert_eq!(ids(&listed), [&urgent, &first, &second, &low, &later].map(String::as_str), "{listed}");
        let states: Vec<&str> = listed.as_array().unwrap().iter().map(|item| item["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["ready", "ready", "ready", "ready", "delayed"], "{listed}");
        assert_eq!(json(home.done(&["queue", "show", &queue, &later, "--json"]))["state"], "delayed");
        let ready = json(home.done(&["queue", "ls", &queue, "--state", "ready", "--json"]));
        assert_eq!(ids(&ready), [&urgent, &first, &second, &low].map(String::as_str), "{ready}");
        let page = home.done(&["queue", "ls", &queue]).expect(0).stdout;
        let row = page.lines().find(|line| line.contains(&later)).unwrap();
        assert_eq!(row.split_whitespace().nth(1), Some("delayed"), "{page}");
        assert!(page.contains("to: ada\\nfirst") && !page.contains('\u{1b}'), "{page:?}");
        assert!(page.contains("xxx…") && !page.contains(&"x".repeat(40)), "{page}");
        for id in [&urgent, &first, &second, &low] {
            let token = claim(&home, &queue);
            assert!(token.contains(id.as_str()), "{token} is not of {id}");
        }
        assert_eq!(ids(&json(home.done(&["queue", "ls", &queue, "--state", "delayed", "--json"]))), [later]);
    }
}

#[test]
fn dead_letters_are_counted_by_reason_and_retried_by_it() {
    for (home, queue) in both() {
        for why in ["exit code 3", "exit code 4", "exit code 3"] {
            add(&home, &queue, "x", &[]);
            bury(&home, &queue, why);
        }
        let groups = json(home.done(&["queue", "ls", &queue, "--dead", "--json"]));
        let counted: Vec<_> = groups
            .as_array()
            .unwrap()
            .iter()
            .map(|g| (g["why"].as_str().unwrap(), g["count"].as_u64().unwrap()))
            .collect();
        assert_eq!(counted, [("exit code 3", 2), ("exit code 4", 1)]);
        let page = home.done(&["queue", "ls", &queue, "--dead"]).expect(0).stdout;
        assert!(page.starts_with("COUNT") && page.contains("exit code 4"), "{page}");
        let dead = |words: &[&str]| {
            json(home.done(&[&["queue", "ls", &queue, "--json"], words].concat())).as_array().unwrap().len()
        };
        // Nobody is there to ask.
        let unasked = home.done(&["queue", "retry", &queue, "--all", "--why", "mended"]).expect(64);
        assert!(unasked.stderr.contains("3 dead letters") && unasked.stderr.contains("--yes"), "{unasked:?}");
        assert_eq!(dead(&["--state", "dead"]), 3);
        let retry = ["queue", "retry", &queue, "--all", "--reason", "code 4", "--why", "mended", "--yes"];
        let done = home.done(&retry).expect(0);
        assert!(done.stderr.contains("put 1 back in line"), "{done:?}");
        assert_eq!((dead(&["--state", "dead"]), dead(&["--state", "ready"])), (2, 1));
        assert!(home.done(&retry).expect(0).stderr.contains("no dead letters"), "there is none left with that reason");
        let all = home.done(&["queue", "retry", &queue, "--all", "--why", "mended", "--yes", "--json"]);
        assert_eq!(json(all), serde_json::json!({ "retried": 2, "changed": 0, "failed": 0 }));
        assert_eq!((dead(&["--state", "dead"]), dead(&["--state", "ready"])), (0, 3));
        home.done(&["queue", "retry", &queue, "--why", "x"]).expect(64);
        home.done(&["queue", "retry", &queue, "some", "--all", "--why", "x"]).expect(64);
        home.done(&["queue", "retry", &queue, "some", "--reason", "y", "--why", "x"]).expect(64);
    }
}

/// Between the question and the answer one of the counted is retried and dies again, and another one dies.
#[test]
fn only_what_was_counted_is_retried() {
    for (home, queue) in both() {
        let counted = add(&home, &queue, "counted", &[]);
        bury(&home, &queue, "first");
        let changed = add(&home, &queue, "changed", &[]);
        bury(&home, &queue, "first");
        let program = format!("leasehold queue retry {queue} --all --why mended");
        let mut command = Command::new("script");
        command.args(["-qefc", &program, "/dev/null"]).current_dir(home.folder.path()).env_clear();
        command.envs(home.leasehold(&[]).get_envs().filter_map(|(k, v)| Some((k, v?))));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut shown = String::new();
        let mut buffer = [0; 1024];
        while !shown.contains("[y/N]") {
            let read = screen.read(&mut buffer).unwrap();
            assert!(read > 0, "it ended without asking: {shown}");
            shown.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        assert!(shown.contains("2 because: first") && shown.contains("put 2 dead letters of"), "{shown}");
        home.done(&["queue", "retry", &queue, &changed, "--why", "by hand"]).expect(0);
        bury(&home, &queue, "again");
        let newcomer = add(&home, &queue, "newcomer", &[]);
        bury(&home, &queue, "first");
        keys.write_all(b"y\n").unwrap();
        screen.read_to_string(&mut shown).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(13), "{shown}");
        assert!(shown.contains("put 1 back in line; 1 had changed since"), "{shown}");
        let state =
            |id: &str| json(home.done(&["queue", "show", &queue, id, "--json"]))["state"].as_str().unwrap().to_owned();
        assert_eq!([&counted, &changed, &newcomer].map(|id| state(id)), ["ready", "dead", "dead"]);
    }
}

#[test]
fn an_item_is_shown_with_its_history_as_a_table() {
    for (home, queue) in both() {
        let id = add(&home, &queue, "hello", &[]);
        let token = claim(&home, &queue);
        home.done(&["queue", "fail", &queue, "--token", &token, "--why", "no route", "--retry-in", "0s"]).expect(0);
        home.done(&["queue", "retry", &queue, &id, "--why", "the line is back", "--by", "ann"]).expect(0);
        let page = home.done(&["queue", "show", &queue, &id]).expect(0).stdout;
        let (fields, table) = page.split_once("\n\n").unwrap();
        assert!(fields.starts_with("id ") && fields.lines().nth(1).is_some_and(|l| !l.starts_with("at")), "{page}");
        let rows: Vec<&str> = table.lines().collect();
        assert!(rows[0].starts_with("AT ") && rows[0].contains("WHAT"), "{page}");
        let at =
            |text: &str| rows.iter().position(|row| row.contains(text)).unwrap_or_else(|| panic!("{text}: {page}"));
        assert!(at("failed") < at("retried"), "{page}");
        let time = |row: &&str| row.split_whitespace().next().unwrap().parse::<jiff::Timestamp>().unwrap();
        let times: Vec<jiff::Timestamp> = rows[1..].iter().map(time).collect();
        assert!(times.is_sorted(), "{page}");
    }
}

#[test]
fn until_done_waits_for_what_is_claimed_elsewhere_and_for_what_is_delayed() {
    for (home, queue) in both() {
        let held = add(&home, &queue, "held", &[]);
        let token = claim(&home, &queue);
        // Nothing can be claimed now.
        home.done(&["work", &queue, "--until-idle", "--", "false"]).expect(0);
        let worker =
            home.start(&["work", &queue, "--until-done", "-j", "2", "--", "sh", "-c", "cat >> seen; echo >> seen"]);
        add(&home, &queue, "second", &[]);
        eventually("the worker has done the second", || home.read("seen").contains("second\n"));
        home.done(&["queue", "fail", &queue, "--token", &token, "--why", "not mine", "--retry-in", "2s"]).expect(0);
        let ended = worker.end().expect(0);
        assert_eq!(home.read("seen"), "second\nheld\n", "{ended:?}");
        assert_eq!(json(home.done(&["queue", "show", &queue, &held, "--json"]))["state"], "done");
        // And where there is nothing at all.
        home.done(&["work", &queue, "--until-done", "--", "false"]).expect(0);
        home.done(&["work", &queue, "--until-done", "--until-idle", "--", "false"]).expect(64);
    }
}

#[test]
fn a_line_that_is_too_long_is_named_and_not_added() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("lines"), format!("one\n{}\nthree\n", "x".repeat(100_000))).unwrap();
    let mut add = home.leasehold(&["queue", "add", "mail", "--each-line"]);
    let added = Done::from(add.stdin(std::fs::File::open(home.path("lines")).unwrap()).output().unwrap()).expect(64);
    assert!(added.stderr.contains("line 2 of standard input has more than 49152 bytes"), "{added:?}");
    assert!(added.stdout.is_empty(), "{added:?}");
    let spool = format!("spool:{}", home.path("spool").display());
    let mut add = home.leasehold(&["queue", "add", &spool, "--each-line"]);
    let added = add.stdin(std::fs::File::open(home.path("lines")).unwrap()).output().unwrap();
    assert_eq!(Done::from(added).expect(0).stdout.lines().count(), 3, "a spool takes it");
}
