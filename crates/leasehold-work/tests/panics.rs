//! A look at a job, or a launch of one, that panics: it is told, and the job is looked at again.

#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, MemoryStore, Outcome, Result, Ttl};
use leasehold_work::schedule::{Decided, Job, JobTable, Launcher, Scheduler, Settings, Start, Watcher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug)]
struct Bench {
    coordinator: Coordinator,
    looks: AtomicU32,
    launches: AtomicU32,
    told: Mutex<Vec<String>>,
}

#[async_trait]
impl Launcher for Bench {
    async fn launch(&self, start: &Start) -> Result<()> {
        assert!(self.launches.fetch_add(1, Ordering::SeqCst) > 0, "the first launch");
        self.coordinator.release(&start.grant, Outcome::Succeeded).await.map(|_| ())
    }
}

impl Watcher for Bench {
    fn decided(&self, _job: &Job, decided: Decided) {
        match decided {
            Decided::Due(_) => assert!(self.looks.fetch_add(1, Ordering::SeqCst) > 0, "the first look"),
            Decided::Trouble(error) => self.told.lock().unwrap().push(error.to_string()),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_job_whose_look_or_launch_panicked_is_reported_and_looked_at_again() {
    let coordinator = Coordinator::new(Arc::new(MemoryStore::default()));
    let (looks, launches, told) = (AtomicU32::new(0), AtomicU32::new(0), Mutex::default());
    let bench = Arc::new(Bench { coordinator: coordinator.clone(), looks, launches, told });
    let table: JobTable =
        serde_json::from_value(serde_json::json!({ "name": "job", "every": "1s", "command": "true" })).unwrap();
    let jobs = vec![Arc::new(Job::read(table, 0).unwrap())];
    let settings = Settings { ttl: Ttl::MIN, label: None, max_running: 1 };
    let (scheduler, steering) = Scheduler::new(coordinator, jobs, bench.clone(), bench.clone(), settings);
    let running = tokio::spawn(scheduler.run());
    let give_up = SystemClock.now() + Duration::from_secs(60);
    while bench.launches.load(Ordering::SeqCst) < 2 && SystemClock.now() < give_up {
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(20)).await;
    }
    steering.drain();
    running.await.unwrap().unwrap();
    let told = bench.told.lock().unwrap().clone();
    assert!(told[0].contains("the first look") && told[1].contains("the first launch"), "{told:?}");
    assert!(bench.launches.load(Ordering::SeqCst) > 1, "{told:?}");
}
