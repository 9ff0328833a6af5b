//! The Durable Object store, against the shipped worker in the real runtime.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Range, Store, Swap};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Key, Kind, LeaseName, Shelf, Ttl};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::suite::{self, Opener};
use leasehold_testbed::{Server, Transport, durable_worker, set_durable_token};
use std::sync::Arc;

const TOKEN: &str = "hunter2";

fn url(port: u16) -> StoreUrl {
    format!("do+http://:{TOKEN}@127.0.0.1:{port}").parse().unwrap()
}

async fn store(server: &Server) -> Arc<dyn Store> {
    open(&url(server.port())).await.unwrap()
}

fn plain() -> Server {
    durable_worker(Some(TOKEN), Transport::Plain)
}

fn opener() -> Opener {
    Opener::new(|port| async move { open(&url(port)).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_keeps_every_promise() {
    let server = plain();
    let url = url(server.port());
    let bench = Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    exercise(&bench).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_withstands_faults_with_few_round_trips() {
    suite::withstands_faults(&mut plain(), &opener()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_also_after_a_cut_and_namespaces_are_apart() {
    let server = plain();
    suite::a_release_wakes_the_waiter(server.port(), &opener()).await;
    let team = url(server.port()).in_namespace("team".parse().unwrap());
    suite::namespaces_are_apart(store(&server).await, open(&team).await.unwrap()).await;

    let proxy = leasehold_testbed::Proxy::start(server.port());
    let watching = open(&url(proxy.port())).await.unwrap();
    let key = Key::new(Shelf::Probe, &LeaseName::new("watched").unwrap());
    let mut watch = watching.watch(&key).await.unwrap();
    watch.hint().await;
    proxy.cut();
    // Listening again begins with a hint, for what changed meanwhile.
    watch.hint().await;
    assert!(matches!(store(&server).await.swap(&key, None, b"1").await.unwrap(), Swap::Done { .. }));
    watch.hint().await;
}

#[tokio::test]
async fn looking_makes_nothing() {
    let server = plain();
    let store = store(&server).await;
    let key = Key::new(Shelf::Probe, &LeaseName::new("x").unwrap());
    let size = |survey: leasehold_core::store::Survey| {
        survey.remarks.into_iter().find(|remark| remark.setting == "object storage").unwrap().found
    };
    assert_eq!(store.read(&key).await.unwrap().value, None);
    assert!(store.list(Shelf::Lease, Range::new(None, 10)).await.unwrap().entries.is_empty());
    let never = leasehold_core::store::Revision("never".into());
    assert_eq!(store.swap(&key, Some(&never), b"x").await.unwrap(), Swap::Mismatch);
    assert_eq!(store.erase(&key, &never).await.unwrap(), Swap::Mismatch);
    assert!(size(store.survey().await.unwrap()).contains("nothing written yet"));
    store.swap(&key, None, b"x").await.unwrap();
    assert!(!size(store.survey().await.unwrap()).contains("nothing written yet"));
}

#[tokio::test]
async fn a_revoked_token_is_a_clear_error_and_never_a_grant() {
    let mut server = plain();
    let leases = Coordinator::new(store(&server).await);
    let (lease, ask) = (LeaseName::new("x").unwrap(), Ask::new(HolderId::new(None), Ttl::MAX));
    let Acquired::Granted(mut grant) = leases.acquire(&lease, &ask).await.unwrap() else { panic!("it is free") };
    for (token, says) in [
        (Some("another"), "refused the token; set LEASEHOLD_DO_TOKEN"),
        (None, "no LEASEHOLD_TOKEN; set it: wrangler secret put LEASEHOLD_TOKEN"),
    ] {
        set_durable_token(server.folder(), token, Transport::Plain);
        server.restart();
        let failed = [
            // A read first: it may be asked twice, and so finds the new server.
            leases.inspect(&lease).await.unwrap_err(),
            leases.renew(&mut grant, None).await.unwrap_err(),
            leases.acquire(&LeaseName::new("y").unwrap(), &ask).await.unwrap_err(),
        ];
        for error in failed {
            assert_eq!(error.kind(), Kind::Unsupported, "{error}");
            let text = format!("{error} {error:?}");
            assert!(error.to_string().contains(says) && !text.contains(TOKEN) && !text.contains("another"), "{text}");
        }
    }
    set_durable_token(server.folder(), Some(TOKEN), Transport::Plain);
    server.restart();
    leases.inspect(&lease).await.unwrap();
    leases.renew(&mut grant, None).await.unwrap();
}

#[tokio::test]
async fn tls_needs_an_authority_that_is_trusted() {
    let server = durable_worker(Some(TOKEN), Transport::Tls);
    let url = format!("do+https://:{TOKEN}@127.0.0.1:{}", server.port());
    let key = Key::new(Shelf::Probe, &LeaseName::new("x").unwrap());
    let trusting: StoreUrl = format!("{url}?ca={}/ca.pem", server.folder().display()).parse().unwrap();
    let store = open(&trusting).await.unwrap();
    assert!(matches!(store.swap(&key, None, b"x").await.unwrap(), Swap::Done { .. }));

    let wary = open(&url.parse().unwrap()).await.unwrap();
    let error = wary.swap(&key, None, b"x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("check the certificate authority"), "{error}");
    for file in ["leasehold.js", "none.pem"] {
        let missing: StoreUrl = format!("{url}?ca={}/{file}", server.folder().display()).parse().unwrap();
        let error = open(&missing).await.unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains(file), "{error}");
    }
}

#[tokio::test]
async fn what_is_not_a_worker_is_reported_as_such() {
    let server = plain();
    let key = Key::new(Shelf::Probe, &LeaseName::new("x").unwrap());
    // The worker lives below any path.
    let below: StoreUrl = format!("do+http://:{TOKEN}@127.0.0.1:{}/some/route", server.port()).parse().unwrap();
    open(&below).await.unwrap().swap(&key, None, b"x").await.unwrap();
    let other = leasehold_testbed::free_port();
    let error = open(&url(other)).await.unwrap().swap(&key, None, b"x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&format!("cannot reach the worker at 127.0.0.1:{other}")), "{error}");
}

#[tokio::test]
async fn the_worker_refuses_bad_requests_and_lives_on() {
    let server = plain();
    the_client_is_ready(&server).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let at = format!("http://127.0.0.1:{}", server.port());
    let ask = async |method: &str, path: &str, token: &str, body: Vec<u8>| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = client.request(method, format!("{at}{path}")).header("authorization", token).body(body);
        request.send().await.unwrap().status().as_u16()
    };
    let bearer = format!("Bearer {TOKEN}");
    let key = r#""shelf":"probe","name":"x""#;
    let large = format!(r#"{{{key},"expected":null,"next":"{}"}}"#, "A".repeat(1024 * 1024));
    let long = "a".repeat(201);
    for (method, path, token, body, status) in [
        ("POST", "/v1/default/read", "", format!("{{{key}}}"), 401),
        ("POST", "/v1/default/read", "Bearer", format!("{{{key}}}"), 401),
        ("POST", "/v1/default/read", "Bearer hunter22", format!("{{{key}}}"), 401),
        ("POST", "/v1/default/read", "bearer hunter2", format!("{{{key}}}"), 401),
        ("GET", "/v1/default/read", &bearer, String::new(), 405),
        ("POST", "/", &bearer, String::new(), 404),
        ("POST", "/v1/default/constructor", &bearer, "{}".into(), 404),
        ("POST", "/v2/default/read", &bearer, format!("{{{key}}}"), 404),
        ("POST", "/v1/Team/read", &bearer, format!("{{{key}}}"), 400),
        ("POST", "/v1/-/read", &bearer, format!("{{{key}}}"), 400),
        ("POST", "/v1/default/read", &bearer, String::new(), 400),
        ("POST", "/v1/default/read", &bearer, "null".into(), 400),
        ("POST", "/v1/default/read", &bearer, "[1]".into(), 400),
        ("POST", "/v1/default/read", &bearer, r#"{"shelf":"probe"}"#.into(), 400),
        ("POST", "/v1/default/read", &bearer, format!(r#"{{{key},"more":1}}"#), 400),
        ("POST", "/v1/default/read", &bearer, r#"{"shelf":"probe","name":"a b"}"#.into(), 400),
        ("POST", "/v1/default/read", &bearer, format!(r#"{{"shelf":"probe","name":"{long}"}}"#), 400),
        ("POST", "/v1/default/read", &bearer, r#"{"shelf":"probe","__proto__":"x"}"#.into(), 400),
        ("POST", "/v1/default/read", &bearer, r#"{"shelf":"';--","name":"x"}"#.into(), 400),
        ("POST", "/v1/default/swap", &bearer, format!(r#"{{{key},"expected":7,"next":""}}"#), 400),
        ("POST", "/v1/default/swap", &bearer, format!(r#"{{{key},"expected":null,"next":"%"}}"#), 400),
        ("POST", "/v1/default/swap", &bearer, format!(r#"{{{key},"expected":null,"next":null}}"#), 400),
        ("POST", "/v1/default/swap", &bearer, large.clone(), 413),
        ("POST", "/v1/default/swap", &bearer, format!("{large}{large}{large}"), 413),
        // Also who sends much without leave, or to the wrong place, hears why.
        ("POST", "/v1/default/swap", "Bearer hunter22", large.clone(), 401),
        ("POST", "/v1/default/none", &bearer, large, 404),
        ("POST", "/v1/default/erase", &bearer, r#"{"shelf":"lease","name":"x","expected":"r"}"#.into(), 400),
        ("POST", "/v1/default/erase", &bearer, r#"{"shelf":"fence","name":"x","expected":"r"}"#.into(), 400),
        ("POST", "/v1/default/erase", &bearer, r#"{"shelf":"namespace","name":"x","expected":"r"}"#.into(), 400),
        ("POST", "/v1/default/list", &bearer, r#"{"shelf":"probe","after":null,"limit":-1}"#.into(), 400),
        ("POST", "/v1/default/list", &bearer, r#"{"shelf":"probe","after":7,"limit":1}"#.into(), 400),
    ] {
        let shown: String = body.chars().take(80).collect();
        assert_eq!(ask(method, path, token, body.into_bytes()).await, status, "{method} {path} {token} {shown}");
    }
    let not_text = ask("POST", "/v1/default/read", &bearer, vec![0xff, 0xfe, 0x00]).await;
    assert_eq!(not_text, 400);
    let key = Key::new(Shelf::Probe, &LeaseName::new("x").unwrap());
    assert_eq!(store(&server).await.read(&key).await.unwrap().value, None, "nothing was changed");
}

/// Installs the process's cryptography, which a bare client needs, and shows that the server answers.
async fn the_client_is_ready(server: &Server) {
    store(server).await.survey().await.unwrap();
}
