//! What operators do to leases.

use crate::rig::{Rig, text};
use serde_json::json;

#[tokio::test]
async fn an_order_needs_a_reason_and_the_epoch_that_was_seen() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let held = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    for (body, field) in [
        (json!({ "epoch": 1 }), "why"),
        (json!({ "why": "stuck" }), "epoch"),
        (json!({ "why": " ", "epoch": 1 }), "why"),
        (json!({ "why": "stuck", "epoch": "1" }), "epoch"),
    ] {
        for verb in ["revoke", "pause", "resume"] {
            let refused = rig.post(&key, &format!("leases/daily/{verb}"), body.clone()).await.refused(400, "invalid");
            assert_eq!(refused["field"], field);
        }
    }
    let changed = rig.post(&key, "leases/daily/revoke", json!({ "why": "stuck", "epoch": 7 })).await;
    let changed = changed.refused(409, "changed");
    assert_eq!((changed["expected_epoch"].as_u64(), changed["seen_epoch"].as_u64()), (Some(7), Some(1)));
    rig.post(&key, "leases/daily/renew", json!({ "token": held["token"] })).await.ok();

    let revoked = rig.post(&key, "leases/daily/revoke", json!({ "why": "stuck", "epoch": 1 })).await.ok();
    assert_eq!((revoked["ordered_epoch"].as_u64(), revoked["lease"]["state"].as_str()), (Some(2), Some("free")));
    let lost = rig.post(&key, "leases/daily/renew", json!({ "token": held["token"] })).await.refused(409, "lost");
    assert!(text(&lost, "detail").contains("stuck"), "{lost}");
    let history = rig.get(&key, "leases/daily/history").await.ok();
    let by = text(&history["transfers"][0], "by");
    assert!(by.starts_with("tester (key ") && by.len() == "tester (key 12345678)".len(), "{by}");
    assert_eq!(history["transfers"][0]["why"], "stuck");
}

#[tokio::test]
async fn a_repeated_order_is_not_carried_out_twice() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let take = json!({ "ttl": "90s" });
    rig.post(&key, "leases/daily/acquire", take.clone()).await.ok();
    let order = json!({ "why": "stuck", "epoch": 1 });
    let first = rig.attempt(&key, "r1", "leases/daily/revoke", order.clone()).await.ok();
    let next = rig.post(&key, "leases/daily/acquire", take.clone()).await.ok();
    // The answer was lost, and it is asked again: the new holder keeps it.
    let again = rig.attempt(&key, "r1", "leases/daily/revoke", order.clone()).await.ok();
    assert_eq!((&again["ordered_epoch"], again["lease"]["epoch"].as_u64()), (&first["ordered_epoch"], Some(3)));
    rig.post(&key, "leases/daily/renew", json!({ "token": next["token"] })).await.ok();
    // Another request that was decided on what is no longer so.
    rig.attempt(&key, "r2", "leases/daily/revoke", order.clone()).await.refused(409, "changed");
    rig.post(&key, "leases/daily/release", json!({ "token": next["token"] })).await.ok();
    for _ in 0..80 {
        let granted = rig.post(&key, "leases/daily/acquire", take.clone()).await.ok();
        rig.post(&key, "leases/daily/release", json!({ "token": granted["token"] })).await.ok();
    }
    rig.attempt(&key, "r1", "leases/daily/revoke", order.clone()).await.refused(409, "no_longer_known");
    // Without a key it was never asked before.
    rig.post(&key, "leases/daily/revoke", order).await.refused(409, "changed");
}

#[tokio::test]
async fn a_pause_keeps_new_holders_out_until_it_is_ended() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let order = json!({ "why": "deploy", "epoch": 0 });
    let paused = rig.attempt(&key, "p", "leases/daily/pause", order.clone()).await.ok();
    assert_eq!(
        (paused["lease"]["state"].as_str(), paused["lease"]["paused"]["why"].as_str()),
        (Some("paused"), Some("deploy"))
    );
    assert_eq!(rig.attempt(&key, "p", "leases/daily/pause", order.clone()).await.ok()["ordered_epoch"], 0);
    rig.post(&key, "leases/daily/pause", order.clone()).await.refused(409, "paused");
    let refused = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.refused(409, "paused");
    assert_eq!(refused["why"], "deploy");
    rig.attempt(&key, "q", "leases/daily/resume", order.clone()).await.ok();
    rig.attempt(&key, "q", "leases/daily/resume", order.clone()).await.ok();
    rig.post(&key, "leases/daily/resume", order).await.refused(409, "not_paused");
    rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
}

