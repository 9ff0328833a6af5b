//! Servers, schedulers and workers are on record while they live, and nothing else is.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, Running, eventually, signal};
use leasehold_work::presence::{self, Presence, Role};

/// Who is on record in a namespace of this home's store.
fn processes(home: &Home, namespace: &str) -> Vec<Presence> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url: leasehold_stores::StoreUrl = home.store.parse().unwrap();
    runtime.block_on(async {
        let store = leasehold_stores::open(&url.in_namespace(namespace.parse().unwrap())).await.unwrap();
        presence::processes(store.as_ref(), 100).await.unwrap().processes
    })
}

fn workers(home: &Home) -> Vec<i32> {
    processes(home, "default").iter().map(|found| found.pid as i32).collect()
}

fn worker(home: &Home, more: &[&str]) -> Running {
    home.start(&[&["work", "mail"], more, &["--", "true"]].concat())
}

#[test]
fn a_worker_is_on_record_until_it_ends_and_a_killed_one_stays() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        home.done(&["queue", "add", "mail"]).expect(0);
        let (first, lanes) = (worker(&home, &[]), worker(&home, &["--jobs", "3"]));
        let mut expected = vec![first.pid(), lanes.pid()];
        expected.sort_unstable();
        eventually("both are on record, and no lane is", || {
            let mut found = workers(&home);
            found.sort_unstable();
            found == expected
        });
        let found = processes(&home, "default").remove(0);
        assert_eq!((found.role, found.queue.as_deref()), (Role::Worker, Some("mail")));
        assert_eq!(found.version, env!("CARGO_PKG_VERSION"));
        let killed = lanes.pid();
        signal(first.pid(), "TERM");
        first.end().expect(0);
        assert_eq!(workers(&home), [killed]);
        drop(lanes);
        assert_eq!(workers(&home), [killed], "nobody took it off the record");
    }
}

#[test]
fn a_worker_that_ends_at_once_and_other_verbs_leave_nothing() {
    let home = Home::new(On::Sqlite);
    home.done(&["queue", "add", "mail"]).expect(0);
    home.done(&["run", "job", "--", "true"]).expect(0);
    home.done(&["work", "mail", "--until-idle", "--", "true"]).expect(0);
    home.done(&["ls"]).expect(0);
    assert!(processes(&home, "default").is_empty());
    let mut long = home.start(&["run", "job", "--", "sleep", "2"]);
    eventually("it is over", || {
        assert!(processes(&home, "default").is_empty());
        long.is_over()
    });
}

#[test]
fn a_scheduler_is_on_record() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("leasehold.toml"), "[[job]]\nname = \"j\"\ncron = \"0 3 1 1 *\"\ncommand = \"true\"\n")
        .unwrap();
    let scheduler = home.start(&["schedule", "run"]);
    eventually("it is on record", || workers(&home) == [scheduler.pid()]);
    assert_eq!(processes(&home, "default")[0].role, Role::Scheduler);
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    assert!(processes(&home, "default").is_empty());
}

#[test]
fn a_worker_with_a_key_is_on_record_with_that_key_until_it_ends() {
    let home = Home::new(On::Served);
    let beside = Home::at(format!("sqlite:{}/leases.db", home.folder.path().display()));
    home.done(&["queue", "add", "mail"]).expect(0);
    let (worker, killed) = (worker(&home, &[]), worker(&home, &[]));
    let mut expected = [worker.pid(), killed.pid()];
    expected.sort_unstable();
    eventually("both are on record", || {
        let mut found = workers(&beside);
        found.sort_unstable();
        found == expected
    });
    let found = processes(&beside, "default").remove(0);
    let via = found.via.unwrap();
    assert_eq!((via.label.as_str(), found.queue.as_deref()), ("test", Some("mail")));
    let keys = beside.done(&["key", "ls", "--json"]).expect(0).stdout;
    assert!(keys.contains(via.key.as_str()), "{keys}");
    signal(worker.pid(), "TERM");
    worker.end().expect(0);
    let left = killed.pid();
    drop(killed);
    assert_eq!(workers(&beside), [left], "nobody took it off the record");
}
