//! Clients that hang up while what they asked for is written.

use crate::rig::{Rig, text};
use async_trait::async_trait;
use leasehold_core::item::protocol::Request as ItemRequest;
use leasehold_core::lease::protocol::Request as LeaseRequest;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Verb, Watch};
use leasehold_core::{Key, MemoryStore, Result, Shelf};
use leasehold_server::serve::{Limits, Opener};
use leasehold_stores::Namespace;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

const PATIENCE: Duration = Duration::from_secs(30);

/// A store whose answers to some writes are on their way for as long as a test wants.
#[derive(Debug)]
struct Slow {
    inner: MemoryStore,
    is_slow: fn(&Change<'_>) -> bool,
    answers: Semaphore,
    /// Writes whose answer has been on its way, so far.
    begun: AtomicUsize,
}

impl Slow {
    /// So many of these writes are answered at once.
    fn new(is_slow: fn(&Change<'_>) -> bool, answered: usize) -> Arc<Self> {
        let (inner, answers) = (MemoryStore::default(), Semaphore::new(answered));
        Arc::new(Slow { inner, is_slow, answers, begun: AtomicUsize::new(0) })
    }

    async fn until_begun(&self, count: usize) {
        eventually(async || self.begun.load(Ordering::SeqCst) == count).await;
    }

    fn answer_all(&self) {
        self.answers.add_permits(10_000);
    }
}

#[async_trait]
impl Store for Slow {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let written = self.inner.write(change).await;
        if (self.is_slow)(change) {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.answers.acquire().await.unwrap().forget();
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

#[derive(Debug)]
struct Always(Arc<Slow>);

#[async_trait]
impl Opener for Always {
    async fn open(&self, _: &Namespace) -> Result<Arc<dyn Store>> {
        Ok(self.0.clone())
    }
}

fn is_addition(change: &Change<'_>) -> bool {
    matches!(change.verb, Verb::Add(_))
}

fn is_claim(change: &Change<'_>) -> bool {
    matches!(change.verb, Verb::Item(ItemRequest::Claim { .. }))
}

fn is_acquisition(change: &Change<'_>) -> bool {
    matches!(change.verb, Verb::Lease(LeaseRequest::Acquire { .. }))
}

async fn eventually(holds: impl AsyncFn() -> bool) {
    let holding = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, holding).await.expect("it comes true");
}

async fn rig(store: &Arc<Slow>) -> Rig {
    Rig::with(Arc::new(Always(store.clone())), Limits { rate: 100_000, ..Limits::default() }).await
}

/// Sends a request, hangs up when so many of the slow writes have begun, and waits until the server has noticed.
async fn hang_up(rig: &Rig, store: &Slow, begun: usize, key: &str, path: &str, header: &str, body: &Value) {
    let before = rig.site.connections();
    let address = rig.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (body, bearer) = (body.to_string(), format!("authorization: Bearer {key}"));
    let length = body.len();
    let head =
        format!("POST /v1/ns/team/{path} HTTP/1.1\r\nhost: x\r\n{bearer}\r\n{header}content-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    store.until_begun(begun).await;
    assert_eq!(rig.site.connections(), before + 1);
    drop(stream);
    eventually(async || rig.site.connections() == before).await;
}

async fn count(rig: &Rig, key: &str, queue: &str, state: &str) -> u64 {
    rig.get(key, &format!("queues/{queue}")).await.ok()[state].as_u64().unwrap()
}

fn many(count: usize) -> Vec<Value> {
    (0..count).map(|number| json!({ "payload": number.to_string() })).collect()
}

#[tokio::test]
async fn a_completion_adds_all_that_follows_though_its_client_hangs_up() {
    // The source, and the first of what follows.
    let store = Slow::new(is_addition, 4);
    let rig = rig(&store).await;
    let key = rig.all().await;
    rig.post(&key, "queues/source/items", json!({ "items": many(1) })).await.ok();
    let claimed = rig.post(&key, "queues/source/claim", json!({ "ttl": "1h" })).await.ok()["items"][0].clone();
    let add: Vec<Value> = many(20).into_iter().map(|item| json!({ "queue": "next", "item": item })).collect();
    let path = format!("queues/source/items/{}/complete", text(&claimed, "id"));
    hang_up(&rig, &store, 5, &key, &path, "", &json!({ "token": claimed["token"], "add": add })).await;
    assert_eq!(count(&rig, &key, "source", "done").await, 1);
    store.answer_all();
    eventually(async || count(&rig, &key, "next", "ready").await == 20).await;
}

#[tokio::test]
async fn all_items_of_a_request_are_added_though_its_client_hangs_up() {
    let store = Slow::new(is_addition, 3);
    let rig = rig(&store).await;
    let key = rig.all().await;
    hang_up(&rig, &store, 4, &key, "queues/mail/items", "", &json!({ "items": many(20) })).await;
    store.answer_all();
    eventually(async || count(&rig, &key, "mail", "ready").await == 20).await;
}

#[tokio::test]
async fn a_claim_whose_client_hangs_up_is_given_back() {
    for wait in ["0s", "60s"] {
        let store = Slow::new(is_claim, 0);
        let rig = rig(&store).await;
        let key = rig.all().await;
        rig.post(&key, "queues/mail/items", json!({ "items": many(1) })).await.ok();
        hang_up(&rig, &store, 1, &key, "queues/mail/claim", "", &json!({ "ttl": "24h", "wait": wait })).await;
        assert_eq!(count(&rig, &key, "mail", "claimed").await, 1, "{wait}");
        store.answer_all();
        eventually(async || count(&rig, &key, "mail", "ready").await == 1).await;
    }
}

#[tokio::test]
async fn a_claim_whose_client_hangs_up_is_found_by_its_next_attempt() {
    let store = Slow::new(is_claim, 0);
    let rig = rig(&store).await;
    let key = rig.all().await;
    rig.post(&key, "queues/mail/items", json!({ "items": many(2) })).await.ok();
    let claim = json!({ "ttl": "24h" });
    hang_up(&rig, &store, 1, &key, "queues/mail/claim", "idempotency-key: K\r\n", &claim).await;
    store.answer_all();
    let again = rig.attempt(&key, "K", "queues/mail/claim", claim).await.ok();
    assert_eq!(again["items"].as_array().unwrap().len(), 1);
    assert_eq!(count(&rig, &key, "mail", "ready").await, 1, "no other item was claimed for it");
}

#[tokio::test]
async fn a_claim_that_is_written_when_its_key_is_revoked_is_given_back() {
    let store = Slow::new(is_claim, 0);
    let rig = Arc::new(rig(&store).await);
    let (key, other) = (rig.all().await, rig.secret("team", "work", &["*"]).await);
    let waiter = tokio::spawn({
        let (rig, key) = (rig.clone(), other.reveal().to_owned());
        async move { rig.post(&key, "queues/mail/claim", json!({ "ttl": "24h", "wait": "60s" })).await }
    });
    rig.until_waiting(1).await;
    rig.post(&key, "queues/mail/items", json!({ "items": many(1) })).await.ok();
    store.until_begun(1).await;
    rig.keys.revoke(&other.id(), &"a test".parse().unwrap(), &"enough".parse().unwrap()).await.unwrap();
    eventually(async || rig.get(other.reveal(), "queues/mail").await.status == 401).await;
    assert_eq!(count(&rig, &key, "mail", "claimed").await, 1);
    store.answer_all();
    tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap().refused(401, "key_revoked");
    eventually(async || count(&rig, &key, "mail", "ready").await == 1).await;
}

#[tokio::test]
async fn an_acquisition_whose_client_hangs_up_is_given_back() {
    let store = Slow::new(is_acquisition, 0);
    let rig = rig(&store).await;
    let key = rig.all().await;
    hang_up(&rig, &store, 1, &key, "leases/daily/acquire", "", &json!({ "ttl": "24h" })).await;
    assert_eq!(rig.get(&key, "leases/daily").await.ok()["state"], "held");
    store.answer_all();
    eventually(async || rig.get(&key, "leases/daily").await.ok()["state"] == "free").await;
}

#[tokio::test]
async fn an_acquisition_under_an_idempotency_key_is_given_back_if_its_key_is_revoked() {
    let store = Slow::new(is_acquisition, 1);
    let rig = Arc::new(rig(&store).await);
    let (key, other) = (rig.all().await, rig.secret("team", "hold", &["*"]).await);
    let held = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "1h" })).await.ok();
    let waiter = tokio::spawn({
        let (rig, key) = (rig.clone(), other.reveal().to_owned());
        async move { rig.attempt(&key, "K", "leases/daily/acquire", json!({ "ttl": "24h", "wait": "60s" })).await }
    });
    rig.until_waiting(1).await;
    rig.post(&key, "leases/daily/release", json!({ "token": held["token"] })).await.ok();
    store.until_begun(2).await;
    rig.keys.revoke(&other.id(), &"a test".parse().unwrap(), &"enough".parse().unwrap()).await.unwrap();
    let answer = tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap();
    answer.refused(401, "key_revoked");
    store.answer_all();
    eventually(async || rig.get(&key, "leases/daily").await.ok()["state"] == "free").await;
}