#[tokio::test]
async fn a_hand_off_gives_the_new_holder_its_token() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let old = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let order = json!({ "why": "box-1 is slow", "epoch": 1, "to": "box-2", "ttl": "60s" });
    let new = rig.attempt(&key, "h", "leases/daily/hand-off", order.clone()).await.ok();
    assert_eq!((new["epoch"].as_u64(), new["ttl_ms"].as_u64()), (Some(2), Some(60_000)));
    assert_eq!(rig.attempt(&key, "h", "leases/daily/hand-off", order).await.ok()["token"], new["token"]);
    rig.post(&key, "leases/daily/renew", json!({ "token": old["token"] })).await.refused(409, "lost");
    rig.post(&key, "leases/daily/renew", json!({ "token": new["token"] })).await.ok();
    assert_eq!(rig.get(&key, "leases/daily").await.ok()["holder"]["label"], "box-2");
}

#[tokio::test]
async fn a_drain_is_reported_to_the_holder_when_it_renews() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let order = json!({ "why": "reboot", "epoch": 1, "within": "5m" });
    rig.post(&key, "leases/daily/drain", json!({ "why": "reboot", "epoch": 0, "within": "5m" }))
        .await
        .refused(409, "not_held");
    let held = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    assert!(held.get("drain").is_none());
    rig.post(&key, "leases/daily/drain", order).await.ok();
    let renewed = rig.post(&key, "leases/daily/renew", json!({ "token": held["token"] })).await.ok();
    assert_eq!(renewed["drain"]["why"], "reboot");
    rig.post(&key, "leases/daily/release", json!({ "token": held["token"] })).await.ok();
    let refused = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.refused(409, "draining");
    assert!(refused["until"]["ms"].is_u64());
}

#[tokio::test]
async fn an_advance_goes_past_what_a_guard_has_seen() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let order = |epoch: u64| json!({ "why": "restored", "epoch": epoch, "past": 40 });
    assert_eq!(rig.post(&key, "leases/daily/advance", order(0)).await.ok()["ordered_epoch"], 41);
    rig.post(&key, "leases/daily/advance", order(40)).await.refused(409, "changed");
    assert_eq!(rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok()["epoch"], 42);
    let far = json!({ "why": "x", "epoch": 42, "past": 9_007_199_254_740_991_u64 });
    assert_eq!(rig.post(&key, "leases/daily/advance", far).await.refused(400, "invalid")["field"], "past");
    let wrong = json!({ "why": "x", "epoch": 42, "past": 1, "lineage": "x" });
    assert_eq!(rig.post(&key, "leases/daily/advance", wrong).await.refused(400, "invalid")["field"], "lineage");
}

#[tokio::test]
async fn a_pause_that_was_not_seen_is_not_ended() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let held = rig.post(&key, "leases/n/acquire", json!({ "ttl": "60s" })).await.ok();
    rig.post(&key, "leases/n/release", json!({ "token": held["token"] })).await.ok();
    let order = |why: &str| json!({ "why": why, "epoch": 1 });
    let pauses = async |why: &str| {
        let paused = rig.post(&key, "leases/n/pause", order(why)).await.ok();
        paused["lease"]["paused"]["pause"].as_str().unwrap().to_owned()
    };
    let resume = |pause: &str| json!({ "why": "done", "epoch": 1, "pause": pause });
    let first = pauses("deploy").await;
    assert_eq!(rig.get(&key, "leases/n").await.ok()["paused"]["pause"], *first);
    rig.post(&key, "leases/n/resume", resume(&first)).await.ok();
    let second = pauses("the database is corrupt").await;
    rig.post(&key, "leases/n/resume", resume(&first)).await.refused(409, "changed");
    rig.post(&key, "leases/n/resume", resume("no pause")).await.refused(400, "invalid");
    assert_eq!(rig.get(&key, "leases/n").await.ok()["paused"]["why"], "the database is corrupt");
    rig.post(&key, "jobs/n/resume", resume(&second)).await.ok();
    assert_eq!(rig.get(&key, "leases/n").await.ok()["state"], "free");
}
