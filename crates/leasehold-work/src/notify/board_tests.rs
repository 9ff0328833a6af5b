//! What the board writes into a store, and who finds it there.

use super::tests::rule;
use super::*;
use crate::output::{self, Ring, RunOutput};
use crate::queue::{Claimed, Claimer, Queue, State};
use crate::schedule::{Definitions, FileRevision, Job, Publisher};
use crate::tally::DeadLetter;
use leasehold_core::clock::ManualClock;
use leasehold_core::lease::protocol::Order;
use leasehold_core::store::Change;
use leasehold_core::{
    Acquired, Ask, Coordinator, Epoch, HolderId, Key, Kind, LeaseName, MemoryStore, Operated, Outcome, Shelf,
    Timestamp, Token, Ttl,
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

/// A file with this job, or without any.
async fn publish(fixture: &Fixture, revision: u64, job: Option<&str>) {
    let table = |name: &str| serde_json::json!({ "name": name, "every": "1h", "command": "true" });
    let job = job.map(|name| Arc::new(Job::read(serde_json::from_value(table(name)).unwrap(), 1).unwrap()));
    let revision = FileRevision::new(Some(revision), Duration::from_secs(1), "text");
    let publisher = Publisher { owner: "team".into(), revision, host: "box".into() };
    Definitions::new(fixture.coordinator.clone()).publish(job.as_slice(), &publisher).await.unwrap();
}

impl Fixture {
    /// The messages of a sweep after so many minutes: which name each is about, its cause, and whether it is a reminder.
    async fn swept(&self, minutes: u32) -> Vec<(String, String, bool)> {
        self.clock.advance(MINUTE * minutes);
        self.board.sweep().await.unwrap();
        let told = self.delivered().await;
        let words = |notice: &Notice| {
            let cause = notice.body["data"]["cause"].as_str().unwrap().to_owned();
            (notice.name().to_owned(), cause, notice.is_reminder())
        };
        let mut told: Vec<_> = told.iter().map(words).collect();
        told.sort();
        told
    }

    async fn forget(&self, lease: &LeaseName) {
        let (by, why) = ("ann".parse().unwrap(), "unused".parse().unwrap());
        let order = Order::Forget { idle: MINUTE };
        let done = self.coordinator.operate(lease, by, why, order).await.unwrap();
        assert!(matches!(done, Operated::Done(_)), "{done:?}");
    }
}

fn told(name: &str, cause: &str, is_reminder: bool) -> (String, String, bool) {
    (name.to_owned(), cause.to_owned(), is_reminder)
}

#[tokio::test]
async fn a_retired_job_is_not_reminded_of_and_one_that_was_never_published_is() {
    let fixture = Fixture::new(&[Cause::Failed, Cause::Recovered], Some(MINUTE * 30));
    let (nightly, own): (LeaseName, LeaseName) = ("nightly".parse().unwrap(), "own".parse().unwrap());
    publish(&fixture, 1, Some("nightly")).await;
    for lease in [&nightly, &own] {
        fixture.ends(lease, Outcome::Failed).await;
    }
    assert_eq!(fixture.swept(1).await, [told("nightly", "failed", false), told("own", "failed", false)]);
    assert_eq!(fixture.swept(31).await, [told("nightly", "failed", true), told("own", "failed", true)]);
    publish(&fixture, 2, None).await;
    assert_eq!(fixture.swept(31).await, [told("own", "failed", true)]);
    assert_eq!(fixture.swept(31).await, [told("own", "failed", true)]);
    // It is published again: the next failure is another outage.
    publish(&fixture, 3, Some("nightly")).await;
    assert_eq!(fixture.swept(31).await, [told("own", "failed", true)]);
    fixture.ends(&nightly, Outcome::Failed).await;
    assert_eq!(fixture.swept(1).await, [told("nightly", "failed", false)]);
    // By hand, as after `schedule retire`.
    assert!(Definitions::new(fixture.coordinator.clone()).remove(&nightly).await.unwrap());
    fixture.ends(&own, Outcome::Succeeded).await;
    assert_eq!(fixture.swept(1).await, [told("own", "recovered", false)]);
    assert!(fixture.swept(60).await.is_empty());
}

#[tokio::test]
async fn a_failure_just_before_its_job_was_retired_is_told_and_an_old_one_is_not() {
    let fixture = Fixture::new(&[Cause::Failed, Cause::Missed], Some(MINUTE * 30));
    let nightly: LeaseName = "nightly".parse().unwrap();
    publish(&fixture, 1, Some("nightly")).await;
    fixture.ends(&nightly, Outcome::Failed).await;
    publish(&fixture, 2, None).await;
    let later = fixture.clock.clone();
    assert_eq!(fixture.swept(1).await, [told("nightly", "failed", false)]);
    assert!(fixture.swept(60).await.is_empty());
    later.advance(MINUTE * 60 * 48);
    // A channel that is new by then.
    let new = Rule { channel: "new".parse().unwrap(), ..rule(&[Cause::Failed, Cause::Missed]) };
    let board = Board::new(fixture.coordinator.clone(), vec![new], StoreLocation::default());
    board.sweep().await.unwrap();
    assert!(fixture.delivered_to("new").await.is_empty());
}

#[tokio::test]
async fn a_job_that_nobody_ever_ran_is_not_reminded_of_once_it_is_retired_and_is_late_again_when_it_is_back() {
    let fixture = Fixture::new(&[Cause::Late, Cause::Missed], Some(MINUTE * 30));
    publish(&fixture, 1, Some("nightly")).await;
    let first = fixture.swept(130).await;
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(fixture.swept(31).await.iter().filter(|told| told.2).count(), 1);
    publish(&fixture, 2, None).await;
    assert!(fixture.swept(31).await.is_empty() && fixture.swept(31).await.is_empty());
    publish(&fixture, 3, Some("nightly")).await;
    let again = fixture.swept(130).await;
    assert_eq!((again.len(), again[0].2), (1, false), "{again:?}");
}

#[tokio::test]
async fn a_forgotten_lease_is_not_reminded_of_and_has_no_record_of_a_rule_that_is_new() {
    let fixture = Fixture::new(&[Cause::Failed], Some(MINUTE * 30));
    let lease: LeaseName = "nightly".parse().unwrap();
    fixture.ends(&lease, Outcome::Failed).await;
    assert_eq!(fixture.swept(1).await, [told("nightly", "failed", false)]);
    assert_eq!(fixture.swept(31).await, [told("nightly", "failed", true)]);
    fixture.forget(&lease).await;
    assert!(fixture.swept(31).await.is_empty() && fixture.swept(31).await.is_empty());
    // Whoever uses it again begins anew.
    fixture.ends(&lease, Outcome::Failed).await;
    assert_eq!(fixture.swept(1).await, [told("nightly", "failed", false)]);
    assert_eq!(fixture.swept(31).await, [told("nightly", "failed", true)]);

    let fixture = Fixture::new(&[Cause::Fenced], None);
    fixture.ends(&lease, Outcome::Succeeded).await;
    fixture.clock.advance(MINUTE * 5);
    fixture.forget(&lease).await;
    assert!(fixture.swept(1).await.is_empty());
    let key = Key::new(Shelf::Watch, &lease);
    assert!(fixture.coordinator.store().read(&key).await.unwrap().value.is_none());
    fixture.ends(&lease, Outcome::Succeeded).await;
    assert!(fixture.swept(1).await.is_empty());
    assert!(fixture.coordinator.store().read(&key).await.unwrap().value.is_some(), "it has a baseline now");
}
