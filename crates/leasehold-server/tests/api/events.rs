//! The stream of events.

use crate::rig::{Rig, answer};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::time::Duration;

/// A client of the stream.
struct Listener {
    response: Response,
    buffer: String,
}

#[derive(Debug)]
struct Received {
    id: String,
    data: Value,
}

impl Listener {
    async fn open(rig: &Rig, key: &str, query: &str, last: Option<&str>) -> Self {
        let mut request = rig.request(Method::GET, key, &format!("events{query}"));
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Listener { response, buffer: String::new() }
    }

    /// The next event with data; none at the end.
    async fn next(&mut self) -> Option<Received> {
        loop {
            while let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                if let Some(data) = field("data") {
                    let data: Value = serde_json::from_str(data).unwrap();
                    assert_eq!(field("event"), data["what"].as_str());
                    return Some(Received { id: field("id").unwrap().to_owned(), data });
                }
            }
            let piece = tokio::time::timeout(Duration::from_secs(60), self.response.chunk()).await.expect("it goes on");
            self.buffer.push_str(std::str::from_utf8(&piece.unwrap()?).unwrap());
        }
    }

    async fn receive(&mut self, what: &str, name: &str) -> Received {
        loop {
            let received = self.next().await.expect("the stream goes on");
            if received.data["what"] == what && received.data["name"] == name {
                return received;
            }
        }
    }
}

#[tokio::test]
async fn events_are_reported_by_name_and_can_be_resumed() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let reader = rig.key("read", &["team/*", "mail"]).await;
    let mut listener = Listener::open(&rig, &reader, "?name=team/*", None).await;
    assert_eq!(listener.next().await.unwrap().data["what"], "ready");
    // Others' names are not told.
    rig.post(&key, "leases/other/acquire", json!({ "ttl": "90s" })).await.ok();
    let held = rig.post(&key, "leases/team~a/acquire", json!({ "ttl": "90s", "label": "box-1" })).await.ok();
    let received = listener.next().await.unwrap();
    let event = &received.data;
    assert_eq!((event["what"].as_str(), event["name"].as_str()), (Some("acquired"), Some("team/a")), "{event}");
    assert_eq!((event["holder"].as_str(), event["epoch"].as_u64()), (Some("box-1"), Some(1)));
    drop(listener);
    // While nobody listens.
    rig.post(&key, "leases/team~a/release", json!({ "token": held["token"] })).await.ok();
    rig.post(&key, "leases/team~a/pause", json!({ "why": "deploy", "epoch": 1 })).await.ok();
    rig.post(&key, "queues/mail/items", json!({ "items": [{}] })).await.ok();
    let mut resumed = Listener::open(&rig, &reader, "?name=*", Some(&received.id)).await;
    let again = resumed.receive("acquired", "team/a").await;
    assert_eq!(again.data, received.data, "an event that is told again is known by what it says");
    let released = resumed.receive("released", "team/a").await;
    assert_eq!(released.data["why"], "succeeded");
    assert_eq!(resumed.receive("paused", "team/a").await.data["why"], "deploy");
    resumed.receive("queue", "mail").await;
    // From there on as it happens.
    rig.post(&key, "leases/team~b/acquire", json!({ "ttl": "90s" })).await.ok();
    resumed.receive("acquired", "team/b").await;
    rig.post(&key, "queues/mail/items", json!({ "items": [{}] })).await.ok();
    resumed.receive("queue", "mail").await;
}

#[tokio::test]
async fn a_gap_that_is_too_long_is_reported_as_a_reset() {
    let rig = Rig::start().await;
    let key = rig.key("read", &["*"]).await;
    let mut listener = Listener::open(&rig, &key, "", Some("1000")).await;
    let reset = listener.next().await.unwrap();
    assert_eq!(reset.data["what"], "reset");
    assert!(reset.id.parse::<u64>().unwrap() > 1_000);
    let request = rig.request(Method::GET, &key, "events").header("Last-Event-ID", "x");
    assert_eq!(answer(request).await.refused(400, "invalid")["field"], "Last-Event-ID");
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_revoked() {
    let rig = Rig::start().await;
    let secret = rig.secret("team", "read", &["*"]).await;
    let mut listener = Listener::open(&rig, secret.reveal(), "", None).await;
    assert_eq!(listener.next().await.unwrap().data["what"], "ready");
    let (by, why) = ("a test".parse().unwrap(), "enough".parse().unwrap());
    rig.keys.revoke(&secret.id(), &by, &why).await.unwrap();
    let end = listener.next().await.unwrap();
    assert_eq!((end.data["what"].as_str(), end.data["why"].as_str()), (Some("end"), Some("key_revoked")));
    assert!(listener.next().await.is_none());
}
