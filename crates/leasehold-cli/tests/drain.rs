//! `revoke --drain`, `hand-off --drain`, and the same for items of queues: the holder is asked to finish, and has time for it.
//! The real binary.

#![allow(clippy::unwrap_used)]

mod common;

use common::slots::{rare_slot, runs};
use common::{Home, On, eventually, signal};

/// Says when it has started and when it was asked to finish, and finishes when it is let.
const POLITE: &str = "trap 'echo asked > asked' TERM; echo $$ > started
    while ! test -e asked; do sleep 0.02; done
    while ! test -e go; do sleep 0.02; done; echo whole > end";
/// Says when it was asked to finish, and goes on.
const DEAF: &str = "trap 'echo asked > asked' TERM; echo $$ > started; while :; do sleep 0.02; done";

fn run<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["run", "job", "--ttl", "30s"][..], more, &["--", "sh", "-c", command]].concat()
}

fn latest(home: &Home) -> serde_json::Value {
    home.history("job")[0].clone()
}

#[test]
fn a_holder_that_is_asked_to_finish_ends_well_and_the_lease_is_taken_then() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let holder = home.start(&run(POLITE, &["--retries", "3"]));
        home.words("started");
        let operator = home.start(&["revoke", "job", "--drain", "--by", "ann", "--why", "box 7 goes down"]);
        home.words("asked");
        // It goes on under its lease, and everybody sees why nobody follows.
        let shown = home.show("job");
        assert_eq!((&shown["state"], &shown["epoch"]), (&"held".into(), &1.into()), "{shown}");
        assert_eq!((&shown["drain"]["by"], &shown["drain"]["why"]), (&"ann".into(), &"box 7 goes down".into()));
        let page = home.done(&["show", "job"]).expect(0).stdout;
        assert!(page.contains("held, draining") && page.contains("by ann: box 7 goes down"), "{page}");
        assert!(home.done(&["ls"]).expect(0).stdout.contains("held, draining"));
        home.touch("go");
        let ended = holder.end().expect(0);
        assert!(ended.stderr.contains("asked to finish by ann: box 7 goes down"), "{ended:?}");
        assert_eq!(home.read("end"), "whole\n");
        let told = operator.end().expect(0);
        assert!(told.stderr.contains("no longer holds `job`"), "{told:?}");
        assert!(told.stderr.contains("revoked `job`") && told.stderr.contains("nobody held it"), "{told:?}");
        let history = home.history("job");
        assert_eq!(history[0]["reason"], "revoked", "{history:?}");
        assert_eq!((&history[1]["outcome"], &history[1]["epoch"]), (&"succeeded".into(), &1.into()), "{history:?}");
        let shown = home.show("job");
        assert!(shown["drain"].is_null() && shown["state"] == "free", "{shown}");
    }
}

#[test]
fn nobody_new_gets_a_lease_that_an_operator_waits_for_and_a_hand_off_does() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    let operator = home.start(&["hand-off", "job", "--to", "ann", "--drain", "--why", "by hand"]);
    eventually("it is asked for", || !home.show("job")["drain"].is_null());
    // A script learns of it when it renews.
    let renewed = home.done(&["renew", "--token", &token]).expect(0);
    assert!(renewed.stderr.contains("asked to finish by") && renewed.stderr.contains("release it by"), "{renewed:?}");
    let waiting = home.start(&["run", "job", "--wait", "2s", "--held-exit-code", "9", "--", "touch", "ran"]);
    home.done(&["release", "--token", &token]).expect(0);
    let handed = operator.end().expect(0);
    assert!(handed.stdout.starts_with("job:2:"), "{handed:?}");
    waiting.end().expect(9);
    assert!(!home.path("ran").exists());
    assert_eq!(latest(&home)["reason"], "handed_off");
    home.done(&["renew", "--token", handed.stdout.trim()]).expect(0);
}

#[test]
fn a_holder_that_does_not_finish_in_time_is_killed_as_without_a_drain() {
    let home = Home::new(On::Sqlite);
    let holder = home.start(&run(DEAF, &[]));
    home.words("started");
    let told = home.done(&["revoke", "job", "--drain", "--within", "2s", "--why", "enough"]).expect(0);
    assert!(told.stderr.contains("has not finished `job` within 2s"), "{told:?}");
    assert!(told.stderr.contains("has lost it"), "{told:?}");
    assert_eq!(home.read("asked"), "asked\n");
    let ended = holder.end().expect(75);
    assert!(ended.stderr.contains("asked to finish by"), "{ended:?}");
    let history = home.history("job");
    assert_eq!((&history[0]["reason"], &history[1]["outcome"]), (&"revoked".into(), &"evicted".into()), "{history:?}");
}

