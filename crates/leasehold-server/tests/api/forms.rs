//! The form of answers, and what is said of requests that are not in the right one.

use crate::rig::{Rig, answer, text};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn every_answer_is_a_line() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    for path in ["", "leases", "leases/x", "leases/x/none", "queues", "jobs"] {
        let answer = rig.request(Method::GET, &key, path).send().await.unwrap().text().await.unwrap();
        assert!(answer.ends_with("}\n") && answer.matches('\n').count() == 1, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_request_in_the_wrong_form_is_told_the_right_one() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let answer = rig.request(Method::GET, &key, "leases/x/acquire").send().await.unwrap();
    assert_eq!(answer.headers()["allow"], "POST");
    let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!(text(&body, "detail"), "this endpoint does not allow GET; use POST");
    let empty = rig.request(Method::POST, &key, "leases/x/acquire").send().await.unwrap().text().await.unwrap();
    let empty: Value = serde_json::from_str(&empty).unwrap();
    assert_eq!(text(&empty, "detail"), "the body is empty; send a JSON object");
    for (body, says) in [
        (json!({ "tll": "60s" }), "field `tll`: it is unknown, expected one of `ttl`"),
        (json!({}), "field `ttl`: it is missing"),
    ] {
        let refused = rig.post(&key, "leases/x/acquire", body).await.refused(400, "invalid");
        assert!(text(&refused, "detail").starts_with(says), "{refused}");
        assert!(!text(&refused, "detail").contains("field `tll`: unknown field"), "{refused}");
    }
}

#[tokio::test]
async fn a_body_that_says_it_is_packed_is_not_taken_as_it_comes() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let acquire = |coding: &str| {
        let request = rig.request(Method::POST, &key, "leases/x/acquire").body(json!({ "ttl": "60s" }).to_string());
        answer(request.header("content-encoding", coding))
    };
    for coding in ["gzip", "identity, gzip", ""] {
        let refused = acquire(coding).await.refused(415, "invalid");
        assert_eq!(text(&refused, "field"), "Content-Encoding");
    }
    assert_eq!(acquire("identity").await.ok()["epoch"], 1, "nothing was granted before");
}

#[tokio::test]
async fn a_checkpoint_leaves_the_marker_of_the_same_holder() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let token = text(&rig.post(&key, "leases/x/acquire", json!({ "ttl": "60s" })).await.ok(), "token").to_owned();
    rig.post(&key, "leases/x/progress", json!({ "token": token, "marker": "40 %" })).await.ok();
    rig.post(&key, "leases/x/checkpoint", json!({ "token": token, "checkpoint": "page 9" })).await.ok();
    let seen = rig.get(&key, "leases/x").await.ok();
    assert_eq!(
        (text(&seen["progress"], "marker"), text(&seen["progress"], "checkpoint")),
        ("40 %", "page 9"),
        "{seen}"
    );
    rig.post(&key, "leases/x/release", json!({ "token": token })).await.ok();
    // Another holder begins where this one came to, and has come nowhere itself.
    let next = text(&rig.post(&key, "leases/x/acquire", json!({ "ttl": "60s" })).await.ok(), "token").to_owned();
    rig.post(&key, "leases/x/checkpoint", json!({ "token": next, "checkpoint": "page 10" })).await.ok();
    let seen = rig.get(&key, "leases/x").await.ok();
    assert!(seen["progress"]["marker"].is_null() && seen["progress"]["checkpoint"] == "page 10", "{seen}");
}
