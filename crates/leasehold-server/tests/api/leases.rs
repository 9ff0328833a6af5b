//! Holding leases, and looking at them.

use crate::rig::{InSqlite, Rig, answer, text};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Ask, HolderId, Slot, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn a_lease_is_acquired_renewed_reported_on_and_released() {
    for_both_stores(|rig| async move {
        let key = rig.key("hold", &["daily"]).await;
        let sent = SystemClock.now();
        let granted = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s", "label": "box-1" })).await.ok();
        let took = SystemClock.now().saturating_since(sent).as_millis() as u64;
        assert_eq!((granted["epoch"].as_u64(), granted["ttl_ms"].as_u64()), (Some(1), Some(90_000)));
        let trust = granted["trust_ms"].as_u64().unwrap();
        // It counts from when the request was sent, so what passed before it was granted is in it.
        assert!(trust > 80_000 && trust <= 90_000 + took, "{trust} {took}");
        let (now, deadline) = (granted["now"]["ms"].as_u64().unwrap(), granted["deadline"]["ms"].as_u64().unwrap());
        assert!(deadline >= now + 89_000 && deadline <= now + 90_000);
        assert!(granted["now"]["at"].as_str().unwrap().ends_with('Z'));
        let token = text(&granted, "token");
        assert!(token.starts_with("daily:1:"));

        let noted = rig.post(&key, "leases/daily/progress", json!({ "token": token, "marker": "40 %" })).await.ok();
        assert_eq!(noted["epoch"], 1);
        let checkpoint = json!({ "token": token, "checkpoint": "page 7" });
        rig.post(&key, "leases/daily/checkpoint", checkpoint).await.ok();
        let renewed = rig.post(&key, "leases/daily/renew", json!({ "token": token, "marker": "50 %" })).await.ok();
        assert_eq!((renewed["token"].as_str(), renewed["epoch"].as_u64()), (Some(token), Some(1)));
        assert!(renewed["deadline"]["ms"].as_u64() >= Some(deadline));
        assert_eq!(renewed["progress"]["marker"], "50 %");
        assert_eq!(renewed["progress"]["checkpoint"], "page 7");

        let release = json!({ "token": token, "outcome": "failed" });
        let freed = rig.post(&key, "leases/daily/release", release.clone()).await.ok();
        assert_eq!((freed["outcome"].as_str(), freed["epoch"].as_u64()), (Some("failed"), Some(1)));
        // Done again, it answers the same, whatever it says.
        let again = rig.post(&key, "leases/daily/release", json!({ "token": token })).await.ok();
        assert_eq!(again, freed);
        rig.post(&key, "leases/daily/renew", json!({ "token": token })).await.refused(409, "lost");
        rig.post(&key, "leases/daily/progress", json!({ "token": token, "marker": "x" })).await.refused(409, "lost");

        // The next holder gets what was left for it.
        let next = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "10s" })).await.ok();
        assert_eq!((next["epoch"].as_u64(), next["progress"]["checkpoint"].as_str()), (Some(2), Some("page 7")));
    })
    .await;
}

async fn for_both_stores<F: Future<Output = ()>>(test: impl Fn(Rig) -> F) {
    test(Rig::start().await).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db").display().to_string();
    test(Rig::on(Arc::new(InSqlite(path))).await).await;
}

#[tokio::test]
async fn a_held_lease_is_refused_with_who_holds_it_and_until_when() {
    let rig = Rig::start().await;
    let key = rig.key("hold", &["*"]).await;
    let granted = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s", "label": "box-1" })).await.ok();
    let refused = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.refused(409, "held");
    assert_eq!(refused["holder"]["label"], "box-1");
    assert!(refused["holder"].get("nonce").is_none());
    assert_eq!((&refused["epoch"], &refused["until"]), (&granted["epoch"], &granted["deadline"]));
    assert!(!refused.to_string().contains(nonce_of(&granted)));
}

fn nonce_of(granted: &Value) -> &str {
    text(granted, "token").split(':').nth(3).unwrap()
}