#[test]
fn who_is_killed_while_waiting_leaves_what_runs_out_or_what_a_later_revoke_ends() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    let asked = || !home.show("job")["drain"].is_null();
    let operator = home.start(&["revoke", "job", "--drain", "--within", "3s", "--why", "first"]);
    eventually("it is asked for", asked);
    drop(operator);
    home.done(&["release", "--token", &token]).expect(0);
    eventually("it has run out", || !asked());
    let token = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    let operator = home.start(&["revoke", "job", "--drain", "--within", "1h", "--why", "second"]);
    eventually("it is asked for again", asked);
    drop(operator);
    home.done(&["release", "--token", &token]).expect(0);
    let kept = home.done(&["acquire", "job"]).expect(11);
    assert!(kept.stderr.contains("is kept for") && kept.stderr.contains("second"), "{kept:?}");
    home.done(&["revoke", "job", "--why", "never mind"]).expect(0);
    home.done(&["acquire", "job"]).expect(0);
}

#[test]
fn every_other_case_has_an_answer() {
    let home = Home::new(On::Sqlite);
    let drain = |more: &[&str]| home.done(&[&["revoke", "job", "--drain", "--why", "x"][..], more].concat());
    drain(&[]).expect(64);
    assert!(!home.path("leases.db").exists(), "a name that nobody has is not made");
    // Free: there is nobody to wait for.
    let token = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    home.done(&["release", "--token", &token]).expect(0);
    assert!(drain(&[]).expect(0).stderr.contains("nobody held it"));
    // On another epoch than was seen.
    let token = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    drain(&["--if-epoch", "1"]).expect(13);
    assert!(home.show("job")["drain"].is_null());
    // Paused: it stays so.
    home.done(&["pause", "job", "--why", "maintenance"]).expect(0);
    let first = home.start(&["revoke", "job", "--drain", "--why", "first"]);
    eventually("it is asked for", || home.show("job")["drain"]["why"] == "first");
    // A second request takes the place of the first; whoever comes second to the lease is told.
    let second = home.start(&["revoke", "job", "--drain", "--why", "second"]);
    eventually("it is asked for again", || home.show("job")["drain"]["why"] == "second");
    home.done(&["release", "--token", &token]).expect(0);
    let mut codes = [first.end().code, second.end().code];
    codes.sort_unstable();
    assert_eq!(codes, [0, 13]);
    assert_eq!(home.show("job")["state"], "paused");
    home.done(&["resume", "job", "--why", "done"]).expect(0);
    for bad in ["0s", "25h", "soon"] {
        let refused = drain(&["--within", bad]).expect(64);
        assert!(refused.stderr.contains("--within"), "{refused:?}");
    }
    home.done(&["revoke", "job", "--within", "1m", "--why", "x"]).expect(64);
}

#[test]
fn a_lease_that_is_moved_meanwhile_is_not_taken() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job", "--ttl", "5m"]).expect(0);
    let operator = home.start(&["revoke", "job", "--drain", "--why", "x"]);
    eventually("it is asked for", || !home.show("job")["drain"].is_null());
    let to = format!("sqlite:{}", home.path("new.db").display());
    home.done(&["migrate", &home.store, &to, "--revoke-held"]).expect(0);
    // It may have looked while the move was under way.
    let told = operator.end();
    assert!(matches!(told.code, 69 | 78), "{told:?}");
    home.done(&["revoke", "job", "--drain", "--why", "x"]).expect(78);
    let shown = home.done(&["show", "job", "--json", "--store", &to]).expect(0).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["drain"].is_null() && shown["state"] == "free", "{shown}");
}

fn add(home: &Home) -> String {
    home.done(&["queue", "add", "mail", "--text", "to: ada"]).expect(0).stdout.trim().to_owned()
}

fn item(home: &Home, id: &str) -> serde_json::Value {
    serde_json::from_str(&home.done(&["queue", "show", "mail", id, "--json"]).expect(0).stdout).unwrap()
}

