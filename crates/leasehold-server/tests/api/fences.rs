//! Fences for targets that keep none.

use crate::rig::Rig;
use leasehold_core::{Coordinator, Event, LeaseName};
use serde_json::json;
use std::time::Duration;

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
    let leases = rig.leases().await;
    counted(&leases, &"daily".parse().unwrap(), &[(Event::Fenced, 2)]).await;
    let marks = rig.get(&key, "leases/daily").await.ok()["fenced_writes"].clone();
    let mut told: Vec<_> =
        marks.as_array().unwrap().iter().map(|mark| [&mark["held_epoch"], &mark["seen_epoch"]]).collect();
    told.sort_by_key(|epochs| epochs[0].as_u64());
    assert_eq!(told, [[&json!(1), &json!(3)], [&json!(3), &json!(3)]]);
    assert!(marks[0]["resource"] == "api:report.csv" && marks[0]["by"].as_str().unwrap().contains("(key "), "{marks}");
    let listed = rig.get(&key, "leases").await.ok();
    assert!(listed["leases"][0].get("fenced_writes").is_none(), "{listed}");
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

/// Waits until this is counted of a lease: counts are written after the answer.
async fn counted(leases: &Coordinator, lease: &LeaseName, expected: &[(Event, u64)]) {
    let mut found = Vec::new();
    let reached = async {
        loop {
            let counters = leases.counters(lease).await.unwrap();
            found = expected.iter().map(|(event, _)| (*event, counters.get(*event))).collect();
            if found == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let is_reached = tokio::time::timeout(Duration::from_secs(30), reached).await.is_ok();
    assert!(is_reached, "{expected:?} was expected, and {found:?} counted");
}

#[tokio::test]
async fn what_becomes_of_leases_over_the_api_is_counted_once() {
    let rig = Rig::start().await;
    let (key, leases) = (rig.all().await, rig.leases().await);
    let ttl = json!({ "ttl": "90s" });
    let mut old = json!(null);
    for outcome in ["succeeded", "failed"] {
        old = rig.post(&key, "leases/daily/acquire", ttl.clone()).await.ok();
        let ended = json!({ "token": old["token"], "outcome": outcome });
        rig.post(&key, "leases/daily/release", ended.clone()).await.ok();
        rig.post(&key, "leases/daily/release", ended).await.ok();
    }
    for _ in 0..2 {
        rig.attempt(&key, "third", "leases/daily/acquire", ttl.clone()).await.ok();
    }
    rig.post(&key, "leases/daily/acquire", ttl.clone()).await.refused(409, "held");
    for _ in 0..2 {
        rig.post(&key, "fences/report.csv/admit", json!({ "token": old["token"] })).await.refused(412, "fenced");
    }
    let daily: LeaseName = "daily".parse().unwrap();
    let expected = [
        (Event::SkippedOverlap, 1),
        (Event::Granted, 3),
        (Event::Succeeded, 1),
        (Event::Failed, 1),
        (Event::Fenced, 1),
        (Event::Lost, 0),
    ];
    counted(&leases, &daily, &expected).await;
    // A holder that an operator has ended, and that goes on asking.
    let taken = rig.post(&key, "leases/other/acquire", ttl).await.ok();
    rig.post(&key, "leases/other/revoke", json!({ "why": "stuck", "epoch": 1 })).await.ok();
    for _ in 0..2 {
        rig.post(&key, "leases/other/renew", json!({ "token": taken["token"] })).await.refused(409, "lost");
    }
    let other: LeaseName = "other".parse().unwrap();
    counted(&leases, &other, &[(Event::Granted, 1), (Event::Evicted, 1), (Event::Lost, 0)]).await;
    let counters = leases.counters(&daily).await.unwrap();
    assert!(expected.iter().all(|(event, times)| counters.get(*event) == *times), "{counters:?}");
}
