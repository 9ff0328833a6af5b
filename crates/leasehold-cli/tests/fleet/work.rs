//! `work` and `schedule` on a store that goes away and comes back.

use crate::Engine;
use crate::common::{Running, descendants, eventually, signal};
use leasehold_testbed::Proxy;

/// So many connections that are refused are several attempts: what is told of each would have been told by then.
const ATTEMPTS: u64 = 6;

fn a_worker_outlives_its_store(engine: &Engine, lanes: &str) {
    let proxy = Proxy::start(engine.port());
    let (far, near) = (engine.in_namespace("work", proxy.port()), engine.in_namespace("work", engine.port()));
    let add = |text: &str| drop(near.done(&["queue", "add", "mail", "--text", text]).expect(0));
    add("one");
    let log = std::fs::File::create(far.path("log")).unwrap();
    let words = ["work", "mail", "-j", lanes, "--ttl", "1m", "--", "sh", "-c", "cat >> done; echo >> done"];
    let worker = Running::from(far.leasehold(&words).stderr(log).spawn().unwrap());
    // Completed, not only worked on: what is under way when the store goes is another matter.
    eventually("the first item is done", || {
        near.done(&["queue", "ls", "mail", "--state", "done"]).expect(0).stdout.lines().count() > 1
    });
    proxy.sever();
    let claims = || {
        far.read("log").lines().filter(|line| line.contains(": cannot claim") || line.contains(": claiming")).count()
    };
    eventually("it is told", || claims() == 1);
    let before = proxy.refused();
    eventually("it has tried several times more", || proxy.refused() >= before + ATTEMPTS);
    let told = far.read("log");
    assert!(told.contains("leasehold: cannot claim from `mail`; retrying until it works: "), "{told}");
    assert_eq!(claims(), 1, "{told}");
    // Who is only now started has nothing to go on with.
    let refused = far.done(&words).expect(69);
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    proxy.heal();
    // Also while there is nothing to claim.
    eventually("it is told", || far.read("log").contains("leasehold: claiming from `mail` works again\n"));
    add("two");
    eventually("the second item is done", || far.read("done") == "one\ntwo\n");
    signal(worker.pid(), "TERM");
    worker.end().expect(0);
    assert_eq!(claims(), 2, "{}", far.read("log"));
}

#[test]
fn on_redis_a_worker_outlives_its_store() {
    a_worker_outlives_its_store(&Engine::redis(), "1");
}

#[test]
fn on_postgres_a_worker_outlives_its_store() {
    a_worker_outlives_its_store(&Engine::postgres(), "1");
}

/// Every lane finds out by itself; who reads the log is told once.
#[test]
fn several_lanes_tell_once_that_their_store_is_away() {
    a_worker_outlives_its_store(&Engine::redis(), "3");
    a_worker_outlives_its_store(&Engine::postgres(), "3");
}

/// Every job finds out by itself; who reads the log is told once, also that it is over.
#[test]
fn a_scheduler_tells_once_that_its_store_is_away_and_that_it_is_back() {
    for engine in [Engine::redis(), Engine::postgres()] {
        let proxy = Proxy::start(engine.port());
        let far = engine.in_namespace("jobs", proxy.port());
        let job = |name: &str, every: &str| {
            format!("[[job]]\nname = '{name}'\nevery = '{every}'\ncommand = 'echo >> {name}'\nttl = '1m'\n")
        };
        let table = ["a", "b", "c"].map(|name| job(name, "1s")).concat();
        for (table, ran) in [(table, Some("c")), (job("rare", "300d"), None)] {
            std::fs::write(far.path("leasehold.toml"), table).unwrap();
            let log = std::fs::File::create(far.path("log")).unwrap();
            let scheduler = Running::from(far.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
            let has_begun = || ran.is_none_or(|job| far.path(job).exists());
            let is_published = || far.done(&["schedule", "plan", "--json"]).stdout.contains("\"change\":\"same\"");
            eventually("it runs", || is_published() && has_begun());
            proxy.sever();
            let told = |words: &str| far.read("log").lines().filter(|line| line.contains(words)).count();
            eventually("it is told", || told("the store is away") == 1);
            let before = proxy.refused();
            eventually("it has tried several times more", || proxy.refused() >= before + ATTEMPTS);
            proxy.heal();
            eventually("it is told", || told("the store is back after ") == 1);
            let ran_before = ran.map(|job| far.read(job));
            eventually("jobs begin again", || ran.map(|job| far.read(job)) != ran_before || ran.is_none());
            signal(scheduler.pid(), "TERM");
            scheduler.end().expect(0);
            assert_eq!((told("the store is away"), told("the store is back after ")), (1, 1), "{}", far.read("log"));
            assert_eq!((told("problem with job"), told("cannot publish")), (0, 0), "{}", far.read("log"));
        }
    }
}

/// Lanes that are killed while the store is away are replaced, again and again if need be; and the pool does the rest.
#[test]
fn a_pool_outlives_its_lanes_and_its_store() {
    for engine in [Engine::redis(), Engine::postgres()] {
        let proxy = Proxy::start(engine.port());
        let (far, near) = (engine.in_namespace("lanes", proxy.port()), engine.in_namespace("lanes", engine.port()));
        let log = std::fs::File::create(far.path("log")).unwrap();
        let words = ["work", "mail", "-j", "3", "--ttl", "2s", "--", "sh", "-c", "echo \"$(cat)\" >> done"];
        let mut worker = Running::from(far.leasehold(&words).stderr(log).spawn().unwrap());
        near.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
        eventually("the first item is done", || far.read("done") == "one\n");
        proxy.sever();
        for round in 1..=2 {
            let lanes = descendants(worker.pid());
            lanes.iter().for_each(|lane| signal(*lane, "KILL"));
            eventually("they are replaced", || {
                let now = descendants(worker.pid());
                worker.is_over() || (now.len() >= 3 && now.iter().all(|lane| !lanes.contains(lane)))
            });
            assert!(!worker.is_over(), "round {round}: {}", far.read("log"));
        }
        assert!(
            far.read("log").contains("a lane of `mail` ended by signal 9; starting another in 1s"),
            "{}",
            far.read("log")
        );
        for text in ["two", "three", "four"] {
            near.done(&["queue", "add", "mail", "--text", text]).expect(0);
        }
        proxy.heal();
        // Each at least once: a lane that is slower than its TTL has lost its item, and another does it again.
        let is_done = |text: &str| far.read("done").lines().any(|line| line == text);
        eventually("the rest is done", || ["two", "three", "four"].into_iter().all(is_done));
        assert!(!worker.is_over());
        signal(worker.pid(), "TERM");
        worker.end().expect(0);
    }
}
