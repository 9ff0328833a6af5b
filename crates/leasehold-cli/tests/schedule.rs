//! `run --slot`, `schedule` and `runs` with the real binary.

#![allow(clippy::unwrap_used)]

mod common;

use common::slots::{jobs, rare_slot, runs};
use common::{Home, On, Running, eventually, signal};
use serde_json::Value;
use std::collections::BTreeMap;

fn slot_is_run_once(on: On) {
    let home = Home::new(on);
    let line = rare_slot();
    let job = "echo $LEASEHOLD_SLOT $LEASEHOLD_IDEMPOTENCY_KEY $LEASEHOLD_EPOCH >> ran";
    let run = ["run", "job", "--slot", &line, "--slot-max-age", "100d", "--", "sh", "-c", job];
    home.done(&run).expect(0);
    let words = home.words("ran");
    assert!(words[0].ends_with("T03:00:00Z"), "{words:?}");
    assert_eq!((words[1].as_str(), words[2].as_str()), (format!("job@{}", words[0]).as_str(), "1"));

    let again = home.done(&run).expect(0);
    assert_eq!(again.stdout, "");
    assert_eq!(again.stderr.lines().count(), 1, "{again:?}");
    assert!(again.stderr.starts_with("leasehold: skipped: slot ") && again.stderr.contains("already ran"));
    assert_eq!(home.done(&[&run[..1], &["--quiet"], &run[1..]].concat()).expect(0).stderr, "");
    assert_eq!(home.read("ran").lines().count(), 1);
    assert_eq!((home.count("job", "granted"), home.count("job", "already_run")), (1, 2));
    let entry = &runs(&home, "job")[0];
    assert_eq!((&entry["fate"], &entry["exit"], &entry["epoch"]), (&"succeeded".into(), &0.into(), &1.into()));
    assert_eq!(entry["slot"], words[0].as_str());
    assert!(entry["ran_for_ms"].is_u64() && entry["host"].is_string());
    let page = home.done(&["runs", "job"]).expect(0).stdout;
    assert!(page.contains(&words[0]) && page.contains("succeeded"), "{page}");
}

#[test]
fn a_slot_is_run_once_under_any_trigger() {
    slot_is_run_once(On::Sqlite);
    slot_is_run_once(On::Dir);
}

#[test]
fn a_slot_that_failed_has_been_run_and_a_run_that_died_has_not() {
    let home = Home::new(On::Sqlite);
    let line = rare_slot();
    let run = |job: &'static str| {
        ["run", "job", "--ttl", "5s", "--slot", &line, "--slot-max-age", "100d", "--", "sh", "-c", job]
            .map(String::from)
    };
    let args = run("echo $$ > pid; echo $LEASEHOLD_IDEMPOTENCY_KEY >> keys; exec sleep 100");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let broken: Running = home.start(&args);
    home.words("pid");
    // While it goes on, another is told so.
    let elsewhere = home.done(&args).expect(0);
    assert!(elsewhere.stderr.contains("is running"), "{elsewhere:?}");
    // The supervisor first: it would note that its command was lost.
    let below = common::descendants(broken.pid());
    for pid in [broken.pid()].into_iter().chain(below) {
        signal(pid, "KILL");
    }
    assert_eq!(broken.end().code, 137);
    // Recovered under a new epoch, with the same key; then it fails, and that is that.
    let args = run("echo $LEASEHOLD_IDEMPOTENCY_KEY >> keys; exit 7");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    eventually("the slot can be recovered", || home.done(&args).code == 7);
    let keys = home.words("keys");
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
    home.done(&args).expect(0);
    assert_eq!(home.history("job")[0]["reason"], "recovered");
    let entry = &runs(&home, "job")[0];
    assert_eq!((&entry["fate"], &entry["exit"], &entry["tries"]), (&"failed".into(), &7.into(), &2.into()));
    assert_eq!((home.count("job", "failed"), home.count("job", "skipped_overlap")), (1, 0));
}

#[test]
fn a_slot_that_is_too_old_is_left_out_and_recorded() {
    let home = Home::new(On::Sqlite);
    let line = rare_slot();
    let left = home.done(&["run", "job", "--slot", &line, "--slot-max-age", "1d", "--", "touch", "ran"]).expect(0);
    assert!(left.stderr.contains("skipped: dropped_too_old: 1 slot of `job`"), "{left:?}");
    assert!(!home.path("ran").exists());
    let found = runs(&home, "job");
    assert_eq!((found.len(), &found[0]["fate"]), (1, &"dropped_too_old".into()));
    home.done(&["run", "job", "--slot", &line, "--slot-max-age", "1d", "--", "touch", "ran"]).expect(0);
    assert_eq!((runs(&home, "job").len(), home.count("job", "dropped_too_old")), (1, 1));
}

