//! An `Idempotency-Key` that is used again for another request: it is refused, and nothing is done.

use crate::rig::{Answer, Rig};
use serde_json::{Value, json};

/// Makes a request twice under one key, and then each of the others, which must change nothing.
async fn refuses_others(rig: &Rig, key: &str, path: &str, first: Value, others: &[Value], look: &str) -> Value {
    let own = path.replace('/', "-");
    let attempt = async |body: &Value| -> Answer { rig.attempt(key, &own, path, body.clone()).await };
    let done = attempt(&first).await.ok();
    let before = rig.get(key, look).await.ok();
    attempt(&first).await.ok();
    for other in others {
        attempt(other).await.refused(409, "key_reused");
    }
    let without_now = |mut seen: Value| {
        seen.as_object_mut().unwrap().remove("now");
        seen.get_mut("item").and_then(Value::as_object_mut).map(|item| item.remove("now"));
        seen
    };
    assert_eq!(without_now(rig.get(key, look).await.ok()), without_now(before), "{path}");
    done
}

#[tokio::test]
async fn an_order_on_a_lease_under_a_used_key_is_refused_and_changes_nothing() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let take = json!({ "ttl": "600s" });
    rig.post(&key, "leases/n/acquire", take.clone()).await.ok();
    let first = json!({ "why": "stuck", "epoch": 1 });
    rig.attempt(&key, "K", "leases/n/revoke", first.clone()).await.ok();
    let held = rig.post(&key, "leases/n/acquire", take).await.ok();
    for other in [
        json!({ "why": "other reason", "epoch": 3 }),
        json!({ "why": "stuck", "epoch": 3 }),
        json!({ "why": "other reason", "epoch": 1 }),
    ] {
        rig.attempt(&key, "K", "leases/n/revoke", other).await.refused(409, "key_reused");
    }
    rig.post(&key, "leases/n/renew", json!({ "token": held["token"] })).await.ok();
    assert_eq!(rig.attempt(&key, "K", "leases/n/revoke", first).await.ok()["ordered_epoch"], 2);

    let order = |more: Value| {
        let mut order = json!({ "why": "x", "epoch": 3 });
        order.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        order
    };
    let others = [order(json!({ "within": "1h" })), order(json!({ "within": "5m", "why": "y" }))];
    let first = order(json!({ "within": "5m" }));
    refuses_others(&rig, &key, "leases/n/drain", first, &others, "leases/n").await;
    let others = [order(json!({ "why": "y" })), order(json!({ "epoch": 2 }))];
    refuses_others(&rig, &key, "leases/n/pause", order(json!({})), &others, "leases/n").await;
    refuses_others(&rig, &key, "leases/n/resume", order(json!({})), &others, "leases/n").await;
    let first = order(json!({ "to": "box-1", "ttl": "60s" }));
    let others = [
        order(json!({ "to": "box-2", "ttl": "60s" })),
        order(json!({ "to": "box-1", "ttl": "600s" })),
        order(json!({ "to": "box-1", "ttl": "60s", "epoch": 4 })),
        order(json!({ "to": "box-1", "ttl": "60s", "why": "y" })),
    ];
    refuses_others(&rig, &key, "leases/n/hand-off", first, &others, "leases/n/history").await;
    let advance = |past: u64| json!({ "why": "x", "epoch": 4, "past": past });
    refuses_others(&rig, &key, "leases/n/advance", advance(40), &[advance(41)], "leases/n/history").await;
}

#[tokio::test]
async fn an_order_on_an_item_under_a_used_key_is_refused_and_changes_nothing() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    rig.post(&key, "queues/mail/items", json!({ "items": [{ "key": "a" }] })).await.ok();
    let order = |why: &str, epoch: u64| json!({ "why": why, "epoch": epoch });
    let (path, item) = (|verb: &str| format!("queues/mail/items/k.a/{verb}"), "queues/mail/items/k.a");
    let to = |to: &str, ttl: &str| json!({ "why": "x", "epoch": 0, "to": to, "ttl": ttl });
    let others = [to("box-2", "60s"), to("box-1", "600s")];
    refuses_others(&rig, &key, &path("hand-off"), to("box-1", "60s"), &others, item).await;
    for (verb, epoch) in [("retry", 1), ("cancel", 2)] {
        let others = [order("y", epoch), order("x", epoch + 1)];
        refuses_others(&rig, &key, &path(verb), order("x", epoch), &others, item).await;
    }
}

