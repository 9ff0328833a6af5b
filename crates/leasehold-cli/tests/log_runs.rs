//! What schedulers, workers and runs log: every line says what it is about, and every end is told once.

#![allow(clippy::unwrap_used)]

mod common;

use common::slots::jobs;
use common::{Home, On, Running, descendants, eventually, signal};
use serde_json::Value;

#[track_caller]
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in `{line}`"))).collect()
}

/// Starts it with its log in a file of this name.
fn start(home: &Home, args: &[&str], log: &str) -> Running {
    let log = std::fs::File::create(home.path(log)).unwrap();
    Running::from(home.leasehold(args).stderr(log).spawn().unwrap())
}

const JOBS: &str = "\
[[job]]
name = 'good'
every = '1s'
command = 'true'
[[job]]
name = 'bad'
every = '1s'
command = 'exit 3'
[[job]]
name = 'hung'
every = '1s'
command = 'exec sleep 100'
timeout = '1500ms'
grace = '100ms'
";

#[test]
fn a_scheduler_tells_of_each_run_by_job_and_slot() {
    let home = Home::new(On::Sqlite);
    jobs(&home, JOBS);
    let daemon = start(&home, &["schedule", "--log-format", "json"], "log");
    let has = |job: &str, outcome: &str| {
        let of = (format!("\"job\":\"{job}\""), format!("\"outcome\":\"{outcome}\""));
        home.read("log").lines().any(|line| line.contains(&of.0) && line.contains(&of.1))
    };
    eventually("all ends are told", || {
        has("good", "succeeded") && has("bad", "failed") && has("hung", "failed") && has("hung", "skipped_overlap")
    });
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    let told = lines(&home.read("log"));
    let of = |job: &str| told.iter().filter(|line| line["job"] == job).cloned().collect::<Vec<_>>();
    for job in ["good", "bad", "hung"] {
        assert!(!of(job).is_empty());
        for line in of(job) {
            let (message, slot) = (line["message"].as_str().unwrap(), line["slot"].as_str().unwrap_or_default());
            assert!(slot.parse::<jiff::Timestamp>().is_ok(), "{line}");
            assert!(message.contains(job), "{line}");
        }
        // Each that was started has one end, and the end has the number of its start.
        let of = of(job);
        let started = of.iter().filter(|line| line["message"].as_str().unwrap().starts_with("started"));
        for start in started {
            let ends: Vec<_> =
                of.iter().filter(|end| end["epoch"] == start["epoch"] && end["outcome"].is_string()).collect();
            assert_eq!(ends.len(), 1, "{start}: {ends:?}");
            assert_eq!(ends[0]["slot"], start["slot"]);
            assert!(ends[0]["duration_ms"].is_u64(), "{ends:?}");
        }
    }
    let end = |job: &str, outcome: &str| of(job).into_iter().find(|line| line["outcome"] == outcome).unwrap();
    let (good, bad) = (end("good", "succeeded"), end("bad", "failed"));
    assert_eq!((&good["level"], &good["exit_code"]), (&"info".into(), &0.into()), "{good}");
    assert_eq!((&bad["level"], &bad["exit_code"]), (&"warn".into(), &3.into()), "{bad}");
    assert!(bad["message"].as_str().unwrap().contains("failed with exit code 3 after"), "{bad}");
    let limit = of("hung").into_iter().find(|line| line["message"].as_str().unwrap().contains("(`timeout`)"));
    assert!(limit.unwrap()["epoch"].is_u64());
}

