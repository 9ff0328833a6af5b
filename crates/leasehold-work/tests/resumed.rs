//! A slot whose run was ended while its job was paused: it is taken up when the job is resumed, and late if it is not.

#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::lease::protocol::{AfterFailure, Decision, Order, Request, SlotClaim, decide};
use leasehold_core::{
    Acquired, Ask, Coordinator, HolderId, LeaseVerbs, Lineage, MemoryStore, Nonce, Outcome, Ownership, Result, Slot,
    Timestamp, Ttl,
};
use leasehold_work::notify::overdue;
use leasehold_work::schedule::{
    Decided, Definition, FileRevision, Job, JobTable, Journal, Journals, Launcher, Publisher, Scheduler, Settings,
    Start, Watcher,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Its newest slot is months old, and the next one is months away.
fn rare() -> Arc<Job> {
    let table = serde_json::json!({
        "name": "rare", "every": "366d", "catch_up_max_age": "400d", "late_after": "10m", "command": "true",
    });
    Arc::new(Job::read(serde_json::from_value::<JobTable>(table).unwrap(), 0).unwrap())
}

fn claim(slot: Slot) -> Option<SlotClaim> {
    Some(SlotClaim::new(slot, AfterFailure::Leave))
}

#[derive(Debug)]
struct Bench {
    coordinator: Coordinator,
    launches: AtomicU32,
}

#[async_trait]
impl Launcher for Bench {
    async fn launch(&self, start: &Start) -> Result<()> {
        self.launches.fetch_add(1, Ordering::SeqCst);
        self.coordinator.release(&start.grant, Outcome::Succeeded).await.map(drop)
    }
}

impl Watcher for Bench {
    fn decided(&self, _job: &Job, _decided: Decided) {}
}

async fn until<F: Future<Output = bool>>(what: &str, done: impl Fn() -> F) {
    let give_up = SystemClock.now() + Duration::from_secs(60);
    while !done().await {
        assert!(SystemClock.now() < give_up, "{what}");
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_slot_that_was_taken_away_while_its_job_was_paused_is_run_when_it_is_resumed() {
    let coordinator = Coordinator::new(Arc::new(MemoryStore::default()));
    let job = rare();
    let slot = job.schedule.latest(coordinator.now().await.unwrap()).unwrap();
    let ask = Ask { holder: HolderId::new(None), ttl: Ttl::MIN, slot: claim(slot), spacing: None, requested: None };
    assert!(matches!(coordinator.acquire(&job.name, &ask).await.unwrap(), Acquired::Granted(_)));
    let order = |order| {
        let (by, why) = ("ann".parse().unwrap(), "upgrade".parse().unwrap());
        let (coordinator, name) = (&coordinator, &job.name);
        async move { coordinator.operate(name, by, why, order).await.unwrap() }
    };
    order(Order::Pause).await;
    order(Order::Revoke).await;
    let bench = Arc::new(Bench { coordinator: coordinator.clone(), launches: AtomicU32::new(0) });
    let settings = Settings { ttl: Ttl::MIN, label: None, max_running: 1 };
    let (scheduler, steering) =
        Scheduler::new(coordinator.clone(), vec![job.clone()], bench.clone(), bench.clone(), settings);
    let running = tokio::spawn(scheduler.run());
    // It reads the record, and then notes that it knows the job: it has seen that the job is paused.
    let journals = Journals::new(coordinator.clone());
    let is_known = || async { journals.read(&job.name).await.unwrap().0.since.is_some() };
    until("the scheduler looks at the job", is_known).await;
    let paused = coordinator.inspect(&job.name).await.unwrap().record.paused.unwrap();
    assert_eq!(bench.launches.load(Ordering::SeqCst), 0);
    order(Order::Resume { pause: paused.nonce }).await;
    until("the slot is run", || async { bench.launches.load(Ordering::SeqCst) > 0 }).await;
    steering.drain();
    running.await.unwrap().unwrap();
}

#[test]
fn a_slot_that_was_lost_and_taken_up_by_nobody_is_late() {
    let job = rare();
    let start = Timestamp::from_millis(1_800_000_000_000);
    let slot = job.schedule.latest(start).unwrap();
    let write = |record: &Ownership, request: &Request, now| match decide(record, request, now) {
        Decision::Write(next) => *next,
        other => panic!("{other:?}"),
    };
    let operate = |order| Request::Operate {
        by: "ann".parse().unwrap(),
        why: "upgrade".parse().unwrap(),
        nonce: Nonce::random(),
        lineage: Lineage::from_u128(1),
        expected: None,
        order,
    };
    let acquire = || Request::Acquire {
        lineage: Lineage::from_u128(1),
        holder: HolderId::new(None),
        ttl: Ttl::MIN,
        slot: claim(slot),
        spacing: None,
        requested: None,
    };
    let publisher = Publisher { owner: "file".into(), revision: FileRevision::default(), host: "a".into() };
    let definition = Definition::of(&job, &publisher, slot.0);
    let late = |record: &Ownership, now| overdue(&definition, record, &Journal::default(), now).unwrap().0.late;
    let minutes = |minutes: u64| start.plus(Duration::from_secs(60 * minutes));
    let running = write(&Ownership::default(), &acquire(), start);
    assert_eq!(late(&running, start), None);
    // Its machine died.
    assert_eq!((late(&running, minutes(10)), late(&running, minutes(11))), (None, Some(slot)));
    let revoked = write(&running, &operate(Order::Revoke), start);
    assert_eq!((late(&revoked, minutes(9)), late(&revoked, minutes(10))), (None, Some(slot)));
    // Nobody may take it up while it is paused, and then somebody has time to.
    let paused = write(&revoked, &operate(Order::Pause), start);
    assert_eq!(late(&paused, minutes(60)), None);
    let resume = operate(Order::Resume { pause: paused.paused.as_ref().unwrap().nonce });
    let resumed = write(&paused, &resume, minutes(60));
    assert_eq!((late(&resumed, minutes(69)), late(&resumed, minutes(70))), (None, Some(slot)));
    // It is run once more, to its end.
    let again = write(&resumed, &acquire(), minutes(70));
    let claim = leasehold_core::Claim { epoch: again.epoch, nonce: again.tenure.as_ref().unwrap().holder.nonce() };
    let done = write(&again, &Request::Release { claim, outcome: Outcome::Succeeded }, minutes(70));
    assert_eq!(late(&done, minutes(99)), None);
}
