//! Requests whose bodies come slowly, or that are many: at the real router.

use super::router::router;
use super::settings::Limits;
use super::tests::{Bench, PATIENCE};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Builder;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use futures_util::stream;
use leasehold_core::{LeaseName, Who, Why};
use leasehold_stores::Namespace;
use std::convert::Infallible;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::ServiceExt;

const FORM: &str = "application/x-www-form-urlencoded";

/// What is left of a body: its first piece, and then how to say that more is wanted and to get it.
type Rest = (Option<Vec<u8>>, Option<(oneshot::Sender<()>, oneshot::Receiver<Vec<u8>>)>);

/// A request whose body began to be read, and waits for its rest.
struct Slow {
    answering: JoinHandle<Response>,
    rest: oneshot::Sender<Vec<u8>>,
}

impl Slow {
    /// Sends this much of a body, and comes back when the server wants more.
    async fn begin(router: &Router, request: Builder, first: Vec<u8>) -> Self {
        let (wants_more, wanted) = oneshot::channel();
        let (rest, later) = oneshot::channel();
        let pieces = stream::unfold((Some(first), Some((wants_more, later))), async |(first, more): Rest| {
            if let Some(first) = first {
                return Some((Ok::<_, Infallible>(first), (None, more)));
            }
            let (wants_more, later) = more?;
            let _ = wants_more.send(());
            Some((Ok(later.await.ok()?), (None, None)))
        });
        let request = request.body(Body::from_stream(Box::pin(pieces))).unwrap();
        let answering = router.clone().oneshot(request);
        let answering = tokio::spawn(async { answering.await.unwrap() });
        tokio::time::timeout(PATIENCE, wanted).await.unwrap().expect("its body is read");
        Slow { answering, rest }
    }

    async fn end(self, rest: &[u8]) -> Response {
        self.rest.send(rest.to_vec()).unwrap();
        tokio::time::timeout(PATIENCE, self.answering).await.unwrap().unwrap()
    }
}