#[test]
fn in_text_too_every_line_names_its_job_and_quiet_leaves_what_went_wrong() {
    let home = Home::new(On::Sqlite);
    jobs(&home, JOBS);
    let daemon = start(&home, &["schedule"], "log");
    eventually("the hung job is stopped", || home.read("log").contains("(`timeout`) and was stopped"));
    eventually("a good job is told", || home.read("log").contains("`good` for slot "));
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    let own = |line: &&str| line.contains("scheduling 3 jobs") || line.contains("stopping once");
    for line in home.read("log").lines().filter(|line| !own(line)) {
        assert!(["good", "bad", "hung"].iter().any(|job| line.contains(&format!("`{job}`"))), "{line}");
        assert!(line.contains("slot 2"), "{line}");
    }
    // Also those of the runs, which are processes of their own.
    for line in home.read("log").lines() {
        let [time, level, name] = line.splitn(4, ' ').take(3).collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z'), "{line}");
        assert!(["info", "warn"].contains(&level) && name == "leasehold:", "{line}");
    }
    let daemon = start(&home, &["schedule", "--quiet"], "quiet");
    eventually("failures are told", || home.read("quiet").contains("`bad` for slot "));
    eventually("the hung job is stopped", || home.read("quiet").contains("`hung` for slot "));
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    let quiet = home.read("quiet");
    assert!(
        !quiet.contains("started") && !quiet.contains("succeeded") && !quiet.contains("skipped_overlap"),
        "{quiet}"
    );
}

#[test]
fn a_run_whose_supervisor_was_killed_is_reported_and_run_again() {
    let home = Home::new(On::Sqlite);
    let command = "[ -e again ] && exit; touch again; echo $$ > pid; exec sleep 100";
    jobs(&home, &format!("[[job]]\nname = 'job'\nevery = '1s'\nttl = '3s'\ncommand = '{command}'\n"));
    let daemon = start(&home, &["schedule", "--log-format", "json"], "log");
    home.words("pid");
    // The supervisor first: it would tell that its command was lost.
    for pid in descendants(daemon.pid()) {
        signal(pid, "KILL");
    }
    let told = || lines(&home.read("log")).into_iter().filter(|line| line["job"] == "job").collect::<Vec<_>>();
    let find = |words: &str| told().into_iter().find(|line| line["message"].as_str().unwrap().contains(words));
    eventually("it is told, and the slot is run again", || find("succeeded").is_some());
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    let (killed, again, end) = (find("was killed by signal 9"), find("was interrupted"), find("succeeded").unwrap());
    let (killed, again) = (killed.unwrap(), again.unwrap());
    assert_eq!((&killed["slot"], &killed["epoch"]), (&again["slot"], &1.into()), "{killed} {again}");
    assert_eq!((&again["slot"], &again["outcome"]), (&end["slot"], &"lost".into()), "{again} {end}");
    assert_eq!(end["epoch"], 2);
}

#[test]
fn a_run_that_stalled_has_one_outcome_though_its_slot_is_run_again() {
    let home = Home::new(On::Sqlite);
    let command = "[ -e again ] && exit; touch again; exec sleep 100";
    let limits = "ttl = '3s'\nprogress_timeout = '1s'\n";
    jobs(&home, &format!("[[job]]\nname = 'job'\nevery = '1s'\n{limits}command = '{command}'\n"));
    let daemon = start(&home, &["schedule", "--log-format", "json"], "log");
    let told = || lines(&home.read("log")).into_iter().filter(|line| line["job"] == "job").collect::<Vec<_>>();
    let find = |words: &str| told().into_iter().find(|line| line["message"].as_str().unwrap().contains(words));
    eventually("the slot is run again", || find("succeeded").is_some());
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    let ends: Vec<_> = told().into_iter().filter(|line| line["epoch"] == 1 && line["outcome"].is_string()).collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert!(ends[0]["message"].as_str().unwrap().contains("no progress was seen for"), "{ends:?}");
    assert!(find("was interrupted").unwrap()["outcome"].is_null());
}

