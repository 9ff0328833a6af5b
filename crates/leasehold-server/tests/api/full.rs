//! A server whose namespaces are all in use by others: whoever holds something keeps it.

use crate::rig::{InMemory, Rig, answer};
use async_trait::async_trait;
use leasehold_core::{Result, Store};
use leasehold_server::serve::{Limits, OpenLimits, Opener};
use leasehold_stores::Namespace;
use serde_json::{Value, json};
use std::sync::Arc;

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