#[tokio::test]
async fn names_with_slashes_are_one_segment_of_the_path() {
    let rig = Rig::start().await;
    let key = rig.key("hold,read", &["team-a/*"]).await;
    let granted = rig.post(&key, "leases/team-a%2Freports%2Fweekly/acquire", json!({ "ttl": "90s" })).await.ok();
    assert_eq!(granted["lease"], "team-a/reports/weekly");
    let seen = rig.get(&key, "leases/team-a~reports~weekly").await.ok();
    assert_eq!((seen["name"].as_str(), seen["state"].as_str()), (Some("team-a/reports/weekly"), Some("held")));
    // The pattern is asked by the name that is meant, however it is spelled.
    for path in ["leases/team-b%2Fx", "leases/team-b~x", "leases/%74eam-b"] {
        rig.get(&key, path).await.refused(403, "not_allowed");
    }
    for path in
        ["leases/..%2Fx", "leases/team-a%2F..%2Fteam-b", "leases/a%00b", "leases/a%2F", "leases/%20", "leases/a:b"]
    {
        rig.get(&key, path).await.refused(400, "invalid");
    }
    rig.get(&key, "leases/team-a/x").await.refused(404, "not_found");
    rig.get(&key, "leases/%FF").await.refused(400, "invalid");
    for reserved in ["queue~mail~k.7", "proxy~api"] {
        let all = rig.all().await;
        let path = format!("leases/{reserved}/acquire");
        rig.post(&all, &path, json!({ "ttl": "90s" })).await.refused(400, "invalid");
    }
}

#[tokio::test]
async fn a_repeated_acquisition_finds_its_own_grant() {
    let rig = Rig::start().await;
    let key = rig.key("hold", &["*"]).await;
    let body = json!({ "ttl": "90s" });
    let first = rig.attempt(&key, "try-1", "leases/daily/acquire", body.clone()).await.ok();
    let again = rig.attempt(&key, "try-1", "leases/daily/acquire", body.clone()).await.ok();
    assert_eq!((&again["token"], &again["epoch"]), (&first["token"], &first["epoch"]));
    rig.attempt(&key, "try-2", "leases/daily/acquire", body.clone()).await.refused(409, "held");
    // The same word of another key is another request, and nobody can tell a token by it.
    let other = rig.key("hold", &["*"]).await;
    rig.attempt(&other, "try-1", "leases/daily/acquire", body.clone()).await.refused(409, "held");
    let elsewhere = rig.attempt(&key, "try-1", "leases/nightly/acquire", body.clone()).await.ok();
    assert_ne!(nonce_of(&elsewhere), nonce_of(&first));
    // Once it is over, the request is not granted a second time.
    rig.post(&key, "leases/daily/release", json!({ "token": first["token"] })).await.ok();
    let lost = rig.attempt(&key, "try-1", "leases/daily/acquire", body.clone()).await.refused(409, "lost");
    assert_eq!(lost["seen_epoch"], 1);
    for wrong in ["", "a b", "é", &"x".repeat(201)] {
        let request = rig.request(Method::POST, &key, "leases/daily/acquire").header("Idempotency-Key", wrong);
        let refused = answer(request.body(body.to_string())).await.refused(400, "invalid");
        assert_eq!(refused["field"], "Idempotency-Key");
    }
}

#[tokio::test]
async fn an_acquisition_that_is_no_longer_remembered_is_unknown() {
    let rig = Rig::start().await;
    let key = rig.key("hold", &["*"]).await;
    let body = json!({ "ttl": "90s", "since_epoch": 0 });
    let first = rig.attempt(&key, "old", "leases/daily/acquire", body.clone()).await.ok();
    rig.post(&key, "leases/daily/release", json!({ "token": first["token"] })).await.ok();
    rig.attempt(&key, "old", "leases/daily/acquire", body.clone()).await.refused(409, "lost");
    for _ in 0..80 {
        let granted = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
        rig.post(&key, "leases/daily/release", json!({ "token": granted["token"] })).await.ok();
    }
    let unknown = rig.attempt(&key, "old", "leases/daily/acquire", body).await.refused(409, "no_longer_known");
    assert!(text(&unknown, "detail").contains("is not known"), "{unknown}");
    // One that was made since is still told apart.
    let now = json!({ "ttl": "90s", "since_epoch": 81 });
    assert_eq!(rig.attempt(&key, "new", "leases/daily/acquire", now).await.ok()["epoch"], 82);
}