fn worker(home: &Home, command: &str) -> common::Running {
    let worker = home.start(&["work", "mail", "--ttl", "30s", "--items", "1", "--", "sh", "-c", command]);
    home.words("started");
    worker
}

#[test]
fn a_worker_that_is_asked_to_finish_completes_its_item_and_nothing_is_left_to_cancel() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let id = add(&home);
        let worker = worker(&home, POLITE);
        let operator =
            home.start(&["queue", "cancel", "mail", &id, "--drain", "--by", "ann", "--why", "box 7 goes down"]);
        home.words("asked");
        let shown = item(&home, &id);
        assert_eq!((&shown["state"], &shown["epoch"]), (&"claimed".into(), &1.into()), "{shown}");
        assert_eq!((&shown["drain"]["by"], &shown["drain"]["why"]), (&"ann".into(), &"box 7 goes down".into()));
        let page = home.done(&["queue", "show", "mail", &id]).expect(0).stdout;
        assert!(page.contains("asked to finish by ann: box 7 goes down, until 2"), "{page}");
        home.touch("go");
        let ended = worker.end().expect(0);
        assert!(ended.stderr.contains("asked to finish by ann: box 7 goes down"), "{ended:?}");
        assert_eq!(home.read("end"), "whole\n");
        let told = operator.end().expect(0);
        assert!(told.stderr.contains("no longer works on") && told.stderr.contains("it is done"), "{told:?}");
        assert_eq!((item(&home, &id)["state"].as_str(), item(&home, &id)["epoch"].as_u64()), (Some("done"), Some(1)));
    }
}

#[test]
fn an_item_that_is_asked_for_is_claimed_by_nobody_new_and_goes_to_whom_it_is_handed() {
    let home = Home::new(On::Sqlite);
    let id = add(&home);
    let worker =
        worker(&home, "trap 'echo asked > asked; exit 9' TERM; echo $$ > started; while :; do sleep 0.02; done");
    let operator = home.start(&["queue", "hand-off", "mail", &id, "--to", "ann", "--drain", "--why", "by hand"]);
    // It was not its fault: the attempt does not count.
    let ended = worker.end().expect(0);
    assert!(ended.stderr.contains("was given back untried: asked to finish by"), "{ended:?}");
    let handed = operator.end().expect(0);
    assert!(handed.stderr.contains("no longer works on") && handed.stderr.contains("it is ready"), "{handed:?}");
    let shown = item(&home, &id);
    assert_eq!(
        (&shown["state"], &shown["epoch"], &shown["tried"]),
        (&"claimed".into(), &2.into(), &1.into()),
        "{shown}"
    );
    assert!(shown["drain"].is_null(), "{shown}");
    home.done(&["queue", "complete", "mail", "--token", handed.stdout.trim()]).expect(0);
}

