//! Those who wait: for a store that is away for a moment, and for one that has no room for all of them.

use crate::common::{Home, Running, eventually};
use crate::{Engine, at};
use leasehold_testbed::{Postgres, Proxy};

const WAITERS: usize = 24;

/// Each of them wants one or two connections, and the server has six.
#[test]
fn on_postgres_more_wait_than_it_has_connections_and_all_get_their_turn() {
    let server = Postgres::with(&["max_connections=6", "superuser_reserved_connections=0"]);
    let home = at(Postgres::url(server.port()));
    let holds = "echo > started; while [ ! -e go ]; do sleep 0.05; done";
    let holder = home.start(&["run", "job", "--ttl", "10m", "--", "sh", "-c", holds]);
    home.words("started");
    let log = |number: usize| std::fs::File::create(home.path(&format!("log-{number}"))).unwrap();
    let job = ["run", "job", "--wait", "5m", "--", "sh", "-c", "echo $LEASEHOLD_EPOCH >> ran"];
    let waiters: Vec<Running> =
        (0..WAITERS).map(|n| Running::from(home.leasehold(&job).stderr(log(n)).spawn().unwrap())).collect();
    // So many that there is no room for one more.
    eventually("it is crowded", || server.try_sql("SELECT 1").is_err_and(|error| error.contains("too many clients")));
    home.touch("go");
    holder.end().expect(0);
    for (number, waiter) in waiters.into_iter().enumerate() {
        let done = waiter.end();
        assert_eq!(done.code, 0, "{}", home.read(&format!("log-{number}")));
    }
    let ran: Vec<u64> = home.read("ran").lines().map(|epoch| epoch.parse().unwrap()).collect();
    assert_eq!(ran, (2..2 + WAITERS as u64).collect::<Vec<_>>());
}

/// The store is away for a moment while a command waits, and what it waits for happens meanwhile.
fn outlasts_a_blip(engine: &Engine, namespace: &str, args: &[&str], meanwhile: impl FnOnce(&Home)) {
    let near = engine.in_namespace(namespace, engine.port());
    // The same without waiting, to know how much is asked at the first look: only later looks outlast anything.
    let counting = Proxy::start(engine.port());
    engine.in_namespace(namespace, counting.port()).done(args).expect(11);
    let proxy = Proxy::start(engine.port());
    let far = engine.in_namespace(namespace, proxy.port());
    let waiting = far.start(&[args, &["--wait", "5m"]].concat());
    eventually("it has looked more than once", || proxy.exchanges() > counting.exchanges());
    proxy.sever();
    eventually("it has met it", || proxy.refused() >= 3);
    meanwhile(&near);
    proxy.heal();
    waiting.end().expect(0);
}

fn waiters_outlast_a_blip(engine: &Engine) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let holder = engine.in_namespace("lease", engine.port());
            let token = holder.done(&["acquire", "job", "--ttl", "10m"]).expect(0).stdout.trim().to_owned();
            outlasts_a_blip(engine, "lease", &["acquire", "job"], |near| {
                near.done(&["release", "--token", &token]).expect(0);
            });
        });
        scope.spawn(|| {
            outlasts_a_blip(engine, "queue", &["queue", "claim", "mail"], |near| {
                near.done(&["queue", "add", "mail", "--text", "x"]).expect(0);
            });
        });
    });
}

#[test]
fn on_redis_waiters_outlast_a_blip() {
    waiters_outlast_a_blip(&Engine::redis());
}

#[test]
fn on_postgres_waiters_outlast_a_blip() {
    waiters_outlast_a_blip(&Engine::postgres());
}