#[tokio::test]
async fn a_waiter_is_woken_when_the_lease_is_released() {
    let rig = Arc::new(Rig::start().await);
    let key = rig.key("hold", &["*"]).await;
    let held = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let refused = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s", "wait": "50ms" })).await;
    refused.refused(409, "held");
    let waiter = tokio::spawn({
        let (rig, key) = (rig.clone(), key.clone());
        async move { rig.post(&key, "leases/daily/acquire", json!({ "ttl": "60s", "wait": "60s" })).await }
    });
    rig.until_waiting(1).await;
    rig.post(&key, "leases/daily/release", json!({ "token": held["token"] })).await.ok();
    let granted = tokio::time::timeout(Duration::from_secs(30), waiter).await.unwrap().unwrap().ok();
    assert_eq!((granted["epoch"].as_u64(), granted["ttl_ms"].as_u64()), (Some(2), Some(60_000)));
    let too_long = rig.post(&key, "leases/x/acquire", json!({ "ttl": "90s", "wait": "11m" })).await;
    assert_eq!(too_long.refused(400, "invalid")["field"], "wait");
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing_held() {
    let rig = Arc::new(Rig::start().await);
    let key = rig.all().await;
    let held = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    for _ in 0..3 {
        let waiter = tokio::spawn({
            let (rig, key) = (rig.clone(), key.clone());
            async move { rig.post(&key, "leases/daily/acquire", json!({ "ttl": "1h", "wait": "60s" })).await }
        });
        rig.until_waiting(1).await;
        waiter.abort();
        rig.until_waiting(0).await;
    }
    rig.post(&key, "leases/daily/release", json!({ "token": held["token"] })).await.ok();
    let seen = rig.get(&key, "leases/daily").await.ok();
    assert_eq!((seen["state"].as_str(), seen["epoch"].as_u64()), (Some("free"), Some(1)));
}

#[tokio::test]
async fn a_waiter_is_told_when_its_key_is_revoked() {
    let rig = Arc::new(Rig::start().await);
    let (key, other) = (rig.key("hold", &["*"]).await, rig.secret("team", "hold", &["*"]).await);
    rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    let waiter = tokio::spawn({
        let (rig, key) = (rig.clone(), other.reveal().to_owned());
        async move { rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s", "wait": "60s" })).await }
    });
    rig.until_waiting(1).await;
    let (by, why) = ("a test".parse().unwrap(), "enough".parse().unwrap());
    rig.keys.revoke(&other.id(), &by, &why).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), waiter).await.unwrap().unwrap().refused(401, "key_revoked");
}

#[tokio::test]
async fn a_slot_is_claimed_once() {
    let rig = Rig::start().await;
    let key = rig.key("hold,read", &["*"]).await;
    let body = json!({ "ttl": "90s", "slot": "2020-11-18T03:00:00Z" });
    let granted = rig.post(&key, "leases/report/acquire", body.clone()).await.ok();
    rig.post(&key, "leases/report/release", json!({ "token": granted["token"], "outcome": "failed" })).await.ok();
    rig.post(&key, "leases/report/acquire", body.clone()).await.refused(409, "already_run");
    let again = json!({ "ttl": "90s", "slot": "2020-11-18T03:00:00Z", "after_failure": "retry" });
    let granted = rig.post(&key, "leases/report/acquire", again).await.ok();
    rig.post(&key, "leases/report/release", json!({ "token": granted["token"] })).await.ok();
    let seen = rig.get(&key, "leases/report").await.ok();
    assert_eq!((seen["slot"]["state"].as_str(), seen["slot"]["epoch"].as_u64()), (Some("done"), Some(2)));
    assert_eq!(seen["slot"]["at"]["at"], "2020-11-18T03:00:00.000Z");
    let wrong = rig.post(&key, "leases/report/acquire", json!({ "ttl": "90s", "slot": "yesterday" })).await;
    assert_eq!(wrong.refused(400, "invalid")["field"], "slot");
}

#[tokio::test]
async fn a_slot_that_is_still_far_ahead_is_refused_and_jams_nothing() {
    let rig = Rig::start().await;
    let key = rig.key("hold,read", &["*"]).await;
    let ahead = json!({ "ttl": "5s", "slot": "2336-01-01T00:00:00Z" });
    let refused = rig.post(&key, "leases/report/acquire", ahead.clone()).await.refused(400, "invalid");
    let detail = text(&refused, "detail");
    assert!(detail.contains("slot 2336-01-01T00:00:00Z is in the future; it is 2"), "{detail}");
    assert_eq!(refused["field"], "slot");
    rig.attempt(&key, "a", "leases/report/acquire", ahead).await.refused(400, "invalid");
    assert_eq!(rig.get(&key, "leases/report").await.ok()["epoch"], 0);
    // A trigger may fire a little early.
    let seen = rig.get(&key, "leases/report").await.ok();
    let soon = Timestamp::from_millis(seen["now"]["ms"].as_u64().unwrap() + 60_000);
    let slot = leasehold_work::schedule::slot_text(Slot(soon));
    rig.post(&key, "leases/report/acquire", json!({ "ttl": "90s", "slot": slot })).await.ok();
}

