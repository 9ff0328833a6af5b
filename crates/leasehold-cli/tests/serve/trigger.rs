//! A run of a job that is asked for over the API: carried out once, by a scheduler that has the job.

use crate::common::slots::{jobs, rare_slot, runs};
use crate::common::{Home, On, Running, eventually, signal};
use crate::rig::{Answer, Served, get_as, key, raw, serve};
use serde_json::{Value, json};
use std::fs::File;

/// A server, a key that may operate, and jobs that say which slot, key and epoch they ran for.
struct Scene {
    home: Home,
    server: Served,
    key: String,
}

impl Scene {
    fn new(on: On) -> Self {
        let home = Home::new(on);
        let line = rare_slot();
        let ran = "echo $LEASEHOLD_SLOT $LEASEHOLD_IDEMPOTENCY_KEY $LEASEHOLD_EPOCH >>";
        let job = |name: &str, more: &str| {
            format!("[[job]]\nname = \"{name}\"\ncron = \"{line}\"\ncommand = \"{ran} {name}.ran\"\n{more}\n")
        };
        let elsewhere = job("elsewhere", "on = [\"some-other-machine\"]");
        jobs(&home, &format!("{}{}{elsewhere}", job("tick", ""), job("tock", "")));
        let key = key(&home, &["--allow", "read,operate"]);
        let server = serve(&home, &[]);
        Scene { home, server, key }
    }

