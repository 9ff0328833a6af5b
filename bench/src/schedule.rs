//! A scheduler of 100,000 jobs: how late a thousand slots of one second are decided, beside a heap of bare timers.
//!
//! The peer is what one would write by hand: the same thousand wake-ups from tokio's timers, which decide nothing.

use crate::report::{Demand, Row, Unit};
use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, MemoryStore, Outcome, Ttl};
use leasehold_work::schedule::{Decided, Job, JobTable, Launcher, Scheduler, Settings, Start, Watcher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const JOBS: usize = 100_000;
const HOT: usize = 1_000;
const LATENESS: Duration = Duration::from_millis(50);
/// A percent of a second.
const IDLE: Duration = Duration::from_millis(10);
const MEGABYTES: u64 = 300;

#[derive(Debug)]
struct Stage {
    coordinator: Coordinator,
    store_ahead_ms: u64,
    late: Mutex<Vec<u64>>,
    ran: Mutex<usize>,
}

#[async_trait]
impl Launcher for Stage {
    async fn launch(&self, start: &Start) -> leasehold_core::Result<()> {
        *self.ran.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.coordinator.release(&start.grant, Outcome::Succeeded).await.map(|_| ())
    }
}

impl Watcher for Stage {
    fn decided(&self, _job: &Job, decided: Decided) {
        if let Decided::Due(slot) = decided {
            let late = (self.store_ahead_ms + local_ms()).saturating_sub(slot.0.as_millis());
            self.late.lock().unwrap_or_else(PoisonError::into_inner).push(late);
        }
    }
}

/// Measures it; takes half a minute, most of it waiting.
pub fn compare() -> Result<Vec<Row>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure())
}

async fn measure() -> Result<Vec<Row>> {
    // What other parts of a run needed at their peak is not the scheduler's.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let coordinator = Coordinator::new(Arc::new(MemoryStore::default()));
    let store_now = async || anyhow::Ok(coordinator.inspect(&"x".parse()?).await?.now.as_millis());
    // Reading so many takes its time: the slots are due after that.
    let hour = store_now().await? / 1000;
    let mut jobs = (HOT..JOBS).map(|number| job(number, hour)).collect::<Result<Vec<_>>>()?;
    let now = store_now().await?;
    let store_ahead_ms = now - local_ms();
    let second = now / 1000 + 15;
    for number in 0..HOT {
        jobs.push(job(number, second)?);
    }
    let stage = Arc::new(Stage {
        coordinator: coordinator.clone(),
        store_ahead_ms,
        late: Mutex::default(),
        ran: Mutex::default(),
    });
    let settings = Settings { ttl: Ttl::MAX, label: None, max_running: HOT };
    let (scheduler, steering) = Scheduler::new(coordinator, jobs, stage.clone(), stage.clone(), settings);
    let running = tokio::spawn(scheduler.run());
    let mut idle = Duration::MAX;
    while store_ahead_ms + local_ms() + 1_500 < second * 1000 {
        let before = cpu()?;
        SystemClock.sleep_until(SystemClock.now() + Duration::from_secs(1)).await;
        idle = idle.min(cpu()? - before);
    }
    let until = SystemClock.now() + Duration::from_secs(20);
    while *stage.ran.lock().unwrap_or_else(PoisonError::into_inner) < HOT {
        if SystemClock.now() > until {
            bail!("not all slots were run");
        }
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(200)).await;
    }
    let memory = status("VmHWM:")? / 1024;
    steering.drain();
    running.await??;
    let ours = percentile(&mut stage.late.lock().unwrap_or_else(PoisonError::into_inner));
    let peer = timers().await;
    let what = format!("{HOT} slots of one second decided, p99 late");
    Ok(vec![
        Row::new(what, "tokio timers", Unit::Milliseconds, ours, Some(peer), Demand::AtMost(LATENESS)),
        Row::new("processor time in an idle second", "-", Unit::Milliseconds, idle, None, Demand::AtMost(IDLE)),
        Row::new(
            format!("peak memory of {JOBS} jobs"),
            "-",
            Unit::Megabytes,
            Duration::from_millis(memory),
            None,
            Demand::AtMost(Duration::from_millis(MEGABYTES)),
        ),
    ])
}

fn job(number: usize, second: u64) -> Result<Arc<Job>> {
    let (hour, minute) = (second / 3600 % 24, second / 60 % 60);
    let cron = if number < HOT {
        format!("{} {minute} {hour} * * *", second % 60)
    } else {
        format!("{} {} {} * * *", number % 60, number / 60 % 60, (hour as usize + 6 + number % 12) % 24)
    };
    let table: JobTable = serde_json::from_value(serde_json::json!({
        "name": format!("job/{number:06}"), "cron": cron, "command": "true",
    }))?;
    Ok(Arc::new(Job::read(table, number)?))
}

/// The 99th percentile.
fn percentile(late: &mut [u64]) -> Duration {
    late.sort_unstable();
    Duration::from_millis(late.get(late.len() * 99 / 100).copied().unwrap_or(u64::MAX))
}

async fn timers() -> Duration {
    let at = SystemClock.now() + Duration::from_millis(200);
    let wakings: Vec<_> = (0..HOT)
        .map(|_| {
            tokio::spawn(async move {
                SystemClock.sleep_until(at).await;
                SystemClock.now().saturating_since(at).as_millis() as u64
            })
        })
        .collect();
    let mut late = Vec::new();
    for waking in wakings {
        late.extend(waking.await.ok());
    }
    percentile(&mut late).max(Duration::from_micros(500))
}

/// This machine's own milliseconds.
fn local_ms() -> u64 {
    SystemClock.now().as_nanos() / 1_000_000
}

/// The processor time of this process, to 10 ms.
fn cpu() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| -> Result<u64> { Ok(fields.get(at).context("no processor time")?.parse()?) };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

fn status(name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with(name)).context("no such field")?;
    Ok(line.split_whitespace().nth(1).context("no value")?.parse()?)
}
