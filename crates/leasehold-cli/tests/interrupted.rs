//! Slots on a bad day, with the real binary: runs that are killed, journals that are damaged, a clock that was a year
//! ahead.

#![allow(clippy::unwrap_used)]

mod common;

use common::slots::{jobs, rare_slot, runs};
use common::state::tamper_with;
use common::{Home, On, Running, descendants, eventually, signal};
use leasehold_core::Ask;
use leasehold_core::lease::protocol::{AfterFailure, SlotClaim};
use serde_json::Value;

fn fate_of(home: &Home, job: &str, slot: &str) -> Value {
    let found = runs(home, job).into_iter().find(|run| run["slot"] == slot);
    found.map_or(Value::Null, |run| run["fate"].clone())
}

fn lines(home: &Home, file: &str) -> Vec<String> {
    home.read(file).lines().map(String::from).collect()
}

/// kill -9 of a run and of everything below it.
fn kill(run: Running) {
    let below = descendants(run.pid());
    // The supervisor first: it would note that its command was lost.
    for pid in [run.pid()].into_iter().chain(below) {
        signal(pid, "KILL");
    }
    assert_eq!(run.end().code, 137);
}

/// Hangs until `go` is there; says when it begins and when it has ended.
const JOB: &str = "echo $LEASEHOLD_SLOT >> begun; [ -e go ] || exec sleep 100; echo $LEASEHOLD_SLOT >> ended";

#[test]
fn under_plain_cron_a_slot_whose_run_was_killed_is_run_by_the_next_trigger_before_the_newer_one() {
    let home = Home::new(On::Sqlite);
    let trigger = ["run", "job", "--ttl", "1s", "--slot", "@every 3s", "--", "sh", "-c", JOB];
    let killed = home.start(&trigger);
    let broken = home.words("begun")[0].clone();
    kill(killed);
    home.touch("go");
    eventually("a newer slot is due, and the lease is free", || {
        let newer = home.done(&["run", "clock", "--slot", "@every 3s", "--", "sh", "-c", "echo $LEASEHOLD_SLOT > now"]);
        newer.expect(0);
        home.read("now").trim() > broken.as_str() && home.show("job")["state"] != "held"
    });
    home.done(&trigger).expect(0);
    let ended = lines(&home, "ended");
    assert_eq!((ended.len(), ended[0].as_str()), (2, broken.as_str()), "{ended:?}");
    assert!(ended[1] > broken, "{ended:?}");
    assert_eq!(fate_of(&home, "job", &broken), "succeeded");
    assert_eq!(fate_of(&home, "job", &ended[1]), "succeeded");
    assert_eq!(["succeeded", "died", "lost"].map(|event| home.count("job", event)), [2, 1, 0]);
}

#[test]
fn another_machines_trigger_leaves_the_newest_slot_to_the_one_that_runs_a_killed_slot_again() {
    let home = Home::new(On::Sqlite);
    let job = "echo $LEASEHOLD_SLOT >> begun; [ -e go ] || exec sleep 100; until [ -e end ]; do sleep 0.05; done";
    let trigger = ["run", "job", "--ttl", "1s", "--slot", "@every 10s", "--", "sh", "-c", job];
    let killed = home.start(&trigger);
    let broken = home.words("begun")[0].clone();
    kill(killed);
    home.touch("go");
    eventually("a newer slot is due, and the lease is free", || {
        let newer =
            home.done(&["run", "clock", "--slot", "@every 10s", "--", "sh", "-c", "echo $LEASEHOLD_SLOT > now"]);
        newer.expect(0);
        home.read("now").trim() > broken.as_str() && home.show("job")["state"] != "held"
    });
    let first = home.start(&trigger);
    eventually("the killed slot is run again", || lines(&home, "begun").len() == 2);
    let second = home.done(&trigger).expect(0);
    assert!(second.stderr.contains("skipped"), "{second:?}");
    home.touch("end");
    assert_eq!(first.end().code, 0);
    let begun = lines(&home, "begun");
    assert_eq!((begun.len(), begun[1].as_str()), (3, broken.as_str()), "{begun:?}");
    assert_eq!(fate_of(&home, "job", &begun[2]), "succeeded");
}

