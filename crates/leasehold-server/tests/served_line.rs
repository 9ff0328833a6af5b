//! The line of a queue when a server died between the record of an item and its place in line. Clients cannot touch the line, so
//! the servers must put it right, and clients must not be held up meanwhile.
//!
//! What a server that died left behind is made by writing to the store behind it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use leasehold_core::cell::{Decision, Protocol};
use leasehold_core::item::protocol::Request;
use leasehold_core::store::{Range, Store};
use leasehold_core::{HolderId, Key, Revision, Shelf, Timestamp};
use leasehold_work::queue::{Claimer, FollowUp, Item, ItemGrant, NewItem, Payload, Queue};
use std::sync::Arc;
use std::time::Duration;
use support::Site;

/// Sooner than a server looks after a queue by itself.
const SOON: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// A queue on a store that moves an item and its place in line in two steps, and the same through a server.
struct Bench {
    _folder: tempfile::TempDir,
    _site: Site,
    behind: Queue,
    remote: Queue,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("dir:{}/store", folder.path().display()).parse().unwrap();
        let behind: Arc<dyn Store> = leasehold_stores::open(&url).await.unwrap();
        assert!(!behind.capabilities().writes_along);
        let site = Site::start(behind.clone()).await;
        let remote = site.store(&site.key("*", "read,work").await).await;
        let queue = |store| Queue::new(store, "mail".parse().unwrap());
        Bench { _folder: folder, _site: site, behind: queue(behind), remote: queue(remote) }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.behind.store()
    }

    async fn add(&self, key: &str) {
        self.behind.add(NewItem { key: Some(key.parse().unwrap()), ..NewItem::default() }).await.unwrap();
    }

    /// The entries in line.
    async fn line(&self) -> Vec<(Key, Revision)> {
        let page = self.store().list(Shelf::Line, Range::new(None, 100)).await.unwrap();
        page.entries.into_iter().map(|(name, value)| (Key::new(Shelf::Line, &name), value.revision)).collect()
    }

    async fn empty_line(&self) {
        for (key, revision) in self.line().await {
            self.store().erase(&key, &revision).await.unwrap();
        }
    }

    async fn claimed(&self, key: &str) -> ItemGrant {
        let id = format!("k.{key}").parse().unwrap();
        let ttl = "90s".parse().unwrap();
        self.behind.claim_item(&id, HolderId::new(None), ttl).await.unwrap().expect("it is free")
    }

    fn worker(&self) -> Claimer {
        Claimer::new(self.remote.clone(), None, "90s".parse().unwrap()).unwrap()
    }

    /// Completes an item, and nothing that follows from it.
    async fn completed_and_died(&self, grant: &ItemGrant, follow_ups: Vec<FollowUp>) {
        let key = grant.name().key().unwrap();
        let found = self.store().read(&key).await.unwrap().value.unwrap();
        let item = Item::decode(&found.bytes, "it").unwrap();
        let request = Request::Complete { claim: grant.token().claim(), result: None, follow_ups };
        let Decision::Write(next) = request.decide(&item, Timestamp::from_millis(1)) else { panic!("it is claimed") };
        self.store().swap(&key, Some(&found.revision), &next.encode().unwrap()).await.unwrap();
    }
}

/// This item is the next one that a worker gets.
async fn comes(worker: &mut Claimer, id: &str, within: Duration) {
    let claiming = tokio::time::timeout(PATIENCE, worker.next_within(within)).await;
    let grant = claiming.expect("a worker waits no longer than it was told to").unwrap().expect("an item waits");
    assert_eq!(grant.name().id.as_str(), id);
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_finished_items_hold_no_worker_of_a_server_up_and_are_taken_out() {
    let bench = Bench::new().await;
    bench.add("one").await;
    let grant = bench.claimed("one").await;
    bench.completed_and_died(&grant, Vec::new()).await;
    // One that was purged since, too.
    bench.add("two").await;
    let two = bench.claimed("two").await;
    let key = two.name().key().unwrap();
    let found = bench.store().read(&key).await.unwrap().value.unwrap();
    bench.store().erase(&key, &found.revision).await.unwrap();
    assert_eq!(bench.line().await.len(), 2, "both still stand in line");

    let mut worker = bench.worker();
    let waiting = tokio::time::timeout(PATIENCE, worker.next_within(SOON)).await;
    let none = waiting.expect("a worker waits no longer than it was told to").unwrap();
    assert!(none.is_none(), "{none:?}");
    bench.add("three").await;
    comes(&mut worker, "k.three", PATIENCE).await;
    let gone = async {
        while bench.line().await.len() > 1 {
            worker.next_within(SOON).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("what is finished leaves the line");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_completion_adds_is_added_though_its_server_died() {
    let bench = Bench::new().await;
    // The server's janitor has found an item that is in no line, so its round is over, and the next one is minutes away.
    let mut worker = bench.worker();
    bench.add("early").await;
    bench.empty_line().await;
    comes(&mut worker, "k.early", PATIENCE).await;
    bench.add("one").await;
    let grant = bench.claimed("one").await;
    let follow_up = FollowUp {
        name: bench.behind.item("k.next".parse().unwrap()),
        payload: Payload::new("next").unwrap(),
        priority: Default::default(),
        delay_ms: 0,
        attempts: Default::default(),
    };
    bench.completed_and_died(&grant, vec![follow_up]).await;
    comes(&mut worker, "k.next", PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adding_an_item_again_puts_it_in_line_though_the_first_server_died() {
    let bench = Bench::new().await;
    bench.add("one").await;
    bench.empty_line().await;
    bench.remote.add(NewItem { key: Some("one".parse().unwrap()), ..NewItem::default() }).await.unwrap();
    comes(&mut bench.worker(), "k.one", SOON).await;
}
