//! Every route of the router, with every kind of key: nothing passes that should not. A route without a row fails the test.

use super::router::router;
use super::tests::Bench;
use super::{Limits, Site};
use crate::access::{Denied, NewKey, Refused, Scope, Secret, Verb, VerbSet};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use leasehold_core::lease::protocol::Request as LeaseRequest;
use leasehold_core::wire::{Change, HeldRecord, Listing, Verb as Asked};
use leasehold_core::{Claim, Epoch, HolderId, Key, Lineage, Nonce, Shelf};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tower::ServiceExt;

/// What a key must be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Nothing: what it is given decides, and a key adds nothing.
    Nothing,
    /// Any key that counts.
    Key,
    /// Any key for the namespace. What it is not for is left out of the answer.
    Namespace,
    /// One of these verbs, on the name.
    Name(&'static [Verb]),
    /// All of these verbs, on the name.
    NameAll(&'static [Verb]),
    /// This verb. What the key is not for is left out of the answer.
    Listing(Verb),
    /// `admin`: which keys it reaches is decided for each (`tests/api/keys.rs`).
    Keys,
}

use Needs::{Keys, Listing as Listed, Name, NameAll, Namespace, Nothing};
use Verb::{Hold, Operate, Read, Work};

const R: Needs = Name(&[Read]);
const H: Needs = Name(&[Hold]);
const W: Needs = Name(&[Work]);
const O: Needs = Name(&[Operate]);
/// A page is looked at to give an order on it.
const RO: Needs = NameAll(&[Read, Operate]);
/// Whoever takes part in a lease looks at it.
const RHO: Needs = Name(&[Read, Hold, Operate]);

/// Every route, and what a key must be for.
const TABLE: &[(&str, &str, Needs)] = &[
    ("get", "/livez", Nothing),
    ("get", "/readyz", Nothing),
    ("get", "/v1/openapi.json", Needs::Key),
    ("post", "/v1/exchange", Nothing),
    ("get", "/v1/keys", Keys),
    ("post", "/v1/keys", Keys),
    ("post", "/v1/keys/{id}/rotate", Keys),
    ("post", "/v1/keys/{id}/revoke", Keys),
    ("get", "/v1/ns/{namespace}", Namespace),
    ("get", "/v1/ns/{namespace}/leases", Listed(Read)),
    ("get", "/v1/ns/{namespace}/leases/{name}", R),
    ("get", "/v1/ns/{namespace}/leases/{name}/history", R),
    ("post", "/v1/ns/{namespace}/leases/{name}/acquire", H),
    ("post", "/v1/ns/{namespace}/leases/{name}/renew", H),
    ("post", "/v1/ns/{namespace}/leases/{name}/release", H),
    ("post", "/v1/ns/{namespace}/leases/{name}/progress", H),
    ("post", "/v1/ns/{namespace}/leases/{name}/checkpoint", H),
    ("post", "/v1/ns/{namespace}/leases/{name}/revoke", O),
    ("post", "/v1/ns/{namespace}/leases/{name}/hand-off", O),
    ("post", "/v1/ns/{namespace}/leases/{name}/drain", O),
    ("post", "/v1/ns/{namespace}/leases/{name}/pause", O),
    ("post", "/v1/ns/{namespace}/leases/{name}/resume", O),
    ("post", "/v1/ns/{namespace}/leases/{name}/advance", O),
    ("get", "/v1/ns/{namespace}/queues", Listed(Read)),
    ("get", "/v1/ns/{namespace}/queues/{queue}", R),
    ("get", "/v1/ns/{namespace}/queues/{queue}/items", R),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items", W),
    ("get", "/v1/ns/{namespace}/queues/{queue}/items/{id}", R),
    ("post", "/v1/ns/{namespace}/queues/{queue}/claim", W),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/renew", W),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/progress", W),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/complete", W),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/fail", W),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/give-back", W),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/retry", O),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/cancel", O),
    ("post", "/v1/ns/{namespace}/queues/{queue}/items/{id}/hand-off", O),
    ("post", "/v1/ns/{namespace}/queues/{queue}/bulk/count", O),
    ("post", "/v1/ns/{namespace}/queues/{queue}/bulk/retry", O),
    ("post", "/v1/ns/{namespace}/queues/{queue}/bulk/purge", O),
    ("get", "/v1/ns/{namespace}/jobs", Listed(Read)),
    ("get", "/v1/ns/{namespace}/jobs/{name}", R),
    ("get", "/v1/ns/{namespace}/jobs/{name}/next", R),
    ("get", "/v1/ns/{namespace}/jobs/{name}/runs", R),
    ("get", "/v1/ns/{namespace}/jobs/{name}/logs", R),
    ("post", "/v1/ns/{namespace}/jobs/{name}/pause", O),
    ("post", "/v1/ns/{namespace}/jobs/{name}/resume", O),
    ("post", "/v1/ns/{namespace}/jobs/{name}/trigger", O),
    ("get", "/v1/ns/{namespace}/events", Listed(Read)),
    ("get", "/v1/ns/{namespace}/fences/{name}", R),
    ("post", "/v1/ns/{namespace}/fences/{name}/seal", H),
    ("post", "/v1/ns/{namespace}/fences/{name}/admit", H),
    // What each of these needs depends on the record and the verb in its body: `tests/remote.rs` has more of them.
    ("post", "/v1/ns/{namespace}/records/read", RHO),
    ("post", "/v1/ns/{namespace}/records/recall", RHO),
    ("post", "/v1/ns/{namespace}/records/list", Namespace),
    ("post", "/v1/ns/{namespace}/records/watch", RHO),
    ("post", "/v1/ns/{namespace}/records/change", H),
    ("post", "/v1/ns/{namespace}/records/hold", H),
    ("get", "/", Nothing),
    ("get", "/sign-in", Nothing),
    ("post", "/sign-in", Nothing),
    ("post", "/sign-out", Nothing),
    ("get", "/assets/{version}/{file}", Nothing),
    ("get", "/ns/{namespace}", Listed(Read)),
    ("get", "/ns/{namespace}/leases", Listed(Read)),
    ("get", "/ns/{namespace}/lease/{*name}", R),
    ("post", "/ns/{namespace}/lease/{*name}", RO),
    ("get", "/ns/{namespace}/queues", Listed(Read)),
    ("get", "/ns/{namespace}/queue/{queue}", R),
    ("get", "/ns/{namespace}/queue/{queue}/dead-letters", RO),
    ("post", "/ns/{namespace}/queue/{queue}/dead-letters", RO),
    ("get", "/ns/{namespace}/item/{queue}/{id}", R),
    ("post", "/ns/{namespace}/item/{queue}/{id}", RO),
    ("get", "/ns/{namespace}/jobs", Listed(Read)),
    ("get", "/ns/{namespace}/job/{*name}", R),
    ("post", "/ns/{namespace}/job/{*name}", RO),
    ("get", "/ns/{namespace}/health", Listed(Read)),
    ("get", "/ns/{namespace}/changes", Listed(Read)),
];