#[test]
fn a_run_that_is_revoked_has_one_outcome_though_its_slot_is_run_again() {
    let home = Home::new(On::Sqlite);
    let command = "[ -e again ] && exit; touch again; echo $$ > pid; exec sleep 100";
    jobs(&home, &format!("[[job]]\nname = 'job'\nevery = '1s'\nttl = '6s'\ncommand = '{command}'\n"));
    let daemon = start(&home, &["schedule", "--log-format", "json"], "log");
    home.words("pid");
    home.done(&["revoke", "job", "--by", "ann", "--why", "it hangs"]).expect(0);
    let told = || lines(&home.read("log")).into_iter().filter(|line| line["job"] == "job").collect::<Vec<_>>();
    let find = |words: &str| told().into_iter().find(|line| line["message"].as_str().unwrap().contains(words));
    eventually("the slot is run again", || find("succeeded").is_some());
    signal(daemon.pid(), "TERM");
    daemon.end().expect(0);
    let ends: Vec<_> = told().into_iter().filter(|line| line["epoch"] == 1 && line["outcome"].is_string()).collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert!(ends[0]["message"].as_str().unwrap().contains("revoked by ann (it hangs)"), "{ends:?}");
    assert!(find("was interrupted").unwrap()["outcome"].is_null());
}

#[test]
fn a_worker_tells_of_each_item() {
    let home = Home::new(On::Sqlite);
    for (text, attempts) in [("good", "2"), ("bad", "1"), ("again", "2")] {
        home.done(&["queue", "add", "mail", "--text", text, "--attempts", attempts]).expect(0);
    }
    let words = ["work", "mail", "--until-idle", "--log-format", "json", "--", "sh", "-c", "read it; [ $it = good ]"];
    let done = home.done(&words).expect(0);
    let told = lines(&done.stderr);
    for line in &told {
        assert_eq!(line["queue"], "mail", "{line}");
        let (message, item) = (line["message"].as_str().unwrap(), line["item"].as_str().unwrap());
        assert!(message.contains(item) && message.contains("`mail`") && line["epoch"].is_u64(), "{line}");
    }
    let outcomes: Vec<_> = told.iter().filter_map(|line| line["outcome"].as_str()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "succeeded").count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "failed").count(), 1, "{outcomes:?}");
    let dead = told.iter().find(|line| line["outcome"] == "dead_letter").unwrap();
    assert_eq!((&dead["level"], &dead["exit_code"]), (&"warn".into(), &1.into()), "{dead}");
    assert!(dead["duration_ms"].is_u64(), "{dead}");
    assert_eq!(told.iter().filter(|line| line["message"].as_str().unwrap().starts_with("started")).count(), 3);
}

#[test]
fn several_lanes_log_as_their_manager_does() {
    let home = Home::new(On::Sqlite);
    for text in ["one", "two", "three"] {
        home.done(&["queue", "add", "mail", "--text", text]).expect(0);
    }
    let words = ["--log-format", "json", "work", "mail", "--jobs", "2", "--until-idle", "--", "true"];
    let told = lines(&home.done(&words).expect(0).stderr);
    assert_eq!(told.iter().filter(|line| line["outcome"] == "succeeded").count(), 3, "{told:?}");
    let words = ["--log", "warn", "work", "mail", "--jobs", "2", "--until-idle", "--", "false"];
    home.done(&["queue", "add", "mail", "--text", "bad", "--attempts", "1"]).expect(0);
    let told = home.done(&words).expect(0).stderr;
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("is a dead letter now"), "{told}");
}

#[test]
fn who_loses_an_item_is_told_by_whom_and_why() {
    let home = Home::new(On::Sqlite);
    let item = home.done(&["queue", "add", "mail", "--text", "x"]).expect(0).stdout.trim().to_owned();
    let words = ["work", "mail", "--items", "1", "--ttl", "3s", "--", "sh", "-c", "echo $$ > pid; exec sleep 100"];
    let worker = home.start(&words);
    home.words("pid");
    home.done(&["queue", "cancel", "mail", &item, "--by", "ann", "--why", "wrong address"]).expect(0);
    let told = worker.end().expect(75).stderr;
    assert!(told.contains(&format!("lost `{item}`")) && told.contains("cancelled by ann (wrong address)"), "{told}");
}

