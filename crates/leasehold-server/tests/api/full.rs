//! A server whose namespaces are all in use by others: whoever holds something keeps it.

use crate::rig::{InMemory, Rig, answer};
use async_trait::async_trait;
use leasehold_core::{Result, Store};
use leasehold_server::serve::{Limits, OpenLimits, Opener};
use leasehold_stores::Namespace;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Stores in memory, of which only one may be open for those who hold nothing.
#[derive(Debug)]
struct One(InMemory);

#[async_trait]
impl Opener for One {
    async fn open(&self, namespace: &Namespace) -> Result<Arc<dyn Store>> {
        self.0.open(namespace).await
    }

    fn limits(&self) -> OpenLimits {
        OpenLimits { idle: 1, all: 1, ..OpenLimits::FILES }
    }
}

#[tokio::test]
async fn a_holder_keeps_and_ends_what_it_has_though_the_namespaces_are_full() {
    let rig = Rig::with(Arc::new(One(InMemory::default())), Limits::default()).await;
    let key = rig.all().await;
    let held = rig.post(&key, "leases/a/acquire", json!({ "ttl": "600s" })).await.ok();
    rig.post(&key, "queues/q/items", json!({ "items": [{}, {}, {}] })).await.ok();
    let claimed = rig.post(&key, "queues/q/claim", json!({ "ttl": "600s", "count": 3 })).await.ok();
    let item = |index: usize, verb: &str| {
        let item = &claimed["items"][index];
        (format!("queues/q/items/{}/{verb}", item["id"].as_str().unwrap()), json!({ "token": item["token"] }))
    };
    let lease = |verb: &str| (format!("leases/a/{verb}"), json!({ "token": held["token"] }));
    let with = |(path, mut body): (String, Value), field: &str, value: &str| {
        body[field] = json!(value);
        (path, body)
    };
    // Somebody uses the only namespace that others may have open, for as long as this is here.
    let other = rig.site.coordinator(&"other".parse().unwrap()).await.unwrap();
    let asked = [
        lease("renew"),
        with(lease("progress"), "marker", "half"),
        with(lease("checkpoint"), "checkpoint", "half"),
        lease("release"),
        item(0, "renew"),
        with(item(0, "progress"), "marker", "half"),
        item(0, "complete"),
        with(item(1, "fail"), "why", "x"),
        item(2, "give-back"),
    ];
    let elsewhere = rig.key_in("spare", "hold", &["*"]).await;
    let token = format!("x:1:{:032x}:{:032x}:0", 1, 2);
    for (path, body) in asked {
        // A holder of another namespace has this one closed.
        let spare = rig.client.post(format!("{}/v1/ns/spare/leases/x/renew", rig.base)).bearer_auth(&elsewhere);
        answer(spare.body(json!({ "token": token }).to_string())).await.refused(400, "invalid");
        rig.get(&key, "leases/a").await.refused(503, "unavailable");
        rig.post(&key, &path, body).await.ok();
    }
    drop(other);
    rig.get(&key, "leases/a").await.ok();
}

/// A connection that stays open, and what it is answered.
async fn renew_on(stream: &mut TcpStream, key: &str, token: &str) -> String {
    let body = json!({ "token": token }).to_string();
    let (bearer, length) = (format!("authorization: Bearer {key}"), body.len());
    let path = "/v1/ns/team/leases/daily/renew";
    let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{bearer}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn connections_without_a_key_keep_no_holder_out() {
    let limits = Limits { connections: 8, ..Limits::default() };
    let rig = Rig::with(Arc::new(crate::rig::InMemory::default()), limits).await;
    let key = rig.all().await;
    let address = rig.base.strip_prefix("http://").unwrap().to_owned();
    let held = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let token = held["token"].as_str().unwrap();
    let mut kept = TcpStream::connect(&address).await.unwrap();
    assert!(renew_on(&mut kept, &key, token).await.starts_with("HTTP/1.1 200"));
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    // Over a new connection, and over one on which a key was shown.
    let mut new = TcpStream::connect(&address).await.unwrap();
    assert!(renew_on(&mut new, &key, token).await.starts_with("HTTP/1.1 200"));
    assert!(renew_on(&mut kept, &key, token).await.starts_with("HTTP/1.1 200"));
    drop(silent);
}

#[tokio::test]
async fn a_connection_whose_key_is_refused_can_be_turned_out() {
    let limits = Limits { connections: 4, ..Limits::default() };
    let rig = Rig::with(Arc::new(crate::rig::InMemory::default()), limits).await;
    let key = rig.all().await;
    let address = rig.base.strip_prefix("http://").unwrap().to_owned();
    let held = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let token = held["token"].as_str().unwrap();
    let mut kept = Vec::new();
    for _ in 0..8 {
        let mut connection = TcpStream::connect(&address).await.unwrap();
        // However many come: one whose key counts no more makes room for the next.
        assert!(renew_on(&mut connection, &key, token).await.starts_with("HTTP/1.1 200"));
        assert!(renew_on(&mut connection, "lh_w_nobody", token).await.starts_with("HTTP/1.1 401"));
        kept.push(connection);
    }
}