#[test]
fn the_scheduler_runs_a_killed_slot_again_before_newer_ones_that_wait() {
    let home = Home::new(On::Sqlite);
    jobs(&home, &format!("[[job]]\nname = 'job'\nevery = '1s'\nttl = '2s'\nbusy = 'wait 1m'\ncommand = '{JOB}'\n"));
    let scheduler = home.start(&["schedule"]);
    let broken = home.words("begun")[0].clone();
    for pid in descendants(scheduler.pid()) {
        signal(pid, "KILL");
    }
    home.touch("go");
    eventually("slots are run again", || lines(&home, "ended").len() >= 2);
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    let ended = lines(&home, "ended");
    assert_eq!(ended[0], broken, "{ended:?}");
    assert!(ended.is_sorted(), "{ended:?}");
    assert_eq!(fate_of(&home, "job", &broken), "succeeded");
    assert_eq!(["died", "lost"].map(|event| home.count("job", event)), [1, 0]);
}

#[test]
fn a_slot_whose_run_dies_each_time_is_run_three_times_and_then_has_died() {
    let home = Home::new(On::Dir);
    let line = rare_slot();
    let trigger = [
        "run",
        "job",
        "--ttl",
        "1s",
        "--slot",
        &line,
        "--slot-max-age",
        "100d",
        "--wait",
        "20s",
        "--",
        "sh",
        "-c",
        JOB,
    ];
    for run in 1..=3 {
        let killed = home.start(&trigger);
        eventually("it has begun", || lines(&home, "begun").len() == run);
        // While the command runs.
        eventually("the run before it is counted", || home.count("job", "died") == run as u64 - 1);
        kill(killed);
        assert_eq!(runs(&home, "job").len(), 1);
        eventually("the lease is free", || home.show("job")["state"] != "held");
        assert_eq!(runs(&home, "job")[0]["fate"], "interrupted");
    }
    let given_up = home.done(&trigger).expect(0);
    assert!(given_up.stderr.contains("died"), "{given_up:?}");
    let broken = lines(&home, "begun")[0].clone();
    assert_eq!(lines(&home, "begun"), [&*broken; 3]);
    assert_eq!(fate_of(&home, "job", &broken), "died");
    // For good, and said once.
    let again = home.done(&trigger).expect(0);
    assert!(!again.stderr.contains("died"), "{again:?}");
    assert_eq!((lines(&home, "begun").len(), fate_of(&home, "job", &broken)), (3, "died".into()));
    // Once for each run: two when the next took the slot over, and the third when it was given up.
    assert_eq!(home.count("job", "died"), 3);
    // Whoever runs it all the same finds what was counted before.
    home.touch("go");
    home.done(&["run", "job", "--slot-at", &broken, "--", "true"]).expect(0);
    assert_eq!(["succeeded", "died"].map(|event| home.count("job", event)), [1, 3]);
}

