//! Floods of requests that wait, with the real handlers, on a store that is slow and has few connections.

use super::admission::Urgency;
use super::router::router;
use super::tests::{Bench, PATIENCE};
use super::{Limits, Opener};
use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use leasehold_core::lease::protocol::Request as LeaseRequest;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::wire::{self, HeldRecord};
use leasehold_core::{Claim, Epoch, Error, Key, Kind, MemoryStore, Nonce, Result, Shelf, Token};
use leasehold_stores::{CALLS_AT_ONCE, Namespace};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

/// How long a call takes, and how long one waits for a connection: as on PostgreSQL, and shorter.
const CALL: Duration = Duration::from_millis(10);
const CONNECT: Duration = Duration::from_millis(500);

/// A store whose calls take a while, each on one of a few connections.
#[derive(Debug)]
struct Few {
    store: MemoryStore,
    connections: Semaphore,
    most: AtomicUsize,
}

impl Few {
    async fn connect(&self) -> Result<SemaphorePermit<'_>> {
        let turn = timeout(CONNECT, self.connections.acquire()).await;
        let Ok(Ok(turn)) = turn else { return Err(Error::new(Kind::Unavailable, "no connection came free")) };
        self.most.fetch_max(CALLS_AT_ONCE - self.connections.available_permits(), Ordering::AcqRel);
        sleep(CALL).await;
        Ok(turn)
    }
}

#[async_trait]
impl Store for Few {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let _connection = self.connect().await?;
        self.store.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let _connection = self.connect().await?;
        self.store.write(change).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let _connection = self.connect().await?;
        self.store.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.store.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.store.survey().await
    }
}

#[derive(Debug)]
struct Same(Arc<Few>);

#[async_trait]
impl Opener for Same {
    async fn open(&self, _: &Namespace) -> Result<Arc<dyn Store>> {
        Ok(self.0.clone())
    }

    fn limits(&self) -> super::OpenLimits {
        super::OpenLimits::NETWORK
    }
}

/// A client of the real router.
#[derive(Clone)]
struct Client {
    router: Router,
    bearer: String,
}

impl Client {
    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let request = Request::post(format!("/v1/ns/default/{path}")).header("authorization", &self.bearer);
        let request = request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 100_000).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

#[tokio::test]
async fn only_who_holds_a_record_reads_it_before_others() {
    let bench = Bench::new(Limits { requests: 1, rate: 1_000, ..Limits::default() }).await;
    let router = router(&bench.site, None);
    let client = Client { router: router.clone(), bearer: format!("Bearer {}", bench.secret.reveal()) };
    let (_, mine) = client.post("leases/mine/acquire", json!({ "ttl": "60s" })).await;
    let token: Token = mine["token"].as_str().unwrap().parse().unwrap();
    let _only = bench.site.admission().admit(Urgency::Other).await.unwrap();
    let record = Key { shelf: Shelf::Lease, name: token.lease.clone() };
    let read_held = |record: &Key, claim: Claim| {
        client.post("records/recall", serde_json::to_value(HeldRecord { record: record.clone(), claim }).unwrap())
    };
    let (status, held) = read_held(&record, token.claim()).await;
    assert_eq!(status, StatusCode::OK, "{held}");
    assert!(held["held"]["value"]["text"].as_str().unwrap().contains("\"epoch\":1"), "{held}");
    let about = Request::get("/v1/ns/default").header("authorization", &client.bearer).body(Body::empty()).unwrap();
    assert_eq!(router.oneshot(about).await.unwrap().status(), StatusCode::OK, "what its key is for it learns too");
    let (status, told) = client.post("records/read", serde_json::to_value(&record).unwrap()).await;
    assert_eq!((status, &told["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")));
    // Somebody else's lease, an older epoch, a record that is not there, and one of those that nobody holds.
    let epoch = |number| Claim { epoch: Epoch::new(number).unwrap(), ..token.claim() };
    let guessed = Claim { nonce: Nonce::random(), ..token.claim() };
    let missing = Key { name: "missing".parse().unwrap(), ..record.clone() };
    for (record, claim) in [(&record, guessed), (&record, epoch(2)), (&missing, token.claim())] {
        let (status, told) = read_held(record, claim).await;
        assert_eq!((status, &told), (StatusCode::OK, &json!({ "held": null })), "{claim:?}");
    }
    let counters = Key { shelf: Shelf::Counters, ..record.clone() };
    assert_eq!(read_held(&counters, token.claim()).await.0, StatusCode::BAD_REQUEST);
    // A client that keeps guessing is served like everybody else.
    let mut last = (StatusCode::OK, Value::Null);
    for _ in 0..1_000 {
        last = read_held(&record, guessed).await;
        if last.0 != StatusCode::OK {
            break;
        }
    }
    assert_eq!((last.0, &last.1["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")));
    let renewed = client.post("leases/mine/renew", json!({ "token": token.wire() })).await;
    assert_eq!(renewed.0, StatusCode::OK, "{}", renewed.1);
}

