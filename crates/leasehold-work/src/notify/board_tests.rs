//! What the board writes into a store, and who finds it there.

use super::tests::rule;
use super::*;
use crate::output::{self, Ring, RunOutput};
use crate::queue::{Claimed, Claimer, Queue, State};
use crate::schedule::{Definitions, FileRevision, Job, Publisher};
use crate::tally::DeadLetter;
use leasehold_core::clock::ManualClock;
use leasehold_core::store::Change;
use leasehold_core::{
    Acquired, Ask, Coordinator, Epoch, HolderId, Key, Kind, LeaseName, MemoryStore, Outcome, Shelf, Timestamp, Token,
    Ttl,
};
use std::sync::Arc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

struct Fixture {
    clock: ManualClock,
    coordinator: Coordinator,
    board: Board,
}

impl Fixture {
    fn new(on: &[Cause], remind: Option<Duration>) -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let coordinator = Coordinator::with_clock(store, Arc::new(clock.clone()));
        let rule = Rule { remind, ..rule(on) };
        let board = Board::new(coordinator.clone(), vec![rule], StoreLocation::default());
        Fixture { clock, coordinator, board }
    }

    fn queue(&self, name: &str) -> Queue {
        let (store, clock) = (self.coordinator.store().clone(), Arc::new(self.clock.clone()));
        Queue::with_clock(store, name.parse().unwrap(), clock)
    }

    fn channel(&self) -> Queue {
        self.queue("leasehold.notify.ops")
    }

    /// The messages that wait to be delivered, in order. This delivers them.
    async fn delivered(&self) -> Vec<Notice> {
        self.delivered_to("ops").await
    }

    async fn delivered_to(&self, channel: &str) -> Vec<Notice> {
        let queue = self.queue(&format!("leasehold.notify.{channel}"));
        let mut claimer = Claimer::new(queue.clone(), None, Ttl::new(MINUTE).unwrap()).unwrap();
        let mut all = Vec::new();
        while let Claimed::Item(grant) = claimer.claim().await.unwrap() {
            all.push(serde_json::from_slice(grant.item().payload.bytes()).unwrap());
            queue.complete(&grant, None, Vec::new()).await.unwrap();
        }
        all
    }

    async fn ends(&self, lease: &LeaseName, outcome: Outcome) -> Token {
        let ask = Ask::new(HolderId::new(None), Ttl::new(MINUTE).unwrap());
        let Acquired::Granted(grant) = self.coordinator.acquire(lease, &ask).await.unwrap() else {
            panic!("it is free")
        };
        self.coordinator.release(&grant, outcome).await.unwrap();
        grant.token().clone()
    }

    /// A run of this lease that fails. The last lines of its output are stored.
    async fn fails(&self, lease: &LeaseName, tail: &str) -> Epoch {
        let token = self.ends(lease, Outcome::Failed).await;
        let kept = RunOutput {
            lease: lease.clone(),
            epoch: token.epoch,
            slot: None,
            host: "here".into(),
            at: Timestamp::from_millis(0),
            exit: Some(3),
            why: None,
            usage: None,
            bytes: tail.len() as u64,
            file: None,
            is_cut: false,
            tail: tail.into(),
        };
        output::write(&self.coordinator, &Ring::of_lease(&token.lease, token.lineage, 10), &token, &kept)
            .await
            .unwrap();
        token.epoch
    }
}

#[tokio::test]
async fn a_reminder_of_a_sweep_has_the_last_lines_of_the_failure_though_the_run_after_it_was_not_judged_yet() {
    let fixture = Fixture::new(&[Cause::Failed], Some(MINUTE));
    let lease: LeaseName = "nightly".parse().unwrap();
    fixture.fails(&lease, "disk full\n").await;
    fixture.clock.advance(MINUTE / 2);
    fixture.board.sweep().await.unwrap();
    assert_eq!(fixture.delivered().await[0].body["data"]["tail"], "disk full\n");
    fixture.clock.advance(MINUTE * 2);
    // The machine that runs it is about to report this failure.
    fixture.fails(&lease, "still full\n").await;
    fixture.board.sweep().await.unwrap();
    let told = fixture.delivered().await;
    let data = &told[0].body["data"];
    assert_eq!((told.len(), data["reminder"].as_u64(), data["exit_code"].as_u64()), (1, Some(1), Some(3)));
    assert_eq!(data["tail"], "disk full\n");
}

#[tokio::test]
async fn of_the_reminders_that_wait_only_the_newest_is_left_and_what_came_before_them_stays_first() {
    let fixture = Fixture::new(&[Cause::Failed], Some(MINUTE));
    fixture.fails(&"nightly".parse().unwrap(), "disk full\n").await;
    for _ in 0..5 {
        fixture.clock.advance(MINUTE * 2);
        fixture.board.sweep().await.unwrap();
    }
    let told = fixture.delivered().await;
    let reminders: Vec<_> = told.iter().map(|notice| notice.body["data"]["reminder"].as_u64()).collect();
    assert_eq!(reminders, [None, Some(4)]);
    // The reminders that were cancelled still name the message before them.
    let before = told[1].after.as_deref().unwrap().parse().unwrap();
    let seen = fixture.channel().inspect(&crate::queue::ItemId::keyed(&before)).await.unwrap();
    assert!(matches!(seen.item.state, State::Cancelled { .. }));
    let withdrawn: Notice = serde_json::from_slice(seen.item.payload.bytes()).unwrap();
    assert!(withdrawn.after.is_some() && withdrawn.is_reminder());
}

