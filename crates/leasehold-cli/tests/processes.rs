//! `run` and the process tree: everything is dead before the lease can be granted again.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, Way, descendants, eventually, is_alive, signal, within};
use leasehold_core::clock::{Clock, SystemClock};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A job that forks, double-forks and leaves its session, and ignores SIGTERM throughout. Each notes its number.
const FAMILY: &str = "trap '' TERM; \
    (trap '' TERM; echo $BASHPID >> family; exec sleep 1000) & \
    setsid bash -c 'trap \"\" TERM; echo $$ >> family; (setsid bash -c \"echo \\$\\$ >> family; exec sleep 1000\" &) ; exec sleep 1000' & \
    echo $$ >> family; echo ready > ready; sleep 1000";

struct Family {
    home: Home,
    run: common::Running,
    pids: Vec<i32>,
}

fn family(way: Way, args: &[&str]) -> Family {
    let home = Home::new(On::Sqlite).ending_by(way);
    let mut all = vec!["run", "job"];
    all.extend(args);
    all.extend(["--", "bash", "-c", FAMILY]);
    let run = home.start(&all);
    home.words("ready");
    eventually("four processes have started", || home.read("family").lines().count() == 4);
    let pids: Vec<i32> = home.read("family").lines().map(|line| line.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    Family { home, run, pids }
}

impl Family {
    /// Waits for the run, and nobody of the family has outlived it.
    fn end(self) -> common::Done {
        let done = self.run.end();
        let alive: Vec<_> = self.pids.iter().filter(|pid| is_alive(**pid)).collect();
        assert!(alive.is_empty(), "still alive: {alive:?}");
        done
    }

    /// Nobody else is granted the lease while any of the family lives.
    fn assert_dead_before_next_grant(&self) {
        let next = self.home.done(&["run", "job", "--wait", "20s", "--", "true"]).expect(0);
        let alive: Vec<_> = self.pids.iter().filter(|pid| is_alive(**pid)).collect();
        assert!(alive.is_empty(), "still alive: {alive:?}");
        assert_eq!(next.stderr, "");
    }
}

#[test]
fn a_revoked_lease_kills_the_whole_tree_and_exits_75() {
    for way in Way::BOTH {
        let family = family(way, &["--ttl", "3s"]);
        family.home.done(&["revoke", "job", "--why", "drill"]).expect(0);
        let done = family.end().expect(75);
        assert!(done.stderr.contains("lost `job:1`"), "{done:?}");
    }
}

#[test]
fn a_stopped_supervisor_does_not_keep_its_command_alive() {
    for way in Way::BOTH {
        let family = family(way, &["--ttl", "2s"]);
        signal(family.run.pid(), "STOP");
        family.assert_dead_before_next_grant();
        signal(family.run.pid(), "CONT");
        family.end().expect(75);
    }
}

#[test]
fn a_killed_supervisor_does_not_keep_its_command_alive() {
    for way in Way::BOTH {
        let family = family(way, &["--ttl", "2s"]);
        signal(family.run.pid(), "KILL");
        family.assert_dead_before_next_grant();
    }
}

#[test]
fn a_killed_dead_man_does_not_keep_the_command_alive() {
    for way in Way::BOTH {
        let family = family(way, &["--ttl", "3s"]);
        signal(descendants(family.run.pid())[0], "KILL");
        family.end().expect(75);
    }
}

#[test]
fn a_stopped_dead_man_does_not_keep_the_command_alive() {
    for way in Way::BOTH {
        let family = family(way, &["--ttl", "2s"]);
        signal(descendants(family.run.pid())[0], "STOP");
        // Nothing is lost while the store answers; the dead-man is only missed when it is needed.
        family.home.done(&["revoke", "job", "--why", "drill"]).expect(0);
        family.end().expect(75);
    }
}

#[test]
fn a_store_that_goes_away_kills_the_command_before_the_deadline_by_the_local_clock() {
    let home = Home::new(On::Dir);
    let started = SystemClock.now();
    let run = home.start(&["run", "job", "--ttl", "2s", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
    let pid: i32 = home.words("started")[0].parse().unwrap();
    std::fs::rename(home.path("leases"), home.path("away")).unwrap();
    let cut = SystemClock.now();
    within(Duration::from_secs(3), "the command is dead", || !is_alive(pid));
    // The last renewal was sent before the cut, so trust ended at most a ttl after it.
    assert!(SystemClock.now() <= cut + Duration::from_secs(2), "started {started:?}");
    let done = run.end().expect(75);
    assert!(done.stderr.contains("could not be renewed in time"), "{done:?}");
}

#[test]
fn a_dead_man_that_is_ahead_of_the_lease_runs_nothing_if_the_supervisor_goes() {
    let home = Home::new(On::Sqlite);
    let trust = (SystemClock.now() + Duration::from_secs(60)).as_nanos();
    // As `run` does it; the last ones are orders that mean nothing before it has begun.
    for orders in ["".into(), format!("set LEASEHOLD_NAME=job\ntrust {trust}\nsignal 15\nstop 0\n")] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
        let channel = theirs.as_raw_fd().to_string();
        let mut dead_man = home.leasehold(&["__dead-man", &channel, "-", "touch", "ran"]).spawn().unwrap();
        drop(theirs);
        ours.write_all(orders.as_bytes()).unwrap();
        drop(ours);
        assert!(dead_man.wait().unwrap().success());
        assert!(!home.path("ran").exists(), "{orders:?}");
    }
}

#[test]
fn what_a_command_leaves_behind_is_stopped_before_the_release() {
    let home = Home::new(On::Sqlite);
    let job = "setsid sh -c 'echo $$ > left; exec sleep 1000' & while [ ! -s left ]; do sleep 0.01; done; exit 4";
    let done = home.done(&["run", "job", "--", "sh", "-c", job]).expect(4);
    let left: i32 = home.words("left")[0].parse().unwrap();
    assert!(!is_alive(left));
    assert!(done.stderr.contains("1 background process of `job` was still there"), "{done:?}");
}

#[test]
fn a_command_that_ends_in_time_on_sigterm_is_not_killed() {
    let home = Home::new(On::Sqlite);
    let job = "trap 'echo cleaned > cleaned; exit 0' TERM; echo ready > ready; while :; do sleep 0.02; done";
    let run = home.start(&["run", "job", "--ttl", "3s", "--progress-timeout", "500ms", "--", "sh", "-c", job]);
    home.words("ready");
    let done = run.end().expect(75);
    assert_eq!(home.words("cleaned"), ["cleaned"]);
    assert!(done.stderr.contains("no progress was seen"), "{done:?}");
}

#[test]
fn signals_are_passed_on() {
    for (name, code) in [("TERM", 7), ("INT", 8), ("HUP", 9), ("USR1", 10)] {
        let home = Home::new(On::Sqlite);
        let job = "trap 'exit 7' TERM; trap 'exit 8' INT; trap 'exit 9' HUP; trap 'exit 10' USR1; \
                   echo ready > ready; while :; do sleep 0.02; done";
        let run = home.start(&["run", "job", "--", "sh", "-c", job]);
        home.words("ready");
        signal(run.pid(), name);
        run.end().expect(code);
        assert_eq!(home.show("job")["state"], "free");
    }
}

#[test]
fn a_signal_while_waiting_ends_at_once_and_leaves_nothing_held() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mut waiting = home.start(&["run", "job", "--wait", "10m", "--", "touch", "ran"]);
        eventually("it waits", || {
            assert!(!waiting.is_over());
            std::fs::read_to_string(format!("/proc/{}/stat", waiting.pid())).is_ok_and(|s| s.contains(") S "))
        });
        // Signals are listened to from before the first look at the store.
        eventually("it ended", || {
            signal(waiting.pid(), name);
            waiting.is_over()
        });
        assert!([code].contains(&waiting.end().code));
    }
    assert!(!home.path("ran").exists());
    home.done(&["release", "--token", &token]).expect(0);
    assert_eq!(home.show("job")["state"], "free");
    assert_eq!(home.show("job")["epoch"], 1);
}

