//! Every route, and what stands before it.

use super::extract::In;
use super::gate;
use super::health;
use super::json::Json;
use super::problem::Problem;
use super::settings::PathPrefix;
use super::site::Site;
use super::traffic::observe;
use crate::access::Caller;
use crate::page;
use crate::remote;
use axum::extract::{RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::{Redirect, Response};
use axum::routing::get;
use axum::{Router, middleware};
use leasehold_core::wire::About;
use serde_json::{Value, json};

/// The router of this site. With a prefix, everything is below it, and health at the root too.
pub fn router(site: &Site, prefix: Option<&PathPrefix>) -> Router {
    let all = Router::new()
        .merge(health::routes())
        .merge(keyed(site))
        .merge(keyless(site))
        .merge(pages(site))
        .fallback(nothing)
        .method_not_allowed_fallback(other);
    let all = match prefix {
        None => all,
        Some(prefix) => {
            let path = prefix.to_string();
            Router::new()
                .merge(health::routes())
                .nest(prefix.as_str(), all)
                .route(&format!("{prefix}/"), get(move |query| front(path, query)))
                .fallback(nothing)
                .method_not_allowed_fallback(other)
        }
    };
    all.layer(middleware::from_fn_with_state(site.clone(), observe)).with_state(site.clone())
}

/// What needs a key.
fn keyed(site: &Site) -> Router<Site> {
    let light = Router::new()
        .route("/v1/ns/{namespace}", get(namespace))
        .route_layer(middleware::from_fn_with_state(site.clone(), gate::light));
    Router::new()
        .merge(crate::api::routes())
        .merge(remote::routes())
        .route_layer(middleware::from_fn_with_state(site.clone(), gate::keyed))
        .merge(light)
}

/// What those ask who have no key yet.
fn keyless(site: &Site) -> Router<Site> {
    crate::api::open_routes().route_layer(middleware::from_fn_with_state(site.clone(), gate::apart))
}

/// The page for people.
fn pages(site: &Site) -> Router<Site> {
    let keyed = page::keyed()
        .route_layer(middleware::from_fn_with_state(site.clone(), gate::keyed))
        .route_layer(middleware::from_fn_with_state(site.clone(), page::by_cookie));
    let open = page::open()
        .route_layer(middleware::from_fn_with_state(site.clone(), gate::apart))
        .route_layer(middleware::from_fn(page::from_own_site));
    page::complete(open.merge(keyed), site)
}

/// The front page below a prefix is the prefix itself; whoever types a `/` after it is sent there.
async fn front(prefix: String, RawQuery(query): RawQuery) -> Redirect {
    Redirect::permanent(&query.map_or_else(|| prefix.clone(), |query| format!("{prefix}?{query}")))
}

async fn nothing(State(site): State<Site>, request: Request) -> Response {
    let problem = Problem::not_found("no such endpoint; a `/` in a name is written `%2F` or `~`");
    let problem = problem.with("field", "path");
    page::nothing(&site, request, problem).await
}

async fn other(State(site): State<Site>, request: Request) -> Response {
    let detail = "this endpoint does not allow this method";
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail);
    page::not_allowed(&site, request, problem).await
}

/// What the caller's key is for here, and what the store promises.
async fn namespace(State(site): State<Site>, In(namespace): In, caller: Caller) -> Result<Json<Value>, Problem> {
    caller.enters(&namespace)?;
    let about = About::from(site.coordinator(&namespace).await?.store().capabilities());
    let scope = caller.scope();
    let mut answer = json!({
        "namespace": namespace.as_str(),
        "key": {
            "id": caller.key.as_str(),
            "label": caller.label.as_str(),
            "allows": scope.verbs.iter().map(|verb| verb.as_str()).collect::<Vec<_>>(),
            "names": scope.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "expires_ms": caller.expires.map(|at| at.as_millis()),
        },
    });
    if let (Value::Object(answer), Ok(Value::Object(about))) = (&mut answer, serde_json::to_value(about)) {
        answer.extend(about);
    }
    Ok(Json(answer))
}
