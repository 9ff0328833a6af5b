//! Every route, with every kind of key: nothing passes that should not.

use crate::rig::Rig;
use leasehold_server::access::{KeyId, NewKey, Scope, Verb, VerbSet};
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// What a route is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// One name, which the key must be for.
    Name,
    /// All names: what the key is not for is left out of the answer.
    Listing,
}

/// Every route, the verb that it needs, and what it is about. One that is missing here fails the test.
const TABLE: &[(&str, &str, Verb, About)] = &[
    ("get", "leases", Verb::Read, About::Listing),
    ("get", "leases/{name}", Verb::Read, About::Name),
    ("get", "leases/{name}/history", Verb::Read, About::Name),
    ("post", "leases/{name}/acquire", Verb::Hold, About::Name),
    ("post", "leases/{name}/renew", Verb::Hold, About::Name),
    ("post", "leases/{name}/release", Verb::Hold, About::Name),
    ("post", "leases/{name}/progress", Verb::Hold, About::Name),
    ("post", "leases/{name}/checkpoint", Verb::Hold, About::Name),
    ("post", "leases/{name}/revoke", Verb::Operate, About::Name),
    ("post", "leases/{name}/hand-off", Verb::Operate, About::Name),
    ("post", "leases/{name}/drain", Verb::Operate, About::Name),
    ("post", "leases/{name}/pause", Verb::Operate, About::Name),
    ("post", "leases/{name}/resume", Verb::Operate, About::Name),
    ("post", "leases/{name}/advance", Verb::Operate, About::Name),
    ("get", "queues", Verb::Read, About::Listing),
    ("get", "queues/{queue}", Verb::Read, About::Name),
    ("get", "queues/{queue}/items", Verb::Read, About::Name),
    ("post", "queues/{queue}/items", Verb::Work, About::Name),
    ("get", "queues/{queue}/items/{id}", Verb::Read, About::Name),
    ("post", "queues/{queue}/claim", Verb::Work, About::Name),
    ("post", "queues/{queue}/items/{id}/renew", Verb::Work, About::Name),
    ("post", "queues/{queue}/items/{id}/progress", Verb::Work, About::Name),
    ("post", "queues/{queue}/items/{id}/complete", Verb::Work, About::Name),
    ("post", "queues/{queue}/items/{id}/fail", Verb::Work, About::Name),
    ("post", "queues/{queue}/items/{id}/give-back", Verb::Work, About::Name),
    ("post", "queues/{queue}/items/{id}/retry", Verb::Operate, About::Name),
    ("post", "queues/{queue}/items/{id}/cancel", Verb::Operate, About::Name),
    ("post", "queues/{queue}/items/{id}/hand-off", Verb::Operate, About::Name),
    ("post", "queues/{queue}/bulk/count", Verb::Operate, About::Name),
    ("post", "queues/{queue}/bulk/retry", Verb::Operate, About::Name),
    ("post", "queues/{queue}/bulk/purge", Verb::Operate, About::Name),
    ("get", "jobs", Verb::Read, About::Listing),
    ("get", "jobs/{name}", Verb::Read, About::Name),
    ("get", "jobs/{name}/next", Verb::Read, About::Name),
    ("get", "jobs/{name}/runs", Verb::Read, About::Name),
    ("get", "jobs/{name}/logs", Verb::Read, About::Name),
    ("post", "jobs/{name}/pause", Verb::Operate, About::Name),
    ("post", "jobs/{name}/resume", Verb::Operate, About::Name),
    ("post", "jobs/{name}/trigger", Verb::Operate, About::Name),
    ("get", "events", Verb::Read, About::Listing),
    ("get", "fences/{name}", Verb::Read, About::Name),
    ("post", "fences/{name}/seal", Verb::Hold, About::Name),
    ("post", "fences/{name}/admit", Verb::Hold, About::Name),
];

/// Every route about keys: `keys.rs` has the same table for these, because what they are about is a key and not a name.
const KEYS: &[(&str, &str)] =
    &[("get", "/v1/keys"), ("post", "/v1/keys"), ("post", "/v1/keys/{id}/rotate"), ("post", "/v1/keys/{id}/revoke")];

const BELOW: &str = "/v1/ns/{namespace}/";

/// Every route that needs no key: what it is given decides, and a key adds nothing.
const OPEN: &[(&str, &str)] = &[("post", "/v1/exchange")];

fn described() -> BTreeSet<(String, String)> {
    let api: Value = serde_json::from_str(&leasehold_server::api::document()).unwrap();
    let paths = api["paths"].as_object().unwrap().iter();
    let routes = paths.flat_map(|(path, methods)| {
        let path = path.strip_prefix(BELOW).unwrap_or(path);
        methods.as_object().unwrap().keys().map(move |method| (method.clone(), path.to_owned()))
    });
    routes.collect()
}

