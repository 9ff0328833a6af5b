//! Fences for targets that keep none.

use crate::rig::Rig;
use serde_json::json;

#[tokio::test]
async fn an_older_holder_is_refused_once_a_newer_one_was_there() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let none = rig.get(&key, "fences/report.csv").await.ok();
    assert_eq!((none["epoch"].as_u64(), none.get("lease")), (Some(0), None));
    let old = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let body = json!({ "token": old["token"] });
    assert_eq!(rig.post(&key, "fences/report.csv/admit", body.clone()).await.ok()["seq"], 1);
    assert_eq!(rig.post(&key, "fences/report.csv/admit", body.clone()).await.ok()["seq"], 2);
    rig.post(&key, "leases/daily/revoke", json!({ "why": "stuck", "epoch": 1 })).await.ok();
    let new = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let sealed = rig.post(&key, "fences/report.csv/seal", json!({ "token": new["token"] })).await.ok();
    assert_eq!((sealed["epoch"].as_u64(), sealed["seq"].as_u64()), (Some(3), Some(0)));
    let fenced = rig.post(&key, "fences/report.csv/admit", body.clone()).await.refused(412, "fenced");
    assert_eq!((fenced["held_epoch"].as_u64(), fenced["seen_epoch"].as_u64()), (Some(1), Some(3)));
    rig.post(&key, "fences/report.csv/seal", body).await.refused(409, "lost");
    let once = json!({ "token": new["token"], "policy": "once_per_epoch" });
    assert_eq!(rig.post(&key, "fences/report.csv/admit", once.clone()).await.ok()["seq"], 1);
    rig.post(&key, "fences/report.csv/admit", once).await.refused(412, "fenced");
    let high = rig.get(&key, "fences/report.csv").await.ok();
    assert_eq!((high["lease"].as_str(), high["epoch"].as_u64()), (Some("daily"), Some(3)));
    assert!(!high.to_string().contains(new["token"].as_str().unwrap().split(':').nth(3).unwrap()));
}

#[tokio::test]
async fn a_token_that_the_store_never_granted_moves_no_fence() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let granted = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let token = granted["token"].as_str().unwrap();
    let mut parts: Vec<&str> = token.split(':').collect();
    parts[1] = "4000";
    let forged = json!({ "token": parts.join(":") });
    rig.post(&key, "fences/out/seal", forged.clone()).await.refused(409, "regressed");
    rig.post(&key, "fences/out/admit", forged).await.refused(409, "regressed");
    assert_eq!(rig.get(&key, "fences/out").await.ok()["epoch"], 0);
    let other = rig.post(&key, "leases/other/acquire", json!({ "ttl": "90s" })).await.ok();
    rig.post(&key, "fences/out/admit", json!({ "token": token })).await.ok();
    rig.post(&key, "fences/out/admit", json!({ "token": other["token"] })).await.refused(400, "invalid");
}
