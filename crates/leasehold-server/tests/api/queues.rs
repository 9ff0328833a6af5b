//! Queues, by their workers and their operators.

use crate::rig::{Rig, text};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

async fn add(rig: &Rig, key: &str, payload: &str) -> String {
    let added = rig.post(key, "queues/mail/items", json!({ "items": [{ "payload": payload }] })).await.ok();
    text(&added["items"][0], "id").to_owned()
}

async fn claim(rig: &Rig, key: &str) -> Value {
    let claimed = rig.post(key, "queues/mail/claim", json!({ "ttl": "90s" })).await.ok();
    claimed["items"][0].clone()
}

#[tokio::test]
async fn items_are_added_claimed_and_completed_with_what_follows() {
    let rig = Rig::start().await;
    let key = rig.key("work,read", &["mail", "sent"]).await;
    let body = json!({ "items": [
        { "payload": "to: ada" },
        { "payload_base64": "/w==", "priority": 1 },
        { "payload": "later", "delay": "1h", "key": "once" },
        { "payload": "not again", "key": "once" },
    ] });
    let added = rig.post(&key, "queues/mail/items", body).await.ok();
    let added = added["items"].as_array().unwrap();
    assert_eq!(added.iter().map(|item| item["new"].as_bool().unwrap()).collect::<Vec<_>>(), [true, true, true, false]);
    assert_eq!((added[2]["id"].as_str(), added[3]["id"].as_str()), (Some("k.once"), Some("k.once")));

    let claimed = rig.post(&key, "queues/mail/claim", json!({ "ttl": "90s", "count": 10, "label": "w1" })).await.ok();
    let items = claimed["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    let (first, second) = (&items[0], &items[1]);
    assert_eq!((first["payload"].as_str(), second["payload_base64"].as_str()), (Some("to: ada"), Some("/w==")));
    assert_eq!((first["attempt"].as_u64(), first["epoch"].as_u64()), (Some(1), Some(1)));
    assert!(first["trust_ms"].as_u64() > Some(80_000));
    let path = |item: &Value, verb: &str| format!("queues/mail/items/{}/{verb}", text(item, "id"));
    rig.post(&key, &path(first, "renew"), json!({ "token": first["token"] })).await.ok();
    let report = json!({ "token": first["token"], "marker": "half", "checkpoint": "7" });
    rig.post(&key, &path(first, "progress"), report).await.ok();
    // A token of one item is none of another.
    let crossed = rig.post(&key, &path(second, "renew"), json!({ "token": first["token"] })).await;
    assert_eq!(crossed.refused(400, "invalid")["field"], "token");
    // Not the server's own process: somebody would end that to be rid of a worker.
    let seen = rig.get(&key, &format!("queues/mail/items/{}", text(first, "id"))).await.ok();
    let holder = &seen["item"]["holder"];
    assert_eq!((holder["label"].as_str(), holder["pid"].as_u64()), (Some("w1"), Some(0)), "{seen}");
    assert_eq!(text(holder, "host"), format!("key-{}", &key[5..13]));

    let done = json!({ "token": first["token"], "result": "sent", "add": [
        { "queue": "sent", "item": { "payload": "ada" } }, { "item": { "payload": "again", "key": "follow" } },
    ] });
    let completed = rig.post(&key, &path(first, "complete"), done.clone()).await.ok();
    assert_eq!((completed["state"].as_str(), completed["follow_ups"].as_array().unwrap().len()), (Some("done"), 2));
    // Its answer was lost, and it is told again: nothing more is added.
    assert_eq!(rig.post(&key, &path(first, "complete"), done).await.ok()["follow_ups"], completed["follow_ups"]);
    assert_eq!(rig.get(&key, "queues/sent").await.ok()["ready"], 1);
    let counts = rig.get(&key, "queues/mail").await.ok();
    let numbers = ["ready", "delayed", "claimed", "done"].map(|state| counts[state].as_u64().unwrap());
    assert_eq!((numbers, &counts["exact"]), ([1, 1, 1, 1], &json!(true)));
    let later = rig.get(&key, "queues/mail/items?state=delayed").await.ok();
    assert_eq!(
        (later["items"][0]["id"].as_str(), later["items"][0]["state"].as_str()),
        (Some("k.once"), Some("delayed"))
    );
    assert_eq!(rig.get(&key, "queues/mail/items?state=ready").await.ok()["items"].as_array().unwrap().len(), 1);
    let shown = rig.get(&key, &format!("queues/mail/items/{}?payload=true", text(first, "id"))).await.ok();
    assert_eq!((shown["item"]["payload"].as_str(), shown["item"]["result"].as_str()), (Some("to: ada"), Some("sent")));
    assert_eq!(shown["history"].as_array().unwrap().len(), 2);
    assert_eq!(rig.get(&key, "queues").await.ok()["queues"], json!(["mail", "sent"]));
}

#[tokio::test]
async fn follow_ups_need_the_right_to_add_to_their_queue() {
    let rig = Rig::start().await;
    let (key, all) = (rig.key("work", &["mail"]).await, rig.all().await);
    add(&rig, &key, "x").await;
    let item = claim(&rig, &key).await;
    let path = format!("queues/mail/items/{}/complete", text(&item, "id"));
    let body = json!({ "token": item["token"], "add": [{ "queue": "pay", "item": {} }] });
    rig.post(&key, &path, body).await.refused(403, "not_allowed");
    assert_eq!(rig.get(&all, "queues/mail").await.ok()["claimed"], 1);
    assert_eq!(rig.get(&all, "queues").await.ok()["queues"], json!(["mail"]));
}

#[tokio::test]
async fn a_failed_attempt_is_tried_again_and_at_last_dead() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let id = add(&rig, &key, "x").await;
    let path = |verb: &str| format!("queues/mail/items/{id}/{verb}");
    let item = claim(&rig, &key).await;
    let failed = json!({ "token": item["token"], "why": "smtp", "retry_in": "0s" });
    assert_eq!(rig.post(&key, &path("fail"), failed.clone()).await.ok()["state"], "ready");
    let second = claim(&rig, &key).await;
    assert_eq!(second["attempt"], 2);
    // The first attempt's answer was lost: it is found in the item's history.
    assert_eq!(rig.post(&key, &path("fail"), failed).await.ok()["state"], "claimed");
    let stale = json!({ "token": item["token"], "result": "x" });
    let fenced = rig.post(&key, &path("complete"), stale).await.refused(412, "fenced");
    assert_eq!((fenced["held_epoch"].as_u64(), fenced["seen_epoch"].as_u64()), (Some(1), Some(2)));
    assert_eq!(rig.post(&key, &path("give-back"), json!({ "token": second["token"] })).await.ok()["tried"], 1);
    let third = claim(&rig, &key).await;
    let last = json!({ "token": third["token"], "why": "no such address", "final": true });
    let dead = rig.post(&key, &path("fail"), last).await.ok();
    assert_eq!((dead["state"].as_str(), dead["why"].as_str()), (Some("dead"), Some("no such address")));
    assert!(claim(&rig, &key).await.is_null());
    let listed = rig.get(&key, "queues/mail/items?state=dead").await.ok();
    assert_eq!((listed["items"][0]["id"].as_str(), listed["items"][0].get("payload")), (Some(id.as_str()), None));
}