#[tokio::test]
async fn what_is_wrong_with_a_body_is_named_by_its_field() {
    let rig = Rig::start().await;
    let key = rig.key("hold", &["*"]).await;
    for (body, field) in [
        (json!({}), "ttl"),
        (json!({ "ttl": 90 }), "ttl"),
        (json!({ "ttl": "90" }), "ttl"),
        (json!({ "ttl": "25h" }), "ttl"),
        (json!({ "ttl": "90s", "tll": 1 }), "tll"),
        (json!({ "ttl": "90s", "wait": "soon" }), "wait"),
        (json!({ "ttl": "90s", "label": "two\nlines" }), "label"),
        (json!({ "ttl": "90s", "since_epoch": -1 }), "since_epoch"),
        (json!({ "ttl": "90s", "after_failure": "maybe" }), "after_failure"),
    ] {
        let refused = rig.post(&key, "leases/daily/acquire", body.clone()).await.refused(400, "invalid");
        assert_eq!(refused["field"], field, "{body}: {refused}");
    }
    let other = rig.post(&key, "leases/other/acquire", json!({ "ttl": "90s" })).await.ok();
    let refused =
        rig.post(&key, "leases/daily/renew", json!({ "token": other["token"] })).await.refused(400, "invalid");
    assert_eq!(refused["field"], "token");
    let refused = rig.post(&key, "leases/daily/renew", json!({ "token": "daily:1" })).await.refused(400, "invalid");
    assert_eq!(refused["field"], "token");
}

#[tokio::test]
async fn listings_are_filtered_bounded_and_continue_by_their_cursor() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    for n in 0..25 {
        let folder = if n % 2 == 0 { "even" } else { "odd" };
        rig.post(&key, &format!("leases/{folder}~{n:02}/acquire"), json!({ "ttl": "90s" })).await.ok();
    }
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = rig.get(&key, &format!("leases?limit=4{cursor}")).await.ok();
        let page_names = page["leases"].as_array().unwrap().iter().map(|lease| text(lease, "name").to_owned());
        names.extend(page_names);
        assert!(page["leases"].as_array().unwrap().len() <= 4);
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names.len(), 25);
    assert!(names.is_sorted());
    let listed = |answer: Value| answer["leases"].as_array().unwrap().len();
    assert_eq!(listed(rig.get(&key, "leases?name=odd/*").await.ok()), 12);
    assert_eq!(listed(rig.get(&key, "leases?name=*/0?&state=held").await.ok()), 10);
    assert_eq!(listed(rig.get(&key, "leases?state=free").await.ok()), 0);
    // Others see what their keys are for, and nothing else.
    let narrow = rig.key("read", &["odd/1*"]).await;
    let seen = rig.get(&narrow, "leases").await.ok();
    assert_eq!(listed(seen.clone()), 5);
    assert!(!seen.to_string().contains("even"));
    for (query, field) in
        [("limit=0", "limit"), ("limit=x", "limit"), ("state=gone", "state"), ("cursor=!", "cursor"), ("x=1", "x")]
    {
        let refused = rig.get(&key, &format!("leases?{query}")).await.refused(400, "invalid");
        assert_eq!(refused["field"], field, "{refused}");
    }
}

#[tokio::test]
async fn what_lies_before_the_names_of_a_key_costs_its_listings_nothing() {
    let rig = Rig::start().await;
    let leases = rig.leases().await;
    // More than one request reads, of leases and of queues.
    for number in 0..5_001 {
        let ask = Ask::new(HolderId::new(None), "90s".parse().unwrap());
        leases.acquire(&format!("team-a/{number:05}").parse().unwrap(), &ask).await.unwrap();
    }
    let all = rig.all().await;
    for number in 0..45 {
        rig.post(&all, &format!("queues/a-{number}/items"), json!({ "items": [{}] })).await.ok();
    }
    rig.post(&all, "leases/team-z~own/acquire", json!({ "ttl": "90s" })).await.ok();
    rig.post(&all, "queues/z/items", json!({ "items": [{}] })).await.ok();
    let narrow = rig.key("read", &["team-z/*", "z"]).await;
    let listed = rig.get(&narrow, "leases").await.ok();
    assert_eq!((text(&listed["leases"][0], "name"), listed.get("next")), ("team-z/own", None), "{listed}");
    let listed = rig.get(&narrow, "queues?limit=1").await.ok();
    assert_eq!(listed, json!({ "queues": ["z"] }));
}