#[test]
fn a_script_is_told_and_nobody_claims_its_item_until_the_operator_has_it() {
    let home = Home::new(On::Dir);
    let id = add(&home);
    let token = home.done(&["queue", "claim", "mail", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    let operator =
        home.start(&["queue", "retry", "mail", &id, "--drain", "--within", "1h", "--why", "the site is back"]);
    eventually("it is asked for", || !item(&home, &id)["drain"].is_null());
    for words in [&["queue", "progress", "mail"][..], &["renew"]] {
        let renewed = home.done(&[words, &["--token", &token]].concat()).expect(0);
        assert!(
            renewed.stderr.contains("asked to finish by") && renewed.stderr.contains("release it by"),
            "{renewed:?}"
        );
    }
    // Whoever is killed while waiting has asked all the same.
    drop(operator);
    home.done(&["queue", "fail", "mail", "--token", &token, "--why", "asked to", "--retry-in", "0s"]).expect(0);
    home.done(&["queue", "claim", "mail"]).expect(11);
    home.done(&["queue", "retry", "mail", &id, "--why", "the site is back"]).expect(0);
    home.done(&["queue", "claim", "mail"]).expect(0);
}

#[test]
fn a_worker_that_does_not_finish_in_time_loses_its_item_as_without_a_drain() {
    let home = Home::new(On::Sqlite);
    let id = add(&home);
    let worker = worker(&home, DEAF);
    let told = home.done(&["queue", "cancel", "mail", &id, "--drain", "--within", "2s", "--why", "enough"]).expect(0);
    assert!(told.stderr.contains(&format!("has not finished `{id}` within 2s")), "{told:?}");
    assert_eq!(home.read("asked"), "asked\n");
    worker.end().expect(75);
    assert_eq!(item(&home, &id)["state"], "cancelled");
}

#[test]
fn every_other_case_of_an_item_has_an_answer() {
    let home = Home::new(On::Sqlite);
    let id = add(&home);
    let order = |more: &[&str]| home.done(&[&["queue", "cancel", "mail", &id, "--why", "x"][..], more].concat());
    order(&["--within", "1m"]).expect(64);
    assert!(order(&["--drain", "--within", "0s"]).expect(64).stderr.contains("--within"));
    home.done(&["queue", "retry", "mail", "--all", "--drain", "--why", "x"]).expect(64);
    // On another epoch than was seen.
    home.done(&["queue", "claim", "mail", "--ttl", "5m"]).expect(0);
    order(&["--drain", "--if-epoch", "7"]).expect(13);
    assert!(item(&home, &id)["drain"].is_null());
    // Nobody works on it: there is nobody to wait for.
    home.done(&["queue", "retry", "mail", &id, "--why", "x"]).expect(0);
    assert!(order(&["--drain"]).expect(0).stderr.contains("cancelled"));
    assert_eq!(item(&home, &id)["state"], "cancelled");
    assert!(
        home.done(&["queue", "hand-off", "mail", &id, "--to", "ann", "--drain", "--why", "x"])
            .expect(64)
            .stdout
            .is_empty()
    );
    // A spool has no record in which one could be asked.
    let spool = format!("spool:{}", home.path("letters").display());
    let id = home.done(&["queue", "add", &spool, "--text", "x"]).expect(0).stdout.trim().to_owned();
    let refused = home.done(&["queue", "cancel", &spool, &id, "--drain", "--why", "x"]);
    assert!(refused.code != 0 && refused.stderr.contains("a spool cannot ask its workers to finish"), "{refused:?}");
}

#[test]
fn a_run_waits_out_its_interval_whoever_ran_it() {
    let home = Home::new(On::Sqlite);
    let every = |interval: &str| {
        home.done(&["run", "job", "--min-interval", interval, "--held-exit-code", "9", "--", "touch", "ran"])
    };
    every("1h").expect(0);
    assert!(home.path("ran").exists());
    let soon = every("1h").expect(9);
    assert!(soon.stderr.contains("the last run of `job` began") && soon.stderr.contains("may begin in"), "{soon:?}");
    assert_eq!(soon.stderr.lines().count(), 1, "{soon:?}");
    assert_eq!(home.count("job", "already_run"), 1);
    every("0s").expect(0);
    // A run that failed, and one that somebody else held by hand, count too.
    home.done(&["run", "job", "--", "false"]).expect(1);
    every("1h").expect(9);
    let token = home.done(&["acquire", "other"]).expect(0).stdout.trim().to_owned();
    home.done(&["release", "--token", &token]).expect(0);
    let other = ["run", "other", "--min-interval", "1h", "--held-exit-code", "9", "--", "true"];
    home.done(&other).expect(9);
    // Waiting is for the holder.
    let waited = [&other[..4], &["--wait", "1h"], &other[4..]].concat();
    let refused = home.done(&waited).expect(9);
    assert!(refused.stderr.contains("skipped: the last run of `other` began"), "{refused:?}");
    assert!(refused.stderr.contains("--wait waits for whoever holds it, not for that"), "{refused:?}");
    home.done(&["run", "job", "--min-interval", "1ms", "--", "true"]).expect(0);
    for more in [&["--or", "b"][..], &["--limit", "2"], &["--slot", "@daily"], &["--token", "x"]] {
        let args = [&["run", "job", "--min-interval", "1h"][..], more, &["--", "true"]].concat();
        home.done(&args).expect(64);
    }
    assert!(every("soon").expect(64).stderr.contains("--min-interval"));
}

#[test]
fn a_command_that_two_operators_ask_to_finish_gets_one_signal() {
    let home = Home::new(On::Sqlite);
    let counting = "trap 'echo asked >> asked' TERM; echo $$ > started; while ! test -e go; do sleep 0.02; done";
    let log = std::fs::File::create(home.path("log")).unwrap();
    let holder = home.leasehold(&run(counting, &[])).stderr(log).spawn().unwrap();
    let holder = common::Running::from(holder);
    home.words("started");
    let first = home.start(&["revoke", "job", "--drain", "--within", "2m", "--by", "ann", "--why", "one"]);
    eventually("it is asked", || home.read("log").contains("by ann: one; the command was sent SIGTERM"));
    let second = home.start(&["revoke", "job", "--drain", "--within", "1m", "--by", "bob", "--why", "two"]);
    eventually("it is asked again", || home.read("log").contains("by bob: two; the command was asked before"));
    drop(second);
    home.touch("go");
    holder.end().expect(0);
    first.end();
    assert_eq!(home.read("asked").lines().count(), 1);
}

#[test]
fn what_dies_of_the_request_is_drained_and_no_failure_and_its_slot_is_run_again() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let tell = r#"command = ["sh", "-c", "echo $LEASEHOLD_EVENT_TYPE >>told"]"#;
        let settings = format!("[[notify]]\non = [\"failed\", \"lost\", \"missed\", \"recovered\"]\n{tell}\n");
        std::fs::write(home.path("leasehold.toml"), settings).unwrap();
        let line = rare_slot();
        let slot = ["--slot", &line, "--slot-max-age", "100d", "--retries", "3", "--backoff", "1h"];
        let holder = home.start(&run("echo $$ >started; exec sleep 1000", &slot));
        home.words("started");
        home.done(&["revoke", "job", "--drain", "--by", "ann", "--why", "box 7 goes down"]).expect(0);
        let ended = holder.end().expect(143);
        assert!(ended.stderr.contains("asked to finish by ann") && !ended.stderr.contains("failed"), "{ended:?}");
        let history = home.history("job");
        assert_eq!((&history[1]["epoch"], &history[1]["outcome"]), (&1.into(), &"drained".into()), "{history:?}");
        let found = runs(&home, "job");
        assert_eq!((&found[0]["fate"], &found[0]["exit"]), (&"drained".into(), &143.into()), "{found:?}");
        assert_eq!([home.count("job", "drained"), home.count("job", "failed"), home.count("job", "lost")], [1, 0, 0]);
        home.done(&run("true", &slot)).expect(0);
        assert_eq!(runs(&home, "job")[0]["fate"], "succeeded");
        assert!(!home.path("told").exists(), "{}", home.read("told"));
    }
}

