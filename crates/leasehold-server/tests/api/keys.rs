//! Keys that make keys: never more than themselves.

use crate::rig::{Answer, Rig, answer, text};
use leasehold_server::access::{NewKey, Scope, Verb, VerbSet};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);
const ALL: &str = "read,hold,work,operate,admin";

async fn ask(rig: &Rig, method: Method, key: &str, path: &str, body: Value) -> Answer {
    let request = rig.client.request(method, format!("{}/v1/keys{path}", rig.base)).bearer_auth(key);
    answer(request.body(body.to_string())).await
}

async fn make(rig: &Rig, key: &str, body: Value) -> Answer {
    ask(rig, Method::POST, key, "", body).await
}

async fn list(rig: &Rig, key: &str) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = ask(rig, Method::GET, key, &format!("?limit=2{cursor}"), json!({})).await.ok();
        ids.extend(page["keys"].as_array().unwrap().iter().map(|key| text(key, "id").to_owned()));
        let Some(next) = page["next"].as_str() else { return ids };
        cursor = format!("&cursor={next}");
    }
}

/// A key that ends after an hour.
async fn short(rig: &Rig) -> String {
    let scope = Scope::new("team".parse().unwrap(), vec!["*".parse().unwrap()], VerbSet::ALL).unwrap();
    let (label, by) = ("short".parse().unwrap(), "a test".parse().unwrap());
    let wanted = NewKey { label, scope, lasts: Some(HOUR), not_after: None, by };
    rig.keys.create(wanted).await.unwrap().0.reveal().to_owned()
}

