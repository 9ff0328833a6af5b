//! `leasehold://` between versions: what a client and a server of protocol 1 said to each other was recorded while that was the
//! newest, and is kept.
//!
//! Today's server is asked what the client of then asked, and must answer so that it would understand. Today's client is answered
//! what the server of then answered, and must understand. Whoever speaks a version that the other does not is refused, with both
//! versions and what to do.

#![allow(clippy::unwrap_used, reason = "a test")]

mod recording;
#[path = "../support/mod.rs"]
mod support;

use leasehold_core::lease::protocol::Order;
use leasehold_core::store::Store;
use leasehold_core::wire::PROTOCOL;
use leasehold_core::{
    Acquired, Ask, Coordinator, HolderId, Kind, LeaseName, MemoryStore, Nonce, Operated, Outcome, Released,
};
use leasehold_work::queue::{Added, NewItem, Payload, Queue, State};
use recording::{Exchange, Recording, Stand, http};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use support::Site;

const VERBS: &str = "read,hold,work,operate";

/// What a client does, with nonces that are the same in each run.
async fn session(store: Arc<dyn Store>) {
    let holder = |nonce| HolderId::of("box-1", 4711, Nonce::from_u128(nonce), "tester".parse().unwrap());
    let ask = |nonce| Ask::new(holder(nonce), "90s".parse().unwrap());
    let lease: LeaseName = "nightly".parse().unwrap();
    let leases = Coordinator::new(store.clone());
    let Acquired::Granted(mut grant) = leases.acquire(&lease, &ask(1)).await.unwrap() else { panic!("it is free") };
    assert_eq!(grant.token().epoch.get(), 1);
    leases.renew(&mut grant, None).await.unwrap();
    assert_eq!(leases.adopt(grant.token()).await.unwrap().token().epoch, grant.token().epoch);
    let Acquired::Refused { .. } = leases.acquire(&lease, &ask(2)).await.unwrap() else { panic!("it is held") };
    assert_eq!(leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
    // What is held no more is read as by anybody else.
    assert_eq!(leases.adopt(grant.token()).await.unwrap_err().kind(), Kind::Lost);
    let (by, why) = ("ann".parse().unwrap(), "deploy".parse().unwrap());
    let order = leases.operate_as(Nonce::from_u128(3), &lease, by, why, None, Order::Pause).await.unwrap();
    assert!(matches!(order, Operated::Done(_)), "{order:?}");
    assert_eq!(leases.inspect(&lease).await.unwrap().record.paused.unwrap().why.as_str(), "deploy");
    let listed = leases.list(None, 10).await.unwrap();
    assert_eq!(listed.entries.len(), 1);

    let queue = Queue::new(store, "mail".parse().unwrap());
    let (key, payload) = (Some("a".parse().unwrap()), Payload::new("to: ada").unwrap());
    let added = queue.add(NewItem { key, payload, ..NewItem::default() }).await.unwrap();
    assert!(matches!(added, Added::New(_)), "{added:?}");
    let id = added.name().id.clone();
    let mut claim = queue.claim_item(&id, holder(4), "90s".parse().unwrap()).await.unwrap().expect("it is free");
    assert_eq!(claim.token().epoch.get(), 1);
    queue.renew(&mut claim).await.unwrap();
    assert_eq!(queue.adopt(claim.token()).await.unwrap().token().epoch, claim.token().epoch);
    queue.complete(&claim, Some(Payload::new("250 OK").unwrap()), Vec::new()).await.unwrap();
    let item = queue.inspect(&id).await.unwrap().item;
    assert!(matches!(item.state, State::Done { .. }), "{:?}", item.state);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_of_today_has_a_recording() {
    if std::env::var_os("LEASEHOLD_RECORD").is_some() {
        let site = Site::start(Arc::new(MemoryStore::default())).await;
        let key = site.key("*", VERBS).await;
        let stand = Stand::passing_on(site.address).await;
        session(stand.client(&key).await.unwrap()).await;
        stand.said().write(PROTOCOL);
        site.stop().await;
    }
    assert!(Recording::read(PROTOCOL).0.len() > 10, "a session of version {PROTOCOL}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_protocol_1_understands_what_the_server_of_today_answers() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let key = site.key("*", VERBS).await;
    // What the server called the versions of records then, and what it calls them now.
    let mut revisions = HashMap::new();
    for Exchange { method, path, mut asked, status, answered } in Recording::read(1).0 {
        if let Some(expected) = asked.get_mut("expected")
            && let Some(then) = expected.as_str()
        {
            *expected = Value::clone(revisions.get(then).unwrap_or_else(|| panic!("{path}: {then} was answered")));
        }
        let request = http().request(method.parse().unwrap(), format!("http://{}{path}", site.address));
        let request = if asked.is_null() { request } else { request.json(&asked) };
        let answer = request.bearer_auth(&key).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path} {asked}");
        let now: Value = answer.json().await.unwrap();
        recording::understood(&answered, &now, &mut revisions).unwrap_or_else(|e| panic!("{path} {asked}: {e}\n{now}"));
    }
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_today_understands_what_a_server_of_protocol_1_answered() {
    let stand = Stand::answering(Recording::read(1)).await;
    session(stand.client("lh_w_anything").await.unwrap()).await;
    let (asked, recorded) = (stand.said().0.len(), Recording::read(1).0.len());
    assert_eq!(asked, recorded, "it asked all that was asked then");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_newer_protocol_is_refused_with_both_versions_and_what_to_do() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let key = site.key("*", VERBS).await;
    let ask = async |operation: &str, version: &str| {
        let url = format!("http://{}/v1/ns/team{operation}", site.address);
        let request = if operation.is_empty() {
            http().get(url)
        } else {
            http().post(url).header("content-type", "application/json").body("{}")
        };
        let answer = request.bearer_auth(&key).header("leasehold-protocol", version).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    for operation in ["read", "recall", "list", "watch", "change", "hold"] {
        let (status, problem) = ask(&format!("/records/{operation}"), "2").await;
        assert_eq!((status, problem["kind"].as_str()), (501, Some("unsupported")), "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        let says = "the client speaks protocol 2, and the server 1; the server is older: update it. Nothing was done";
        assert_eq!(detail, says);
        assert_eq!(ask(&format!("/records/{operation}"), "two").await.0, 400);
        assert_eq!(ask(&format!("/records/{operation}"), "0").await.0, 501);
    }
    // Everybody is told which one it speaks.
    assert_eq!(ask("", "2").await.1["protocol"], 1);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_protocol_is_refused_with_both_versions_and_what_to_do() {
    for (theirs, older) in [(2, "the client is older: update it"), (0, "the server is older: update it")] {
        let mut recording = Recording::read(1);
        recording.0[0].answered["protocol"] = theirs.into();
        let stand = Stand::answering(recording).await;
        let refused = stand.client("lh_w_anything").await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Unsupported);
        let says = format!("the client speaks protocol 1, and the server {theirs}; {older}");
        assert!(refused.to_string().ends_with(&says), "{refused}");
        assert_eq!(stand.said().0.len(), 1, "it asks for nothing else");
    }
}

#[test]
fn an_answer_that_the_client_of_then_would_not_understand_is_found_out() {
    let record = |format: &str| format!("leasehold item {format} 00000000 2\n{{\"epoch\":1}}");
    let then = json!({ "now": 1, "value": { "revision": "5", "text": record("v1") }, "entries": [1] });
    let mut revisions = HashMap::new();
    let mut understood = |now: Value| recording::understood(&then, &now, &mut revisions);
    let same =
        json!({ "now": 2, "value": { "revision": "x", "text": record("v1"), "new": 1 }, "entries": [2], "more": {} });
    assert_eq!(understood(same.clone()), Ok(()), "what is new does not matter");
    for (pointer, changed, says) in [
        ("/now", json!("2"), "now: \"2\" is not what 1 was"),
        ("/value", json!(null), "value: null is not what {"),
        ("/value", json!({ "text": record("v1") }), "value: `revision` is missing"),
        ("/value/text", json!(record("v2")), "is not of the format [\"leasehold\", \"item\", \"v1\"]"),
        ("/value/text", json!(record("v1").replace("epoch", "number")), "value: `epoch` is missing"),
        ("/entries", json!([]), "entries: [] is not what [1] was"),
    ] {
        let mut now = same.clone();
        *now.pointer_mut(pointer).unwrap() = changed;
        let error = understood(now.clone()).unwrap_err();
        assert!(error.contains(says), "{now}: {error}");
    }
    assert_eq!(revisions["5"], "x", "revisions may be called anything");
}