#[tokio::test]
async fn a_reader_sees_neither_token_nor_nonce() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let reader = rig.key("read", &["*"]).await;
    let first = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s" })).await.ok();
    rig.post(&key, "leases/daily/release", json!({ "token": first["token"] })).await.ok();
    let second = rig.post(&key, "leases/daily/acquire", json!({ "ttl": "90s", "label": "box-2" })).await.ok();
    for path in ["leases", "leases/daily", "leases/daily/history"] {
        let seen = rig.get(&reader, path).await.ok().to_string();
        for granted in [&first, &second] {
            assert!(!seen.contains(nonce_of(granted)) && !seen.contains(text(granted, "token")), "{path}");
        }
    }
    let history = rig.get(&reader, "leases/daily/history").await.ok();
    let transfers = history["transfers"].as_array().unwrap();
    assert_eq!((transfers[0]["epoch"].as_u64(), transfers[1]["outcome"].as_str()), (Some(2), Some("succeeded")));
    assert_eq!((transfers[0]["to"]["label"].as_str(), &history["more"]), (Some("box-2"), &json!(false)));
    let older = rig.get(&reader, "leases/daily/history?before=2&limit=1").await.ok();
    assert_eq!(older["transfers"][0]["epoch"], 1);
}

#[tokio::test]
async fn a_key_that_acquired_something_else_is_refused() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let slot = |at: &str| json!({ "ttl": "60s", "slot": at });
    rig.attempt(&key, "s", "leases/job/acquire", json!({ "ttl": "60s" })).await.ok();
    rig.attempt(&key, "s", "leases/job/acquire", json!({ "ttl": "60s" })).await.ok();
    for other in [slot("2020-11-18T03:00:00Z"), json!({ "ttl": "600s" })] {
        rig.attempt(&key, "s", "leases/job/acquire", other).await.refused(409, "key_reused");
    }
    rig.attempt(&key, "t", "leases/nightly/acquire", slot("2020-11-18T03:00:00Z")).await.ok();
    rig.attempt(&key, "t", "leases/nightly/acquire", slot("2020-11-18T03:00:00Z")).await.ok();
    rig.attempt(&key, "t", "leases/nightly/acquire", slot("2020-11-19T03:00:00Z")).await.refused(409, "key_reused");
}

#[tokio::test]
async fn a_number_that_no_epoch_can_be_is_refused_wherever_it_is_asked_for() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    for path in ["leases/daily/history?before=", "jobs/daily/logs?epoch="] {
        for (number, status) in [(9_007_199_254_740_991_u64, 200), (9_007_199_254_740_992, 400), (u64::MAX, 400)] {
            let answer = rig.get(&key, &format!("{path}{number}")).await;
            assert_eq!(answer.status, status, "{path}{number}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn an_item_is_not_reached_by_the_addresses_of_leases() {
    let rig = Rig::start().await;
    let all = rig.all().await;
    rig.post(&all, "queues/mail/items", json!({ "items": [{ "key": "7" }] })).await.ok();
    let claimed = rig.post(&all, "queues/mail/claim", json!({ "ttl": "60s" })).await.ok();
    let token = text(&claimed["items"][0], "token").to_owned();
    let holder = rig.key("hold", &["*"]).await;
    for (operation, more) in [
        ("progress", json!({ "marker": "forged" })),
        ("checkpoint", json!({ "checkpoint": "forged" })),
        ("renew", json!({})),
        ("release", json!({})),
    ] {
        let mut body = more;
        body["token"] = token.clone().into();
        let refused =
            rig.post(&holder, &format!("leases/queue~mail~k.7/{operation}"), body).await.refused(400, "invalid");
        assert!(text(&refused, "detail").contains("items of queues"), "{refused}");
    }
    let item = rig.get(&all, "queues/mail/items/k.7").await.ok();
    assert!(!item.to_string().contains("forged"), "{item}");
}