/// A test of one way to claim what one does not hold: the path and the body of the request, with this token.
async fn is_served_like_everybody_else(how: impl Fn(&Token) -> (&'static str, Value)) {
    // So slow that three claims are too many, also on a slow machine.
    let bench = Bench::new(Limits { requests: 1, rate: 20, ..Limits::default() }).await;
    let client = Client { router: router(&bench.site, None), bearer: format!("Bearer {}", bench.secret.reveal()) };
    let (_, mine) = client.post("leases/mine/acquire", json!({ "ttl": "60s" })).await;
    let token: Token = mine["token"].as_str().unwrap().parse().unwrap();
    let _only = bench.site.admission().admit(Urgency::Other).await.unwrap();
    let (path, body) = how(&Token { nonce: Nonce::random(), ..token.clone() });
    let first = client.post(path, body.clone()).await;
    assert_ne!(first.0, StatusCode::SERVICE_UNAVAILABLE, "{path}: {}", first.1);
    let mut last = first;
    for _ in 0..50 {
        if last.0 == StatusCode::SERVICE_UNAVAILABLE {
            break;
        }
        last = client.post(path, body.clone()).await;
    }
    assert_eq!((last.0, &last.1["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")), "{path}");
    // What it does hold it may read all the same, and change once it has stopped for a while.
    let record = Key { shelf: Shelf::Lease, name: token.lease.clone() };
    let named = serde_json::to_value(HeldRecord { record, claim: token.claim() }).unwrap();
    let (status, held) = client.post("records/recall", named).await;
    assert_eq!(status, StatusCode::OK, "{path}: {held}");
}

#[tokio::test]
async fn whoever_shows_tokens_that_are_not_in_force_is_served_like_everybody_else() {
    for path in ["leases/mine/renew", "leases/mine/release", "leases/other/renew"] {
        is_served_like_everybody_else(|token| (path, json!({ "token": token.wire() }))).await;
    }
    is_served_like_everybody_else(|token| ("leases/mine/progress", json!({ "token": token.wire(), "marker": "half" })))
        .await;
    is_served_like_everybody_else(|token| {
        let item = Token { lease: "queue/mail/k.7".parse().unwrap(), ..token.clone() };
        ("queues/mail/items/k.7/complete", json!({ "token": item.wire() }))
    })
    .await;
    is_served_like_everybody_else(|token| {
        let record = Key { shelf: Shelf::Lease, name: token.lease.clone() };
        let request = LeaseRequest::Renew { claim: token.claim(), ttl: "60s".parse().unwrap(), progress: None };
        let change = wire::Change { record, expected: Some("made-up".into()), verb: wire::Verb::Lease(request) };
        ("records/hold", serde_json::to_value(change).unwrap())
    })
    .await;
}

/// Stores in memory, and how many were opened.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl Opener for Counting {
    async fn open(&self, _: &Namespace) -> Result<Arc<dyn Store>> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Ok(Arc::new(MemoryStore::default()))
    }
}

#[tokio::test]
async fn whoever_asks_about_made_up_namespaces_is_soon_served_like_everybody_else() {
    let opener = Arc::new(Counting::default());
    let bench = Bench::on(opener.clone(), Limits { requests: 1, rate: 20, ..Limits::default() }).await;
    let router = router(&bench.site, None);
    let ask = async |namespace: &str| {
        let request = Request::get(format!("/v1/ns/{namespace}"));
        let request = request.header("authorization", format!("Bearer {}", bench.secret.reveal()));
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
    };
    let _only = bench.site.admission().admit(Urgency::Other).await.unwrap();
    assert_eq!(ask("mine").await, StatusCode::OK, "a holder's first request finds a permit");
    let mut opened = 1;
    while opened < 50 && ask(&format!("made-up-{opened}")).await == StatusCode::OK {
        opened += 1;
    }
    assert!(opened < 50 && opener.0.load(Ordering::Acquire) == opened, "{opened}");
    assert_eq!(ask("mine").await, StatusCode::OK, "what is open is answered from memory");
    assert_eq!(opener.0.load(Ordering::Acquire), opened);
}