#[test]
fn one_damaged_journal_among_three_hundred_jobs_stops_that_job_only_and_is_reported() {
    let home = Home::new(On::Dir);
    let job = |name: &str| format!("[[job]]\nname = '{name}'\nevery = '1s'\ncommand = 'echo >> {name}'\n");
    jobs(&home, &job("damaged"));
    let first = home.start(&["schedule"]);
    home.words("damaged");
    signal(first.pid(), "TERM");
    first.end().expect(0);
    let before = lines(&home, "damaged").len();
    tamper_with(&home, "runs", "damaged", |bytes| bytes.truncate(bytes.len() - 1));
    let mut all = job("damaged") + &job("sound");
    for n in 0..300 {
        all += &format!("[[job]]\nname = 'idle/{n}'\ncron = '{}'\ncommand = 'true'\n", rare_slot());
    }
    jobs(&home, &all);
    let log = std::fs::File::create(home.path("log")).unwrap();
    let scheduler = Running::from(home.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
    eventually("the sound job runs", || lines(&home, "sound").len() >= 3);
    eventually("the damaged one is told", || home.read("log").contains("problem with job `damaged`"));
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    assert_eq!(lines(&home, "damaged").len(), before, "nobody knows which of its slots are settled");
    assert_eq!(home.read("log").matches("problem with job `damaged`").count(), 1, "{}", home.read("log"));
}

/// An instant that is some hours from now, on the hour.
fn hours_from_now(hours: i64) -> String {
    let now = leasehold_system::clock::wall_ms() as i64 / 3_600_000;
    jiff::Timestamp::from_second((now + hours) * 3_600).unwrap().to_string()
}

#[test]
fn a_job_whose_slot_was_claimed_a_year_ahead_says_so_and_runs_again_after_a_rewind() {
    let home = Home::new(On::Sqlite);
    let year = hours_from_now(365 * 24);
    // As when the store's clock was a year ahead for some seconds.
    home.done(&["run", "job", "--slot-at", &year, "--", "true"]).expect(0);
    jobs(&home, "[[job]]\nname = 'job'\nevery = '1s'\ncommand = 'echo $LEASEHOLD_SLOT >> ran'\n");
    let start = |log: &str| {
        let log = std::fs::File::create(home.path(log)).unwrap();
        Running::from(home.leasehold(&["schedule", "run", "--quiet"]).stderr(log).spawn().unwrap())
    };
    let scheduler = start("log");
    let loud = format!("no slot of `job` can run until {year}");
    eventually("it is told", || home.read("log").contains(&loud));
    let fates = || runs(&home, "job").into_iter().filter(|run| run["fate"] == "dropped_clock_ahead");
    let dropped = || fates().map(|run| run["count"].as_u64().unwrap()).sum::<u64>();
    eventually("slots that come due have a fate", || dropped() >= 3);
    assert_eq!(home.read("log").matches(&loud).count(), 1, "{}", home.read("log"));
    assert!(home.read("log").contains("leasehold rewind 'job' --why"), "{}", home.read("log"));
    assert!(!home.path("ran").exists());
    // Nobody runs it, so somebody is to hear of it.
    let missed = home.done(&["check", "--missed"]).expect(1);
    assert!(missed.stdout.contains("missed"), "{missed:?}");

    let before = home.show("job")["epoch"].as_u64().unwrap();
    home.done(&["rewind", "job"]).expect(64);
    home.done(&["rewind", "job", "--why", "the clock was a year ahead", "--by", "ann"]).expect(0);
    let last = &home.history("job")[0];
    assert_eq!(
        (&last["reason"], &last["by"], &last["epoch"]),
        (&"rewound".into(), &"ann".into(), &(before + 1).into())
    );
    eventually("it runs again", || lines(&home, "ran").len() >= 2);
    home.done(&["check", "--missed"]).expect(0);
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    assert_eq!(home.count("job", "dropped_clock_ahead"), dropped());
    let nothing = home.done(&["rewind", "job", "--why", "again"]).expect(64);
    assert!(nothing.stderr.contains("no slot of `job` is ahead of the store's clock"), "{nothing:?}");
    home.done(&["rewind", "nobody", "--why", "a slip"]).expect(64);
}

#[test]
fn under_plain_cron_a_year_ahead_is_reported_loudly_once_and_healed() {
    let home = Home::new(On::Dir);
    let year = hours_from_now(365 * 24);
    home.done(&["run", "job", "--slot", "@every 1h", "--", "true"]).expect(0);
    home.done(&["run", "job", "--slot-at", &year, "--", "true"]).expect(0);
    let trigger = ["run", "job", "--quiet", "--slot", "@every 1s", "--", "touch", "ran"];
    let told = home.done(&trigger).expect(0);
    assert!(told.stderr.contains(&format!("no slot of `job` can run until {year}")), "{told:?}");
    assert!(!home.path("ran").exists());
    home.done(&["rewind", "job", "--why", "the clock was a year ahead"]).expect(0);
    eventually("it runs again", || home.done(&trigger).expect(0).stderr.is_empty() && home.path("ran").exists());
}

#[test]
fn a_backfill_after_a_partial_failure_runs_what_failed_and_not_what_succeeded() {
    let home = Home::new(On::Sqlite);
    let command = "echo $LEASEHOLD_SLOT >> ran; [ -e mended ] || case $LEASEHOLD_SLOT in *11T*|*13T*) exit 3;; esac";
    jobs(&home, &format!("[[job]]\nname = 'daily'\ncron = '0 3 * * *'\ncommand = '{command}'\n"));
    let fill =
        |from: &str, to: &str| home.done(&["schedule", "backfill", "daily", "--from", from, "--to", to, "--yes"]);
    fill("2026-01-10T00:00:00Z", "2026-01-14T00:00:00Z").expect(3);
    assert_eq!(lines(&home, "ran").len(), 4);
    fill("2026-01-10T00:00:00Z", "2026-01-14T00:00:00Z").expect(3);
    let again = ["2026-01-11T03:00:00Z", "2026-01-13T03:00:00Z"];
    assert_eq!(lines(&home, "ran")[4..], again);
    home.touch("mended");
    // Another span that has some of them in it.
    fill("2026-01-12T00:00:00Z", "2026-01-15T00:00:00Z").expect(0);
    assert_eq!(lines(&home, "ran")[6..], ["2026-01-13T03:00:00Z", "2026-01-14T03:00:00Z"]);
    fill("2026-01-10T00:00:00Z", "2026-01-15T00:00:00Z").expect(0);
    assert_eq!(lines(&home, "ran")[8..], ["2026-01-11T03:00:00Z"]);
    let nothing = fill("2026-01-10T00:00:00Z", "2026-01-15T00:00:00Z").expect(0);
    assert!(nothing.stderr.contains("no slot of `daily` in that span is left to run"), "{nothing:?}");
}

#[test]
fn a_backfill_leaves_out_and_names_what_the_journal_has_forgotten() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = 'daily'\ncron = '0 3 * * *'\ncommand = 'echo $LEASEHOLD_SLOT >> ran'\n");
    let fill = |from: &str, to: &str, more: &[&str]| {
        let span = ["schedule", "backfill", "daily", "--from", from, "--to", to, "--max", "1000", "--yes"];
        home.done(&[&span[..], more].concat())
    };
    // A journal that ran the first of May by the schedule and has forgotten it since.
    home.done(&["run", "daily", "--slot-at", "2026-05-01T03:00:00Z", "--", "true"]).expect(0);
    forget(&home, "daily", "2026-05-01T03:00:00Z");
    let left = fill("2026-05-01T00:00:00Z", "2026-05-02T12:00:00Z", &[]).expect(64);
    assert!(left.stderr.contains("left out: 1 slot of `daily`"), "{left:?}");
    assert!(left.stderr.contains("2026-05-01T03:00:00Z") && left.stderr.contains("--again-if-forgotten"), "{left:?}");
    assert_eq!(lines(&home, "ran"), ["2026-05-02T03:00:00Z"], "what is known not to have run is run");
    fill("2026-05-01T00:00:00Z", "2026-05-02T12:00:00Z", &["--again-if-forgotten"]).expect(0);
    assert_eq!(lines(&home, "ran")[1..], ["2026-05-01T03:00:00Z"]);
    fill("2026-05-01T00:00:00Z", "2026-05-02T12:00:00Z", &[]).expect(0);
    assert_eq!(lines(&home, "ran").len(), 2);
}

