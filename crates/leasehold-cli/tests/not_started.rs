//! Commands that cannot be started now: what did not start has not used up its slot, and nobody waits for what was not
//! heard.

#![allow(clippy::unwrap_used)]

mod common;

use common::slots::{jobs, rare_slot, runs};
use common::{Done, Home, On, Running, descendants, eventually, is_alive, signal};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A program that cannot be started as long as the file that is returned is open for writing.
fn busy_program(home: &Home) -> File {
    std::fs::write(home.path("job.sh"), "#!/bin/sh\necho $LEASEHOLD_SLOT >> ran\n").unwrap();
    std::fs::set_permissions(home.path("job.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    File::options().append(true).open(home.path("job.sh")).unwrap()
}

/// Where nobody listens.
fn nobody() -> String {
    format!("http://{}", std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

#[test]
fn a_slot_whose_command_cannot_be_started_now_stays_open_however_often_it_is_tried() {
    let home = Home::new(On::Sqlite);
    let busy = busy_program(&home);
    let line = rare_slot();
    let trigger = ["run", "job", "--slot", &line, "--slot-max-age", "100d", "--", "./job.sh"];
    for tries in 1..=4 {
        let tried = home.done(&trigger).expect(69);
        assert!(tried.stderr.contains("cannot run `./job.sh`"), "{tried:?}");
        let found = runs(&home, "job");
        assert_eq!((&found[0]["fate"], &found[0]["tries"]), (&"not_started".into(), &tries.into()), "{found:?}");
        assert!(found[0]["why"].as_str().unwrap().contains("Text file busy"), "{found:?}");
        assert_eq!(home.history("job").last().unwrap()["outcome"], "not_started");
    }
    drop(busy);
    home.done(&trigger).expect(0);
    assert_eq!((runs(&home, "job")[0]["fate"].as_str(), home.words("ran").len()), (Some("succeeded"), 1));
    assert_eq!(home.count("job", "failed"), 0);
}

#[test]
fn a_slot_whose_guard_is_away_is_retried_and_then_stays_open() {
    let home = Home::new(On::Sqlite);
    let (line, guard) = (rare_slot(), nobody());
    let slot = ["run", "job", "--slot", &line, "--slot-max-age", "100d", "--retries", "2", "--backoff", "10ms"];
    let command = ["--", "sh", "-c", "echo $LEASEHOLD_SLOT >> ran"];
    for _ in 0..4 {
        let away = home.done(&[&slot[..], &["--guard", &guard], &command[..]].concat()).expect(69);
        assert!(away.stderr.contains("try 2 of 3"), "{away:?}");
    }
    let found = runs(&home, "job");
    assert_eq!((&found[0]["fate"], &found[0]["tries"]), (&"not_started".into(), &12.into()), "{found:?}");
    assert!(found[0]["why"].as_str().unwrap().contains(&guard), "{found:?}");
    home.done(&[&slot[..], &command[..]].concat()).expect(0);
    assert_eq!((runs(&home, "job")[0]["fate"].as_str(), home.words("ran").len()), (Some("succeeded"), 1));
}

#[test]
fn a_slot_that_was_run_once_has_failed_though_its_next_try_could_not_be_started() {
    let home = Home::new(On::Sqlite);
    let line = rare_slot();
    std::fs::write(home.path("job.sh"), "#!/bin/sh\necho >> ran\nexit 5\n").unwrap();
    std::fs::set_permissions(home.path("job.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let slot = ["run", "job", "--slot", &line, "--slot-max-age", "100d", "--retries", "1", "--backoff", "2s"];
    let run = home.start(&[&slot[..], &["--", "./job.sh"]].concat());
    home.words("ran");
    // The shell that reads it does not mind; starting it again fails.
    let busy = File::options().append(true).open(home.path("job.sh")).unwrap();
    let done = run.end().expect(5);
    drop(busy);
    assert!(done.stderr.contains("the last try could not be started"), "{done:?}");
    assert_eq!((runs(&home, "job")[0]["fate"].as_str(), home.read("ran").as_str()), (Some("failed"), "\n"));
}

#[test]
fn the_scheduler_runs_a_slot_that_could_not_be_started_when_it_can() {
    let home = Home::new(On::Sqlite);
    let busy = busy_program(&home);
    jobs(&home, "[[job]]\nname = 'job'\nevery = '2s'\nargv = ['./job.sh']\n");
    let scheduler = home.start(&["schedule"]);
    let fate_is = |fate: &str, slot: Option<&str>| {
        let json = home.done(&["runs", "job", "--json"]);
        let found: Vec<serde_json::Value> = serde_json::from_str(&json.stdout).unwrap_or_default();
        let found = found.into_iter().filter(|run| slot.is_none_or(|slot| run["slot"] == slot));
        found.filter(|run| run["fate"] == fate).map(|run| run["slot"].as_str().unwrap().to_owned()).next_back()
    };
    let mut first = None;
    eventually("a slot could not be started", || {
        first = fate_is("not_started", None);
        first.is_some()
    });
    drop(busy);
    eventually("that slot is run", || fate_is("succeeded", first.as_deref()).is_some());
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    assert_eq!(home.words("ran")[0], first.unwrap(), "it comes first");
}

#[test]
fn a_run_that_refuses_what_it_was_told_has_failed_and_runs_says_why() {
    let home = Home::new(On::Sqlite);
    // The folder is not there, which only the run finds out.
    jobs(&home, "[[job]]\nname = 'job'\nevery = '1s'\nguards = ['file:nowhere/out.json']\ncommand = 'true'\n");
    let log = File::create(home.path("log")).unwrap();
    let daemon = Running::from(home.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
    let told = " could not be started (exit code 64), and counts as failed";
    eventually("it is told", || home.read("log").contains(told));
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    assert!(home.read("log").contains("does not exist; create it first"), "{}", home.read("log"));
    let all = runs(&home, "job");
    let failed = all.iter().find(|run| run["fate"] == "failed").unwrap();
    let why = "`run` refused what it was told, such as a guard or a setting; the scheduler's log says more";
    assert_eq!((&failed["why"], &failed["exit"]), (&why.into(), &64.into()), "{failed}");
}

#[test]
fn what_the_supervisor_and_the_dead_man_say_is_said_again_when_it_could_not_be() {
    for nth in 1..=3 {
        let home = Home::new(On::Dir);
        let plain = home.leasehold(&["run", "job", "--ttl", "20s", "--", "sh", "-c", "echo ran; exit 3"]);
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o"]).arg(home.path("trace")).args(["-e", "trace=sendto", "-e"]);
        traced.arg(format!("inject=sendto:error=ENOBUFS:when={nth}")).arg("--");
        traced.arg(plain.get_program()).args(plain.get_args()).current_dir(home.folder.path()).env_clear();
        traced.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let done = Done::from(traced.output().unwrap()).expect(3);
        assert_eq!(done.stdout, "ran\n", "{nth}: {}", home.read("trace"));
        assert!(nth > 2 || home.read("trace").contains("INJECTED"), "{}", home.read("trace"));
    }
}

#[test]
fn a_backfill_whose_job_is_held_for_longer_than_it_waits_has_not_run_its_slot() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "ttl = '2s'\n[[job]]\nname = 'job'\nevery = '60s'\ncommand = 'echo >> ran'\n");
    let minute = leasehold_system::clock::wall_ms() as i64 / 60_000 - 3;
    let slot = jiff::Timestamp::from_second(minute * 60).unwrap().to_string();
    let backfill = ["schedule", "backfill", "job", "--from", &slot, "--to", &slot, "--yes"];
    let token = home.done(&["acquire", "job", "--ttl", "1h"]).expect(0).stdout;
    // It waits for a day: what it starts is taken and started again with less patience.
    let waiting = home.start(&backfill);
    let mut words: Vec<String> = Vec::new();
    eventually("the run is started", || {
        let child = descendants(waiting.pid()).first().copied().unwrap_or(0);
        let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words = line.trim_end_matches('\0').split('\0').map(String::from).collect();
        words.get(1).is_some_and(|verb| verb == "run")
    });
    let children = descendants(waiting.pid());
    signal(waiting.pid(), "TERM");
    let ended = waiting.end().expect(143);
    assert!(ended.stderr.contains("waiting for `job`, which is held by"), "{ended:?}");
    assert!(!children.iter().any(|pid| is_alive(*pid)), "who ends passes that on");
    let words: Vec<String> = words[1..].iter().map(|word| word.replace("--wait=1d", "--wait=1s")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let skipped = || home.done(&words).code;
    eventually("the lease of the one that was killed is over", || skipped() == 11);
    home.done(&["release", "--token", token.trim()]).expect(0);
    home.done(&["schedule", "pause", "job", "--why", "a long week-end"]).expect(0);
    let paused = home.done(&backfill).expect(11);
    assert!(paused.stderr.contains("a long week-end") && paused.stderr.contains("schedule resume job"), "{paused:?}");
    home.done(&["schedule", "resume", "job", "--why", "over"]).expect(0);
    home.done(&backfill).expect(0);
    assert_eq!(home.read("ran"), "\n");
    home.done(&backfill).expect(0);
    assert_eq!(home.read("ran"), "\n", "once is enough");
}

#[test]
fn a_slot_that_could_not_be_begun_has_failed_everywhere_also_when_newer_ones_came() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = \"job\"\nevery = \"1s\"\ncwd = \"nowhere\"\ncommand = \"true\"\n");
    let scheduler = home.start(&["schedule"]);
    eventually("three slots have come", || {
        let found = home.done(&["runs", "job", "--json"]);
        found.code == 0 && serde_json::from_str::<Vec<serde_json::Value>>(&found.stdout).unwrap().len() > 2
    });
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    let fates: Vec<String> = runs(&home, "job").iter().map(|run| run["fate"].as_str().unwrap().to_owned()).collect();
    assert!(fates.iter().all(|fate| fate == "failed"), "{fates:?}");
    assert_eq!(home.count("job", "failed"), fates.len() as u64);
    assert!(runs(&home, "job").iter().all(|run| run["why"].as_str().is_some_and(|why| why.contains("nowhere"))));
    // All jobs together, the newest first, with the reason below.
    home.done(&["run", "other", "--slot", "@yearly", "--slot-max-age", "400d", "--", "true"]).expect(0);
    let all = home.done(&["runs"]).expect(0).stdout;
    let first = all.lines().nth(1).unwrap();
    assert!(first.starts_with("job  ") && first.contains("  failed  "), "{all}");
    assert!(all.contains("\nother  ") && all.contains(": failed: job `job`: its cwd"), "{all}");
    let some = home.done(&["runs", "--limit", "2", "--json"]).expect(0);
    let some: Vec<serde_json::Value> = serde_json::from_str(&some.stdout).unwrap();
    assert_eq!(some.iter().map(|run| run["job"].as_str().unwrap()).collect::<Vec<_>>(), ["job", "job"]);
}
