//! The Firestore store, against a strict stand-in: no real server can be had.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Range, Store, Swap};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Key, Kind, LeaseName, Shelf, Ttl};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::suite::{self, Opener};
use leasehold_testbed::{Server, firestore_stand_in, serve_firestore_if_asked, service_account};
use std::sync::Arc;

/// Not a test of its own: the stand-in runs here, in a process that is started for it and that can be killed.
#[test]
fn the_stand_in_serves() {
    serve_firestore_if_asked();
}

fn stand_in() -> Server {
    firestore_stand_in("the_stand_in_serves")
}

fn url(port: u16) -> StoreUrl {
    format!("firestore://demo/leases?emulator=127.0.0.1:{port}").parse().unwrap()
}

fn opener() -> Opener {
    Opener::new(|port| async move { open(&url(port)).await })
}

fn key(name: &str) -> Key {
    Key::new(Shelf::Probe, &LeaseName::new(name).unwrap())
}

async fn store(server: &Server) -> Arc<dyn Store> {
    open(&url(server.port())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn firestore_keeps_every_promise() {
    let server = stand_in();
    let url = url(server.port());
    let bench = Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    exercise(&bench).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_withstands_faults_with_few_round_trips() {
    suite::withstands_faults(&mut stand_in(), &opener()).await;
}

#[tokio::test]
async fn namespaces_are_apart_and_looking_writes_nothing() {
    let server = stand_in();
    let store_ = store(&server).await;
    assert_eq!(store_.read(&key("x")).await.unwrap().value, None);
    assert!(store_.list(Shelf::Lease, Range::new(None, 10)).await.unwrap().entries.is_empty());
    let long_ago = leasehold_core::store::Revision("2020-01-01T00:00:00.000000Z".into());
    assert_eq!(store_.swap(&key("x"), Some(&long_ago), b"x").await.unwrap(), Swap::Mismatch);
    assert_eq!(store_.erase(&key("x"), &long_ago).await.unwrap(), Swap::Mismatch);
    let written = std::fs::read(server.folder().join("log")).unwrap();
    assert!(written.is_empty(), "{}", String::from_utf8_lossy(&written));
    let team = url(server.port()).in_namespace("team".parse().unwrap());
    suite::namespaces_are_apart(store_, open(&team).await.unwrap()).await;
}

#[tokio::test]
async fn names_that_firestore_reserves_and_equal_values_are_no_trouble() {
    let server = stand_in();
    let store = store(&server).await;
    for name in ["__reserved__", "...", "a/b", "a.b", "a:b".replace(':', "-").as_str()] {
        let Swap::Done { revision: first, .. } = store.swap(&key(name), None, b"same").await.unwrap() else {
            panic!("{name} is new")
        };
        // The same value again is a new revision, so an old one cannot win.
        let Swap::Done { revision: second, .. } = store.swap(&key(name), Some(&first), b"same").await.unwrap() else {
            panic!("{name} has this revision")
        };
        assert_ne!(first, second, "{name}");
        assert_eq!(store.swap(&key(name), Some(&first), b"x").await.unwrap(), Swap::Mismatch, "{name}");
    }
    // More than one query's worth.
    for number in 0..310 {
        store.swap(&key(&format!("many/{number:03}")), None, b"x").await.unwrap();
    }
    let page = store.list(Shelf::Probe, Range::new(None, 1000)).await.unwrap();
    let names: Vec<String> = page.entries.iter().map(|(name, _)| name.to_string()).collect();
    assert!(names.is_sorted() && names.len() == 315 && !page.more, "{}", names.len());
}

#[tokio::test]
async fn a_service_account_signs_for_its_token_and_a_revoked_one_is_a_clear_error() {
    let server = stand_in();
    let account = service_account(server.folder());
    let at = format!("endpoint=http://127.0.0.1:{}&credentials={}", server.port(), account.display());
    let url: StoreUrl = format!("firestore://demo/leases?{at}").parse().unwrap();
    let leases = Coordinator::new(open(&url).await.unwrap());
    let (lease, ask) = (LeaseName::new("x").unwrap(), Ask::new(HolderId::new(None), Ttl::MAX));
    let Acquired::Granted(mut grant) = leases.acquire(&lease, &ask).await.unwrap() else { panic!("it is free") };
    leases.renew(&mut grant, None).await.unwrap();

    let revoked = server.folder().join("revoked");
    std::fs::write(&revoked, "").unwrap();
    // The token that it had is refused, then the one that it signs anew.
    for _ in 0..2 {
        let error = leases.renew(&mut grant, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("refused the credentials; check GOOGLE_APPLICATION_CREDENTIALS"), "{text}");
        assert!(!text.contains("PRIVATE KEY") && !text.contains("Bearer"), "{text}");
    }
    let error = leases.acquire(&LeaseName::new("y").unwrap(), &ask).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    std::fs::remove_file(revoked).unwrap();
    leases.renew(&mut grant, None).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_missing_is_asked_for_by_its_command() {
    let server = stand_in();
    let url: StoreUrl = format!("firestore://other/leases?emulator=127.0.0.1:{}", server.port()).parse().unwrap();
    let error = open(&url).await.unwrap().swap(&key("x"), None, b"x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    let command = "gcloud firestore databases create --project=other --database='(default)'";
    assert!(error.to_string().contains(command), "{error}");
}

#[tokio::test]
async fn the_stand_in_is_strict() {
    let server = stand_in();
    store(&server).await.read(&key("x")).await.unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let documents = "projects/demo/databases/(default)/documents";
    let ask = async |call: &str, token: &str, body: String| {
        let url = format!("http://127.0.0.1:{}/v1/{documents}{call}", server.port());
        let request = client.post(url).header("authorization", token).header("content-type", "application/json");
        request.body(body).send().await.unwrap().status().as_u16()
    };
    let document = format!("{documents}/leases/default/lease/x");
    let update = |more: &str, condition: &str| {
        let update = format!(r#""update":{{"name":"{document}","fields":{{}}{more}}}"#);
        format!(r#"{{"writes":[{{{update}{condition}}}]}}"#)
    };
    let new = r#","currentDocument":{"exists":false}"#;
    for (call, token, body, status) in [
        (":commit", "", update("", new), 401),
        (":commit", "Bearer nobody", update("", new), 401),
        (":commit", "Bearer owner", update("", ""), 400),
        (":commit", "Bearer owner", update(r#","mask":{}"#, new), 400),
        (":commit", "Bearer owner", update("", r#","currentDocument":{"exists":"no"}"#), 400),
        (":commit", "Bearer owner", update("", r#","currentDocument":{"updateTime":"yesterday"}"#), 400),
        (":commit", "Bearer owner", update("", new).replace("lease/x", "lease/__x__"), 400),
        (":commit", "Bearer owner", update("", new).replace("lease/x", "lease"), 400),
        (":batchGet", "Bearer owner", format!(r#"{{"documents":["{document}"],"x":1}}"#), 400),
        (":rollback", "Bearer owner", "{}".into(), 404),
        (":commit", "Bearer owner", update("", new), 200),
        (":commit", "Bearer owner", update("", new), 409),
    ] {
        assert_eq!(ask(call, token, body.clone()).await, status, "{call} {token} {body}");
    }
}