#[test]
fn two_hundred_killed_holders_leave_nothing_stuck() {
    let home = Home::new(On::Sqlite);
    for round in 1..=200_u64 {
        let run = home.start(&["run", "job", "--ttl", "1s", "--wait", "20s", "--", "sleep", "1000"]);
        // Kill at any moment from the first instruction on: the record decides whether it had been granted.
        let pause = Duration::from_micros(round * 97 % 9000);
        std::thread::sleep(pause);
        signal(run.pid(), "KILL");
        run.end();
        if round % 20 == 0 {
            let done = home.done(&["run", "job", "--ttl", "3s", "--wait", "20s", "--", "true"]).expect(0);
            assert_eq!(done.stderr, "");
        }
    }
    let epochs: Vec<u64> = home.history("job").iter().rev().map(|t| t["epoch"].as_u64().unwrap()).collect();
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
}

#[test]
fn a_signal_to_the_whole_unit_ends_the_command_politely() {
    // As a service manager stops a unit: every process of it gets the signal.
    let home = Home::new(On::Sqlite);
    let job = "trap 'sleep 0.2; echo cleaned > cleaned; exit 5' TERM; echo ready > ready; while :; do sleep 0.02; done";
    let run = home.start(&["run", "job", "--ttl", "1m", "--", "sh", "-c", job]);
    home.words("ready");
    for pid in [vec![run.pid()], descendants(run.pid())].concat() {
        signal(pid, "TERM");
    }
    run.end().expect(5);
    assert_eq!(home.words("cleaned"), ["cleaned"]);
}

