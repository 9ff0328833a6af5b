//! What the exit code says when a disk fails in the middle: 69 is *surely nothing was applied*, 0 is *done, and it lasts*.
//!
//! `strace` makes system calls of the real binary fail, each of them in turn.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// More syncs than any of the commands below makes.
const SYNCS: usize = 60;

/// Makes what a command works on; gives its words, and the file that it reads.
type Verb = fn(&Home, &str) -> (Vec<String>, Option<&'static str>);

/// The command under `strace`, with the given options.
fn traced(home: &Home, options: &[&str], args: &[&str], input: Option<&Path>) -> Done {
    let plain = home.leasehold(args);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-y"]).args(options).arg("--").arg(plain.get_program()).args(args);
    command.current_dir(home.folder.path()).env_clear();
    command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.stdin(input.map_or_else(Stdio::null, |path| std::fs::File::open(path).unwrap().into()));
    Done::from(command.output().unwrap())
}

/// The command while every sync from the nth on fails.
fn failing(home: &Home, nth: usize, args: &[&str], input: Option<&Path>) -> Done {
    let inject = format!("inject=fsync:error=EIO:when={nth}+");
    traced(home, &["-o", "/dev/null", "-e", "trace=fsync", "-e", &inject], args, input)
}

/// The command while every sync of this folder fails.
fn failing_at(home: &Home, folder: &str, args: &[&str]) -> Done {
    let folder = home.path(folder);
    let only = ["-o", "/dev/null", "-P", folder.to_str().unwrap(), "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"];
    traced(home, &only, args, None)
}

/// The command, and how often it synced this folder.
fn syncs(home: &Home, folder: &str, args: &[&str]) -> (Done, usize) {
    let log = home.path("syncs");
    let done = traced(home, &["-o", log.to_str().unwrap(), "-e", "trace=fsync"], args, None);
    let shown = format!("{}>", home.path(folder).display());
    (done, home.read("syncs").lines().filter(|line| line.contains(&shown)).count())
}

/// Every item, as far as an order changes it.
fn items(home: &Home, queue: &str) -> Vec<String> {
    let found: Vec<Value> =
        serde_json::from_str(&home.done(&["queue", "ls", queue, "--json"]).expect(0).stdout).unwrap();
    let mut items: Vec<String> =
        found.iter().map(|item| format!("{} {} {}", item["id"], item["state"], item["epoch"])).collect();
    items.sort();
    items
}

/// Runs the command with the disk failing from each of its syncs on. `verb` prepares what it works on.
fn surely_nothing_means_nothing(queue: fn(&Home) -> String, verb: Verb) {
    for nth in 1..=SYNCS {
        let home = Home::new(On::Dir);
        let queue = queue(&home);
        home.done(&["queue", "add", &queue, "--text", "first"]).expect(0);
        let (args, input) = verb(&home, &queue);
        let before = items(&home, &queue);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = failing(&home, nth, &args, input.map(|name| home.path(name)).as_deref());
        let after = items(&home, &queue);
        match done.code {
            // It makes fewer syncs than this, so every one of them has failed once.
            0 => return assert_ne!(before, after, "nth={nth}: {done:#?}"),
            69 => assert_eq!(before, after, "nth={nth}: it was applied: {done:#?}"),
            70 => {}
            code => panic!("nth={nth}: exit code {code}: {done:#?}"),
        }
    }
    panic!("more syncs than were tried");
}

fn in_store(_: &Home) -> String {
    "q".into()
}

fn in_spool(home: &Home) -> String {
    format!("spool:{}", home.path("spool").display())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn an_addition_in_doubt_is_not_called_nothing() {
    for queue in [in_store, in_spool] {
        surely_nothing_means_nothing(queue, |_, queue| (words(&["queue", "add", queue, "--text", "second"]), None));
    }
}

#[test]
fn lines_that_were_added_are_reported() {
    for queue in [in_store, in_spool] {
        surely_nothing_means_nothing(queue, |home, queue| {
            std::fs::write(home.path("lines"), "1\n2\n3\n").unwrap();
            (words(&["queue", "add", queue, "--each-line"]), Some("lines"))
        });
    }
    let home = Home::new(On::Dir);
    home.done(&["queue", "add", "q", "--text", "first"]).expect(0);
    std::fs::write(home.path("lines"), "1\n2\n3\n").unwrap();
    let stopped = (4..SYNCS)
        .map(|nth| failing(&home, nth, &["queue", "add", "q", "--each-line"], Some(&home.path("lines"))))
        .find(|done| done.stdout.lines().count() == 2)
        .expect("no sync was that of the third line");
    assert_eq!(stopped.code, 70, "{stopped:#?}");
    assert!(
        stopped.stderr.contains("the first 2 lines were added") && stopped.stderr.contains("line 3"),
        "{stopped:#?}"
    );
}

#[test]
fn a_completion_whose_follow_ups_are_missing_is_not_called_nothing() {
    surely_nothing_means_nothing(in_store, |home, queue| {
        std::fs::write(home.path("follow-ups"), "{\"payload\":\"f\"}\n").unwrap();
        let token = home.done(&["queue", "claim", queue, "--ttl", "1h"]).expect(0).stdout.trim().to_owned();
        let path = home.path("follow-ups").display().to_string();
        (words(&["queue", "complete", queue, "--token", &token, "--follow-ups", &path]), None)
    });
}

#[test]
fn a_spools_order_without_its_note_is_not_called_nothing() {
    for order in [&["hand-off", "--to", "b"][..], &["cancel"], &["retry"]] {
        // A function pointer takes nothing along.
        let verb: Verb = match order[0] {
            "hand-off" => |home, queue| (ordered(home, queue, &["hand-off", "--to", "b"]), None),
            "cancel" => |home, queue| (ordered(home, queue, &["cancel"]), None),
            _ => |home, queue| (ordered(home, queue, &["retry"]), None),
        };
        surely_nothing_means_nothing(in_spool, verb);
    }
}

fn ordered(home: &Home, queue: &str, order: &[&str]) -> Vec<String> {
    let found: Vec<Value> =
        serde_json::from_str(&home.done(&["queue", "ls", queue, "--json"]).expect(0).stdout).unwrap();
    let id = found[0]["id"].as_str().unwrap().to_owned();
    let mut args = words(&["queue", order[0], queue, &id, "--why", "w"]);
    args.extend(words(&order[1..]));
    args
}

/// The first try left something visible that may not last. The second must not take it for done unseen.
#[test]
fn what_is_so_already_is_confirmed_by_a_new_write() {
    let home = Home::new(On::Dir);
    home.done(&["queue", "add", "q", "--text", "first"]).expect(0);
    let held = home.done(&["acquire", "r", "--ttl", "1h"]).expect(0).stdout.trim().to_owned();
    home.done(&["acquire", "p", "--ttl", "1h"]).expect(0);
    for (folder, args) in [
        ("leases/item/q+k.k", &["queue", "add", "q", "--key", "k", "--text", "pay"][..]),
        ("leases/lease/p", &["pause", "p", "--why", "w"]),
        ("leases/lease/p", &["resume", "p", "--why", "w"]),
        ("leases/lease/r", &["release", "--token", &held]),
    ] {
        failing_at(&home, folder, args).expect(70);
        failing_at(&home, folder, args).expect(70);
        let (done, count) = syncs(&home, folder, args);
        done.expect(0);
        assert!(count > 0, "{args:?}: answered without a write that was synced");
    }
}

#[test]
fn a_spools_key_whose_item_may_not_last_is_not_called_added() {
    let home = Home::new(On::Dir);
    let queue = in_spool(&home);
    home.done(&["queue", "add", &queue, "--text", "first"]).expect(0);
    for (folder, key) in [("spool/ready", "one"), ("spool/keys", "two")] {
        failing_at(&home, folder, &["queue", "add", &queue, "--key", key, "--text", "pay"]).expect(70);
        assert_eq!(items(&home, &queue).len(), 1, "{folder}: what could not be synced was left in line");
        // The key of one that was taken back is free again at once, or when the janitor has seen that nobody is at it.
        let again = home.done(&["queue", "add", &queue, "--key", key, "--text", "pay"]);
        let is_new = again.code == 0 && items(&home, &queue).len() == 2;
        assert!(is_new || again.code == 69, "{folder}: {again:#?}");
    }
}
