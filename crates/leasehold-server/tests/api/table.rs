//! What needs no key, and the description of the API. Which key may do what is in one table, beside the router.

use crate::rig::Rig;
use leasehold_server::access::Verb;
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use std::collections::BTreeSet;

/// Every route that needs no key: what it is given decides, and a key adds nothing.
const OPEN: &[(&str, &str)] = &[("post", "/v1/exchange")];

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