    /// A scheduler, once its jobs are published.
    fn scheduler(&self, name: &str) -> Running {
        let mut command = self.home.leasehold(&["schedule", "run"]);
        let log = File::create(self.home.path(name)).unwrap();
        let running = Running::from(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        eventually("it schedules", || self.home.read(name).contains("scheduling "));
        self.until_published();
        running
    }

    fn until_published(&self) {
        eventually("the jobs are published", || {
            ["tick", "tock", "elsewhere"].iter().all(|job| self.job(job).status == 200)
        });
    }

    fn job(&self, name: &str) -> Answer {
        get_as(self.server.address, &format!("/v1/ns/default/jobs/{name}"), &self.key)
    }

    fn requested(&self, name: &str) -> Value {
        self.job(name).json()["job"]["requested"].clone()
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let (body, key) = (body.to_string(), &self.key);
        let request = format!(
            "POST /v1/ns/default/{path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        raw(self.server.address, request.as_bytes()).expect("it answers")
    }

    fn trigger(&self, name: &str, epoch: u64) -> Answer {
        self.post(&format!("jobs/{name}/trigger"), &json!({ "why": "the report was wrong", "epoch": epoch }))
    }

    fn ran(&self, name: &str) -> usize {
        self.home.read(&format!("{name}.ran")).lines().count()
    }

    /// Whatever the schedulers had to do before it is done when this job, which was asked for last, has run.
    fn until_run(&self, name: &str, epoch: u64) {
        let answer = self.trigger(name, epoch);
        assert_eq!(answer.status, 202, "{answer:?}");
        self.until_over(name);
    }

    fn until_over(&self, name: &str) {
        eventually("the run that was asked for is over", || self.requested(name)["run"]["outcome"] == "succeeded");
    }
}

fn runs_once(on: On) {
    let scene = Scene::new(on);
    let schedulers = ["a.log", "b.log"].map(|log| scene.scheduler(log));
    for round in 0..3_u64 {
        scene.until_run("tick", round);
    }
    assert_eq!(scene.ran("tick"), 3, "two schedulers ran it more often than it was asked for");
    let words = scene.home.words("tick.ran");
    assert_eq!((words[1].as_str(), words[2].as_str()), (format!("tick@{}", words[0]).as_str(), "1"));
    let last = &scene.home.history("tick")[0];
    assert_eq!(
        (&last["reason"], &last["why"], &last["epoch"]),
        (&"triggered".into(), &"the report was wrong".into(), &3.into())
    );
    assert!(last["by"].as_str().unwrap().starts_with("test (key "), "{last}");
    let entry = &runs(&scene.home, "tick")[0];
    assert_eq!((&entry["fate"], &entry["epoch"]), (&"succeeded".into(), &3.into()));
    let logs = scene.home.read("a.log") + &scene.home.read("b.log");
    assert!(logs.contains("started `tick` under epoch 1, as test (key "), "{logs}");
    // Not for this machine: nobody has it.
    assert_eq!(scene.trigger("elsewhere", 0).status, 202);
    scene.until_run("tock", 0);
    assert_eq!((scene.requested("elsewhere")["state"].as_str(), scene.ran("elsewhere")), (Some("waiting"), 0));
    for scheduler in schedulers {
        signal(scheduler.pid(), "TERM");
        assert_eq!(scheduler.end().code, 0);
    }
}

#[test]
fn a_run_that_is_asked_for_is_run_once_by_one_of_two_schedulers() {
    runs_once(On::Sqlite);
    runs_once(On::Dir);
}

#[test]
fn a_request_outlives_the_scheduler_that_was_to_take_it_up() {
    let scene = Scene::new(On::Sqlite);
    let first = scene.scheduler("a.log");
    signal(first.pid(), "KILL");
    assert_eq!(first.end().code, 137);
    assert_eq!(scene.trigger("tick", 0).status, 202);
    assert_eq!((scene.requested("tick")["state"].as_str(), scene.ran("tick")), (Some("waiting"), 0));
    let _second = scene.scheduler("b.log");
    scene.until_over("tick");
    assert_eq!(scene.ran("tick"), 1);
}

#[test]
fn what_changed_since_is_refused_or_not_run() {
    let scene = Scene::new(On::Sqlite);
    let scheduler = scene.scheduler("a.log");
    scene.home.done(&["run", "tick", "--", "true"]).expect(0);
    assert_eq!(scene.trigger("tick", 0).kind(), "changed");
    scene.home.done(&["pause", "tick", "--why", "holidays"]).expect(0);
    assert_eq!(scene.trigger("tick", 1).kind(), "paused");
    scene.home.done(&["resume", "tick", "--why", "back"]).expect(0);
    let held = scene.home.start(&["run", "tick", "--", "sh", "-c", "echo > held; exec sleep 100"]);
    eventually("it is held", || scene.home.path("held").exists());
    assert_eq!(scene.trigger("tick", 2).kind(), "held");
    signal(held.pid(), "TERM");
    held.end();
    // Between the request and the scheduler somebody else runs it.
    signal(scheduler.pid(), "STOP");
    assert_eq!(scene.trigger("tick", 2).status, 202);
    scene.home.done(&["run", "tick", "--", "true"]).expect(0);
    signal(scheduler.pid(), "CONT");
    assert_eq!(scene.requested("tick")["state"], "overtaken");
    // Or pauses it: it waits for the end of that, as long as it counts.
    scene.home.done(&["pause", "tock", "--why", "deploy"]).expect(0);
    scene.home.done(&["resume", "tock", "--why", "deployed"]).expect(0);
    scene.until_run("tock", 0);
    assert_eq!((scene.ran("tick"), scene.ran("tock")), (0, 1));
}

#[test]
fn a_request_that_nobody_took_up_in_its_time_is_not_run() {
    let scene = Scene::new(On::Sqlite);
    let now = leasehold_system::clock::wall_ms();
    let request = |id: u8, at: u64, until: u64| json!({ "id": format!("{id:032x}"), "job": "tick", "epoch": 0, "by": "ann", "why": "old", "at": at, "until": until });
    let old = json!({ "requests": [request(7, now - 301_000, now - 1_000)] });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bytes = leasehold_core::codec::encode("requests", &old).unwrap();
        let store = leasehold_stores::open(&scene.home.store.parse().unwrap()).await.unwrap();
        let key = leasehold_work::schedule::requests::key().unwrap();
        store.document(&key, None, &bytes).await.unwrap();
    });
    let _scheduler = scene.scheduler("a.log");
    assert_eq!(scene.requested("tick")["state"], "expired");
    scene.until_run("tock", 0);
    assert_eq!((scene.ran("tick"), scene.ran("tock")), (0, 1));
    // It can be asked for again.
    scene.until_run("tick", 0);
    assert_eq!(scene.ran("tick"), 1);
}

#[test]
fn a_scheduler_that_has_only_a_key_carries_it_out_too() {
    let scene = Scene::new(On::Sqlite);
    let hold = key(&scene.home, &["--allow", "hold"]);
    let mut command = scene.home.leasehold(&["schedule", "run"]);
    let log = File::create(scene.home.path("a.log")).unwrap();
    command.env("LEASEHOLD_STORE", format!("leasehold+http://{}/default", scene.server.address));
    command.env("LEASEHOLD_KEY", hold).stdout(log.try_clone().unwrap()).stderr(log);
    let _scheduler = Running::from(command.spawn().unwrap());
    scene.until_published();
    scene.until_run("tick", 0);
    scene.until_run("tick", 1);
    assert_eq!(scene.ran("tick"), 2);
    assert_eq!(scene.home.history("tick")[0]["why"], "the report was wrong");
}