#[tokio::test]
async fn dead_letters_that_were_held_back_are_reported_by_whoever_looks_at_another_queue() {
    let fixture = Fixture::new(&[Cause::DeadLetter], None);
    let spool = || Subject::Spool(leasehold_core::Lineage::from_u128(7), "spool:/srv/letters".into());
    for subject in [Subject::Queue("mail".parse().unwrap()), spool()] {
        for key in ["a", "b", "c"] {
            let (id, epoch) = (format!("k.{key}").parse().unwrap(), Epoch::new(1).unwrap());
            let at = fixture.coordinator.inspect(&"any".parse().unwrap()).await.unwrap().now;
            let letter = DeadLetter { id, epoch, why: None, at, tail: None };
            fixture.board.judge(&subject, &Facts::of_queue(vec![letter])).await.unwrap();
        }
    }
    assert_eq!(fixture.delivered().await.len(), 2, "the first of each");
    let (other, queue) = (Subject::Queue("other".parse().unwrap()), fixture.queue("other"));
    fixture.clock.advance(MINUTE);
    fixture.board.sweep_letters(&other, &queue).await.unwrap();
    assert!(fixture.delivered().await.is_empty(), "they are gathered for a while");
    fixture.clock.advance(MINUTE * 5);
    fixture.board.sweep_letters(&other, &queue).await.unwrap();
    let mut told: Vec<_> =
        fixture.delivered().await.iter().map(|n| (n.name().to_owned(), n.body["data"]["count"].as_u64())).collect();
    told.sort();
    assert_eq!(told, [("mail".to_owned(), Some(2)), ("spool:/srv/letters".to_owned(), Some(2))]);
    fixture.clock.advance(MINUTE * 10);
    fixture.board.sweep().await.unwrap();
    assert!(fixture.delivered().await.is_empty(), "once");
}

#[tokio::test]
async fn a_damaged_record_of_a_job_that_never_ran_hides_no_other_job() {
    let fixture = Fixture::new(&[Cause::Missed, Cause::Late], None);
    let job = |name: &str| {
        let table = serde_json::json!({ "name": name, "every": "1h", "command": "true" });
        Arc::new(Job::read(serde_json::from_value(table).unwrap(), 1).unwrap())
    };
    let names = ["a", "b", "c", "d", "e", "well"];
    let revision = FileRevision::new(None, Duration::from_secs(1), "text");
    let publisher = Publisher { owner: "team".into(), revision, host: "box".into() };
    let jobs = names.map(job);
    Definitions::new(fixture.coordinator.clone()).publish(&jobs, &publisher).await.unwrap();
    for damaged in &jobs[..5] {
        let key = Key::new(Shelf::Lease, &damaged.name);
        fixture.coordinator.store().write(&Change::put(&key, None, b"damaged")).await.unwrap();
    }
    fixture.clock.advance(MINUTE * 180);
    let error = fixture.board.sweep().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let told: Vec<_> = fixture.delivered().await.iter().map(|notice| notice.name().to_owned()).collect();
    assert!(!told.is_empty() && told.iter().all(|name| name == "well"), "{told:?}");
}

#[tokio::test]
async fn every_channel_is_notified_however_many_there_are_and_how_long_it_was_down() {
    let fixture = Fixture::new(&[], None);
    let channels: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    let rules = channels
        .iter()
        .map(|channel| Rule { channel: channel.parse().unwrap(), ..rule(&[Cause::Failed, Cause::Recovered]) });
    let board = Board::new(fixture.coordinator.clone(), rules.collect(), StoreLocation::default());
    let lease: LeaseName = "nightly".parse().unwrap();
    fixture.ends(&lease, Outcome::Failed).await;
    fixture.clock.advance(MINUTE);
    fixture.ends(&lease, Outcome::Succeeded).await;
    // No machine judges anything for an hour.
    fixture.clock.advance(MINUTE * 60);
    board.sweep().await.unwrap();
    for channel in &channels {
        let mut told: Vec<_> = fixture.delivered_to(channel).await;
        // Both were added at the same time; the deliverer keeps to their order.
        told.sort_by_key(|notice| notice.after.is_some());
        let told: Vec<_> =
            told.iter().map(|notice| (notice.kind(), notice.body["data"]["down_for_ms"].as_u64())).collect();
        let was_down = Some(MINUTE.as_millis() as u64);
        assert_eq!(told, [("lease.failed", was_down), ("lease.recovered", was_down)], "{channel}");
    }
    board.sweep().await.unwrap();
    assert!(fixture.delivered_to("c0").await.is_empty(), "once");
}