#[test]
fn a_run_that_is_asked_to_finish_before_its_next_try_is_drained() {
    let home = Home::new(On::Sqlite);
    let holder = home.start(&run("echo $$ >started; exit 3", &["--retries", "3", "--backoff", "1h"]));
    home.words("started");
    eventually("it waits for its next try", || home.show("job")["state"] == "held");
    home.done(&["revoke", "job", "--drain", "--why", "x"]).expect(0);
    let ended = holder.end().expect(3);
    assert!(ended.stderr.contains("it is not tried again"), "{ended:?}");
    assert_eq!(home.history("job")[1]["outcome"], "drained", "it had tries left");
}

#[test]
fn what_a_scheduler_ends_with_itself_is_drained() {
    let home = Home::new(On::Sqlite);
    let job = "[[job]]\nname = \"job\"\nevery = \"1s\"\ncommand = \"echo $$ >started; exec sleep 1000\"\n";
    std::fs::write(home.path("leasehold.toml"), job).unwrap();
    let mut scheduler = home.start(&["schedule"]);
    home.words("started");
    signal(scheduler.pid(), "TERM");
    signal(scheduler.pid(), "TERM");
    eventually("it has ended", || {
        signal(scheduler.pid(), "TERM");
        scheduler.is_over()
    });
    let ended = scheduler.end();
    assert!(ended.stderr.contains("was asked to finish and ended before it was done"), "{ended:?}");
    let outcomes: Vec<String> = home.history("job").iter().map(|run| run["outcome"].to_string()).collect();
    assert_eq!(outcomes, ["\"drained\""]);
    assert_eq!(
        (runs(&home, "job").last().unwrap()["fate"].as_str(), home.count("job", "failed")),
        (Some("drained"), 0)
    );
}
