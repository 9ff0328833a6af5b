//! What handlers may rely on, with handlers of our own.

use super::*;
use crate::access::{Caller, KeyRing, Keys, NewKey, Origin, Scope, Secret};
use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::routing::post;
use axum::{Router, middleware};
use leasehold_core::store::Store;
use leasehold_core::{Label, MemoryStore, Result, Retention, Who, Why};
use leasehold_stores::Namespace;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// Long enough for anything on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Memory;

#[async_trait]
impl Opener for Memory {
    async fn open(&self, _: &Namespace) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(MemoryStore::default()))
    }
}

pub(super) struct Bench {
    pub(super) site: Site,
    pub(super) router: Router,
    pub(super) secret: Secret,
    /// What `acquire` waits for, in its place.
    pub(super) slow: Arc<Semaphore>,
}

impl Bench {
    pub(super) async fn new(limits: Limits) -> Self {
        Bench::on(Arc::new(Memory), limits).await
    }

    /// The same with stores of the test's choice.
    pub(super) async fn on(opener: Arc<dyn Opener>, limits: Limits) -> Self {
        let keys = Keys::new(Arc::new(MemoryStore::default()));
        let (label, by) = (Label::new("tests").unwrap(), Who::new("ann").unwrap());
        let wanted = NewKey { label, scope: Scope::everything().unwrap(), lasts: None, not_after: None, by };
        let secret = keys.create(wanted).await.unwrap().0;
        let site = Site::new(opener, Retention::default(), KeyRing::new(keys), limits);
        let slow = Arc::new(Semaphore::new(0));
        let acquire = {
            let slow = slow.clone();
            move || async move {
                slow.acquire().await.unwrap().forget();
                "acquired"
            }
        };
        let router = Router::new()
            .route("/x/acquire", post(acquire))
            .route("/x/renew", post(|body: String| async move { body }))
            .route("/x/wait", post(wait))
            .route_layer(middleware::from_fn_with_state(site.clone(), gate::keyed))
            .with_state(site.clone());
        Bench { site, router, secret, slow }
    }

    fn ask(&self, path: &str, body: &str) -> impl Future<Output = Response> + use<> {
        self.ask_as(&self.secret, path, body)
    }

    fn ask_as(&self, secret: &Secret, path: &str, body: &str) -> impl Future<Output = Response> + use<> {
        let request = Request::post(path).header("authorization", format!("Bearer {}", secret.reveal()));
        let asking = self.router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap());
        async { asking.await.unwrap() }
    }

    /// The same, as a task.
    fn begin(&self, path: &str) -> tokio::task::JoinHandle<Response> {
        tokio::spawn(self.ask(path, ""))
    }

    pub(super) async fn until(&self, condition: impl Fn(&Site) -> bool) {
        let waiting = async {
            while !condition(&self.site) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it comes true");
    }
}

/// Waits for nothing.
async fn wait(State(_): State<Site>, _: Caller, waiter: Waiter) -> Result<&'static str, Problem> {
    let mut waiting = waiter.begin()?;
    Err(waiting.over().await.into())
}

