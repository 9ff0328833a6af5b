//! A hundred thousand jobs in one scheduler: how late a thousand slots of one second are decided, what it costs to wait,
//! and how much memory it takes. The demand is in bench/; here it is held as a test, with room for a busy machine.

#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, MemoryStore, Outcome, Result, Ttl};
use leasehold_work::schedule::{Decided, Job, JobTable, Launcher, Scheduler, Settings, Start, Watcher, slot_text};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const JOBS: usize = 100_000;
const HOT: usize = 1_000;
/// How long the jobs have to become known before the slots are due, in seconds.
const SETTLING: i64 = 30;

#[derive(Debug)]
struct Bench {
    coordinator: Coordinator,
    store_ahead_ms: u64,
    /// In milliseconds after the slot.
    decided: Mutex<Vec<u64>>,
    slots: Mutex<Vec<String>>,
}

#[async_trait]
impl Launcher for Bench {
    async fn launch(&self, start: &Start) -> Result<()> {
        self.slots.lock().unwrap().push(format!("{}@{}", start.job.name, slot_text(start.slot)));
        self.coordinator.release(&start.grant, Outcome::Succeeded).await.map(|_| ())
    }
}

impl Watcher for Bench {
    fn decided(&self, _job: &Job, decided: Decided) {
        if let Decided::Due(slot) = decided {
            let late = (self.store_ahead_ms + local_ms()).saturating_sub(slot.0.as_millis());
            self.decided.lock().unwrap().push(late);
        }
    }
}

fn job(number: usize, second: i64) -> Arc<Job> {
    let at = jiff::Timestamp::from_second(second).unwrap().to_zoned(jiff::tz::TimeZone::UTC);
    let cron = if number < HOT {
        format!("{} {} {} * * *", at.second(), at.minute(), at.hour())
    } else {
        // Some other hour of the day, in some zone.
        format!("{} {} {} * * *", number % 60, number / 60 % 60, (at.hour() as usize + 6 + number % 12) % 24)
    };
    let table: JobTable = serde_json::from_value(serde_json::json!({
        "name": format!("job/{number:06}"), "cron": cron, "tz": "UTC", "command": "true", "ttl": "90s",
    }))
    .unwrap();
    Arc::new(Job::read(table, number).unwrap())
}

/// This machine's own milliseconds.
fn local_ms() -> u64 {
    SystemClock.now().as_nanos() / 1_000_000
}

/// The store's time, for jobs that are due at another hour.
async fn store_second(coordinator: &Coordinator) -> i64 {
    (coordinator.inspect(&"x".parse().unwrap()).await.unwrap().now.as_millis() / 1000) as i64
}

fn field(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// In ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_hundred_thousand_jobs_wait_for_nothing_and_a_thousand_slots_are_decided_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let coordinator = Coordinator::new(Arc::new(MemoryStore::default()));
        let hour = store_second(&coordinator).await;
        // Reading so many takes its time: the slots are due after that.
        let mut jobs: Vec<Arc<Job>> = (HOT..JOBS).map(|number| job(number, hour)).collect();
        let now = coordinator.inspect(&"x".parse().unwrap()).await.unwrap().now.as_millis();
        let store_ahead_ms = now - local_ms();
        // Time enough to make each job known.
        let second = (now / 1000) as i64 + SETTLING;
        jobs.extend((0..HOT).map(|number| job(number, second)));
        let bench = Arc::new(Bench {
            coordinator: coordinator.clone(),
            store_ahead_ms,
            decided: Mutex::default(),
            slots: Mutex::default(),
        });
        let settings = Settings { ttl: Ttl::MIN, label: None, max_running: HOT };
        let (scheduler, steering) = Scheduler::new(coordinator, jobs, bench.clone(), bench.clone(), settings);
        let running = tokio::spawn(scheduler.run());
        let wait = |seconds: u64| SystemClock.sleep_until(SystemClock.now() + Duration::from_secs(seconds));
        let mut before = (cpu_ticks(), local_ms());
        let mut idle = f64::INFINITY;
        while ((store_ahead_ms + local_ms()) as i64) < second * 1000 - 1_500 {
            wait(1).await;
            let now = (cpu_ticks(), local_ms());
            idle = idle.min((now.0 - before.0) as f64 * 10.0 / (now.1 - before.1) as f64);
            before = now;
        }
        while bench.slots.lock().unwrap().len() < HOT {
            assert!(((store_ahead_ms + local_ms()) as i64) < (second + 20) * 1000, "not all slots were run");
            wait(1).await;
        }
        let mut late = bench.decided.lock().unwrap().clone();
        late.sort_unstable();
        let memory = field("/proc/self/status", "VmHWM") / 1024;
        let p99 = late[late.len() * 99 / 100];
        println!("{JOBS} jobs: {HOT} slots decided with p99 {p99} ms (median {} ms), idle CPU {:.2} %, peak memory {memory} MB",
            late[late.len() / 2], idle * 100.0);
        let mut slots = bench.slots.lock().unwrap().clone();
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), HOT, "a slot was run twice");
        assert_eq!(late.len(), HOT);
        assert!(memory < 300, "{memory} MB");
        assert!(idle < 0.05, "{:.2} % of a processor when nothing is due", idle * 100.0);
        // The demand is 50 ms on an idle machine (bench/); here others may be at work.
        assert!(p99 < 500, "{p99} ms");
        steering.drain();
        running.await.unwrap().unwrap();
    });
}
