//! Floods of requests that wait, with the real handlers, on a store that is slow and has few connections.

use super::admission::Urgency;
use super::router::router;
use super::tests::{Bench, PATIENCE};
use super::{Limits, Opener};
use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::wire::{Recall, Record};
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
    let record = Record { shelf: Shelf::Lease, name: token.lease.clone() };
    let recall = |record: &Record, claim: Claim| {
        client.post("records/recall", serde_json::to_value(Recall { record: record.clone(), claim }).unwrap())
    };
    let (status, held) = recall(&record, token.claim()).await;
    assert_eq!(status, StatusCode::OK, "{held}");
    assert!(held["held"]["value"]["text"].as_str().unwrap().contains("\"epoch\":1"), "{held}");
    let about = Request::get("/v1/ns/default").header("authorization", &client.bearer).body(Body::empty()).unwrap();
    assert_eq!(router.oneshot(about).await.unwrap().status(), StatusCode::OK, "what its key is for it learns too");
    let (status, told) = client.post("records/read", serde_json::to_value(&record).unwrap()).await;
    assert_eq!((status, &told["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")));
    // Somebody else's lease, an older epoch, a record that is not there, and one of those that nobody holds.
    let epoch = |number| Claim { epoch: Epoch::new(number).unwrap(), ..token.claim() };
    let guessed = Claim { nonce: Nonce::random(), ..token.claim() };
    let missing = Record { name: "missing".parse().unwrap(), ..record.clone() };
    for (record, claim) in [(&record, guessed), (&record, epoch(2)), (&missing, token.claim())] {
        let (status, told) = recall(record, claim).await;
        assert_eq!((status, &told), (StatusCode::OK, &json!({ "held": null })), "{claim:?}");
    }
    let counters = Record { shelf: Shelf::Counters, ..record.clone() };
    assert_eq!(recall(&counters, token.claim()).await.0, StatusCode::BAD_REQUEST);
    // Whoever goes on guessing is served like everybody else.
    let mut last = (StatusCode::OK, Value::Null);
    for _ in 0..1_000 {
        last = recall(&record, guessed).await;
        if last.0 != StatusCode::OK {
            break;
        }
    }
    assert_eq!((last.0, &last.1["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")));
    let renewed = client.post("leases/mine/renew", json!({ "token": token.wire() })).await;
    assert_eq!(renewed.0, StatusCode::OK, "{}", renewed.1);
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