#[tokio::test]
async fn whoever_signs_in_takes_no_place_of_others() {
    let bench = Bench::new(Limits { requests: 1, ..Limits::default() }).await;
    let router = router(&bench.site, None);
    let _only = bench.site.admission().admit(Urgency::Other).await.unwrap();
    let form =
        Request::post("/sign-in").header("sec-fetch-site", "same-origin").header("cookie", "leasehold_visitor=aa");
    let token = bench.site.seal().await.unwrap().token("aa");
    let body = format!("token={token}&key={}", bench.secret.reveal());
    let answer = router.clone().oneshot(form.body(Body::from(body)).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    let front = router.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(front.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_flood_of_requests_that_wait_makes_no_holder_lose_what_it_holds() {
    let connections = Semaphore::new(CALLS_AT_ONCE);
    let store = Arc::new(Few { store: MemoryStore::default(), connections, most: AtomicUsize::new(0) });
    let limits = Limits { rate: 100_000, ..Limits::default() };
    let bench = Bench::on(Arc::new(Same(store.clone())), limits).await;
    let router = router(&bench.site, None);
    let client = Client { router, bearer: format!("Bearer {}", bench.secret.reveal()) };
    let (status, mine) = client.post("leases/mine/acquire", json!({ "ttl": "60s" })).await;
    assert_eq!(status, StatusCode::OK, "{mine}");
    let token = mine["token"].as_str().unwrap();
    let (status, busy) = client.post("leases/busy/acquire", json!({ "ttl": "60s" })).await;
    assert_eq!(status, StatusCode::OK, "{busy}");
    // They come in waves, so that all of them find a place: each gives it back when it begins to wait.
    let mut flood = Vec::new();
    for wave in 0..20 {
        for number in 0..100 {
            let client = client.clone();
            flood.push(tokio::spawn(async move {
                let (path, what) =
                    if number % 4 == 0 { ("queues/mail/claim", "claim") } else { ("leases/busy/acquire", "acquire") };
                (what, client.post(path, json!({ "ttl": "60s", "wait": "3s" })).await)
            }));
        }
        sleep(CALL * 5).await;
        let renewed = timeout(PATIENCE, client.post("leases/mine/renew", json!({ "token": token }))).await.unwrap();
        assert_eq!(renewed.0, StatusCode::OK, "wave {wave}: {}", renewed.1);
    }
    bench.until(|site| site.waiters() > 100).await;
    let released = client.post("leases/busy/release", json!({ "token": busy["token"] })).await;
    assert_eq!(released.0, StatusCode::OK, "{}", released.1);
    let mut granted = 0;
    for asked in flood {
        match asked.await.unwrap() {
            ("acquire", (StatusCode::OK, _)) => granted += 1,
            ("claim", (StatusCode::OK, claimed)) => assert_eq!(claimed["items"], json!([])),
            (_, (StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE, told)) => {
                // Nobody is told that the store cannot be reached: it can.
                assert!(["held", "overloaded"].contains(&told["kind"].as_str().unwrap()), "{told}");
            }
            (what, told) => panic!("{what}: {told:?}"),
        }
    }
    assert_eq!(granted, 1, "one of those who wait has it");
    let renewed = client.post("leases/mine/renew", json!({ "token": token })).await;
    assert_eq!(renewed.0, StatusCode::OK, "{}", renewed.1);
    assert!(store.most.load(Ordering::Acquire) <= CALLS_AT_ONCE);
}

#[tokio::test]
async fn a_bulk_retry_continues_after_its_client_has_left() {
    let connections = Semaphore::new(CALLS_AT_ONCE);
    let store = Arc::new(Few { store: MemoryStore::default(), connections, most: AtomicUsize::new(0) });
    let bench = Bench::on(Arc::new(Same(store)), Limits::default()).await;
    let client = Client { router: router(&bench.site, None), bearer: format!("Bearer {}", bench.secret.reveal()) };
    let items: Vec<Value> = (0..10).map(|_| json!({})).collect();
    assert_eq!(client.post("queues/mail/items", json!({ "items": items })).await.0, StatusCode::OK);
    let (_, claimed) = client.post("queues/mail/claim", json!({ "ttl": "60s", "count": 10 })).await;
    for item in claimed["items"].as_array().unwrap() {
        let path = format!("queues/mail/items/{}/fail", item["id"].as_str().unwrap());
        let failed = client.post(&path, json!({ "token": item["token"], "why": "smtp", "final": true })).await;
        assert_eq!(failed.0, StatusCode::OK, "{}", failed.1);
    }
    let counted = async || client.post("queues/mail/bulk/count", json!({ "act": "retry" })).await.1;
    let first = counted().await;
    assert_eq!(first["count"], 10, "{first}");
    let retrying = tokio::spawn({
        let (client, order) = (client.clone(), json!({ "confirm": first["confirm"], "why": "smtp is back" }));
        async move { client.post("queues/mail/bulk/retry", order).await }
    });
    let until = async |condition: fn(u64) -> bool| {
        let waiting = async { while !condition(counted().await["count"].as_u64().unwrap()) {} };
        timeout(PATIENCE, waiting).await.expect("it comes true");
    };
    until(|dead| dead < 10).await;
    retrying.abort();
    until(|dead| dead == 0).await;
}