#[tokio::test]
async fn items_under_a_used_key_are_not_added() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let body = |items: Value| json!({ "items": items });
    let two = body(json!([{ "payload": "1" }, { "payload": "2" }]));
    let others = [
        body(json!([{ "payload": "1" }])),
        body(json!([{ "payload": "1" }, { "payload": "2" }, { "payload": "3" }])),
        body(json!([{ "payload": "2" }, { "payload": "1" }])),
        body(json!([{ "payload": "1", "priority": 9 }, { "payload": "2" }])),
        body(json!([{ "payload": "1", "delay": "1h" }, { "payload": "2" }])),
        body(json!([{ "payload": "1" }, { "payload": "2", "attempts": 2 }])),
        body(json!([{ "payload": "1" }, { "payload": "2", "backoff": "1m" }])),
        body(json!([{ "payload": "1" }, { "payload": "2", "key": "two" }])),
    ];
    refuses_others(&rig, &key, "queues/mail/items", two, &others, "queues/mail").await;
    // What is the same in other words is the same.
    let same = body(json!([{ "payload": "1", "priority": 5, "delay": "0s" }, { "payload_base64": "Mg==" }]));
    rig.attempt(&key, "queues-mail-items", "queues/mail/items", same).await.ok();
    assert_eq!(rig.get(&key, "queues/mail").await.ok()["ready"], 2);
}

#[tokio::test]
async fn a_claim_under_a_used_key_gives_nothing() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    rig.post(&key, "queues/mail/items", json!({ "items": [{}, {}, {}] })).await.ok();
    let others =
        [json!({ "ttl": "3600s" }), json!({ "ttl": "60s", "count": 3 }), json!({ "ttl": "60s", "label": "x" })];
    refuses_others(&rig, &key, "queues/mail/claim", json!({ "ttl": "60s" }), &others, "queues/mail").await;
    // An attempt may have less time left than the one before it.
    let same = json!({ "ttl": "60s", "count": 1, "wait": "1s" });
    rig.attempt(&key, "queues-mail-claim", "queues/mail/claim", same).await.ok();
    assert_eq!(rig.get(&key, "queues/mail").await.ok()["ready"], 2);
}

#[tokio::test]
async fn a_claim_is_not_completed_a_second_time_with_another_result() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    rig.post(&key, "queues/mail/items", json!({ "items": [{}] })).await.ok();
    let claimed = rig.post(&key, "queues/mail/claim", json!({ "ttl": "60s" })).await.ok();
    let (token, id) = (&claimed["items"][0]["token"], claimed["items"][0]["id"].as_str().unwrap());
    let path = format!("queues/mail/items/{id}/complete");
    let done = |result: &str, add: Value| json!({ "token": token, "result": result, "add": add });
    let added = json!([{ "item": { "payload": "x" } }, { "item": { "key": "k" } }]);
    let others = [
        done("B", added.clone()),
        done("A", json!([])),
        done("A", json!([{ "queue": "z", "item": {} }, { "item": { "key": "k" } }])),
        done("A", json!([{ "item": {} }, { "item": { "key": "l" } }])),
    ];
    refuses_others(&rig, &key, &path, done("A", added.clone()), &others, "queues/mail").await;
    for other in others {
        rig.post(&key, &path, other).await.refused(409, "key_reused");
    }
    rig.post(&key, &path, done("A", added)).await.ok();
}

#[tokio::test]
async fn a_name_that_is_spelled_otherwise_is_the_same_request() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let take = json!({ "ttl": "60s" });
    let granted = rig.attempt(&key, "y", "leases/t~x/acquire", take.clone()).await.ok();
    for spelled in ["t%2Fx", "t%2fx", "%74~x", "t%7Ex"] {
        let again = rig.attempt(&key, "y", &format!("leases/{spelled}/acquire"), take.clone()).await.ok();
        assert_eq!(again["token"], granted["token"], "{spelled}");
    }
    rig.attempt(&key, "y", "leases/t~y/acquire", take).await.ok();
}

#[tokio::test]
async fn another_end_under_a_used_key_is_refused() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let held = rig.post(&key, "leases/n/acquire", json!({ "ttl": "60s" })).await.ok();
    let release = |outcome: &str| json!({ "token": held["token"], "outcome": outcome });
    let others = [release("failed"), release("not_started")];
    refuses_others(&rig, &key, "leases/n/release", release("succeeded"), &others, "leases/n").await;
    rig.post(&key, "queues/mail/items", json!({ "items": [{}] })).await.ok();
    let claimed = rig.post(&key, "queues/mail/claim", json!({ "ttl": "60s" })).await.ok()["items"][0].clone();
    let item = format!("queues/mail/items/{}", claimed["id"].as_str().unwrap());
    let fail = |why: &str, is_final: bool| json!({ "token": claimed["token"], "why": why, "final": is_final });
    let others = [fail("b", false), fail("a", true)];
    refuses_others(&rig, &key, &format!("{item}/fail"), fail("a", false), &others, &item).await;
}