#[test]
fn every_route_has_a_row() {
    let keyed = TABLE.iter().map(|(method, path, ..)| (*method, *path));
    let keyed = keyed.chain(KEYS.iter().copied());
    let rows = keyed.chain(OPEN.iter().copied()).map(|(method, path)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(described(), rows);
    let api: Value = serde_json::from_str(&leasehold_server::api::document()).unwrap();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let is_open = operation["security"].as_array().is_some_and(Vec::is_empty);
            assert_eq!(is_open, OPEN.contains(&(method, path)), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn what_needs_no_key_gives_nothing_to_those_who_have_one() {
    let rig = Rig::start().await;
    for verb in Verb::ALL {
        let key = rig.key_in("*", verb.as_str(), &["*"]).await;
        for (method, path) in OPEN {
            let method: Method = method.to_uppercase().parse().unwrap();
            for key in ["", "lh_w_x", &key] {
                let request = Client::new().request(method.clone(), format!("{}{path}", rig.base));
                let request = if key.is_empty() { request } else { request.bearer_auth(key) };
                // This server has no rules.
                let response = request.body("{\"token\":\"a.b.c\"}").send().await.unwrap();
                assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method} {path} by a key for {verb}");
            }
        }
    }
}

/// What became of a request.
async fn ask(rig: &Rig, method: &str, path: &str, key: &str) -> (StatusCode, String) {
    let path = path.replace("{name}", "mine").replace("{queue}", "mine").replace("{id}", "k.mine");
    let method: Method = method.to_uppercase().parse().unwrap();
    let url = format!("{}/v1/ns/team/{path}", rig.base);
    let request = Client::new().request(method, url);
    let request = if key.is_empty() { request } else { request.bearer_auth(key) };
    let response = request.send().await.unwrap();
    let status = response.status();
    let is_stream = response.headers()["content-type"] == "text/event-stream";
    (status, if is_stream { String::new() } else { response.text().await.unwrap() })
}

#[tokio::test]
async fn a_key_does_what_it_is_for_and_nothing_else() {
    let rig = Rig::start().await;
    for granted in Verb::ALL {
        let verb = granted.as_str();
        let right = rig.key(verb, &["mine"]).await;
        let wrong_name = rig.key(verb, &["other", "min", "mine?"]).await;
        let wrong_namespace = rig.key_in("team2", verb, &["*"]).await;
        for (method, path, needed, about) in TABLE {
            let asked = format!("{method} {path} by a key for {verb}");
            let (status, body) = ask(&rig, method, path, &right).await;
            let is_allowed = status != StatusCode::FORBIDDEN && status != StatusCode::UNAUTHORIZED;
            assert_eq!(is_allowed, granted == *needed, "{asked}: {status} {body}");
            assert!(!status.is_server_error(), "{asked}: {status} {body}");
            let (status, body) = ask(&rig, method, path, &wrong_namespace).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{asked}, wrong namespace: {body}");
            let (status, body) = ask(&rig, method, path, &wrong_name).await;
            let is_listed = granted == *needed && *about == About::Listing;
            let expected = if is_listed { StatusCode::OK } else { StatusCode::FORBIDDEN };
            assert_eq!(status, expected, "{asked}, wrong name: {body}");
            assert!(!body.contains("\"mine\""), "{asked}, wrong name: {body}");
        }
    }
}

#[tokio::test]
async fn nobody_passes_without_a_key_that_counts() {
    let rig = Rig::start().await;
    let revoked = rig.secret("team", "read,hold,work,operate,admin", &["*"]).await;
    let why = "enough".parse().unwrap();
    rig.keys.revoke(&revoked.id(), &"a test".parse().unwrap(), &why).await.unwrap();
    let wanted = NewKey {
        label: "old".parse().unwrap(),
        scope: Scope::new("team".parse().unwrap(), vec!["*".parse().unwrap()], VerbSet::ALL).unwrap(),
        lasts: Some(Duration::from_millis(1)),
        not_after: None,
        by: "a test".parse().unwrap(),
    };
    let expired = rig.keys.create(wanted).await.unwrap().0;
    let unknown = rig.secret("team", "read", &["*"]).await.reveal().to_owned();
    let (head, body) = unknown.split_at(13);
    let mistyped = format!("{head}{}", body.chars().rev().collect::<String>());
    assert_eq!(revoked.id().to_string().parse::<KeyId>().unwrap(), revoked.id());
    for (method, path, ..) in TABLE {
        for (key, kind) in [
            ("", "key_missing"),
            ("lh_w_x", "key_malformed"),
            (&mistyped, "key_malformed"),
            (revoked.reveal(), "key_revoked"),
            (expired.reveal(), "key_expired"),
        ] {
            let (status, body) = ask(&rig, method, path, key).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path} {kind}: {body}");
            assert!(body.contains(&format!("\"kind\":\"{kind}\"")), "{method} {path} {kind}: {body}");
        }
    }
}

#[tokio::test]
async fn the_description_is_served_and_the_copy_in_docs_is_the_same() {
    let rig = Rig::start().await;
    let key = rig.key("hold", &["x"]).await;
    let url = format!("{}/v1/openapi.json", rig.base);
    let response = Client::new().get(&url).bearer_auth(&key).send().await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["content-type"]),
        (StatusCode::OK, &"application/json".parse().unwrap())
    );
    let served = response.text().await.unwrap();
    assert_eq!(Client::new().get(&url).send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        std::fs::write(path, &served).unwrap();
    }
    let copy = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        copy == served,
        "docs/openapi.json is not what is served; run this test with LEASEHOLD_BLESS=1 and look at the change"
    );
    let api: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(api["openapi"], "3.1.0");
    let mut names = BTreeSet::new();
    for methods in api["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()), "{operation}");
        }
    }
    check_references(&api, &api);
}

/// Every reference leads somewhere.
fn check_references(api: &Value, value: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                let found = api.pointer(reference.strip_prefix('#').unwrap());
                assert!(found.is_some(), "{reference}");
            }
            fields.values().for_each(|value| check_references(api, value));
        }
        Value::Array(values) => values.iter().for_each(|value| check_references(api, value)),
        _ => {}
    }
}
