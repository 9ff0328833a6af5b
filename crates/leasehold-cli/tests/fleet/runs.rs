//! `run` and its neighbours on a store across the network.

use crate::Engine;
use crate::common::{Home, Running, eventually, is_alive, within};
use leasehold_testbed::Proxy;
use std::time::Duration;

/// Far less than a third of the TTL that it is used with, after which a holder would notice by itself.
const AT_ONCE: Duration = Duration::from_secs(8);

/// One run after the other, and what there is to see of it.
fn a_second_run_is_skipped(engine: &Engine) {
    let home = engine.in_namespace("skipped", engine.port());
    let job = "echo $LEASEHOLD_EPOCH > started; while [ ! -e go ]; do sleep 0.02; done";
    let run = home.start(&["run", "job", "--label", "first", "--", "sh", "-c", job]);
    assert_eq!(home.words("started"), ["1"]);
    let skipped = home.done(&["run", "job", "--", "touch", "ran"]).expect(0);
    assert!(skipped.stderr.starts_with("leasehold: skipped: `job` has been held by"), "{skipped:?}");
    assert!(skipped.stderr.contains("by first ("), "{skipped:?}");
    assert!(!home.path("ran").exists());
    let listed = home.done(&["ls"]).expect(0).stdout;
    assert!(listed.lines().any(|line| line.starts_with("job ") && line.contains("first")), "{listed}");
    let shown = home.show("job");
    assert_eq!(
        (&shown["state"], &shown["epoch"], &shown["holder"]["label"]),
        (&"held".into(), &1.into(), &"first".into())
    );
    home.touch("go");
    run.end().expect(0);
    assert_eq!(home.show("job")["state"], "free");
    home.done(&["run", "job", "--", "sh", "-c", "exit 3"]).expect(3);
    let history = home.history("job");
    let told: Vec<_> =
        history.iter().map(|t| (t["epoch"].as_u64(), t["reason"].as_str(), t["outcome"].as_str())).collect();
    assert_eq!(told, [(Some(2), Some("released"), Some("failed")), (Some(1), Some("first"), Some("succeeded"))]);
    let counts = ["granted", "skipped_overlap", "failed"].map(|event| home.count("job", event));
    assert_eq!(counts, [2, 1, 1]);
}

/// A command that only SIGKILL ends, and its process.
fn stubborn(home: &Home, ttl: &str, grace: &str) -> (Running, i32) {
    let job = "trap '' TERM; echo $$ > started; exec sleep 1000";
    let run = home.start(&["run", "job", "--ttl", ttl, "--grace", grace, "--", "sh", "-c", job]);
    let pid = home.words("started")[0].parse().unwrap();
    (run, pid)
}

fn a_revoked_run_ends_at_once(engine: &Engine) {
    let home = engine.in_namespace("revoked", engine.port());
    let (run, pid) = stubborn(&home, "90s", "100ms");
    home.done(&["revoke", "job", "--why", "drill", "--by", "me"]).expect(0);
    within(AT_ONCE, "the revoked command is dead", || !is_alive(pid));
    run.end().expect(75);
    let latest = home.history("job").swap_remove(0);
    assert_eq!((&latest["reason"], &latest["why"], &latest["epoch"]), (&"revoked".into(), &"drill".into(), &2.into()));
}

fn a_release_wakes_the_waiter(engine: &Engine) {
    let home = engine.in_namespace("woken", engine.port());
    let token = home.done(&["acquire", "job", "--ttl", "10m"]).expect(0).stdout.trim().to_owned();
    let proxy = Proxy::start(engine.port());
    let far = engine.in_namespace("woken", proxy.port());
    let mut waiting = far.start(&["run", "job", "--wait", "10m", "--", "sh", "-c", "echo $LEASEHOLD_EPOCH > ran"]);
    eventually("the waiter has asked", || proxy.exchanges() > 1);
    home.done(&["release", "--token", &token]).expect(0);
    within(AT_ONCE, "the waiter has run", || waiting.is_over());
    waiting.end().expect(0);
    assert_eq!(far.words("ran"), ["2"]);
}

/// The holder is cut off; another, who is not, takes the lease as soon as it can be had.
fn a_cut_off_run_is_dead_before_the_next_begins(engine: &Engine) {
    let proxy = Proxy::start(engine.port());
    let (cut_off, near) = (engine.in_namespace("cut-off", proxy.port()), engine.in_namespace("cut-off", engine.port()));
    let (run, pid) = stubborn(&cut_off, "3s", "500ms");
    proxy.sever();
    let look = format!("grep -qs '^State:.[^ZX]' /proc/{pid}/status && echo alive > seen || echo dead > seen");
    let next = near.start(&["run", "job", "--wait", "1m", "--", "sh", "-c", &look]);
    next.end().expect(0);
    assert_eq!(near.words("seen"), ["dead"]);
    let lost = run.end().expect(75);
    assert!(!lost.stderr.contains("panicked"), "{lost:?}");
    let latest = near.history("job").swap_remove(0);
    assert_eq!((&latest["reason"], &latest["epoch"]), (&"expired".into(), &2.into()));
    // It comes back as if nothing had been.
    proxy.heal();
    cut_off.done(&["run", "job", "--", "true"]).expect(0);
}

/// All of it at once, each in a namespace of its own.
fn runs_are_safe(engine: &Engine) {
    let demands = [
        a_second_run_is_skipped,
        a_revoked_run_ends_at_once,
        a_release_wakes_the_waiter,
        a_cut_off_run_is_dead_before_the_next_begins,
    ];
    std::thread::scope(|scope| {
        for demand in demands {
            scope.spawn(move || demand(engine));
        }
    });
}

#[test]
fn on_redis_runs_are_skipped_revoked_woken_and_dead_in_time() {
    runs_are_safe(&Engine::redis());
}

#[test]
fn on_postgres_runs_are_skipped_revoked_woken_and_dead_in_time() {
    runs_are_safe(&Engine::postgres());
}

#[test]
fn on_nats_runs_are_skipped_revoked_woken_and_dead_in_time() {
    runs_are_safe(&Engine::nats());
}

#[test]
fn on_etcd_runs_are_skipped_revoked_woken_and_dead_in_time() {
    runs_are_safe(&Engine::etcd());
}
