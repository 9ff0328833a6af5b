//! A scheduler that is told to stop while it claims a slot: nothing new is started, and the slot stays open.

#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Coordinator, Key, MemoryStore, Outcome, Result, Shelf, SlotState, Ttl};
use leasehold_work::schedule::{Decided, Job, JobTable, Launcher, Scheduler, Settings, Start, Steering, Watcher};
use std::fmt;
use std::sync::{Arc, Mutex};

/// A store in memory that answers the first write of a lease late: the scheduler is told to stop meanwhile.
struct Late {
    inner: MemoryStore,
    stops: Mutex<Option<Steering>>,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Late")
    }
}

#[async_trait]
impl Store for Late {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let written = self.inner.write(change).await;
        let steering = self.stops.lock().unwrap().take_if(|_| change.key.shelf == Shelf::Lease);
        if let Some(steering) = steering {
            steering.drain();
        }
        written
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

/// Notes what is started; told to, it stops the scheduler when a slot is due.
#[derive(Debug, Default)]
struct Bench {
    stops: Mutex<Option<Steering>>,
    started: Mutex<Vec<String>>,
}

#[async_trait]
impl Launcher for Bench {
    async fn launch(&self, start: &Start) -> Result<()> {
        self.started.lock().unwrap().push(start.job.name.to_string());
        Ok(())
    }
}

impl Watcher for Bench {
    fn decided(&self, _job: &Job, decided: Decided) {
        let steering = self.stops.lock().unwrap().take_if(|_| matches!(decided, Decided::Due(_)));
        if let Some(steering) = steering {
            steering.drain();
        }
    }
}

async fn stopped(in_claim: bool) -> (Coordinator, Arc<Bench>, Arc<Job>) {
    let store = Arc::new(Late { inner: MemoryStore::default(), stops: Mutex::default() });
    let coordinator = Coordinator::new(store.clone());
    let table: JobTable =
        serde_json::from_value(serde_json::json!({ "name": "job", "every": "1s", "command": "true" })).unwrap();
    let (bench, job) = (Arc::new(Bench::default()), Arc::new(Job::read(table, 0).unwrap()));
    let settings = Settings { ttl: Ttl::MIN, label: None, max_running: 1 };
    let (scheduler, steering) =
        Scheduler::new(coordinator.clone(), vec![job.clone()], bench.clone(), bench.clone(), settings);
    let stops = if in_claim { &store.stops } else { &bench.stops };
    *stops.lock().unwrap() = Some(steering.clone());
    scheduler.run().await.unwrap();
    (coordinator, bench, job)
}

#[tokio::test]
async fn a_slot_that_is_claimed_when_the_scheduler_is_told_to_stop_is_given_back_unstarted() {
    let (coordinator, bench, job) = stopped(true).await;
    assert!(bench.started.lock().unwrap().is_empty());
    let record = coordinator.inspect(&job.name).await.unwrap().record;
    assert!(record.tenure.is_none(), "{record:?}");
    assert_eq!(record.transfers.last().unwrap().outcome, Some(Outcome::NotStarted));
    assert_eq!(record.slot.unwrap().state, SlotState::Running, "it is open for others");
}

#[tokio::test]
async fn nothing_is_claimed_once_the_scheduler_is_told_to_stop() {
    let (coordinator, bench, job) = stopped(false).await;
    assert!(bench.started.lock().unwrap().is_empty());
    assert!(coordinator.inspect(&job.name).await.unwrap().record.slot.is_none());
}