/// Makes the lease's record, its history and the journal of a job forget what they know of a slot, as time does: many newer slots run.
fn forget(home: &Home, job: &str, slot: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let coordinator =
            leasehold_core::Coordinator::new(leasehold_stores::open(&home.store.parse().unwrap()).await.unwrap());
        let coordinator = coordinator.with_retention(leasehold_core::Retention { transfers: 16, age: None });
        let journals = leasehold_work::schedule::Journals::new(coordinator.clone());
        let name: leasehold_core::LeaseName = job.parse().unwrap();
        let first = leasehold_work::schedule::parse_instant("slot", slot).unwrap();
        for n in 1..=leasehold_work::schedule::ENTRIES_KEPT as u64 {
            let later = leasehold_core::Slot(leasehold_core::Timestamp::from_millis(first.0.as_millis() + n * 60_000));
            let claim = SlotClaim::new(later, AfterFailure::Leave);
            let ask =
                Ask { slot: Some(claim), ..Ask::new(leasehold_core::HolderId::new(None), leasehold_core::Ttl::MIN) };
            let leasehold_core::Acquired::Granted(grant) = coordinator.acquire(&name, &ask).await.unwrap() else {
                panic!()
            };
            coordinator.release(&grant, leasehold_core::Outcome::Succeeded).await.unwrap();
            journals.begin(&name, later, grant.token().epoch).await.unwrap();
        }
    });
}