#[test]
fn who_loses_a_lease_is_told_by_whom_and_why() {
    let home = Home::new(On::Sqlite);
    let job = ["run", "job", "--ttl", "3s", "--log-format", "json", "--", "sh", "-c", "echo $$ > pid; exec sleep 100"];
    let run = home.start(&job);
    home.words("pid");
    home.done(&["hand-off", "job", "--to", "bob", "--by", "ann", "--why", "drain"]).expect(0);
    let told = lines(&run.end().expect(75).stderr);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0]["message"].as_str().unwrap().contains("handed off by ann (drain)"), "{told:?}");
    assert_eq!((&told[0]["outcome"], &told[0]["lease"], &told[0]["epoch"]), (&"lost".into(), &"job".into(), &1.into()));
    assert!(told[0]["duration_ms"].is_u64(), "{told:?}");
}

#[test]
fn a_run_tells_its_start_and_end_only_if_asked() {
    let home = Home::new(On::Sqlite);
    for code in ["0", "3"] {
        let script = format!("exit {code}");
        let quiet = home.done(&["run", "job", "--", "sh", "-c", &script]).expect(code.parse().unwrap());
        assert_eq!(quiet.stderr, "");
        let told = home.done(&["--log", "info", "run", "job", "--", "sh", "-c", &script]).stderr;
        let told: Vec<&str> = told.lines().collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("leasehold: started `job` under epoch "), "{told:?}");
        let end = if code == "0" {
            "leasehold: `job` succeeded after "
        } else {
            "leasehold: `job` failed with exit code 3 after "
        };
        assert!(told[1].starts_with(end), "{told:?}");
    }
}

/// A lease that cannot be renewed because somebody keeps the database locked, for a while.
#[test]
fn a_run_that_cannot_renew_says_so_in_time_and_again_when_it_can() {
    let home = Home::new(On::Sqlite);
    let job = "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done";
    let run = start(&home, &["run", "job", "--ttl", "24s", "--log-format", "json", "--", "sh", "-c", job], "log");
    home.words("pid");
    let mut database = rusqlite::Connection::open(home.path("leases.db")).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    let locked = database.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    eventually("it is told", || home.read("log").lines().count() == 1);
    locked.rollback().unwrap();
    eventually("it is told that it is over", || home.read("log").lines().count() == 2);
    home.touch("go");
    run.end().expect(0);
    let told = lines(&home.read("log"));
    assert_eq!(told.len(), 2, "{told:?}");
    let warning = told[0]["message"].as_str().unwrap();
    assert!(warning.starts_with("`job` has not been renewed since 2"), "{told:?}");
    assert!(warning.contains("its command will be stopped at 2") && warning.contains("(in "), "{told:?}");
    assert_eq!((&told[0]["level"], &told[0]["lease"]), (&"warn".into(), &"job".into()), "{told:?}");
    assert!(!told[0]["error"].as_str().unwrap().is_empty(), "{told:?}");
    assert!(told[1]["message"].as_str().unwrap().starts_with("`job` is renewed again, after "), "{told:?}");
}

#[test]
fn a_reader_of_the_log_that_stops_reading_holds_nothing_up() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = 'calm'\nevery = '1s'\ncommand = 'echo ran >>ran'\n");
    let (reader, writer) = std::io::pipe().unwrap();
    // Full from the start: not one line fits.
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    let mut daemon = home.leasehold(&["schedule", "--log", "debug"]);
    let mut daemon = Running::from(daemon.stderr(writer).spawn().unwrap());
    eventually("it runs, and runs again", || home.path("ran").exists() && home.read("ran").lines().count() >= 3);
    signal(daemon.pid(), "TERM");
    eventually("it ends when it is asked to", || daemon.is_over());
    drop(reader);
}