#[tokio::test]
async fn a_key_is_made_listed_replaced_and_ended() {
    let rig = Rig::start().await;
    let admin = rig.key(ALL, &["*"]).await;
    let wanted = json!({ "label": "CI runners", "namespace": "team", "names": ["deploy/*"], "allows": ["read", "hold"], "lasts": "30d" });
    let made = make(&rig, &admin, wanted).await.ok();
    let (key, id) = (text(&made, "key"), text(&made, "id"));
    assert!(key.starts_with(&format!("lh_w_{id}")), "{made}");
    assert_eq!((text(&made, "label"), &made["allows"]), ("CI runners", &json!(["read", "hold"])));
    assert!(text(&made, "created_by").starts_with("tester (key "), "{made}");
    rig.post(key, "leases/deploy~web/acquire", json!({ "ttl": "60s" })).await.ok();
    rig.post(key, "leases/other/acquire", json!({ "ttl": "60s" })).await.refused(403, "not_allowed");
    let listed = list(&rig, &admin).await;
    assert!(listed.contains(&id.to_owned()) && listed.len() == 2, "{listed:?}");
    let new = ask(&rig, Method::POST, &admin, &format!("/{id}/rotate"), json!({ "overlap": "0s" })).await.ok();
    assert_eq!((&new["names"], text(&new, "rotated_from")), (&json!(["deploy/*"]), id));
    rig.get(text(&new, "key"), "leases/deploy~web").await.ok();
    let why = json!({ "why": "the laptop was stolen" });
    let ended = ask(&rig, Method::POST, &admin, &format!("/{}/revoke", text(&new, "id")), why).await.ok();
    assert_eq!((text(&ended, "state"), text(&ended["revoked"], "why")), ("revoked", "the laptop was stolen"));
    let all = ask(&rig, Method::GET, &admin, "", json!({})).await.ok();
    assert!(!all.to_string().contains("lh_"), "no listing shows a key: {all}");
    ask(&rig, Method::POST, &admin, "/nosuchky/revoke", json!({ "why": "x" })).await.refused(404, "not_found");
    ask(&rig, Method::POST, &admin, "/%ff%fe/revoke", json!({ "why": "x" })).await.refused(404, "not_found");
    ask(&rig, Method::POST, &admin, "/..%2F/revoke", json!({ "why": "x" })).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_key_makes_none_that_may_do_more_than_itself() {
    let rig = Rig::start().await;
    let admin = rig.key("read,hold,admin", &["mine/*"]).await;
    let wanted = |namespace: &str, names: Value, allows: Value| json!({ "label": "x", "namespace": namespace, "names": names, "allows": allows });
    make(&rig, &admin, wanted("team", json!(["mine/a*", "mine/b"]), json!(["hold", "admin"]))).await.ok();
    for (namespace, names, allows) in [
        ("team2", json!(["mine/a"]), json!(["read"])),
        ("*", json!(["mine/a"]), json!(["read"])),
        ("team", json!(["mine/a", "other"]), json!(["read"])),
        ("team", json!(["*"]), json!(["read"])),
        ("team", json!(["mine*"]), json!(["read"])),
        ("team", json!(["mine/?*", "m*"]), json!(["read"])),
        ("team", json!(["mine/a"]), json!(["read", "work"])),
        ("team", json!(["mine/a"]), json!(["operate"])),
    ] {
        let refused = make(&rig, &admin, wanted(namespace, names, allows)).await.refused(403, "not_allowed");
        assert!(text(&refused, "detail").contains("it allows read,hold,admin on mine/* in team"), "{refused}");
    }
    // Without names it is for all of them.
    make(&rig, &admin, json!({ "label": "x", "namespace": "team", "allows": ["read"] }))
        .await
        .refused(403, "not_allowed");
    make(&rig, &admin, wanted("team", json!([]), json!(["read"]))).await.refused(400, "invalid");
    make(&rig, &admin, wanted("team", json!(["mine/a"]), json!([]))).await.refused(400, "invalid");
    make(&rig, &admin, wanted("team", json!(["mine/a"]), json!(["rule"]))).await.refused(400, "invalid");
    make(&rig, &admin, wanted("leasehold-server", json!(["mine/a"]), json!(["read"]))).await.refused(400, "invalid");
    make(&rig, &admin, json!({})).await.refused(400, "invalid");
}

#[tokio::test]
async fn a_key_makes_none_that_lasts_longer_than_itself() {
    let rig = Rig::start().await;
    let admin = short(&rig).await;
    let end = rig.keys.one(&admin[5..13].parse().unwrap()).await.unwrap().expires.unwrap().as_millis();
    let wanted = |lasts: Value| json!({ "label": "x", "namespace": "team", "allows": ["read"], "lasts": lasts });
    make(&rig, &admin, wanted(json!("2h"))).await.refused(403, "not_allowed");
    make(&rig, &admin, wanted(json!("0s"))).await.refused(400, "invalid");
    let made = make(&rig, &admin, wanted(json!("30m"))).await.ok();
    assert!(made["expires"]["ms"].as_u64().unwrap() < end, "{made}");
    let made = make(&rig, &admin, wanted(Value::Null)).await.ok();
    assert_eq!(made["expires"]["ms"], end, "it ends with the key that made it");
    // Nor does it by replacing itself, again and again.
    let own = &admin[5..13];
    ask(&rig, Method::POST, &admin, &format!("/{own}/rotate"), json!({ "lasts": "3h" }))
        .await
        .refused(403, "not_allowed");
    let new = ask(&rig, Method::POST, &admin, &format!("/{own}/rotate"), json!({})).await.ok();
    assert_eq!(new["expires"]["ms"], end);
}

#[tokio::test]
async fn every_route_of_keys_needs_admin_and_reaches_only_what_is_its_own() {
    let rig = Rig::start().await;
    let target = rig.secret("team", "read,hold", &["mine"]).await;
    let (id, roaming) = (target.id().to_string(), rig.secret("*", "read", &["mine"]).await.id().to_string());
    let bodies = |id: &str| {
        let wanted = json!({ "label": "x", "namespace": "team", "names": ["mine"], "allows": ["read", "hold"] });
        [
            (Method::POST, String::new(), wanted),
            (Method::POST, format!("/{id}/rotate"), json!({})),
            (Method::POST, format!("/{id}/revoke"), json!({ "why": "enough" })),
        ]
    };
    for verb in Verb::ALL.into_iter().filter(|verb| *verb != Verb::Admin) {
        let key = rig.key(verb.as_str(), &["*"]).await;
        ask(&rig, Method::GET, &key, "", json!({})).await.refused(403, "not_allowed");
        for (method, path, body) in bodies(&id) {
            let refused = ask(&rig, method, &key, &path, body).await.refused(403, "not_allowed");
            assert!(text(&refused, "detail").contains("does not allow `admin`"), "{refused}");
        }
    }
    let wrong_namespace = rig.key_in("team2", ALL, &["*"]).await;
    let wrong_name = rig.key(ALL, &["other", "min", "mine?"]).await;
    for key in [&wrong_namespace, &wrong_name] {
        assert!(!list(&rig, key).await.contains(&id));
        for (at, (method, path, body)) in bodies(&id).into_iter().enumerate() {
            // Of a key that it is not to know of it does not learn that it is there.
            let (status, kind) = if at == 0 { (403, "not_allowed") } else { (404, "not_found") };
            ask(&rig, method, key, &path, body).await.refused(status, kind);
        }
        // Nor by the place at which a page ends.
        let mut cursor = String::new();
        loop {
            let page = ask(&rig, Method::GET, key, &format!("?limit=1{cursor}"), json!({})).await.ok();
            assert!(!page.to_string().contains(&id) && !page.to_string().contains(&roaming), "{page}");
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
    }
    // Its own namespace, but not every one.
    let own = rig.key(ALL, &["*"]).await;
    let listed = list(&rig, &own).await;
    assert!(listed.contains(&id) && !listed.contains(&roaming), "{listed:?}");
    for (method, path, body) in bodies(&roaming).into_iter().skip(1) {
        ask(&rig, method, &own, &path, body).await.refused(404, "not_found");
    }
    // Who may do less can end it, and cannot have it.
    let guard = rig.key("admin", &["*"]).await;
    ask(&rig, Method::POST, &guard, &format!("/{id}/rotate"), json!({})).await.refused(403, "not_allowed");
    for key in ["lh_w_x", ""] {
        for (method, path, body) in bodies(&id) {
            let request = rig.client.request(method, format!("{}/v1/keys{path}", rig.base));
            let request = if key.is_empty() { request } else { request.bearer_auth(key) };
            let refused = answer(request.body(body.to_string())).await;
            refused.refused(401, if key.is_empty() { "key_missing" } else { "key_malformed" });
        }
    }
    ask(&rig, Method::POST, &guard, &format!("/{id}/revoke"), json!({ "why": "enough" })).await.ok();
    for (method, path, body) in bodies(&id) {
        ask(&rig, method, target.reveal(), &path, body).await.refused(401, "key_revoked");
    }
}

#[tokio::test]
async fn a_place_in_one_listing_is_none_in_another_and_no_answer_tells_it() {
    let rig = Rig::start().await;
    let seen = rig.key("read,hold,work,admin", &["*"]).await;
    for number in 0..3 {
        let path = format!("leases/hidden-name-{number}/acquire");
        rig.post(&seen, &path, json!({ "ttl": "60s" })).await.ok();
        rig.post(&seen, &format!("queues/q{number}/items"), json!({ "items": [{}, {}] })).await.ok();
    }
    let leases = text(&rig.get(&seen, "leases?limit=1").await.ok(), "next").to_owned();
    let queues = text(&rig.get(&seen, "queues?limit=1").await.ok(), "next").to_owned();
    let items = text(&rig.get(&seen, "queues/q0/items?limit=1").await.ok(), "next").to_owned();
    let keys = rig.key_in("*", "read,admin", &["*"]).await;
    let elsewhere = rig.key_in("team2", "read", &["*"]).await;
    let listing = |key: String, path: String| {
        let request = rig.client.get(format!("{}{path}", rig.base)).bearer_auth(key);
        async { answer(request).await }
    };
    for (key, path, others) in [
        (&keys, "/v1/keys", [&leases, &queues, &items]),
        (&seen, "/v1/ns/team/leases", [&queues, &queues, &items]),
        (&seen, "/v1/ns/team/queues", [&leases, &leases, &items]),
        (&seen, "/v1/ns/team/queues/q1/items", [&leases, &queues, &items]),
        (&elsewhere, "/v1/ns/team2/leases", [&leases, &queues, &items]),
    ] {
        for cursor in others {
            let refused = listing(key.clone(), format!("{path}?cursor={cursor}")).await.refused(400, "invalid");
            let detail = text(&refused, "detail");
            assert_eq!(detail, "this cursor is not from this listing; start again without a cursor", "{path}");
        }
    }
    let own = listing(seen.clone(), format!("/v1/ns/team/leases?limit=1&cursor={leases}")).await.ok();
    assert_eq!(own["leases"][0]["name"], "hidden-name-1");
}
