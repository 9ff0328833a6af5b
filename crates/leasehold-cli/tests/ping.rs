//! Monitoring services are told when a run starts and how it ended, and can do no harm.

#![cfg(feature = "http")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, eventually, signal, within};
use leasehold_testbed::{Heard, Receiver, Service};
use std::time::Duration;

const CHECK: &str = "/0c8983c9-9d73-446f-adb5-0641fdacc9d4";
const MONITOR: &str = "/api/42/cron/nightly/0123456789abcdef/";

fn healthchecks() -> Receiver {
    Receiver::start(Service::Healthchecks(CHECK.into()))
}

fn signals(heard: &[Heard]) -> Vec<&str> {
    heard.iter().map(|heard| heard.signal.as_str()).collect()
}

#[track_caller]
fn one_run(heard: &[Heard]) {
    assert!(heard.windows(2).all(|pair| pair[0].id == pair[1].id), "one run has one id: {heard:?}");
}

#[test]
fn healthchecks_hears_of_start_success_and_failure() {
    let (home, service) = (Home::new(On::Sqlite), healthchecks());
    let url = service.url(CHECK);
    home.done(&["run", "nightly", "--ping", &url, "--", "true"]).expect(0);
    assert_eq!(signals(&service.heard()), ["start", "success"]);
    one_run(&service.heard());
    home.done(&["run", "nightly", "--ping", &url, "--", "sh", "-c", "exit 7"]).expect(7);
    let heard = service.heard();
    assert_eq!(signals(&heard[2..]), ["start", "7"]);
    one_run(&heard[2..]);
    assert_ne!(heard[0].id, heard[2].id, "each run has an id of its own");
    let done = home.done(&["run", "nightly", "--ping", &url, "--", "/no/such/program"]).expect(127);
    assert_eq!(signals(&service.heard()[4..]), ["start", "127"]);
    assert!(service.refused().is_empty(), "{:?}", service.refused());
    assert!(!done.stderr.contains(CHECK), "{done:?}");
}

#[test]
fn the_last_lines_go_with_the_end_and_are_plain_text() {
    let (home, service) = (Home::new(On::Sqlite), healthchecks());
    let url = service.url(CHECK);
    let script = "printf '10%%\\r100%%\\n'; printf '\\033[31mno space\\033[0m\\n'; exit 7";
    let run = ["run", "nightly", "--ping", &url, "--", "sh", "-c", script];
    let done = home.done(&run).expect(7);
    assert_eq!(done.stdout, "10%\r100%\n\u{1b}[31mno space\u{1b}[0m\n", "passed on as it is");
    let heard = service.heard();
    assert_eq!((heard[0].body.as_str(), heard[1].body.as_str()), ("", "100%\nno space\n"));
    // Remembered, not kept.
    home.done(&["logs", "nightly"]).expect(64);
    home.done(&["run", "nightly", "--ping", &url, "--", "sh", "-c", "yes line | head -n 5000"]).expect(0);
    let long = service.heard()[3].body.clone();
    assert!(long.len() <= 4_096 && long.len() > 4_000 && long.ends_with("line\n"), "{}", long.len());
    std::fs::write(home.path("leasehold.toml"), "output = \"off\"\n").unwrap();
    home.done(&run).expect(7);
    assert_eq!((service.heard()[5].signal.as_str(), service.heard()[5].body.as_str()), ("7", ""));
    assert!(service.refused().is_empty(), "{:?}", service.refused());
}

#[test]
fn sentry_hears_of_start_success_and_failure() {
    let home = Home::new(On::Sqlite);
    let service = Receiver::start(Service::Sentry(MONITOR.into()));
    let url = service.url(MONITOR);
    home.done(&["run", "nightly", "--ping", &url, "--", "true"]).expect(0);
    home.done(&["run", "nightly", "--ping", &url, "--", "false"]).expect(1);
    let heard = service.heard();
    assert_eq!(signals(&heard), ["in_progress", "ok", "in_progress", "error"]);
    one_run(&heard[..2]);
    one_run(&heard[2..]);
    assert!(service.refused().is_empty(), "{:?}", service.refused());
}

#[test]
fn a_skipped_run_is_not_a_run_to_the_service() {
    let (home, service) = (Home::new(On::Sqlite), healthchecks());
    let first = home.start(&["run", "nightly", "--", "sh", "-c", "touch begun; sleep 60"]);
    eventually("it runs", || home.path("begun").exists());
    home.done(&["run", "nightly", "--ping", &service.url(CHECK), "--", "true"]).expect(0);
    assert!(service.asked().is_empty());
    signal(first.pid(), "TERM");
    first.end();
}

#[test]
fn a_service_that_is_away_refuses_or_hangs_changes_nothing_about_the_run() {
    let home = Home::new(On::Sqlite);
    let away = format!("http://127.0.0.1:{}/secret-of-mine", leasehold_testbed::free_port());
    let done = home.done(&["run", "nightly", "--ping", &away, "--", "sh", "-c", "exit 3"]).expect(3);
    assert!(!done.stderr.contains("secret-of-mine"), "{done:?}");
    let service = healthchecks();
    service.answer(503);
    home.done(&["run", "nightly", "--ping", &service.url(CHECK), "--", "true"]).expect(0);
    service.hang();
    let run = home.start(&["run", "nightly", "--ping", &service.url(CHECK), "--", "sh", "-c", "date >began; exit 4"]);
    within(Duration::from_secs(20), "the command begins", || home.path("began").exists());
    // The lease is given back while the service still hangs.
    eventually("it is released", || home.show("nightly")["state"] == "free");
    assert_eq!(run.end().code, 4);
}