#[test]
fn a_stopped_supervisor_with_a_full_channel_does_not_keep_its_command_alive() {
    let home = Home::new(On::Sqlite);
    let run = home.start(&["run", "job", "--ttl", "2s", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
    let pid: i32 = home.words("started")[0].parse().unwrap();
    signal(run.pid(), "STOP");
    // Each stop is a report that nobody reads.
    let flood = format!("for i in $(seq 600); do kill -STOP {pid}; kill -CONT {pid}; done 2>/dev/null");
    let _ = std::process::Command::new("bash").args(["-c", &flood]).status();
    within(Duration::from_secs(4), "the command is dead", || !is_alive(pid));
    signal(run.pid(), "CONT");
    run.end().expect(75);
}

#[test]
fn a_stopped_command_can_still_be_ended() {
    let home = Home::new(On::Sqlite);
    let run = home.start(&["run", "job", "--ttl", "1m", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
    let pid: i32 = home.words("started")[0].parse().unwrap();
    signal(pid, "STOP");
    signal(run.pid(), "TERM");
    run.end().expect(143);
    assert!(!is_alive(pid));
}

#[test]
fn a_stopped_dead_man_is_continued() {
    let home = Home::new(On::Sqlite);
    let job = "echo ready > ready; while [ ! -e go ]; do sleep 0.02; done";
    let run = home.start(&["run", "job", "--ttl", "1m", "--", "sh", "-c", job]);
    home.words("ready");
    signal(descendants(run.pid())[0], "STOP");
    home.touch("go");
    run.end().expect(0);
}

#[test]
fn what_was_ignored_stays_ignored() {
    let home = Home::new(On::Sqlite);
    let job =
        "trap '' HUP; exec leasehold run job -- sh -c 'echo ready > ready; while [ ! -e go ]; do sleep 0.02; done'";
    let mut command = home.leasehold(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", job]).current_dir(home.folder.path()).env_clear();
    shell.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let _ = &mut command;
    let mut child = shell.spawn().unwrap();
    home.words("ready");
    for pid in [vec![child.id() as i32], descendants(child.id() as i32)].concat() {
        signal(pid, "HUP");
    }
    home.touch("go");
    assert_eq!(common::code(child.wait().unwrap()), 0);
}

#[test]
fn each_process_gets_one_polite_signal() {
    let home = Home::new(On::Sqlite);
    let job = "trap 'echo term >> terms' TERM; echo ready > ready; while [ ! -e go ]; do sleep 0.02; done";
    let run = home.start(&["run", "job", "--ttl", "6s", "--progress-timeout", "300ms", "--", "sh", "-c", job]);
    home.words("ready");
    home.words("terms");
    home.touch("go");
    run.end().expect(75);
    assert_eq!(home.read("terms"), "term\n");
}

#[test]
fn what_ran_before_it_is_not_its_to_end() {
    let home = Home::new(On::Sqlite);
    let job =
        "sleep 1000 & echo $! > stranger; exec leasehold run job --ttl 3s -- sh -c 'echo ready > ready; sleep 1000'";
    let template = home.leasehold(&[]);
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", job]).current_dir(home.folder.path()).env_clear();
    shell.envs(template.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let mut child = shell.spawn().unwrap();
    let stranger: i32 = home.words("stranger")[0].parse().unwrap();
    home.words("ready");
    let dead_man = descendants(child.id() as i32).into_iter().find(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("__dead-man"))
    });
    signal(dead_man.unwrap(), "KILL");
    assert_eq!(common::code(child.wait().unwrap()), 75);
    assert!(is_alive(stranger));
    signal(stranger, "KILL");
}

#[test]
fn an_evicted_command_is_ended_as_soon_as_the_store_tells() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let run = home.start(&["run", "job", "--ttl", "10m", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
        let pid: i32 = home.words("started")[0].parse().unwrap();
        home.done(&["revoke", "job", "--why", "drill"]).expect(0);
        within(Duration::from_secs(5), "it is dead long before the next renewal", || !is_alive(pid));
        run.end().expect(75);
    }
}