/// Under cron a line is a mail, and a machine that slept has missed slots every morning.
#[test]
fn a_run_that_succeeds_says_nothing_of_the_slots_before_it() {
    let home = Home::new(On::Sqlite);
    // Each takes as long as three slots.
    let run = |flags: &[&str]| {
        home.done(&[&["run", "job", "--slot", "@every 1s"], flags, &["--", "sleep", "3"]].concat()).expect(0)
    };
    run(&[]);
    assert_eq!(run(&[]).stderr, "");
    assert!(home.count("job", "dropped_coalesced") > 0);
    let told = run(&["--log", "info"]).stderr;
    assert!(
        told.lines().any(|line| line.contains("dropped_coalesced: ") && line.contains(" of `job` up to ")),
        "{told}"
    );
}

#[test]
fn retries_share_a_lease_and_a_key() {
    let home = Home::new(On::Sqlite);
    let job = "echo $LEASEHOLD_EPOCH $LEASEHOLD_IDEMPOTENCY_KEY >> tries; [ $(wc -l < tries) -ge 3 ]";
    let line = rare_slot();
    let args = [
        "run",
        "job",
        "--retries",
        "5",
        "--backoff",
        "10ms",
        "--slot",
        &line,
        "--slot-max-age",
        "100d",
        "--",
        "sh",
        "-c",
        job,
    ];
    let done = home.done(&args).expect(0);
    assert!(done.stderr.contains("try 1 of 6 of `"), "{done:?}");
    assert!(done.stderr.contains(" ended with exit code 1; next try in 10ms"), "{done:?}");
    let words = home.words("tries");
    assert_eq!(words.len(), 6);
    assert!(words.chunks(2).all(|pair| pair == &words[..2]), "{words:?}");
    assert_eq!((home.count("job", "granted"), home.count("job", "failed")), (1, 0));
    assert_eq!(runs(&home, "job")[0]["tries"], 3);
    let failed =
        home.done(&["run", "other", "--retries", "2", "--backoff", "10ms", "--", "sh", "-c", "exit 9"]).expect(9);
    assert_eq!(failed.stderr.lines().count(), 2, "{failed:?}");
    assert_eq!(home.count("other", "failed"), 1);
}

#[test]
fn two_schedulers_run_each_slot_once_and_skip_what_overlaps() {
    let home = Home::new(On::Dir);
    jobs(
        &home,
        "[[job]]\nname = 'tick'\nevery = '1s'\ncommand = 'echo $LEASEHOLD_SLOT $HOW >> ticks'\nenv = { HOW = 'scheduled' }\n\
         [[job]]\nname = 'slow'\nevery = '1s'\nargv = ['sh', '-c', 'echo $LEASEHOLD_SLOT >> slow; sleep 2.5']\n\
         [[job]]\nname = 'elsewhere'\nevery = '1s'\ncommand = 'touch elsewhere'\non = 'gpu'\n",
    );
    let (one, two) = (home.start(&["schedule"]), home.start(&["schedule", "run", "--on", "cpu"]));
    eventually("eight slots were run", || home.read("ticks").lines().count() >= 8);
    eventually("two slow ones were run", || home.read("slow").lines().count() >= 2);
    for scheduler in [&one, &two] {
        signal(scheduler.pid(), "TERM");
    }
    let (one, two) = (one.end().expect(0), two.end().expect(0));
    assert!(
        one.stderr.contains("scheduling 2 jobs") && two.stderr.contains("1 more are for other machines"),
        "{one:?}"
    );
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for line in home.read("ticks").lines() {
        let (slot, how) = line.split_once(' ').unwrap();
        assert_eq!(how, "scheduled");
        *seen.entry(slot.into()).or_default() += 1;
    }
    assert!(seen.values().all(|count| *count == 1), "{seen:?}");
    assert!(!home.path("elsewhere").exists());
    let skips: Vec<Value> = runs(&home, "slow").into_iter().filter(|run| run["fate"] == "skipped_overlap").collect();
    let skipped: u64 = skips.iter().map(|run| run["count"].as_u64().unwrap()).sum();
    assert!(skipped >= 2, "{:?}", runs(&home, "slow"));
    assert_eq!(home.count("slow", "skipped_overlap"), skipped, "counted once, not once per machine");
    assert_eq!(home.count("slow", "failed") + home.count("tick", "failed"), 0);
    let metrics = home.done(&["stats", "--prometheus"]).expect(0).stdout;
    assert!(metrics.contains(&format!("{{job=\"slow\",outcome=\"skipped_overlap\"}} {skipped}")), "{metrics}");
    // Every slot from the first to the last has its fate.
    for job in ["tick", "slow"] {
        let mut slots: Vec<i64> = runs(&home, job)
            .iter()
            .flat_map(|run| {
                let second =
                    |field: &str| run[field].as_str().map(|t| t.parse::<jiff::Timestamp>().unwrap().as_second());
                let first = second("slot").unwrap();
                first..=second("last").unwrap_or(first)
            })
            .collect();
        slots.sort_unstable();
        slots.dedup();
        let span = slots.last().unwrap() - slots[0] + 1;
        assert_eq!(slots.len() as i64, span, "{job}: {:#?}", runs(&home, job));
    }
}