#[test]
fn a_wrong_address_in_the_variable_keeps_no_job_from_running_and_one_in_the_flag_is_an_error() {
    let home = Home::new(On::Sqlite);
    let mut run = home.leasehold(&["run", "nightly", "--", "touch", "ran"]);
    let done = run.env("LEASEHOLD_PING", "no url").output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success() && home.path("ran").exists(), "{said}");
    assert!(said.contains("LEASEHOLD_PING") && said.contains("this run sends no ping"), "{said}");
    home.done(&["run", "nightly", "--ping", "no url", "--", "touch", "again"]).expect(64);
    assert!(!home.path("again").exists());
}

#[test]
fn the_command_and_what_it_runs_do_not_ping_again() {
    let (home, service) = (Home::new(On::Sqlite), healthchecks());
    let script = "leasehold run inner -- true; echo \"[$LEASEHOLD_PING]\" >seen";
    let mut outer = home.leasehold(&["run", "outer", "--", "sh", "-c", script]);
    assert!(outer.env("LEASEHOLD_PING", service.url(CHECK)).status().unwrap().success());
    assert_eq!(signals(&service.heard()), ["start", "success"]);
    assert_eq!(home.read("seen"), "[]\n");
}

#[test]
fn a_job_of_a_schedule_pings_and_its_url_is_not_an_argument() {
    let (home, service) = (Home::new(On::Sqlite), healthchecks());
    // The words of the one that started it, and of the one above.
    let script = "for p in $PPID $(awk '{print $4}' /proc/$PPID/stat); do tr '\\0' ' ' </proc/$p/cmdline; done >arguments; echo gone wrong; exit 5";
    std::fs::write(home.path("script"), script).unwrap();
    let url = service.url(CHECK);
    let job = format!("[[job]]\nname = \"tick\"\nevery = \"1s\"\nping = \"{url}\"\nargv = [\"sh\", \"script\"]\n");
    std::fs::write(home.path("leasehold.toml"), job).unwrap();
    let mut scheduler = home.start(&["schedule"]);
    eventually("two pings arrive", || service.heard().len() >= 2);
    assert_eq!(signals(&service.heard()[..2]), ["start", "5"]);
    assert_eq!(service.heard()[1].body, "gone wrong\n");
    assert!(!scheduler.is_over());
    signal(scheduler.pid(), "TERM");
    let done = scheduler.end().expect(0);
    assert!(!done.stderr.contains(CHECK) && !done.stdout.contains(CHECK), "{done:?}");
    let arguments = home.read("arguments");
    assert!(arguments.contains("--adopt") && !arguments.contains(CHECK), "{arguments}");
}

#[test]
fn a_url_that_is_none_is_refused_and_not_repeated() {
    let home = Home::new(On::Sqlite);
    for url in ["hunter2", "ftp://h/hunter2", "https://joe:hunter2@host/"] {
        let done = home.done(&["run", "nightly", "--ping", url, "--", "touch", "ran"]).expect(64);
        assert!(done.stderr.contains("use https://HOST/PATH") && done.stderr.contains("--ping"), "{done:?}");
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
    std::fs::write(
        home.path("leasehold.toml"),
        "[[job]]\nname = \"a\"\nevery = \"1m\"\ncommand = \"x\"\nping = \"hunter2\"\n",
    )
    .unwrap();
    let done = home.done(&["schedule", "check"]).expect(64);
    assert!(done.stderr.contains("field `ping`") && !done.stderr.contains("hunter2"), "{done:?}");
    assert!(!home.path("ran").exists());
}

#[test]
fn a_run_that_was_asked_to_finish_is_neither_a_success_nor_a_failure() {
    let (home, service) = (Home::new(On::Sqlite), healthchecks());
    let script = "echo begun; echo $$ >started; exec sleep 1000";
    let run = home.start(&["run", "nightly", "--ping", &service.url(CHECK), "--", "sh", "-c", script]);
    home.words("started");
    home.done(&["revoke", "nightly", "--drain", "--why", "the box goes down"]).expect(0);
    run.end().expect(143);
    let heard = service.heard();
    assert_eq!((signals(&heard), heard[1].body.as_str()), (vec!["start", "log"], "begun\n"));
    one_run(&heard);
}

#[test]
fn a_ping_that_is_not_taken_is_said_once() {
    let (home, service) = (Home::new(On::Sqlite), healthchecks());
    let run = |url: &str| home.done(&["run", "nightly", "--ping", url, "--", "true"]).expect(0);
    assert_eq!(run(&service.url(CHECK)).stderr, "");
    for wrong in [service.url("/no-such-check"), format!("http://127.0.0.1:{}/x", leasehold_testbed::free_port())] {
        let done = run(&wrong);
        assert_eq!(done.stderr.matches("was not accepted").count(), 1, "{done:?}");
        assert!(!done.stderr.contains("no-such-check"), "{done:?}");
    }
    service.answer(503);
    assert!(run(&service.url(CHECK)).stderr.contains("it answered 503"));
}
