//! `work` on a store that goes away and comes back.

use crate::Engine;
use crate::common::{Running, eventually, signal};
use leasehold_testbed::Proxy;
use std::time::Duration;

/// Longer than the first three pauses between two attempts: what is told of each would have been told by then.
const A_WHILE: Duration = Duration::from_secs(4);

fn a_worker_outlives_its_store(engine: &Engine) {
    let proxy = Proxy::start(engine.port());
    let (far, near) = (engine.room("work", proxy.port()), engine.room("work", engine.port()));
    let add = |text: &str| drop(near.done(&["queue", "add", "mail", "--text", text]).expect(0));
    let log = std::fs::File::create(far.path("log")).unwrap();
    let words = ["work", "mail", "--ttl", "1m", "--", "sh", "-c", "cat >> done; echo >> done"];
    let worker = Running::from(far.leasehold(&words).stderr(log).spawn().unwrap());
    add("one");
    // Completed, not only worked on: what is under way when the store goes is another matter.
    eventually("the first item is done", || {
        near.done(&["queue", "ls", "mail", "--state", "done"]).expect(0).stdout.lines().count() > 1
    });
    proxy.sever();
    eventually("it is told", || !far.read("log").is_empty());
    std::thread::sleep(A_WHILE);
    let told = far.read("log");
    assert!(told.starts_with("leasehold: cannot claim, trying again until it works: "), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    // Who is only now started has nothing to go on with.
    let refused = far.done(&words).expect(69);
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    add("two");
    proxy.heal();
    eventually("the second item is done", || far.read("done") == "one\ntwo\n");
    eventually("it is told", || far.read("log").contains("works again"));
    signal(worker.pid(), "TERM");
    worker.end().expect(0);
    let told: Vec<String> = far.read("log").lines().skip(1).map(String::from).collect();
    assert_eq!(told, ["leasehold: claiming works again"]);
}

#[test]
fn on_redis_a_worker_outlives_its_store() {
    a_worker_outlives_its_store(&Engine::redis());
}

#[test]
fn on_postgres_a_worker_outlives_its_store() {
    a_worker_outlives_its_store(&Engine::postgres());
}