#[test]
fn a_reload_keeps_what_runs_and_a_wrong_file_changes_nothing() {
    let home = Home::new(On::Sqlite);
    let long =
        "[[job]]\nname = 'long'\nevery = '1s'\ncommand = 'echo $$ > long; while [ ! -e go ]; do sleep 0.02; done'\n";
    jobs(&home, long);
    let log = std::fs::File::create(home.path("log")).unwrap();
    let daemon = Running::from(home.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
    let pid: i32 = home.words("long")[0].parse().unwrap();
    jobs(&home, &format!("{long}[[job]]\nname = 'bad'\ncron = '99 * * * *'\ncommand = 'true'\n"));
    signal(daemon.pid(), "HUP");
    eventually("the wrong file is refused", || home.read("log").contains("keeping the old jobs"));
    assert!(
        home.read("log").contains("job `bad`: field `cron`: invalid cron `99 * * * *`: minute `99`"),
        "{}",
        home.read("log")
    );
    jobs(&home, "[[job]]\nname = 'other'\nevery = '1s'\ncommand = 'echo > other'\n");
    eventually("the new file is taken up by itself", || home.path("other").exists());
    std::fs::remove_file(home.path("leasehold.toml")).unwrap();
    let gone = format!("keeping the old jobs: `{}` is gone", home.path("leasehold.toml").display());
    eventually("a file that is gone is told", || home.read("log").contains(&gone));
    assert!(common::is_alive(pid), "the run that went on was dropped");
    home.touch("go");
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    assert_eq!(runs(&home, "long").last().unwrap()["fate"], "succeeded");
}

#[test]
fn a_store_that_is_changed_in_the_file_waits_for_a_restart_and_is_reported() {
    let home = Home::new(On::Sqlite);
    let job = "[[job]]\nname = 'tick'\nevery = '1s'\ncommand = 'echo $LEASEHOLD_SLOT >> ran'\n";
    let write = |head: &str| jobs(&home, &format!("{head}\n{job}"));
    let start = |log: &str| {
        let log = std::fs::File::create(home.path(log)).unwrap();
        let mut command = home.leasehold(&["schedule"]);
        Running::from(command.env_remove("LEASEHOLD_STORE").stderr(log).spawn().unwrap())
    };
    write("store = 'sqlite:old.db'");
    let daemon = start("log");
    home.words("ran");
    write("store = 'sqlite:new.db'\nttl = '45s'");
    let (old, new) = (home.path("old.db").display().to_string(), home.path("new.db").display().to_string());
    let store = format!("setting `store` is now `sqlite:{new}` in the file, and stays `sqlite:{old}` until a restart");
    let ttl = "setting `ttl` is now `45s` in the file, and stays `1m30s`";
    eventually("both are reported", || home.read("log").contains(&store) && home.read("log").contains(ttl));
    let before = home.read("ran").lines().count();
    eventually("jobs run on", || home.read("ran").lines().count() >= before + 2);
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    assert!(!home.path("new.db").exists(), "the new store was made");
    assert_eq!(home.read("log").matches("setting `store`").count(), 1, "{}", home.read("log"));
    // What is right again is not told; a restart takes the new one.
    let before = home.read("ran").lines().count();
    let daemon = start("second");
    eventually("jobs run again", || home.read("ran").lines().count() > before);
    assert!(home.path("new.db").exists(), "the new store is not used");
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    assert!(!home.read("second").contains("until a restart"), "{}", home.read("second"));
}

#[test]
fn output_that_is_turned_off_in_the_file_is_kept_of_no_later_run() {
    let home = Home::new(On::Sqlite);
    let job = "[[job]]\nname = 'tick'\nevery = '1s'\ncommand = 'echo hunter2; echo $LEASEHOLD_SLOT >> ran'\n";
    let write = |head: &str| jobs(&home, &format!("{head}\n{job}"));
    write("output = 'one'");
    let log = std::fs::File::create(home.path("log")).unwrap();
    let daemon = Running::from(home.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
    let is_kept = |slot: &str| home.done(&["logs", "tick", slot]).code == 0;
    let first = home.words("ran").remove(0);
    eventually("its output is kept", || is_kept(&first));
    write("output = 'off'\nhistory_transfers = 200");
    let history = "setting `history_transfers` is now `200` in the file, and stays `";
    let is_taken_up = || home.read("log").matches("scheduling 1 job").count() > 1;
    eventually("the file is taken up", || is_taken_up() && home.read("log").contains(history));
    // One may have begun before.
    let before = home.read("ran").lines().count();
    eventually("jobs run on", || home.read("ran").lines().count() >= before + 3);
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    let ran = home.read("ran");
    let slots: Vec<&str> = ran.lines().skip(before + 1).collect();
    jobs(&home, &format!("output = 'one'\n{job}"));
    assert!(is_kept(&first), "what was kept stays");
    assert!(!slots.iter().any(|slot| is_kept(slot)), "{slots:?}");
    assert!(!home.read("log").contains("setting `output`"), "{}", home.read("log"));
}

#[test]
fn a_file_that_is_wrong_while_jobs_are_due_fails_none_of_them() {
    let home = Home::new(On::Sqlite);
    let job = "[[job]]\nname = 'tick'\nevery = '1s'\ncommand = 'echo $LEASEHOLD_SLOT >> ran'\n";
    jobs(&home, job);
    let log = std::fs::File::create(home.path("log")).unwrap();
    let daemon = Running::from(home.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
    home.words("ran");
    for wrong in ["ttl = 'banana'", "nosuchsetting = 1", "nonsense [["] {
        jobs(&home, &format!("{wrong}\n{job}"));
        let before = home.read("ran").lines().count();
        eventually("jobs run on", || home.read("ran").lines().count() >= before + 2);
    }
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    jobs(&home, job);
    let fates: Vec<Value> = runs(&home, "tick").into_iter().map(|run| run["fate"].clone()).collect();
    assert!(!fates.contains(&"failed".into()), "{fates:?}");
}

#[test]
fn a_folder_that_is_not_there_fails_the_slot_and_is_named() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = 'tick'\nevery = '1s'\ncwd = '/nonexistent/place'\ncommand = 'true'\n");
    let log = std::fs::File::create(home.path("log")).unwrap();
    let daemon = Running::from(home.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
    let told =
        "could not be started, and counts as failed: job `tick`: its cwd `/nonexistent/place` is not a folder here";
    eventually("it is told", || home.read("log").contains(told));
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    assert_eq!(runs(&home, "tick")[0]["fate"], "failed");
    let log = home.read("log");
    assert!(
        log.contains("runs of job `tick` will fail here: its cwd `") && !log.contains("problem with job"),
        "one line for each: {log}"
    );
    for verb in [&["schedule", "check"][..], &["schedule", "trigger", "tick"]] {
        let refused = home.done(verb).expect(78);
        assert!(refused.stderr.contains("its cwd `/nonexistent/place` is not a folder here"), "{refused:?}");
    }
}

#[test]
fn operators_trigger_backfill_pause_and_look_ahead() {
    let home = Home::new(On::Sqlite);
    jobs(
        &home,
        "[[job]]\nname = 'daily'\ncron = '0 3 * * *'\ntz = 'Europe/Berlin'\ncommand = 'echo $LEASEHOLD_SLOT $LEASEHOLD_IDEMPOTENCY_KEY $LEASEHOLD_NAME >> ran'\n",
    );
    let checked = home.done(&["schedule", "check"]).expect(0);
    assert!(
        checked.stdout.contains("0 3 * * * Europe/Berlin") && checked.stdout.contains("03:00:00 CE"),
        "{checked:?}"
    );
    assert!(
        checked.stderr.contains("1 job in `") && checked.stderr.contains("` is valid; the store is"),
        "{checked:?}"
    );
    assert!(!home.path("leases.db").exists(), "looking made a store");
    let next =
        home.done(&["schedule", "next", "daily", "-n", "3", "--from", "2026-10-24T12:00:00Z", "--json"]).expect(0);
    let next: Vec<Value> = serde_json::from_str(&next.stdout).unwrap();
    let slots: Vec<&str> = next.iter().map(|n| n["slot"].as_str().unwrap()).collect();
    assert_eq!(slots, ["2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z", "2026-10-27T02:00:00Z"]);

    home.done(&["schedule", "trigger", "daily"]).expect(0);
    let words = home.words("ran");
    assert_eq!((words[1].as_str(), words[2].as_str()), (format!("daily@{}", words[0]).as_str(), "daily"));
    assert!(home.show("daily")["slot"].is_null(), "a trigger uses up no regular slot");

    // A date is the midnight in the job's own zone.
    let dates = home.done(&["schedule", "next", "daily", "-n", "1", "--from", "2026-07-01", "--json"]).expect(0).stdout;
    assert!(dates.contains("2026-07-01T01:00:00Z"), "{dates}");
    let dates = home.done(&["schedule", "backfill", "daily", "--from", "2026-01-10", "--to", "2026-01-11"]).expect(64);
    assert!(dates.stderr.contains("would run 1 slot of `daily`, 2026-01-10T02:00:00Z"), "{dates:?}");
    home.done(&["schedule", "backfill", "daily", "--from", "2026-02-30", "--to", "2026-03-11"]).expect(64);

    let span = ["schedule", "backfill", "daily", "--from", "2026-01-10T00:00:00Z", "--to", "2026-01-14T00:00:00Z"];
    let asked = home.done(&span).expect(64);
    assert!(asked.stderr.contains(
        "would run 4 slots of `daily` from 2026-01-10T02:00:00Z to 2026-01-13T02:00:00Z; there is no terminal"
    ));
    home.done(&[&span[..], &["--yes", "--max", "3"]].concat()).expect(64);
    std::fs::remove_file(home.path("ran")).unwrap();
    home.done(&[&span[..], &["--yes"]].concat()).expect(0);
    let filled: Vec<String> = home.read("ran").lines().map(|l| l.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(
        filled,
        ["2026-01-10T02:00:00Z", "2026-01-11T02:00:00Z", "2026-01-12T02:00:00Z", "2026-01-13T02:00:00Z"]
    );
    home.done(&[&span[..], &["--yes"]].concat()).expect(0);
    assert_eq!(home.read("ran").lines().count(), 4, "a slot was filled twice");
    home.done(&[
        "schedule",
        "backfill",
        "daily",
        "--from",
        "2026-01-14T00:00:00Z",
        "--to",
        "2999-01-14T00:00:00Z",
        "--yes",
    ])
    .expect(64);

    home.done(&["schedule", "pause", "daily", "--why", "drill"]).expect(0);
    let paused = home.done(&["schedule", "trigger", "daily"]).expect(11);
    assert!(paused.stderr.contains("was paused by"), "{paused:?}");
    let file = home.read("leasehold.toml");
    jobs(&home, &format!("{file}busy = 'wait 2s'\n"));
    let paused = home.done(&["schedule", "trigger", "daily"]).expect(11);
    assert!(paused.stderr.contains("skipped: "), "it waits for nobody: {paused:?}");
    jobs(&home, &file);
    home.done(&["schedule", "resume", "daily", "--why", "over"]).expect(0);
    home.done(&["schedule", "trigger", "nobody"]).expect(64);
    home.done(&["schedule", "pause", "nobody", "--why", "a slip of the pen"]).expect(64);
    home.done(&["show", "nobody"]).expect(64);
}

#[test]
fn looking_advances_no_schedule() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        jobs(&home, "[[job]]\nname = 'job'\nevery = '1s'\ncommand = 'true'\n");
        home.done(&["run", "job", "--slot", "@every 1h", "--", "true"]).expect(0);
        let before = common::state::state(home.folder.path());
        for look in [&["runs", "job"][..], &["schedule", "check"], &["schedule", "next"], &["runs", "job", "--json"]] {
            home.done(look).expect(0);
            let changed = common::state::changes(&before, &common::state::state(home.folder.path()));
            assert!(changed.is_empty(), "{look:?} on {on:?} changed {changed:#?}");
        }
    }
}

#[test]
fn the_page_s_own_example_is_right() {
    let home = Home::new(On::Sqlite);
    let page = include_str!("../../../docs/schedules.md");
    let example: Vec<&str> = page
        .lines()
        .skip_while(|line| line.trim() != "# leasehold.toml")
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .filter(|line| !line.contains("store ="))
        .map(str::trim_start)
        .collect();
    jobs(&home, &example.join("\n"));
    let checked = home.done(&["schedule", "check"]).expect(0).stdout;
    assert!(checked.contains("nightly") && checked.contains("@every 45m"), "{checked}");
}

#[test]
fn service_files_name_the_store_and_no_secret() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = 'x'\nevery = '1h'\ncommand = 'true'\n");
    let unit = home.done(&["schedule", "install", "--print", "--kind", "systemd"]).expect(0).stdout;
    let file = home.path("leasehold.toml").display().to_string();
    // A service has nothing of this shell's environment.
    let starts = |store: &str| format!("schedule --file \"{file}\" --store \"{store}\" run\n");
    assert!(unit.contains(&starts(&home.store)) && unit.contains("KillMode=mixed"), "{unit}");
    let print = ["schedule", "install", "--print", "--kind", "systemd", "--store"];
    let named = home.done(&[&print[..], &["postgres://ada@db/jobs?namespace=a"]].concat()).expect(0).stdout;
    assert!(named.contains(&starts("postgres://ada@db/jobs?namespace=a")), "{named}");
    for secret in ["postgres://ada:hunter2@db/jobs", "redis://:hunter2@db", "postgres://db/jobs?password=hunter2"] {
        let refused = home.done(&[&print[..], &[secret]].concat()).expect(64);
        assert!(refused.stderr.contains("has a secret in it") && !refused.stderr.contains("hunter2"), "{refused:?}");
    }
    let named = home.leasehold(&print[..5]).env("LEASEHOLD_ON", "gpu").output().unwrap();
    let unit = String::from_utf8_lossy(&named.stdout).into_owned();
    assert!(unit.contains("Environment=\"LEASEHOLD_ON=gpu\"\n"), "{unit}");
    let plain = home.leasehold(&print[..5]).env_remove("LEASEHOLD_STORE").output().unwrap();
    assert!(String::from_utf8_lossy(&plain.stdout).contains(&format!("--file \"{file}\" run\n")), "{plain:?}");
    let plist = home.done(&["schedule", "install", "--print", "--kind", "launchd"]).expect(0).stdout;
    assert!(plist.contains(&format!("<string>{file}</string>")), "{plist}");
}

/// What a unit tells its service: systemd's escapes undone.
fn environment_of(unit: &str) -> Vec<(String, String)> {
    let pair = |line: &str| {
        let quoted = line.strip_prefix("Environment=\"")?.strip_suffix('"')?;
        let plain = quoted.replace("\\\"", "\"").replace("\\\\", "\\").replace("%%", "%");
        let (name, value) = plain.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    unit.lines().filter_map(pair).collect()
}

#[test]
fn service_files_have_the_settings_of_this_shell_and_name_its_secrets() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = 'x'\nevery = '1h'\ncommand = 'true'\n");
    std::fs::write(home.path("key"), "k").unwrap();
    let config = |variables: &[(String, String)]| -> serde_json::Value {
        let mut command = home.leasehold(&["config", "--json"]);
        let done = command.envs(variables.iter().map(|(name, value)| (name, value))).output().unwrap();
        serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"))
    };
    let all: Vec<String> = config(&[]).as_object().unwrap().keys().cloned().collect();
    let known = all.iter().filter(|name| !["store", "key"].contains(&name.as_str()));
    let given: Vec<(String, String)> = known
        .map(|name| {
            let value = match name.as_str() {
                "ttl" => "2m",
                "label" => "box",
                "grace" => "7s",
                "held_exit_code" => "9",
                "state" => "state here",
                "history_transfers" => "200",
                "history_age" => "30d",
                "log" => "warn",
                "log_format" => "json",
                "metrics" => "127.0.0.1:9464",
                "metrics_leases" => "a*,b",
                "output" => "\"kept\" 100% $x \\",
                "output_size" => "1MB",
                "output_runs" => "7",
                unknown => panic!("setting `{unknown}` needs a value here"),
            };
            (format!("LEASEHOLD_{}", name.to_uppercase()), value.to_owned())
        })
        .collect();
    let install = |kind: &str, more: &[(&str, &str)]| {
        let mut command = home.leasehold(&["schedule", "install", "--print", "--kind", kind]);
        command.envs(given.iter().map(|(name, value)| (name, value))).env_remove("LEASEHOLD_KEY");
        let done = command.envs(more.iter().copied()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let secrets = [
        ("LEASEHOLD_KEY", "hunter2"),
        ("LEASEHOLD_DO_TOKEN", "hunter2"),
        ("LEASEHOLD_PING", "https://hc.example/hunter2"),
    ];
    let [unit, _] = install("systemd", &[("LEASEHOLD_KEY_FILE", "key")]);
    let told = environment_of(&unit);
    assert!(told.contains(&("LEASEHOLD_KEY_FILE".into(), home.path("key").display().to_string())), "{unit}");
    for (name, _) in &given {
        assert!(told.iter().any(|(known, _)| known == name), "{name}: {unit}");
    }
    // The service, wherever it is started, has the same settings.
    let elsewhere: Vec<(String, String)> = told.into_iter().filter(|(name, _)| name != "LEASEHOLD_KEY_FILE").collect();
    assert_eq!(config(&elsewhere), config(&given));
    let [unit, said] = install("systemd", &secrets);
    for (name, _) in &secrets {
        assert!(said.contains(&format!("will not have this shell's {name}: it ")), "{name}: {said}");
        assert!(!unit.contains(name) && !unit.contains("hunter2") && !said.contains("hunter2"), "{unit}{said}");
    }
    assert!(said.contains("set LEASEHOLD_KEY_FILE to the path in place of LEASEHOLD_KEY"), "{said}");
    let [plist, said] = install("launchd", &secrets);
    assert!(plist.contains("<key>LEASEHOLD_TTL</key><string>2m</string>") && !plist.contains("hunter2"), "{plist}");
    assert!(said.contains("will not have this shell's LEASEHOLD_KEY: "), "{said}");
}

#[test]
fn wrong_jobs_are_refused_with_job_field_value_and_form() {
    let home = Home::new(On::Sqlite);
    let job = |fields: &str| format!("[[job]]\nname = 'x'\n{fields}\n");
    let usual = "every = '1h'\ncommand = 'true'";
    for (text, says) in [
        ("".to_owned(), "there is no [[job]] table"),
        ("[[job]]\nevery = '1h'\ncommand = 'true'".into(), "job 1: field `name`: give the job a name"),
        ("[[job]]\nname = '-x'\nevery = '1h'\ncommand = 'true'".into(), "a job's name does not begin with `-`"),
        (job("command = 'true'"), "job `x`: field `cron`: give either `cron` or `every`"),
        (job("every = '1h'\ncron = '@daily'\ncommand = 'true'"), "give either `cron` or `every`"),
        (job("every = '90'\ncommand = 'true'"), "field `every`: invalid duration `90`"),
        (job("every = '1500ms'\ncommand = 'true'"), "use whole seconds"),
        (job("every = '1h'"), "field `command`: give either"),
        (job("every = '1h'\nargv = []"), "field `command`: give either"),
        (job("cron = '@daily'\ntz = 'Mars'\ncommand = 'true'"), "field `tz`: invalid time zone `Mars`"),
        (job("cron = '@daily'\ntz = 'localtime'\ncommand = 'true'"), "`localtime` is no name of IANA's"),
        (job("cron = '@daily'\ntz = 'posixrules'\ncommand = 'true'"), "`posixrules` is no name of IANA's"),
        (job("cron = '@daily'\ntz = 'Etc/Unknown'\ncommand = 'true'"), "`etc/unknown` is no name of IANA's"),
        (job("every = '0.5s'\ncommand = 'true'"), "there are no fractions"),
        (job("cron = '30 2 * * * root'\ncommand = 'true'"), "drop the user column `root`"),
        (job("cron = '@daily'\ndst = 'maybe'\ncommand = 'true'"), "field `dst`: invalid dst `maybe`: use shift"),
        (job("cron = '@daily'\ndst_fold = 'x'\ncommand = 'true'"), "invalid dst_fold `x`: use first"),
        (job("every = '1h'\ntz = 'UTC'\ncommand = 'true'"), "go with `cron`"),
        (job("cron = '@every 1h'\ntz = 'Asia/Tokyo'\ncommand = 'true'"), "invalid cron `@every 1h`: it is counted in"),
        (job(&format!("{usual}\nbusy = 'queue'")), "invalid busy `queue`: use skip, wait 10m"),
        (job(&format!("{usual}\ncatch_up = 0")), "invalid catch_up `0`"),
        (job(&format!("{usual}\ncatch_up = -1")), "invalid catch_up `-1`"),
        (job(&format!("{usual}\ncatch_up_max_age = 'x'")), "field `catch_up_max_age`: invalid duration"),
        (job(&format!("{usual}\nttl = '1ms'")), "field `ttl`: invalid ttl"),
        (job(&format!("{usual}\nttl = '5s'\ngrace = '1h'")), "grace"),
        (job(&format!("{usual}\nretries = 101")), "invalid retries `101`: use 0 to 100"),
        (
            job(&format!("{usual}\nretries = '3'")),
            "line 5: `retries` is the text '3'; write the number without quotes: retries = 3",
        ),
        (job(&format!("{usual}\nargv = 'ls'")), "`argv` is a list; write it in square brackets: argv = ['ls']"),
        (job(&format!("{usual}\nlate_after = 90")), "`late_after` has no unit; write it with a unit, in quotes"),
        (job(usual).replace("[[job]]", "[job]"), "line 1: `job` is a list of tables; write [[job]]"),
        (job(&format!("{usual}\nguards = ['nfs:x']")), "invalid guard `nfs:x`"),
        (job(&format!("{usual}\nenv = {{ LEASEHOLD_TOKEN = 'x' }}")), "invalid env `LEASEHOLD_TOKEN`"),
        (job(&format!("{usual}\ncolour = 'red'")), "unknown field `colour`"),
        (job(&format!("{usual}\njitter = '61m'")), "job `x`: invalid jitter `1h1m`: two of its slots are 1h apart"),
        (
            job("cron = '0,5 3 * * *'\ncommand = 'true'\njitter = '6m'"),
            "invalid jitter `6m`: two of its slots are 5m apart",
        ),
        (job(&format!("{usual}\non = []")), "job `x`: invalid on `[]`: use a label, or a list of at least one"),
        (job(&format!("{usual}\non = ''")), "job `x`: invalid on ``: use a label"),
        (job(&format!("{usual}\non = ['gpu', 'eu,us']")), "invalid on `eu,us`: use a label"),
        (job(usual) + &job(usual), "there are two jobs of this name"),
        ("[[job]\n".into(), "line 1"),
    ] {
        jobs(&home, &text);
        let refused = home.done(&["schedule", "check"]).expect(64);
        assert!(refused.stderr.contains(says), "{text}: {}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
    // As much as lies between two slots, and for a line whose slots are days apart.
    for right in
        ["every = '1h'\njitter = '1h'", "cron = '0 3 * * MON-FRI'\njitter = '1d'", "cron = '@monthly'\njitter = '3d'"]
    {
        jobs(&home, &job(&format!("{right}\ncommand = 'true'\non = ['gpu', 'eu']")));
        home.done(&["schedule", "check"]).expect(0);
    }
    jobs(&home, &job(usual));
    home.done(&["run", "x", "--slot", "0 3 * *", "--", "true"]).expect(64);
    let zone = home.done(&["run", "x", "--slot", "@daily", "--tz", "Mars", "--", "true"]).expect(64);
    assert!(zone.stderr.contains("(from --tz)"), "{zone:?}");
    for labels in ["", "gpu,eu"] {
        for words in [&["schedule", "run", "--on", labels][..], &["schedule", "-q", "--on", labels]] {
            let refused = home.done(words).expect(64);
            assert!(refused.stderr.contains(&format!("invalid label `{labels}`")), "{refused:?}");
        }
    }
    let refused = home.done(&["schedule", "-q", "check"]).expect(64);
    assert!(refused.stderr.contains("go with `schedule` alone"), "{refused:?}");
    assert!(!home.path("leases.db").exists());
}

#[test]
fn a_second_sigterm_ends_what_does_not_listen() {
    let home = Home::new(On::Sqlite);
    let deaf = "[ -e deaf ] && exit; trap \"\" TERM; echo $$ > deaf; while :; do sleep 0.05; done";
    jobs(&home, &format!("[[job]]\nname = 'deaf'\nevery = '1s'\nttl = '6s'\ncommand = '''{deaf}'''\n"));
    let daemon = home.start(&["schedule"]);
    let pid: i32 = home.words("deaf")[0].parse().unwrap();
    signal(daemon.pid(), "TERM");
    eventually("nothing new is begun", || home.done(&["show", "deaf"]).code == 0);
    signal(daemon.pid(), "TERM");
    let ended = daemon.end();
    assert!(ended.stderr.contains("stopping once the current runs finish"), "{ended:?}");
    assert!(!common::is_alive(pid));

    home.done(&["queue", "add", "mail", "--text", "x"]).expect(0);
    let deaf = "trap '' TERM; echo $$ > item; while :; do sleep 0.05; done";
    let worker = home.start(&["work", "mail", "--ttl", "6s", "--", "sh", "-c", deaf]);
    let pid: i32 = home.words("item")[0].parse().unwrap();
    signal(worker.pid(), "TERM");
    signal(worker.pid(), "TERM");
    // Two that come at once may count as one.
    eventually("it ends", || {
        signal(worker.pid(), "TERM");
        !common::is_alive(pid)
    });
    worker.end();
}
