//! What is wrong with a request, as `application/problem+json` (RFC 9457).
//!
//! Promise: the kind is a word that programs decide by; the status and the next step follow from it. The detail names what is
//! wrong and what to do, and holds no key, token or payload, nor where the store is. Non-promise: what hyper refuses by itself (a
//! request that is no HTTP) has no body.

use super::next_step;
use super::traffic::LoggedKind;
use crate::access::{Denied, Refused};
use crate::discreet::is_logged;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use leasehold_core::{Error, HolderId, Kind};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// What a client that was told to come back waits at least.
const SOON: Duration = Duration::from_secs(1);

/// What is wrong with a request, and what its client may do.
#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    kind: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    is_about_the_key: bool,
    more: Map<String, Value>,
}

impl Problem {
    /// A problem of this status and kind.
    pub fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        let is_passing = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        Problem {
            status,
            kind,
            detail: detail.into(),
            retry_after: is_passing.then_some(SOON),
            is_about_the_key: false,
            more: Map::new(),
        }
    }

    /// There is nothing at this address.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// What was sent cannot be understood, or is not allowed.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, Kind::Invalid.as_str(), detail)
    }

    /// The store failed before it was known who asks. Whatever is wrong with it is the server's trouble and not the request's.
    pub(crate) fn away(error: &Error) -> Self {
        // What is wrong with the store was logged where it failed.
        if !is_logged(error) {
            tracing::warn!(error = error.kind().as_str(), "the store of the keys cannot be read: {error}");
        }
        let detail = "this server cannot read its store now; nothing was done";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable.as_str(), detail)
    }

    /// The server has too much to do.
    pub fn overloaded(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
    }

    /// This key asks for too much.
    pub fn too_many(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", detail)
    }

    /// The same in other words.
    #[must_use]
    pub(crate) fn telling(self, detail: impl Into<String>) -> Self {
        Problem { detail: detail.into(), ..self }
    }

    /// Says when to come back.
    #[must_use]
    pub fn retry_after(self, after: Duration) -> Self {
        Problem { retry_after: Some(after), ..self }
    }

    /// Adds a field of its own.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.more.insert(field.to_owned(), value.into());
        self
    }

    /// The status.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong, in words.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The word that programs decide by.
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// The body.
    pub fn to_json(&self) -> Value {
        let mut body = json!({
            "type": format!("urn:leasehold:problem:{}", self.kind),
            "title": self.status.canonical_reason().unwrap_or("refused"),
            "status": self.status.as_u16(),
            "kind": self.kind,
            "detail": self.detail,
            "next_step": next_step::of(self.kind),
        });
        if let Some(after) = self.retry_after {
            body["retry_after_seconds"] = seconds(after).into();
        }
        for (field, value) in &self.more {
            body[field] = value.clone();
        }
        body
    }
}

/// Whole seconds, and at least one: a header knows no others.
fn seconds(after: Duration) -> u64 {
    after.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = format!("{}\n", self.to_json()).into_response();
        *response.status_mut() = self.status;
        response.extensions_mut().insert(LoggedKind(self.kind));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(after)));
        }
        if self.is_about_the_key {
            let error = if self.kind == "key_missing" { "" } else { ", error=\"invalid_token\"" };
            if let Ok(value) = HeaderValue::from_str(&format!("Bearer realm=\"leasehold\"{error}")) {
                headers.insert(WWW_AUTHENTICATE, value);
            }
        }
        response
    }
}

/// The same answer; if the endpoint does not allow the method, one that says which it does.
pub(super) fn naming_methods(method: &Method, response: Response) -> Response {
    // Not where a browser was answered by a page.
    let is_problem = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json");
    let is_ours = is_problem && matches!(response.extensions().get(), Some(LoggedKind("method_not_allowed")));
    let Some(allow) = response.headers().get(ALLOW).filter(|_| is_ours) else { return response };
    let methods = allow.to_str().unwrap_or_default().replace(',', " or ");
    let detail = format!("this endpoint does not allow {method}; use {methods}");
    let mut named = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail).into_response();
    let others = response.headers().iter().filter(|(name, _)| **name != CONTENT_LENGTH);
    others.for_each(|(name, value)| drop(named.headers_mut().insert(name, value.clone())));
    named
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let (status, kind) = match error.kind() {
            Kind::Lost | Kind::Regressed => (StatusCode::CONFLICT, error.kind().as_str()),
            Kind::Fenced => (StatusCode::PRECONDITION_FAILED, error.kind().as_str()),
            Kind::Invalid => (StatusCode::BAD_REQUEST, error.kind().as_str()),
            Kind::Unsupported => (StatusCode::NOT_IMPLEMENTED, error.kind().as_str()),
            Kind::Moved => (StatusCode::GONE, error.kind().as_str()),
            Kind::Unavailable | Kind::Contended => (StatusCode::SERVICE_UNAVAILABLE, error.kind().as_str()),
            // Perhaps applied: to ask again may do it twice, unless the request says which one it was.
            Kind::Indeterminate => (StatusCode::GATEWAY_TIMEOUT, "unknown"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, error.kind().as_str()),
        };
        let mut problem = Problem::new(status, kind, error.to_string());
        if let Some((held, seen)) = error.epochs() {
            problem = problem.with("held_epoch", held.get()).with("seen_epoch", seen.get());
        }
        if let Some(reason) = error.reason() {
            problem = problem.with("reason", reason.as_str());
        }
        match error.holder() {
            Some(holder) => problem.with("holder", holder_json(holder)),
            None => problem,
        }
    }
}

fn holder_json(holder: &HolderId) -> Value {
    json!({ "host": holder.host(), "pid": holder.pid(), "label": holder.label().as_str() })
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let is_about_the_key = denied.is_about_the_key();
        let status = if is_about_the_key { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
        Problem { is_about_the_key, ..Problem::new(status, denied.kind(), denied.to_string()) }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Denied(denied) => denied.into(),
            Refused::Store(error) => Problem::away(&error),
            Refused::Crowded => {
                let detail = "too many keys that this server does not know are being tried; this one was not looked up, and \
                              nothing was done";
                Problem::overloaded(detail)
            }
        }
    }
}