async fn text(response: Response) -> (StatusCode, String) {
    let status = response.status();
    let body = to_bytes(response.into_body(), 100_000).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// A form of the page as a browser sends it.
fn form(path: &str) -> Builder {
    Request::post(path).header("sec-fetch-site", "same-origin").header("content-type", FORM)
}

#[tokio::test]
async fn a_key_that_is_revoked_while_a_body_is_sent_does_nothing_more() {
    let bench = Bench::new(Limits::default()).await;
    let router = router(&bench.site, None);
    let (keys, secret) = (bench.site.keys(), bench.secret.reveal());
    let order =
        || Request::post("/v1/ns/default/leases/slow/acquire").header("authorization", format!("Bearer {secret}"));
    let acquire = Slow::begin(&router, order(), b"{\"t".to_vec()).await;
    let now = keys.now().await.unwrap();
    let session = bench.site.seal().await.unwrap().close(secret, now).unwrap();
    let token = bench.site.seal().await.unwrap().token(&session);
    let page = || form("/ns/default/lease/slow").header("cookie", format!("leasehold_session={session}"));
    let pause = Slow::begin(&router, page(), b"order=pa".to_vec()).await;

    let (by, why) = (Who::new("ann").unwrap(), Why::new("stolen").unwrap());
    keys.keys().revoke(&bench.secret.id(), &by, &why).await.unwrap();
    // Until a request that is sent now is refused.
    let counts = async {
        while keys.caller(Some(secret)).await.is_ok() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(PATIENCE, counts).await.unwrap();
    let (status, told) = text(acquire.end(b"tl\":\"60s\"}").await).await;
    assert!(status == StatusCode::UNAUTHORIZED && told.contains("key_revoked"), "{status} {told}");
    let (status, told) = text(pause.end(format!("use&epoch=0&why=x&token={token}").as_bytes()).await).await;
    assert!(status == StatusCode::UNAUTHORIZED && told.contains("was revoked"), "{status} {told}");
    let leases = bench.site.coordinator(&Namespace::default()).await.unwrap();
    let seen = leases.inspect(&LeaseName::new("slow").unwrap()).await.unwrap();
    assert!(seen.record.is_unknown() && seen.record.paused.is_none(), "nothing was done: {:?}", seen.record);
}

#[tokio::test]
async fn bodies_of_strangers_fill_no_memory_and_keep_no_holder_out() {
    let bench = Bench::new(Limits { stranger_bodies: 64 * 1024, ..Limits::default() }).await;
    let router = router(&bench.site, None);
    let sign_in = || form("/sign-in");
    let long = sign_in().header("content-length", "1048576").body(Body::empty()).unwrap();
    assert_eq!(router.clone().oneshot(long).await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    let piece = vec![b'a'; 30 * 1024];
    let first = Slow::begin(&router, sign_in(), piece.clone()).await;
    let second = Slow::begin(&router, Request::post("/v1/exchange"), piece.clone()).await;
    for path in ["/sign-in", "/v1/exchange"] {
        let asked = router.clone().oneshot(form(path).body(Body::from(piece.clone())).unwrap()).await.unwrap();
        assert_eq!(asked.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(asked.headers().contains_key("retry-after"));
    }
    let holder = Request::post("/v1/ns/default/leases/x/renew")
        .header("authorization", format!("Bearer {}", bench.secret.reveal()));
    let renewed = router.clone().oneshot(holder.body(Body::from(piece.clone())).unwrap()).await.unwrap();
    assert_eq!(renewed.status(), StatusCode::BAD_REQUEST, "it is read, and is no JSON");
    // What is read no more is given back.
    first.answering.abort();
    assert!(first.answering.await.is_err());
    assert_eq!(second.end(b"").await.status(), StatusCode::BAD_REQUEST);
    let asked = router.clone().oneshot(sign_in().body(Body::from(piece)).unwrap()).await.unwrap();
    assert_eq!(asked.status(), StatusCode::BAD_REQUEST, "it is read, and has no token of a form");
}

#[tokio::test]
async fn requests_that_wait_keep_their_bodies_within_the_bound() {
    let bench = Bench::new(Limits { body: 1024, bodies: 4096, ..Limits::default() }).await;
    let router = router(&bench.site, None);
    let ask = |lease: &str, wait: &str| {
        let body = format!("{{\"ttl\":\"60s\",\"wait\":\"{wait}\"{}}}", " ".repeat(900));
        Request::post(format!("/v1/ns/default/leases/{lease}/acquire"))
            .header("authorization", format!("Bearer {}", bench.secret.reveal()))
            .body(Body::from(body))
            .unwrap()
    };
    assert_eq!(router.clone().oneshot(ask("held", "0s")).await.unwrap().status(), StatusCode::OK);
    let mut waiting = Vec::new();
    for count in 1..=4 {
        let asking = router.clone().oneshot(ask("held", "60s"));
        waiting.push(tokio::spawn(async { asking.await.unwrap() }));
        let begun = async {
            while bench.site.waiters() < count {
                tokio::task::yield_now().await
            }
        };
        tokio::time::timeout(PATIENCE, begun).await.unwrap();
    }
    assert_eq!(router.clone().oneshot(ask("other", "0s")).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    for waiter in waiting {
        waiter.abort();
        assert!(waiter.await.is_err());
    }
    assert_eq!(router.clone().oneshot(ask("other", "0s")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_form_of_another_site_is_refused_before_its_body_is_read() {
    let bench = Bench::new(Limits::default()).await;
    let router = router(&bench.site, None);
    for path in ["/sign-in", "/sign-out"] {
        let never = Body::from_stream(stream::pending::<Result<Vec<u8>, Infallible>>());
        let asked = Request::post(path).header("sec-fetch-site", "cross-site").body(never).unwrap();
        let asked = tokio::time::timeout(PATIENCE / 6, router.clone().oneshot(asked)).await.expect("at once").unwrap();
        assert_eq!(asked.status(), StatusCode::BAD_REQUEST);
    }
}
