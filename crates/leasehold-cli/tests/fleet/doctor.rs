//! `doctor` on real servers, and on those that it must refuse.

use crate::common::{Done, Home};
use crate::{Engine, at};
use leasehold_testbed::{BUCKET, Flaw, StandIn, redis_with};

/// What a sound store's report has, whatever the store.
fn passes(home: &Home, url: &str) -> String {
    let report = home.done(&["doctor", url]).expect(0).stdout;
    for check in ["class", "durability", "clock", "records", "round trip", "promises", "race"] {
        assert!(report.lines().any(|line| line.contains(&format!("  {check}"))), "no {check}: {report}");
    }
    assert!(report.contains("the store's own, exact to") && report.contains("a read takes"), "{report}");
    assert!(!report.lines().any(|line| line.starts_with("bad")), "{report}");
    report
}

/// On a store that is lived in, doctor finds the settings and leaves everything as it was.
fn tells_all_and_leaves_nothing(engine: &Engine, settings: &[&str]) -> String {
    // What is in force is another store: the one that is asked about counts.
    let (user, bystander) = (engine.home(), at("dir:/nonexistent/leases"));
    user.done(&["run", "job", "--", "true"]).expect(0);
    user.done(&["acquire", "held", "--ttl", "10m"]).expect(0);
    let (before, listed) = (engine.contents(), user.done(&["ls", "--json"]).expect(0).stdout);
    let report = passes(&bystander, &engine.url());
    assert!(report.contains("2 can be read"), "{report}");
    for setting in settings {
        assert!(report.contains(setting), "no {setting}: {report}");
    }
    if !matches!(engine, Engine::Nats(_)) {
        assert_eq!(engine.contents(), before);
    }
    assert_eq!(names(&user.done(&["ls", "--json"]).expect(0).stdout), names(&listed));
    assert_eq!(at(format!("{}?namespace=doctor", engine.url())).done(&["ls", "--json"]).expect(0).stdout.trim(), "[]");
    report
}

fn names(listed: &str) -> Vec<String> {
    let leases: Vec<serde_json::Value> = serde_json::from_str(listed).unwrap();
    leases.iter().map(|lease| format!("{} {} {}", lease["name"], lease["epoch"], lease["state"])).collect()
}

#[test]
fn on_a_durable_redis_it_proves_class_a() {
    let report = tells_all_and_leaves_nothing(&Engine::redis(), &["appendfsync", "always", "maxmemory-policy"]);
    assert!(report.contains("A: epochs rise"), "{report}");
}

#[test]
fn on_a_redis_with_its_defaults_it_says_class_b_and_what_to_change() {
    let server = redis_with(&["--appendonly", "no", "--appendfsync", "everysec"]);
    let report = passes(&at("sqlite:"), &format!("redis://127.0.0.1:{}", server.port()));
    assert!(report.contains("B: an epoch may be issued again"), "{report}");
    assert!(report.contains("set `appendonly yes`") && report.contains("set `appendfsync always`"), "{report}");
}

#[test]
fn on_postgres_it_finds_the_settings() {
    let report = tells_all_and_leaves_nothing(&Engine::postgres(), &["fsync", "synchronous"]);
    assert!(report.contains("A: epochs rise"), "{report}");
}

#[test]
fn on_nats_it_finds_the_settings() {
    let report = tells_all_and_leaves_nothing(&Engine::nats(), &["replicas", "sync"]);
    assert!(report.contains("B: an epoch may be issued again"), "{report}");
}

#[test]
fn on_etcd_it_finds_the_settings() {
    tells_all_and_leaves_nothing(&Engine::etcd(), &["version", "members"]);
}

#[test]
fn on_mariadb_it_finds_the_settings() {
    tells_all_and_leaves_nothing(&Engine::mysql(), &["innodb_flush_log_at_trx_commit"]);
}

fn bucket(server: &StandIn) -> String {
    format!("s3://id:hunter22@{BUCKET}/prefix?endpoint=http://127.0.0.1:{}", server.port())
}

/// One line for people that names the flaw, and no password.
fn names_the_flaw(done: Done, says: &[&str]) {
    let done = done.expect(78);
    for part in says {
        assert!(done.stderr.contains(part) || done.stdout.contains(part), "no {part}: {done:#?}");
    }
    assert!(!done.stderr.contains("panicked") && !format!("{done:?}").contains("hunter2"), "{done:#?}");
}

#[test]
fn a_server_that_ignores_conditions_is_refused_by_doctor_and_by_the_first_use() {
    for (flaw, says) in [
        (Flaw::IgnoresConditions, &["does not enforce `If-None-Match: *`", "it created an object that exists"]),
        (Flaw::IgnoresChanges, &["does not enforce `If-Match`", "it replaced an object that has changed"]),
        (Flaw::LosesRaces, &["does not enforce", "simultaneous writes"]),
        (Flaw::WritesWhatItRefused, &["does not enforce", "a write that it refused was done"]),
    ] {
        let server = StandIn::s3(flaw);
        let home = at(bucket(&server));
        names_the_flaw(home.done(&["acquire", "job"]), says);
        names_the_flaw(home.done(&["run", "job", "--", "touch", "ran"]), says);
        names_the_flaw(home.done(&["doctor"]), says);
        assert!(!home.path("ran").exists());
        assert!(server.keys().iter().all(|key| !key.contains("job")), "{flaw:?} left {:?}", server.keys());
    }
}

#[test]
fn a_sound_server_passes() {
    let server = StandIn::s3(Flaw::None);
    let home = at(bucket(&server));
    home.done(&["run", "job", "--", "true"]).expect(0);
    let before = server.keys();
    let report = passes(&home, &bucket(&server));
    assert!(report.contains("2 can be read") || report.contains("1 can be read"), "{report}");
    assert!(!report.contains("hunter2"), "{report}");
    let left: Vec<String> = server.keys().into_iter().filter(|key| !before.contains(key)).collect();
    assert!(left.iter().all(|key| key.contains("doctor")), "{left:?}");
}