#[tokio::test]
async fn an_added_item_is_added_once_however_often_it_is_asked_for() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let body = json!({ "items": [{ "payload": "a" }, { "payload": "b" }] });
    let first = rig.attempt(&key, "batch-1", "queues/mail/items", body.clone()).await.ok();
    let again = rig.attempt(&key, "batch-1", "queues/mail/items", body.clone()).await.ok();
    let ids = |added: &Value| [0, 1].map(|at| text(&added["items"][at], "id").to_owned());
    assert_eq!(ids(&first), ids(&again));
    assert_eq!((&first["items"][0]["new"], &again["items"][1]["new"]), (&json!(true), &json!(false)));
    assert_eq!(rig.get(&key, "queues/mail").await.ok()["ready"], 2);
    let other = json!({ "items": [{ "payload": "c" }] });
    rig.attempt(&key, "batch-1", "queues/mail/items", other.clone()).await.refused(409, "key_reused");
    rig.attempt(&key, "batch-2", "queues/mail/items", other).await.ok();
}

#[tokio::test]
async fn a_repeated_claim_is_given_the_same_items() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    for payload in ["a", "b", "c"] {
        add(&rig, &key, payload).await;
    }
    let body = json!({ "ttl": "90s", "count": 2 });
    let first = rig.attempt(&key, "c1", "queues/mail/claim", body.clone()).await.ok();
    let again = rig.attempt(&key, "c1", "queues/mail/claim", body.clone()).await.ok();
    let tokens =
        |claims: &Value| claims["items"].as_array().unwrap().iter().map(|i| i["token"].clone()).collect::<Vec<_>>();
    assert_eq!((tokens(&first), tokens(&first).len()), (tokens(&again), 2));
    assert_eq!(tokens(&rig.attempt(&key, "c2", "queues/mail/claim", body.clone()).await.ok()).len(), 1);
    for item in first["items"].as_array().unwrap() {
        let path = format!("queues/mail/items/{}/complete", text(item, "id"));
        rig.post(&key, &path, json!({ "token": item["token"] })).await.ok();
    }
    rig.attempt(&key, "c1", "queues/mail/claim", body).await.refused(409, "lost");
}