async fn problem(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn a_flood_of_acquisitions_does_not_delay_a_renewal() {
    let bench = Bench::new(Limits { requests: 2, holder_requests: 1, ..Limits::default() }).await;
    let flood: Vec<_> = (0..40).map(|_| bench.begin("/x/acquire")).collect();
    // Two have a place, eight wait for one, and the others were told at once that there is none.
    bench.until(|_| flood.iter().filter(|asked| asked.is_finished()).count() >= 30).await;
    for number in 0..20 {
        let renewed = tokio::time::timeout(PATIENCE, bench.ask("/x/renew", "mine")).await.expect("it is served");
        assert_eq!(renewed.status(), StatusCode::OK, "{number}");
        assert_eq!(to_bytes(renewed.into_body(), 10).await.unwrap(), "mine");
    }
    assert!(flood.iter().any(|asked| !asked.is_finished()), "the flood is still there");
    bench.slow.add_permits(40);
    let mut served = 0;
    for asked in flood {
        let response = asked.await.unwrap();
        match response.status() {
            StatusCode::OK => served += 1,
            StatusCode::SERVICE_UNAVAILABLE => assert!(response.headers().contains_key("retry-after")),
            status => panic!("{status}"),
        }
    }
    assert!((2..=10).contains(&served), "{served}");
}

#[tokio::test]
async fn whoever_waits_takes_no_place_and_is_counted() {
    let bench = Bench::new(Limits { requests: 1, waiters: 3, ..Limits::default() }).await;
    let waiting: Vec<_> = (0..3).map(|_| bench.begin("/x/wait")).collect();
    bench.until(|site| site.waiters() == 3).await;
    bench.slow.add_permits(1);
    assert_eq!(bench.ask("/x/acquire", "").await.status(), StatusCode::OK, "there is room for others");
    let (status, refused) = problem(bench.ask("/x/wait", "").await).await;
    assert_eq!((status, &refused["kind"]), (StatusCode::TOO_MANY_REQUESTS, &"too_many_requests".into()));
    // A client that goes away is no waiter any more.
    waiting.iter().for_each(|waiter| waiter.abort());
    bench.until(|site| site.waiters() == 0).await;
}

#[tokio::test]
async fn whoever_exchanges_many_tokens_has_no_more_requests_than_with_one_key() {
    let bench = Bench::new(Limits { rate: 2, waiters: 1, ..Limits::default() }).await;
    let exchanged = async |subject: &str| {
        let (label, by) = (Label::new("tests").unwrap(), Who::new("ann").unwrap());
        let wanted = NewKey { label, scope: Scope::everything().unwrap(), lasts: None, not_after: None, by };
        let origin = Origin { issuer: "https://issuer".into(), subject: subject.into() };
        bench.site.keys().keys().exchange(wanted, origin).await.unwrap().0
    };
    bench.slow.add_permits(100);
    let mut served = 0;
    for _ in 0..5 {
        let key = exchanged("ci").await;
        for _ in 0..3 {
            let answer = bench.ask_as(&key, "/x/acquire", "").await;
            served += usize::from(answer.status() == StatusCode::OK);
        }
    }
    // Two a second, of which a second's worth may come at once; the machine may be slow.
    assert!((3..=9).contains(&served), "{served}");
    let first = tokio::spawn(bench.ask_as(&exchanged("waits").await, "/x/wait", ""));
    bench.until(|site| site.waiters() == 1).await;
    let (status, refused) = problem(bench.ask_as(&exchanged("waits").await, "/x/wait", "").await).await;
    assert_eq!((status, &refused["kind"]), (StatusCode::TOO_MANY_REQUESTS, &"too_many_requests".into()));
    let another = tokio::spawn(bench.ask_as(&exchanged("another").await, "/x/wait", ""));
    bench.until(|site| site.waiters() == 2).await;
    first.abort();
    another.abort();
}

#[tokio::test]
async fn waiters_of_a_server_that_ends_are_told_to_come_back_at_different_times() {
    let bench = Bench::new(Limits { spread: Duration::from_secs(20), ..Limits::default() }).await;
    let waiting: Vec<_> = (0..100).map(|_| bench.begin("/x/wait")).collect();
    bench.until(|site| site.waiters() == 100).await;
    bench.site.end();
    let mut times = BTreeSet::new();
    for waiter in waiting {
        let (status, told) = problem(waiter.await.unwrap()).await;
        assert_eq!((status, &told["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &"ending".into()));
        let seconds = told["retry_after_seconds"].as_u64().unwrap();
        assert!((1..=21).contains(&seconds));
        times.insert(seconds);
    }
    assert!(times.len() > 10, "{times:?}");
    assert_eq!(bench.site.waiters(), 0);
}

#[tokio::test]
async fn whoever_waits_under_a_key_that_is_revoked_waits_no_more() {
    let bench = Bench::new(Limits::default()).await;
    let waiting = bench.begin("/x/wait");
    bench.until(|site| site.waiters() == 1).await;
    let (by, why) = (Who::new("ann").unwrap(), Why::new("a test").unwrap());
    bench.site.keys().keys().revoke(&bench.secret.id(), &by, &why).await.unwrap();
    let (status, told) = problem(tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap()).await;
    assert_eq!((status, &told["kind"]), (StatusCode::UNAUTHORIZED, &"key_revoked".into()));
}

#[tokio::test]
async fn the_servers_own_namespace_is_never_opened_for_a_handler() {
    let bench = Bench::new(Limits::default()).await;
    assert!(bench.site.coordinator(&Namespace::server()).await.is_err());
    let one = bench.site.coordinator(&Namespace::default()).await.unwrap();
    let again = bench.site.coordinator(&Namespace::default()).await.unwrap();
    assert!(Arc::ptr_eq(one.store(), again.store()), "a namespace is opened once");
}
