//! Clocks an hour apart, by libfaketime: deadlines are in the store's time, so nobody's own hour matters.
//!
//! Leasehold reads its own clocks past the C library, where libfaketime does not reach: with it, only the drivers and the
//! commands are an hour off. So PostgreSQL's clock is moved too (Redis's allocator does not bear it), and then everything
//! that the client could read is an hour off from what counts.

use crate::common::{Done, Home, Running, eventually, signal, within};
use crate::{Engine, at};
use leasehold_testbed::{FakeTime, Postgres, Server};
use std::process::Stdio;
use std::time::Duration;

const AHEAD: &str = "+3600";
const BEHIND: &str = "-3600";
const HOUR_MS: u64 = 3_600_000;

/// The binary on a machine whose clock is off.
struct Machine<'a>(&'a Home, FakeTime);

impl Machine<'_> {
    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.0.leasehold(args);
        command.envs(self.1.env());
        command
    }

    fn done(&self, args: &[&str]) -> Done {
        Done::from(self.command(args).output().unwrap())
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::from(self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

/// Whoever holds, and whoever asks: no early transfer, no stuck lease, and renewals count.
fn nobodys_own_hour_matters(home: &Home, holder: &'static str, other: &'static str) {
    let (holder, other) = (Machine(home, FakeTime::offset(holder)), Machine(home, FakeTime::offset(other)));
    let wall = holder.done(&["run", "control", "--", "date", "+%s"]).expect(0).stdout;
    let off = (wall.trim().parse::<u64>().unwrap() * 1000).abs_diff(leasehold_system::clock::wall_ms());
    assert!(off.abs_diff(HOUR_MS) < 60_000, "the clocks are not an hour off, but {off} ms");

    // A run outlives its TTL.
    let job = "echo > started; while [ ! -e go ]; do sleep 0.02; done";
    let run = holder.start(&["run", "job", "--ttl", "2s", "--", "sh", "-c", job]);
    home.words("started");
    other.done(&["acquire", "job", "--wait", "2500ms"]).expect(11);
    home.touch("go");
    run.end().expect(0);

    // One who does not renew loses it after the TTL, and not before.
    holder.done(&["acquire", "job", "--ttl", "2s"]).expect(0);
    other.done(&["acquire", "job"]).expect(11);
    let listed = other.done(&["ls"]).expect(0).stdout;
    assert!(["in 1.", "in 2s", "in 0."].iter().any(|left| listed.contains(left)), "{listed}");
    within(Duration::from_secs(15), "it can be had", || other.done(&["acquire", "job", "--wait", "20s"]).code == 0);
    let history = home.history("job");
    assert_eq!((&history[0]["reason"], &history[0]["epoch"]), (&"expired".into(), &3.into()), "{history:?}");
    let held_for = history[1]["held_for_ms"].as_u64().unwrap();
    assert!((2_000..15_000).contains(&held_for), "{history:?}");
}

#[test]
fn on_redis_machines_an_hour_apart_share_a_lease() {
    let engine = Engine::redis();
    std::thread::scope(|scope| {
        scope.spawn(|| nobodys_own_hour_matters(&engine.in_namespace("a", engine.port()), BEHIND, AHEAD));
        scope.spawn(|| nobodys_own_hour_matters(&engine.in_namespace("b", engine.port()), AHEAD, BEHIND));
    });
}

/// A server that is an hour off, as doctor sees, and clients that are two hours apart.
fn the_servers_hour_is_the_only_one(offset: &'static str, other: &'static str, says: &str) {
    let clock = FakeTime::offset(offset);
    let server = Postgres::seeing(&clock.env());
    let home = at(Postgres::url(server.port()));
    let report = home.done(&["doctor"]).expect(0).stdout;
    let clock = report.lines().find(|line| line.contains("  clock")).unwrap_or_default();
    assert!(clock.contains(says) && (clock.contains("1h") || clock.contains("59m")), "{report}");
    nobodys_own_hour_matters(&home, other, offset);
}

/// Two machines that are two hours apart take turns: each slot is run once, and is one of the store's clock.
fn slots_go_by_the_store(home: &Home, store_is_off_by_ms: i64) {
    let job = "echo $LEASEHOLD_SLOT $LEASEHOLD_IDEMPOTENCY_KEY >> ran";
    let mut round = 0;
    within(Duration::from_secs(60), "four slots were run", || {
        round += 1;
        let machine = Machine(home, FakeTime::offset(if round % 2 == 0 { AHEAD } else { BEHIND }));
        machine.done(&["run", "tick", "--slot", "@every 1s", "--", "sh", "-c", job]).expect(0);
        home.read("ran").lines().count() >= 4
    });
    let ran: Vec<String> = home.read("ran").lines().map(String::from).collect();
    assert!(ran.is_sorted_by(|a, b| a < b), "a slot was run twice, or out of order: {ran:?}");
    for line in &ran {
        let (slot, key) = line.split_once(' ').unwrap();
        assert_eq!(key, format!("tick@{slot}"));
        let at: jiff::Timestamp = slot.parse().unwrap();
        let off = at.as_millisecond() - leasehold_system::clock::wall_ms() as i64 - store_is_off_by_ms;
        assert!((-120_000..2_000).contains(&off), "{slot} is {off} ms from the store's clock");
    }
    assert_eq!(home.count("tick", "granted"), ran.len() as u64);
}

#[test]
fn slots_follow_the_stores_clock_whatever_the_machines_clocks_show() {
    let (redis, clock) = (Engine::redis(), FakeTime::offset(AHEAD));
    let server = Postgres::seeing(&clock.env());
    std::thread::scope(|scope| {
        scope.spawn(|| slots_go_by_the_store(&redis.in_namespace("slots", redis.port()), 0));
        scope.spawn(|| slots_go_by_the_store(&at(Postgres::url(server.port())), HOUR_MS as i64));
    });
}

#[test]
fn on_a_postgres_whose_clock_is_an_hour_off_a_lease_is_granted_neither_early_nor_late() {
    std::thread::scope(|scope| {
        scope.spawn(|| the_servers_hour_is_the_only_one(AHEAD, BEHIND, "ahead of"));
        scope.spawn(|| the_servers_hour_is_the_only_one(BEHIND, AHEAD, "behind"));
    });
}

/// The server's clock is set forward by an hour between two renewals of a run: by the answer's own time its lease has run
/// out, and others can have it. So it ends with that answer, and not when the next renewal is refused.
#[test]
fn on_mariadb_a_clock_that_is_set_forward_ends_a_run_with_its_next_renewal() {
    let folder = leasehold_testbed::Server::folder_for("mysql");
    let file = folder.path().join("clock");
    let set = |offset: &str| {
        // In one step: a file that is empty for a moment is no time at all.
        let next = folder.path().join("next");
        std::fs::write(&next, format!("{offset}\n")).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    set("+0");
    let clock = FakeTime::file(&file);
    let server = leasehold_testbed::mariadb_with(&[], &clock.env());
    let home = at(format!("mysql://root@127.0.0.1:{}/leases", server.port()));
    let run = home.start(&["run", "job", "--ttl", "9s", "--", "sh", "-c", "echo > started; exec sleep 1000"]);
    home.words("started");
    set(AHEAD);
    let done = run.end().expect(75);
    assert!(
        done.stderr.contains("the store's clock was set forward by 59m") || done.stderr.contains("by 1h"),
        "{done:?}"
    );
    home.done(&["run", "job", "--", "true"]).expect(0);
}

/// Under plain cron nobody but its runs knows when a job is due.
#[test]
fn a_job_of_a_crontab_is_missed_when_nobody_runs_it_any_more() {
    let folder = Server::folder_for("postgres");
    let file = folder.path().join("faketime");
    let set_clock = |offset: &str| {
        let next = file.with_extension("next");
        std::fs::write(&next, format!("{offset}\n")).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    set_clock("+0");
    let clock = FakeTime::file(&file);
    let server = Postgres::seeing(&clock.env());
    let home = at(Postgres::url(server.port()));
    let check = |code: i32| {
        let found = home.done(&["check", "--missed", "--json"]).expect(code).stdout;
        serde_json::from_str::<serde_json::Value>(&found).unwrap()
    };
    let run = || home.done(&["run", "tick", "--slot", "0 * * * *", "--", "true"]).expect(0);
    home.done(&["acquire", "another"]).expect(0);
    // Where no job is known, nothing can be said about one: whoever asks has perhaps named another store.
    let nothing_to_check = || home.done(&["check", "--missed", "--json"]).expect(78);
    nothing_to_check();
    run();
    check(0);
    set_clock("+10800");
    let found = check(1);
    assert_eq!((&found[0]["name"], &found[0]["owner"]), (&"tick".into(), &"run --slot".into()), "{found}");
    assert!(found[0]["late"].is_string(), "{found}");
    run();
    check(0);
    // What was taken out of the crontab is said to be.
    home.done(&["schedule", "retire", "tick"]).expect(0);
    set_clock("+86400");
    nothing_to_check();
}

/// From then on no slot of this year could run, in silence.
#[test]
fn a_postgres_whose_clock_was_a_year_ahead_for_some_seconds_is_reported_for_each_job_and_healed() {
    let folder = Server::folder_for("postgres");
    let file = folder.path().join("faketime");
    let set_clock = |offset: &str| std::fs::write(&file, format!("{offset}\n")).unwrap();
    set_clock("+0");
    let clock = FakeTime::file(&file);
    let server = Postgres::seeing(&clock.env());
    let home = at(Postgres::url(server.port()));
    let jobs = ["a", "b"].map(|name| {
        format!("[[job]]\nname = '{name}'\nevery = '1s'\nttl = '10s'\ncommand = 'echo $LEASEHOLD_SLOT >> {name}'\n")
    });
    std::fs::write(home.path("leasehold.toml"), jobs.concat()).unwrap();
    let log = std::fs::File::create(home.path("log")).unwrap();
    let scheduler = Running::from(home.leasehold(&["schedule", "run", "--quiet"]).stderr(log).spawn().unwrap());
    let year = |job: &str| home.read(job).lines().last().unwrap_or_default().get(..4).map(String::from);
    eventually("both run", || year("a").is_some() && year("b").is_some());
    let (this, ahead) = (year("a").unwrap(), "+31536000");
    set_clock(ahead);
    eventually("both ran a slot of the next year", || year("a") > Some(this.clone()) && year("b") > Some(this.clone()));
    let report = home.done(&["doctor"]).expect(0).stdout;
    assert!(report.contains("see which of the two is wrong, and set it"), "{report}");
    set_clock("+0");
    for job in ["a", "b"] {
        eventually("it is told", || home.read("log").contains(&format!("no slot of `{job}` can run until")));
    }
    for job in ["a", "b"] {
        let before = home.read(job).lines().count();
        home.done(&["rewind", job, "--why", "the clock was a year ahead"]).expect(0);
        eventually("it runs again", || home.read(job).lines().count() > before && year(job) == Some(this.clone()));
    }
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    let told = home.read("log");
    assert_eq!(told.matches("can run until").count(), 2, "once for each job: {told}");
}