/// The routes of a router, as it says itself.
fn routes(router: &Router) -> BTreeSet<(String, String)> {
    let text = format!("{router:?}");
    let (routes, rest) = text.split_once("node: Node").expect("it has a node with its paths");
    let paths = rest.split("fallback_router").next().unwrap();
    let number = |text: &str| text.split_once(')').and_then(|(number, _)| number.parse::<usize>().ok());
    let methods = |id: usize| -> Vec<String> {
        let (_, own) = routes.split_once(&format!("RouteId({id}): ")).expect("each path has a route");
        let own = own.split("RouteId(").next().unwrap();
        assert!(own.starts_with("MethodRouter("), "{own}");
        let all = ["get", "delete", "options", "patch", "post", "put", "trace", "connect"];
        let is_there = |method: &&str| !own.split_once(&format!(" {method}: ")).unwrap().1.starts_with("None");
        all.into_iter().filter(is_there).map(str::to_owned).collect()
    };
    let mut found = BTreeSet::new();
    for part in paths.split("RouteId(").skip(1) {
        let (id, path) = (number(part).unwrap(), part.split('"').nth(1).unwrap());
        found.extend(methods(id).into_iter().map(|method| (method, path.to_owned())));
    }
    found
}

#[tokio::test]
async fn every_route_has_a_row_and_the_description_has_no_other() {
    let bench = Bench::new(Limits::default()).await;
    let rows: BTreeSet<_> = TABLE.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
    let routes = routes(&router(&bench.site, None));
    assert!(routes.len() > 60, "{routes:?}");
    assert_eq!(routes, rows);
    let api: Value = serde_json::from_str(&crate::api::document()).unwrap();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let row = TABLE.iter().find(|row| (row.0, row.1) == (method, path));
            let (.., needs) = row.unwrap_or_else(|| panic!("{method} {path} is described and not there"));
            let is_open = operation["security"].as_array().is_some_and(Vec::is_empty);
            assert_eq!(is_open, *needs == Nothing, "{method} {path}");
        }
    }
}

