//! The real command on queues and spools: by hand and by `work`, fenced, drained, killed and stopped.
#![allow(clippy::unwrap_used)]

use leasehold_testbed::wait_until;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

struct Bench {
    folder: TempDir,
    queue: String,
}

/// A queue in sqlite, and one in a folder: every test runs on both.
fn benches() -> Vec<Bench> {
    ["mail".to_owned(), "spool".to_owned()]
        .into_iter()
        .map(|kind| {
            let folder = tempfile::tempdir().unwrap();
            let queue = if kind == "mail" { kind } else { format!("spool:{}/spool", folder.path().display()) };
            Bench { folder, queue }
        })
        .collect()
}

impl Bench {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEASEHOLD_")) {
            command.env_remove(name);
        }
        command.env("HOME", self.folder.path()).env("XDG_CONFIG_HOME", self.folder.path());
        command.env("LEASEHOLD_STORE", format!("sqlite:{}/x.db", self.folder.path().display()));
        command.current_dir(self.folder.path()).args(words).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The first word is the verb, the queue follows.
    fn queue(&self, verb: &str, words: &[&str]) -> Output {
        self.run(&[&["queue", verb, &self.queue], words].concat())
    }

    fn ok(&self, verb: &str, words: &[&str]) -> String {
        let output = self.queue(verb, words);
        assert!(output.status.success(), "{verb} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn show(&self, id: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok("show", &[id, "--json"])).unwrap()
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn work_feeds_each_item_to_the_command_and_keeps_its_result() {
    for bench in benches() {
        let ids: Vec<String> = ["one", "two"].iter().map(|text| bench.ok("add", &["--text", text])).collect();
        let script = "cat >> seen; cat \"$1\" >> seen; echo \" $LEASEHOLD_ATTEMPT $LEASEHOLD_EPOCH\" >> seen; \
                      test -n \"$LEASEHOLD_TOKEN\" && printf result-of-$LEASEHOLD_ITEM > $LEASEHOLD_RESULT";
        let output = bench.run(&["work", &bench.queue, "--until-idle", "--", "sh", "-c", script, "sh", "{}"]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        assert_eq!(bench.file("seen"), "oneone 1 1\ntwotwo 1 1\n");
        for id in &ids {
            let shown = bench.show(id);
            assert_eq!(shown["state"], "done");
            assert!(shown.to_string().contains(&format!("result-of-{id}")), "{shown}");
        }
        let nothing = bench.queue("claim", &[]);
        assert_eq!(code(&nothing), 11, "{}", said(&nothing));
    }
}

#[test]
fn a_stale_completion_is_refused_with_13_and_progress_with_12() {
    for bench in benches() {
        let id = bench.ok("add", &["--text", "x"]);
        let first = bench.ok("claim", &["--ttl", "3s", "--payload", "payload"]);
        assert_eq!(bench.file("payload"), "x");
        let second = bench.ok("claim", &["--ttl", "1m", "--wait", "10s"]);
        std::fs::write(bench.folder.path().join("more"), "{\"payload\": \"zombie\"}\n").unwrap();
        let late = bench.queue("complete", &["--token", &first, "--result", "zombie", "--follow-ups", "more"]);
        assert_eq!(code(&late), 13, "{}", said(&late));
        assert!(said(&late).contains("stale epoch refused") && said(&late).contains("held=1"), "{}", said(&late));
        assert_eq!(code(&bench.queue("fail", &["--token", &first, "--why", "late"])), 13);
        assert_eq!(code(&bench.queue("progress", &["--token", &first])), 12);
        bench.ok("progress", &["half", "--token", &second, "--checkpoint", "page 3"]);
        bench.ok("complete", &["--token", &second, "--result", "real"]);
        let shown = bench.show(&id);
        assert_eq!(shown["state"], "done");
        let all: serde_json::Value = serde_json::from_str(&bench.ok("ls", &["--json"])).unwrap();
        assert_eq!(all.as_array().unwrap().len(), 1, "a zombie added something: {all}");
    }
}

/// What is there is claimed however short the wait is, and nothing is left claimed by a wait that ends.
#[test]
fn a_short_wait_claims_what_is_there() {
    for bench in benches() {
        let none = bench.queue("claim", &["--wait", "0s"]);
        assert_eq!(code(&none), 11, "{}", said(&none));
        let id = bench.ok("add", &["--text", "x"]);
        for (wait, tried) in [("0s", 1), ("1ms", 2), ("2ms", 3)] {
            let token = bench.ok("claim", &["--wait", wait]);
            assert_eq!(bench.show(&id)["state"], "claimed");
            bench.ok("fail", &["--token", &token, "--why", "again", "--retry-in", "0s"]);
            assert_eq!(bench.show(&id)["tried"], tried);
        }
    }
}

#[test]
fn failures_become_dead_letters_and_operators_need_a_reason() {
    for bench in benches() {
        let id = bench.ok("add", &["--text", "x", "--attempts", "1"]);
        let output = bench.run(&["work", &bench.queue, "--until-idle", "--", "sh", "-c", "exit 3"]);
        assert_eq!(code(&output), 0);
        assert!(said(&output).contains("is a dead letter now: exit code 3"), "{}", said(&output));
        let shown = bench.show(&id);
        assert_eq!(shown["state"], "dead");
        assert!(shown.to_string().contains("exit code 3"), "{shown}");
        assert_eq!(code(&bench.queue("retry", &[&id])), 64);
        let before = shown["epoch"].as_u64().unwrap();
        bench.ok("retry", &[&id, "--why", "mended"]);
        let shown = bench.show(&id);
        assert!(shown["epoch"].as_u64().unwrap() > before && shown.to_string().contains("mended"), "{shown}");
        let token = bench.ok("hand-off", &[&id, "--why", "by hand", "--to", "ada"]);
        bench.ok("cancel", &[&id, "--why", "not needed"]);
        assert_eq!(code(&bench.queue("complete", &["--token", &token])), 13);
        assert_eq!(bench.show(&id)["state"], "cancelled");
    }
}

#[test]
fn four_lanes_do_everything_once_and_add_what_follows() {
    for bench in benches() {
        let mut add = bench.command(&["queue", "add", &bench.queue, "--each-line"]);
        let mut child = add.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let lines: String = (0..40).map(|n| format!("{n}\n")).collect();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        let script = "read n; echo $n > out-$n-$$; \
                      case $n in 7) echo '{\"payload\": \"100\"}' > $LEASEHOLD_FOLLOW_UPS;; esac";
        let output = bench.run(&["work", &bench.queue, "-j", "4", "--until-idle", "--", "sh", "-c", script]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        let output = bench.run(&["work", &bench.queue, "--until-idle", "--", "sh", "-c", script]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        let mut seen: Vec<u32> = std::fs::read_dir(bench.folder.path())
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
            .filter_map(|name| name.strip_prefix("out-")?.split('-').next()?.parse().ok())
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).chain([100]).collect::<Vec<_>>());
    }
}

/// SIGTERM lets the command finish; and nothing more is claimed.
#[test]
fn a_worker_that_is_asked_to_end_finishes_what_it_is_at() {
    for bench in benches() {
        let id = bench.ok("add", &["--text", "a"]);
        bench.ok("add", &["--text", "b"]);
        let script = "touch began; while ! test -e go; do sleep 0.05; done; echo done >> ended";
        let mut worker = bench.command(&["work", &bench.queue, "--", "sh", "-c", script]).spawn().unwrap();
        wait_for(&bench.folder.path().join("began"));
        rustix::process::kill_process(rustix::process::Pid::from_child(&worker), rustix::process::Signal::TERM)
            .unwrap();
        wait_until("the signal is taken", || !has_pending_signals(worker.id()));
        assert!(worker.try_wait().unwrap().is_none(), "it did not wait for its command");
        std::fs::write(bench.folder.path().join("go"), "").unwrap();
        assert_eq!(worker.wait().unwrap().code(), Some(0));
        assert_eq!(bench.file("ended"), "done\n");
        assert_eq!(bench.show(&id)["state"], "done");
        let ready: serde_json::Value = serde_json::from_str(&bench.ok("ls", &["--state", "ready", "--json"])).unwrap();
        assert_eq!(ready.as_array().unwrap().len(), 1);
    }
}

/// A stopped worker's command is ended before another can have its item; and the worker knows when it wakes up.
#[test]
fn a_stopped_worker_loses_its_item_and_its_command() {
    for bench in benches() {
        let id = bench.ok("add", &["--text", "x"]);
        let script = "echo $$ > pid; touch began; sleep 60; echo zombie > zombie";
        let words = ["work", &*bench.queue, "--ttl", "2s", "--items", "1", "--", "sh", "-c", script];
        let mut worker = bench.command(&words).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(&bench.folder.path().join("began"));
        let pid = rustix::process::Pid::from_child(&worker);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let token = bench.ok("claim", &["--ttl", "1m", "--wait", "20s"]);
        let child: i32 = bench.file("pid").trim().parse().unwrap();
        let child = rustix::process::Pid::from_raw(child).unwrap();
        let alive = rustix::process::test_kill_process(child);
        assert_eq!(alive, Err(rustix::io::Errno::SRCH), "the command outlived its claim");
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        assert_eq!(worker.wait().unwrap().code(), Some(75));
        assert!(bench.file("zombie").is_empty());
        bench.ok("complete", &["--token", &token]);
        assert_eq!(bench.show(&id)["state"], "done");
    }
}

#[test]
fn wrong_input_is_refused_and_nothing_is_made() {
    let bench = &benches()[0];
    for words in [
        &["queue", "add", "a/b", "--text", "x"][..],
        &["queue", "add", "spool:", "--text", "x"],
        &["queue", "add", "mail", "--text", "x", "--priority", "10"],
        &["queue", "add", "mail", "--text", "x", "--key", "a b"],
        &["queue", "add", "mail", "--text", "x", "--delay", "soon"],
        &["queue", "show", "mail", "../../etc/passwd"],
        &["queue", "ls", "mail", "--state", "lost"],
        &["queue", "complete", "mail", "--token", "x:1"],
        &["queue", "purge", "mail", "--older-than", "1"],
        &["work", "mail", "-j", "0", "--", "true"],
    ] {
        let output = bench.run(words);
        assert_eq!(code(&output), 64, "{words:?}: {}", said(&output));
    }
    assert!(!bench.folder.path().join("x.db").exists(), "a refused command made a store");
    let large = "x".repeat(49_153);
    std::fs::write(bench.folder.path().join("large"), large).unwrap();
    let output = bench.run(&["queue", "add", "mail", "--from", "large"]);
    assert_eq!(code(&output), 64);
    assert!(said(&output).contains("more than 49152 bytes"), "{}", said(&output));
}

fn wait_for(path: &Path) {
    wait_until(&format!("{} is there", path.display()), || path.exists());
}

/// Whether a signal was sent to a process that has not taken it yet.
fn has_pending_signals(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    !pending.trim().trim_matches('0').is_empty()
}

/// The example of docs/queues.md, as a shell runs it.
#[test]
fn the_pages_example_by_hand_completes_what_went_well_and_fails_what_did_not() {
    let bench = &benches()[0];
    let docs = include_str!("../../../docs/queues.md");
    let example = docs.split("<!-- example: by hand -->\n```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let run = |script: &str, store: &str| {
        let plain = bench.command(&[]);
        let bin = Path::new(plain.get_program()).parent().unwrap().display().to_string();
        std::fs::write(bench.folder.path().join("send.sh"), script).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("chmod +x send.sh\n{example}")]).current_dir(bench.folder.path());
        shell
            .env("PATH", format!("{bin}:/usr/bin:/bin"))
            .env("LEASEHOLD_STORE", store)
            .env("HOME", bench.folder.path());
        code(&shell.output().unwrap())
    };
    let store = format!("sqlite:{}/x.db", bench.folder.path().display());
    let (good, bad) = (bench.ok("add", &["--text", "good"]), bench.ok("add", &["--text", "bad", "--attempts", "1"]));
    assert_eq!(run("#!/bin/sh\ngrep good \"$1\"\n", &store), 0);
    assert_eq!(run("#!/bin/sh\ngrep -q good \"$1\"\n", &store), 0);
    assert_eq!((&bench.show(&good)["state"], &bench.show(&bad)["state"]), (&"done".into(), &"dead".into()));
    assert!(bench.show(&bad)["why"].as_str().unwrap().contains("exit code 1"), "{}", bench.show(&bad));
    assert_eq!(run("#!/bin/sh\ntouch ran\n", &store), 0, "nothing to claim is no failure");
    assert_eq!(run("#!/bin/sh\ntouch ran\n", "nonsense"), 64, "any other code is handed on");
    assert!(!bench.folder.path().join("ran").exists());
}

#[test]
fn a_queue_that_is_not_there_yet_is_said_to_be_missing() {
    let bench = &benches()[0];
    bench.ok("add", &["--text", "x"]);
    let work = |queue: &str, jobs: &str| bench.run(&["work", queue, "-j", jobs, "--until-idle", "--", "cat"]);
    for jobs in ["1", "2"] {
        let typo = said(&work("mial", jobs));
        assert_eq!(typo.matches("there is no queue `mial` yet").count(), 1, "{typo}");
    }
    assert!(!said(&work("mail", "1")).contains("there is no queue"));
    let listed = bench.run(&["queue", "ls", "mial"]);
    assert!(code(&listed) == 0 && said(&listed).contains("there is no queue `mial` yet"), "{}", said(&listed));
    assert!(said(&bench.run(&["queue", "ls", "mail", "--state", "dead"])).contains("no items"));
}

#[test]
fn a_wrong_token_is_refused_in_the_words_of_queues() {
    for bench in benches() {
        bench.ok("add", &["--text", "x"]);
        let mine = bench.ok("claim", &[]);
        let lease = String::from_utf8(bench.run(&["acquire", "nightly"]).stdout).unwrap();
        let refused = |words: &[&str], says: &str| {
            let output = bench.run(words);
            assert!(code(&output) == 64 && said(&output).contains(says), "{words:?}: {}", said(&output));
        };
        refused(&["queue", "complete", &bench.queue], "no token: run this inside `leasehold work`, or give --token");
        refused(&["queue", "complete", &bench.queue], "what `leasehold queue claim` printed");
        refused(
            &["queue", "complete", &bench.queue, "--token", lease.trim()],
            "it belongs to a lease; give the one that",
        );
        refused(&["queue", "fail", "other", "--why", "x", "--token", &mine], "it belongs to ");
        refused(&["queue", "fail", "other", "--why", "x", "--token", &mine], ", not to queue `other`");
        std::fs::write(bench.folder.path().join("more"), "{\"payload\": \"a\"}\nnonsense\n").unwrap();
        let follow = ["queue", "complete", &bench.queue, "--token", &mine, "--follow-ups", "more"];
        refused(&follow, "invalid follow-ups: line 2 is not JSON; use one JSON object per line");
        std::fs::write(bench.folder.path().join("more"), "{\"text\": \"a\"}\n").unwrap();
        refused(&follow, "invalid follow-ups: line 1: unknown field `text`");
        refused(&["work", &bench.queue, "-j", "0", "--", "cat"], "use 1 to 256");
    }
}
