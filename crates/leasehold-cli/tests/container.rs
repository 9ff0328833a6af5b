//! `leasehold schedule` as the first process of a container: a PID namespace with a process table of its own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::slots::{jobs, runs};
use common::{Home, On, Running, descendants, eventually, signal};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Kills its own supervisor and dead-man, waits until it has fallen to process 1, and ends. The dead-man may live long
/// enough after the supervisor to ask it to end, so it ignores that.
const ORPHAN: &str = "[ -e orphan ] && exit; trap '' TERM; echo > orphan
read -r _ _ _ supervisor _ < /proc/$PPID/stat
kill -9 $supervisor $PPID
while read -r _ _ _ parent _ < /proc/$$/stat; [ $parent != 1 ]; do sleep 0.05; done
echo $$ > fallen";

const LONG: &str = "[ -e long ] && exit; echo > long; while [ ! -e go ]; do sleep 0.05; done; echo > done";

/// A scheduler that is process 1.
struct Container {
    unshare: Running,
    /// Its number out here.
    scheduler: i32,
}

impl Container {
    /// None where that is not possible. CI must let it.
    fn start(home: &Home) -> Option<Self> {
        const NAMESPACE: [&str; 4] = ["--pid", "--fork", "--mount-proc", "--kill-child"];
        let tried = Command::new("unshare").args(NAMESPACE).arg("true").stderr(Stdio::null()).status();
        if !tried.is_ok_and(|status| status.success()) {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "no PID namespace here");
            eprintln!("skipped: a PID namespace is not possible here");
            return None;
        }
        let plain = home.leasehold(&["schedule"]);
        let mut command = Command::new("unshare");
        command.args(NAMESPACE).arg(plain.get_program()).args(["schedule"]).current_dir(home.folder.path());
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let log = std::fs::File::create(home.path("log")).unwrap();
        command.env("LEASEHOLD_LOG_FORMAT", "json").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let unshare = Running::from(command.spawn().unwrap());
        eventually("it schedules", || home.read("log").contains("scheduling"));
        let scheduler = descendants(unshare.pid())[0];
        Some(Container { unshare, scheduler })
    }

    /// The entry of a process in the container's own table; it is there until the process is collected.
    fn entry(&self, number: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/proc/{number}/stat", self.scheduler))
    }
}

#[test]
fn a_scheduler_that_is_process_1_drains_reaps_and_logs_json() {
    let home = Home::new(On::Sqlite);
    let job = |name: &str, command: &str| {
        format!("[[job]]\nname = '{name}'\nevery = '1s'\nttl = '3s'\ncommand = '''{command}'''\n")
    };
    jobs(&home, &[job("tick", "echo $LEASEHOLD_SLOT >> ticks"), job("orphan", ORPHAN), job("long", LONG)].concat());
    let Some(container) = Container::start(&home) else { return };
    let status = std::fs::read_to_string(format!("/proc/{}/status", container.scheduler)).unwrap();
    let numbers = status.lines().find(|line| line.starts_with("NSpid:")).unwrap();
    assert!(numbers.ends_with("\t1"), "{numbers}");

    // What falls to process 1 is collected when it has ended.
    let orphan = home.words("fallen").remove(0);
    eventually("the orphan is collected", || !container.entry(&orphan).exists());
    assert!(container.entry("1").exists());
    eventually("nobody is left dead", || {
        descendants(container.scheduler).into_iter().all(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
        })
    });
    eventually("its slot is run again", || home.read("log").contains("was interrupted under epoch 1"));
    // Its own runs are not taken from who waits for them.
    eventually("jobs run on", || home.read("ticks").lines().count() >= 3);

    // SIGTERM: nothing new is begun, and what runs is waited for.
    eventually("the long job runs", || home.path("long").exists());
    signal(container.scheduler, "TERM");
    eventually("it is told", || home.read("log").contains("stopping once the current runs finish"));
    assert!(!home.path("done").exists());
    assert!(common::is_alive(container.scheduler));
    home.touch("go");
    container.unshare.end().expect(0);
    assert!(home.path("done").exists(), "the long job was cut off");

    let log = home.read("log");
    let told: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    let end = |job: &str, outcome: &str| told.iter().any(|line| line["job"] == job && line["outcome"] == outcome);
    assert!(end("tick", "succeeded") && end("long", "succeeded") && end("orphan", "lost"), "{log}");
    assert_eq!(runs(&home, "long").last().unwrap()["fate"], "succeeded");
    let failed = told.iter().filter(|line| line["outcome"] == "failed").count();
    assert_eq!(failed, 0, "{log}");
}