/// Whoever asks.
struct Asking<'a> {
    site: &'a Site,
    router: &'a Router,
}

impl Asking<'_> {
    /// What becomes of a request with this key, at a place named `mine`.
    async fn ask(&self, method: &str, path: &str, key: &str) -> (StatusCode, String) {
        let is_page = path.starts_with("/ns/");
        let address = path.replace("{namespace}", "team").replace("{*name}", "mine").replace("{name}", "mine");
        let address = address.replace("{queue}", "mine").replace("{id}", "k.mine");
        let mut request = Request::builder().method(&*method.to_uppercase()).uri(address);
        let mut token = String::new();
        if is_page || path.starts_with("/sign-") {
            request = request.header("sec-fetch-site", "same-origin");
        }
        if is_page && !key.is_empty() {
            let seal = self.site.seal().await.unwrap();
            let session = seal.close(key, self.site.keys().now().await.unwrap()).unwrap();
            token = seal.token(&session);
            request = request.header("cookie", format!("leasehold_session={session}"));
        } else if !key.is_empty() {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = match path.rsplit_once("/records/") {
            Some((_, operation)) => {
                request = request.header("content-type", "application/json");
                record(operation).to_string()
            }
            None if is_page && method == "post" => format!("token={token}&why=x&epoch=0&order=none"),
            None => String::new(),
        };
        let response = self.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = response.status();
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let is_stream = kind.is_some_and(|kind| kind == "text/event-stream" || kind == "application/octet-stream");
        let location = response.headers().get("location").map(|to| to.to_str().unwrap().to_owned());
        if is_stream {
            return (status, String::new());
        }
        let body = to_bytes(response.into_body(), 10_000_000).await.unwrap();
        (status, location.unwrap_or_default() + &String::from_utf8_lossy(&body))
    }
}

/// The body of a request about the record of lease `mine`.
fn record(operation: &str) -> Value {
    let record = Key::new(Shelf::Lease, &"mine".parse().unwrap());
    let claim = Claim { epoch: Epoch::new(1).unwrap(), nonce: Nonce::from_u128(7) };
    let change = |request: LeaseRequest| {
        serde_json::to_value(Change { record: record.clone(), expected: None, verb: Asked::Lease(request) }).unwrap()
    };
    let ttl = "60s".parse().unwrap();
    match operation {
        "list" => {
            let listing = Listing { shelf: Shelf::Lease, after: None, continued_from: None, skip: 0, limit: 10 };
            serde_json::to_value(listing).unwrap()
        }
        "recall" => serde_json::to_value(HeldRecord { record, claim }).unwrap(),
        "change" => change(LeaseRequest::Acquire {
            lineage: Lineage::from_u128(1),
            holder: HolderId::new(None),
            ttl,
            slot: None,
            spacing: None,
            requested: None,
        }),
        "hold" => change(LeaseRequest::Renew { claim, ttl, progress: None }),
        _ => serde_json::to_value(record).unwrap(),
    }
}

/// How such a request is refused.
fn is_refused(status: StatusCode, told: &str) -> bool {
    let is_sent_to_sign_in = status == StatusCode::SEE_OTHER && told.starts_with("/?next=");
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) || is_sent_to_sign_in
}

