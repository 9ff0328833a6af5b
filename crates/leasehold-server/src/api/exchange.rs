//! From a token of an OIDC issuer to a key.
//!
//! Promise: [`crate::oidc`] decides. The request needs no key. Non-promise: it does not have the form of RFC 8693; bodies and
//! problems have the same form as for every other request here.

use super::reading::read;
use super::values::Time;
use crate::access::{KeyRecord, Secret};
use crate::serve::{Json, Problem, Site};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new().routes(routes!(exchange))
}

/// A token to exchange.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Exchanging {
    /// A JWT of an issuer that the server's rules name. Space around it is left out.
    token: String,
}

impl fmt::Debug for Exchanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchanging(***)")
    }
}

/// A new key, and what it is for.
#[derive(Serialize, ToSchema)]
pub struct Exchanged {
    /// The key itself. It cannot be shown again.
    key: String,
    /// Its public id, which is not secret.
    id: String,
    /// Its label, for people: the subject of the token.
    label: String,
    /// The namespace that it is for; `*` is every one.
    namespace: String,
    /// The patterns of names that it is for.
    names: Vec<String>,
    /// `read`, `hold`, `work`, `operate`, as far as it does.
    allows: Vec<&'static str>,
    /// When it expires.
    expires: Time,
    /// When it was made.
    now: Time,
}

impl Exchanged {
    fn new(secret: &Secret, record: &KeyRecord) -> Self {
        let made = record.created.at;
        Exchanged {
            key: secret.reveal().to_owned(),
            id: record.id.to_string(),
            label: record.label.to_string(),
            namespace: record.scope.namespaces.to_string(),
            names: record.scope.names.iter().map(ToString::to_string).collect(),
            allows: record.scope.verbs.iter().map(|verb| verb.as_str()).collect(),
            expires: record.expires.unwrap_or(made).into(),
            now: made.into(),
        }
    }
}

/// Exchanges a token of an OIDC issuer for a short-lived key. It needs no key.
#[utoipa::path(post, path = "/v1/exchange", tag = "keys", request_body = Exchanging,
    responses((status = 200, description = "A key, which is shown once.", body = Exchanged)))]
pub async fn exchange(State(site): State<Site>, body: Bytes) -> Result<impl IntoResponse, Problem> {
    let body: Exchanging = read(&body)?;
    let made = site.exchange().exchange(site.keys().keys(), body.token.trim()).await.map_err(Problem::from);
    let (secret, record) = made.inspect_err(|problem| {
        // Shows the operator who wrote the rules why none matches. It contains nothing of the token's text.
        if problem.status() == StatusCode::UNAUTHORIZED {
            tracing::info!(kind = problem.kind(), "a token was refused: {}", problem.detail());
        }
    })?;
    Ok(([(CACHE_CONTROL, "no-store")], Json(Exchanged::new(&secret, &record))))
}
