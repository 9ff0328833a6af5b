//! The store is away when the work ends: the end is recorded once it is back, or said not to be.

use crate::Engine;
use crate::common::{Home, Running, eventually, signal, within};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_testbed::Proxy;
use std::time::Duration;

/// Says that it has begun, and ends when it is told to.
const JOB: &str = "echo >> started; while [ ! -e go ]; do sleep 0.02; done; echo >> ended";
/// One slot, however long the test takes.
const SLOT: [&str; 2] = ["--slot-at", "2026-01-01T00:00:00Z"];

/// A store behind a proxy, and the same without.
struct Bench {
    proxy: Proxy,
    far: Home,
    near: Home,
}

impl Bench {
    fn new(engine: &Engine, namespace: &str) -> Self {
        let proxy = Proxy::start(engine.port());
        let (far, near) = (engine.in_namespace(namespace, proxy.port()), engine.in_namespace(namespace, engine.port()));
        Bench { proxy, far, near }
    }

    /// Starts it, with what it says in the file `log`.
    fn start(&self, args: &[&str]) -> Running {
        let log = std::fs::File::create(self.far.path("log")).unwrap();
        Running::from(self.far.leasehold(args).stderr(log).spawn().unwrap())
    }

    fn says(&self, words: &str) {
        eventually(words, || self.far.read("log").contains(words));
    }

    /// A run of a slot whose command ends while the store is away.
    fn run(&self, ttl: &str, job: &str) -> Running {
        let run = self.start(&[&["run", "job", "--ttl", ttl], &SLOT[..], &["--", "sh", "-c", job]].concat());
        eventually("it has begun", || self.far.path("started").exists());
        self.proxy.sever();
        self.far.touch("go");
        run
    }

    /// Another trigger of the same slot.
    fn again(&self) {
        self.near.done(&[&["run", "job"], &SLOT[..], &["--", "touch", "again"]].concat()).expect(0);
        assert!(!self.near.path("again").exists(), "the slot was run twice");
    }

    /// How many items are in this state.
    fn items(&self, state: &str) -> usize {
        self.near.done(&["queue", "ls", "mail", "--state", state]).expect(0).stdout.lines().skip(1).count()
    }
}

fn the_end_is_recorded_when_the_store_is_back(engine: &Engine) {
    let (bench, begun) = (Bench::new(engine, "back"), SystemClock.now());
    let run = bench.run("60s", JOB);
    bench.says("cannot record the end of `job:1` yet; retrying for up to ");
    // That is said when it has been away for half a second.
    let ended_by = SystemClock.now().saturating_since(begun) - Duration::from_millis(500);
    assert_eq!(bench.near.show("job")["state"], "held");
    bench.again();
    bench.proxy.heal();
    run.end().expect(0);
    let shown = bench.near.show("job");
    assert_eq!((&shown["state"], &shown["slot"]["state"]), (&"free".into(), &"done".into()), "{shown}");
    bench.again();
    assert!(!bench.far.read("log").contains("not recorded"), "{}", bench.far.read("log"));
    let runs = bench.near.done(&["runs", "job", "--json"]).expect(0).stdout;
    let runs: serde_json::Value = serde_json::from_str(&runs).unwrap();
    let ran_for = Duration::from_millis(runs[0]["ran_for_ms"].as_u64().unwrap());
    assert!(ran_for <= ended_by, "waiting for the store is not the command's time: {ran_for:?} of {ended_by:?}");
}

fn what_could_not_be_recorded_in_time_is_said(engine: &Engine) {
    for (job, code, says) in [
        (JOB.to_owned(), 74, "not recorded: `job:1`: the command is done, but the store could not be told"),
        (format!("{JOB}; exit 3"), 3, "not recorded: `job:1`: the command ended with exit code 3, but"),
    ] {
        let bench = Bench::new(engine, &format!("never-{code}"));
        bench.run("8s", &job).end().expect(code);
        assert!(bench.far.path("ended").exists(), "it was cut off: {}", bench.far.read("log"));
        assert!(bench.far.read("log").contains(says), "{}", bench.far.read("log"));
    }
}

fn a_signal_ends_the_waiting(engine: &Engine) {
    let bench = Bench::new(engine, "signal");
    let mut run = bench.run("10m", JOB);
    bench.says("cannot record the end");
    signal(run.pid(), "TERM");
    within(Duration::from_secs(20), "it has ended", || run.is_over());
    run.end().expect(74);
    bench.says("not recorded: `job:1`: the command is done");
    bench.says("stopped by a signal while the store was away");
}

fn an_item_that_was_done_is_completed_when_the_store_is_back(engine: &Engine) {
    let bench = Bench::new(engine, "items");
    bench.near.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    let worker = bench.start(&["work", "mail", "--ttl", "60s", "--items", "1", "--", "sh", "-c", JOB]);
    eventually("it has begun", || bench.far.path("started").exists());
    bench.proxy.sever();
    bench.far.touch("go");
    bench.says("cannot record the end of `");
    assert_eq!(bench.items("done"), 0);
    bench.proxy.heal();
    worker.end().expect(0);
    assert_eq!((bench.items("done"), bench.far.read("started").lines().count()), (1, 1));
}

fn a_worker_that_could_not_report_continues(engine: &Engine) {
    let bench = Bench::new(engine, "untold");
    bench.near.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    let worker = bench.start(&["work", "mail", "--ttl", "8s", "--items", "2", "--", "sh", "-c", JOB]);
    eventually("it has begun", || bench.far.path("started").exists());
    bench.proxy.sever();
    bench.far.touch("go");
    bench.says("not recorded: `");
    bench.proxy.heal();
    // Nobody was told, so it is done once more.
    worker.end().expect(74);
    assert_eq!((bench.items("done"), bench.far.read("started").lines().count()), (1, 2));
}

/// All of it at once, each in a namespace of its own.
fn ends_are_reported(engine: &Engine) {
    let demands = [
        the_end_is_recorded_when_the_store_is_back,
        what_could_not_be_recorded_in_time_is_said,
        a_signal_ends_the_waiting,
        an_item_that_was_done_is_completed_when_the_store_is_back,
        a_worker_that_could_not_report_continues,
    ];
    std::thread::scope(|scope| {
        for demand in demands {
            scope.spawn(move || demand(engine));
        }
    });
}

#[test]
fn on_redis_the_end_of_work_is_reported_when_the_store_is_back() {
    ends_are_reported(&Engine::redis());
}

#[test]
fn on_postgres_the_end_of_work_is_reported_when_the_store_is_back() {
    ends_are_reported(&Engine::postgres());
}