#[tokio::test]
async fn a_waiting_worker_gets_what_is_added_and_one_that_went_away_keeps_nothing() {
    let rig = Arc::new(Rig::start().await);
    let key = rig.all().await;
    let waiting = || {
        let (rig, key) = (rig.clone(), key.clone());
        tokio::spawn(async move { rig.post(&key, "queues/mail/claim", json!({ "ttl": "1h", "wait": "60s" })).await })
    };
    assert_eq!(
        rig.post(&key, "queues/mail/claim", json!({ "ttl": "90s", "wait": "20ms" })).await.ok()["items"],
        json!([])
    );
    let gone = waiting();
    rig.until_waiting(1).await;
    gone.abort();
    rig.until_waiting(0).await;
    let waiter = waiting();
    rig.until_waiting(1).await;
    add(&rig, &key, "now").await;
    let claimed = tokio::time::timeout(Duration::from_secs(30), waiter).await.unwrap().unwrap().ok();
    assert_eq!(claimed["items"][0]["payload"], "now");
}

#[tokio::test]
async fn operators_retry_cancel_and_hand_off_what_they_have_seen() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let id = add(&rig, &key, "x").await;
    let path = |verb: &str| format!("queues/mail/items/{id}/{verb}");
    let item = claim(&rig, &key).await;
    let stale = json!({ "why": "stuck", "epoch": 0 });
    rig.post(&key, &path("retry"), stale).await.refused(409, "changed");
    let order = json!({ "why": "stuck", "epoch": 1 });
    let retried = rig.attempt(&key, "r", &path("retry"), order.clone()).await.ok();
    assert_eq!((retried["state"].as_str(), retried["epoch"].as_u64()), (Some("ready"), Some(2)));
    rig.post(&key, &path("renew"), json!({ "token": item["token"] })).await.refused(409, "lost");
    assert_eq!(rig.attempt(&key, "r", &path("retry"), order.clone()).await.ok()["epoch"], 2);
    let handing = json!({ "why": "by hand", "epoch": 2, "to": "ada", "ttl": "90s" });
    let given = rig.attempt(&key, "h", &path("hand-off"), handing.clone()).await.ok();
    assert_eq!(given["item"]["holder"]["label"], "ada");
    assert_eq!(rig.attempt(&key, "h", &path("hand-off"), handing).await.ok()["token"], given["token"]);
    // Two orders later the first one is no longer remembered.
    rig.attempt(&key, "r", &path("retry"), order).await.refused(409, "no_longer_known");
    rig.post(&key, &path("renew"), json!({ "token": given["token"] })).await.ok();
    let cancel = json!({ "why": "wrong address", "epoch": 3 });
    assert_eq!(rig.post(&key, &path("cancel"), cancel).await.ok()["state"], "cancelled");
    rig.post(&key, &path("cancel"), json!({ "why": "x", "epoch": 4 })).await.refused(409, "refused");
    let missing = "queues/mail/items/k.none";
    rig.get(&key, missing).await.refused(404, "not_found");
    rig.post(&key, &format!("{missing}/retry"), json!({ "why": "x", "epoch": 0 })).await.refused(404, "not_found");
}

async fn bury(rig: &Rig, key: &str, why: &str) -> String {
    add(rig, key, why).await;
    let item = claim(rig, key).await;
    let path = format!("queues/mail/items/{}/fail", text(&item, "id"));
    let body = json!({ "token": item["token"], "why": why, "final": true });
    text(&rig.post(key, &path, body).await.ok(), "id").to_owned()
}

