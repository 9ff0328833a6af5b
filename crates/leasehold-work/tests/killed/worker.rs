//! One scheduler process: runs slots by appending to a log, and kills itself where it is told to.

use async_trait::async_trait;
use leasehold_core::lease::protocol::{AfterFailure, SlotClaim};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Outcome, Released, Result, Slot, Timestamp, Ttl};
use leasehold_work::schedule::{
    Decided, Fate, Job, JobTable, Journals, Launcher, Origin, RunEnd, Scheduler, Settings, Start, Watcher,
};
use rustix::process::{Signal, getpid, kill_process};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub const ROLE: &str = "KILLED_ROLE";
pub const STORE: &str = "KILLED_STORE";
pub const LOG: &str = "KILLED_LOG";
pub const DIES_AT: &str = "KILLED_DIES_AT";
pub const NTH: &str = "KILLED_NTH";

/// The steps of a slot's run, in order.
pub const STEPS: [&str; 7] = ["due", "claimed", "journal-begun", "working", "worked", "completed", "journal-ended"];

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

#[derive(Debug)]
struct Runner {
    coordinator: Coordinator,
    journals: Journals,
    log: File,
    dies_at: String,
    left: AtomicU32,
}

impl Runner {
    fn reach(&self, step: &str) {
        if step == self.dies_at && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.note(&format!("dies {step}"));
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }

    /// One write, appended: it is whole or not there.
    fn note(&self, line: &str) {
        (&self.log).write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn say(&self, what: &str, start: &Start) {
        let (job, slot) = (&start.job.name, start.slot.0.as_millis() / 1000);
        self.note(&format!("{what} {job} {slot} {}", start.grant.token().epoch));
    }
}

#[async_trait]
impl Launcher for Runner {
    async fn launch(&self, start: &Start) -> Result<()> {
        let (name, epoch) = (&start.job.name, start.grant.token().epoch);
        self.say("begin", start);
        self.journals.begin(name, start.slot, epoch).await?;
        self.reach("journal-begun");
        self.reach("working");
        self.say("ask", start);
        self.reach("worked");
        if let Ok(Released::Now) = self.coordinator.release(&start.grant, Outcome::Succeeded).await {
            self.reach("completed");
            self.say("accepted", start);
        }
        let end = RunEnd::new(Fate::Succeeded, Some(0), 0);
        let _ = self.journals.end(name, start.slot, epoch, end).await;
        self.reach("journal-ended");
        Ok(())
    }
}

impl Watcher for Runner {
    fn decided(&self, _job: &Job, decided: Decided) {
        match decided {
            Decided::Due(_) => self.reach("due"),
            Decided::Started(..) => self.reach("claimed"),
            _ => {}
        }
    }
}

fn jobs() -> Vec<Arc<Job>> {
    (0..super::JOBS)
        .map(|number| {
            let table: JobTable = serde_json::from_value(serde_json::json!({
                "name": format!("job-{number}"), "every": "1s", "command": "true", "ttl": "1s",
                "catch_up": 1000, "catch_up_max_age": "1d",
            }))
            .unwrap();
            Arc::new(Job::read(table, number).unwrap())
        })
        .collect()
}

pub fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let coordinator = Coordinator::new(super::open(&variable(STORE)).await);
        let runner = Arc::new(Runner {
            journals: Journals::new(coordinator.clone()),
            coordinator: coordinator.clone(),
            log: File::options().create(true).append(true).open(variable(LOG)).unwrap(),
            dies_at: variable(DIES_AT),
            left: AtomicU32::new(variable(NTH).parse().unwrap()),
        });
        if variable(ROLE) == "control" {
            return control(&runner).await;
        }
        let settings = Settings { ttl: Ttl::MIN, label: None, max_running: 64 };
        let (scheduler, _steering) = Scheduler::new(coordinator, jobs(), runner.clone(), runner, settings);
        scheduler.run().await.unwrap();
    });
}

/// What many schedulers do: the lease alone decides who runs, and the slot is noted when the run is over.
async fn control(runner: &Runner) {
    for job in jobs() {
        loop {
            let (journal, now) = runner.journals.read(&job.name).await.unwrap();
            let after = journal.entries.last().map_or(journal.since.unwrap(), |entry| entry.slot.0);
            let Some(slot) = job.schedule.between(after, now).next() else { break };
            let ask = Ask::new(HolderId::new(None), Ttl::MIN);
            let Acquired::Granted(grant) = runner.coordinator.acquire(&job.name, &ask).await.unwrap() else {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                continue;
            };
            let start = Start { job: job.clone(), slot, grant: *grant, origin: Origin::Slot };
            runner.say("begin", &start);
            tokio::task::yield_now().await;
            runner.say("ask", &start);
            if let Ok(Released::Now) = runner.coordinator.release(&start.grant, Outcome::Succeeded).await {
                runner.say("accepted", &start);
            }
            let end = RunEnd::new(Fate::Succeeded, Some(0), 0);
            runner.journals.end(&job.name, slot, start.grant.token().epoch, end).await.unwrap();
        }
        // So that the test can tell that it is through.
        let past = Slot(Timestamp::from_millis(u64::from(u32::MAX) * 1000));
        let claim = SlotClaim::new(past, AfterFailure::Leave);
        let ask = Ask { slot: Some(claim), ..Ask::new(HolderId::new(None), Ttl::MIN) };
        let _ = runner.coordinator.acquire(&job.name, &ask).await;
    }
    std::future::pending::<()>().await;
}