async fn key(bench: &Bench, namespace: &str, verbs: VerbSet, names: &[&str], lasts: Option<Duration>) -> Secret {
    let names = names.iter().map(|name| name.parse().unwrap()).collect();
    let scope = Scope::new(namespace.parse().unwrap(), names, verbs).unwrap();
    let (label, by) = ("tests".parse().unwrap(), "ann".parse().unwrap());
    bench.site.keys().keys().create(NewKey { label, scope, lasts, not_after: None, by }).await.unwrap().0
}

fn unlimited() -> Limits {
    Limits { rate: 1_000_000, ..Limits::default() }
}

#[tokio::test]
async fn a_key_does_what_it_is_for_and_nothing_else() {
    let bench = Bench::new(unlimited()).await;
    let router = router(&bench.site, None);
    let asking = Asking { site: &bench.site, router: &router };
    let each = Verb::ALL.into_iter().map(|verb| VerbSet::of([verb]));
    for verbs in each.chain([VerbSet::of([Read, Operate])]) {
        let right = key(&bench, "team", verbs, &["mine"], None).await;
        let wrong_name = key(&bench, "team", verbs, &["other", "min", "mine?"], None).await;
        let wrong_namespace = key(&bench, "team2", verbs, &["*"], None).await;
        for (method, path, needs) in TABLE {
            // By a key for it, by one for another name, and by one for another namespace.
            let (own, name, namespace) = match needs {
                Nothing | Needs::Key => (true, true, true),
                Namespace => (true, true, false),
                Name(any) => (any.iter().any(|verb| verbs.has(*verb)), false, false),
                NameAll(all) => (all.iter().all(|verb| verbs.has(*verb)), false, false),
                Listed(verb) => (verbs.has(*verb), verbs.has(*verb), false),
                Keys => [verbs.has(Verb::Admin); 3].into(),
            };
            let kinds = [
                ("right", &right, own),
                ("wrong name", &wrong_name, name),
                ("wrong namespace", &wrong_namespace, namespace),
            ];
            for (kind, secret, is_allowed) in kinds {
                let place = format!("{method} {path} by a key for {verbs}, {kind}");
                let (status, told) = asking.ask(method, path, secret.reveal()).await;
                assert_eq!(!is_refused(status, &told), is_allowed, "{place}: {status} {told}");
                assert!(!status.is_server_error(), "{place}: {status} {told}");
                if kind != "right" && *needs != Nothing {
                    assert!(!told.contains("\"mine\"") && !told.contains(">mine<"), "{place}: {told}");
                }
            }
        }
    }
}

#[tokio::test]
async fn nobody_passes_without_a_key_that_counts() {
    let bench = Bench::new(unlimited()).await;
    let router = router(&bench.site, None);
    let asking = Asking { site: &bench.site, router: &router };
    let revoked = key(&bench, "team", VerbSet::ALL, &["*"], None).await;
    let (by, why) = ("ann".parse().unwrap(), "enough".parse().unwrap());
    bench.site.keys().keys().revoke(&revoked.id(), &by, &why).await.unwrap();
    let expired = key(&bench, "team", VerbSet::ALL, &["*"], Some(Duration::from_millis(1))).await;
    let over = async {
        while !matches!(
            bench.site.keys().caller(Some(expired.reveal())).await,
            Err(Refused::Denied(Denied::Expired { .. }))
        ) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), over).await.expect("it expires");
    let (head, rest) = revoked.reveal().split_at(13);
    let mistyped = format!("{head}{}", rest.chars().rev().collect::<String>());
    let unknown = Secret::random(VerbSet::ALL);
    for (method, path, needs) in TABLE {
        for (key, kind) in [
            ("", "key_missing"),
            ("lh_w_x", "key_malformed"),
            (mistyped.as_str(), "key_malformed"),
            (unknown.reveal(), "key_unknown"),
            (revoked.reveal(), "key_revoked"),
            (expired.reveal(), "key_expired"),
        ] {
            let (status, told) = asking.ask(method, path, key).await;
            let place = format!("{method} {path} {kind}: {status} {told}");
            assert_eq!(is_refused(status, &told), *needs != Nothing, "{place}");
            assert!(!status.is_server_error(), "{place}");
            if *needs != Nothing && !path.starts_with("/ns/") {
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{place}");
                let told: Value = serde_json::from_str(&told).unwrap();
                assert_eq!(told["kind"], json!(kind), "{place}");
            }
        }
    }
}