#[tokio::test]
async fn many_are_retried_only_as_they_were_counted() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let (first, second) = (bury(&rig, &key, "smtp").await, bury(&rig, &key, "smtp").await);
    bury(&rig, &key, "dns").await;
    let counted = rig.post(&key, "queues/mail/bulk/count", json!({ "act": "retry", "reason": "smtp" })).await.ok();
    assert_eq!((counted["count"].as_u64(), &counted["exact"]), (Some(2), &json!(true)));
    // One that comes later, and one that is retried meanwhile.
    let later = bury(&rig, &key, "smtp").await;
    let seen = rig.get(&key, &format!("queues/mail/items/{second}")).await.ok();
    let order = json!({ "why": "by hand", "epoch": seen["item"]["epoch"] });
    rig.post(&key, &format!("queues/mail/items/{second}/retry"), order).await.ok();
    let confirm = json!({ "confirm": counted["confirm"], "why": "smtp is back" });
    let acted = rig.post(&key, "queues/mail/bulk/retry", confirm.clone()).await.ok();
    assert_eq!((acted["done"].as_u64(), acted.get("next")), (Some(1), None));
    let state = async |id: &str| rig.get(&key, &format!("queues/mail/items/{id}")).await.ok()["item"]["state"].clone();
    assert_eq!((state(&first).await, state(&later).await), (json!("ready"), json!("dead")));
    assert_eq!(rig.post(&key, "queues/mail/bulk/retry", confirm.clone()).await.ok()["done"], 0);
    for (path, body) in [
        ("queues/mail/bulk/retry", json!({ "confirm": "x", "why": "x" })),
        ("queues/other/bulk/retry", confirm.clone()),
        ("queues/mail/bulk/purge", confirm),
    ] {
        assert_eq!(rig.post(&key, path, body).await.refused(400, "invalid")["field"], "confirm");
    }
    // What nobody counted is not purged, whoever says so.
    let forged = json!({ "queue": "mail", "act": "purge", "until": u64::MAX, "reason": null, "with_dead": true,
        "through": null, "after": null, "counted": "" });
    let forged = json!({ "confirm": URL_SAFE_NO_PAD.encode(forged.to_string()), "why": "x" });
    assert_eq!(rig.post(&key, "queues/mail/bulk/purge", forged).await.refused(400, "invalid")["field"], "confirm");
    let count = rig.post(&key, "queues/mail/bulk/count", json!({ "act": "purge", "older_than": "1m" })).await.ok();
    assert_eq!(count["count"], 0, "nothing is that old");
    let purge = json!({ "confirm": count["confirm"], "why": "tidy" });
    assert_eq!(rig.post(&key, "queues/mail/bulk/purge", purge).await.ok()["done"], 0);
    rig.post(&key, "queues/mail/bulk/count", json!({ "act": "purge", "older_than": "1s" }))
        .await
        .refused(400, "invalid");
}

#[tokio::test]
async fn listings_of_items_continue_by_their_cursor() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let items: Vec<Value> = (0..25).map(|n| json!({ "payload": format!("{n}") })).collect();
    rig.post(&key, "queues/mail/items", json!({ "items": items })).await.ok();
    rig.post(&key, "queues/mail2/items", json!({ "items": [{}] })).await.ok();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = rig.get(&key, &format!("queues/mail/items?limit=4&payload=true{cursor}")).await.ok();
        seen.extend(page["items"].as_array().unwrap().iter().map(|item| text(item, "payload").to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, (0..25).map(|n| n.to_string()).collect::<Vec<_>>());
    rig.get(&key, &format!("queues/mail2/items?x=1{cursor}")).await.refused(400, "invalid");
    let other = rig.get(&key, &format!("queues/mail2/items?limit=1{cursor}")).await;
    assert_eq!(other.refused(400, "invalid")["field"], "cursor");
    for body in
        [json!({ "items": [] }), json!({ "items": [{ "priority": 10 }] }), json!({ "items": [{ "attempts": 0 }] })]
    {
        rig.post(&key, "queues/mail/items", body).await.refused(400, "invalid");
    }
}

#[tokio::test]
async fn attempts_at_one_claim_at_the_same_time_are_given_the_same_item() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    for n in 0..4 {
        add(&rig, &key, &n.to_string()).await;
    }
    let claim = || rig.attempt(&key, "k", "queues/mail/claim", json!({ "ttl": "90s" }));
    let (a, b, c, d) = tokio::join!(claim(), claim(), claim(), claim());
    let first = a.ok()["items"][0]["id"].clone();
    assert!(first.is_string());
    for other in [b, c, d] {
        assert_eq!(other.ok()["items"][0]["id"], first);
    }
}

#[tokio::test]
async fn nobody_adds_to_our_own_notifications_or_works_on_them() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let queue = "queues/leasehold.notify.ops";
    for (verb, body) in [("items", json!({ "items": [{ "payload": "x" }] })), ("claim", json!({ "ttl": "60s" }))] {
        let refused = rig.post(&key, &format!("{queue}/{verb}"), body).await.refused(400, "invalid");
        assert!(text(&refused, "detail").contains("leasehold's own notifications"), "{refused}");
    }
    add(&rig, &key, "x").await;
    let item = claim(&rig, &key).await;
    let follow = json!({ "token": item["token"], "add": [{ "queue": "leasehold.notify.ops", "item": {} }] });
    let path = format!("queues/mail/items/{}/complete", text(&item, "id"));
    rig.post(&key, &path, follow).await.refused(400, "invalid");
    rig.get(&key, &format!("{queue}/items")).await.ok();
}
