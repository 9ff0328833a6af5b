//! What was requested, how it was answered and how long that took, for metrics and the log.
//!
//! Promise: a line of the log has the method, the template of the route, the status, the duration, the key's id and the kind of the
//! problem, and nothing else of the request. While the store is away, only the first request that fails for that is a warning.
//! Non-promise: a stream is counted when it begins.

use super::site::Site;
use crate::access::KeyId;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::distribution::REQUESTS;
use leasehold_core::{Distribution, Kind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Stands for the route of requests without one.
const NOWHERE: &str = "(none)";
/// Stands for methods that HTTP does not define.
const OTHER: &str = "OTHER";

/// What requests that are counted together have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answered {
    /// The template of the route, such as `/v1/ns/{namespace}`.
    pub route: String,
    /// The HTTP method.
    pub method: &'static str,
    /// The status of the answer.
    pub status: u16,
}

/// How long answers took.
#[derive(Debug, Default)]
pub struct Traffic {
    durations: Mutex<BTreeMap<Answered, Distribution>>,
    /// Whether it was logged that requests fail because the store is away.
    is_away: AtomicBool,
}

impl Traffic {
    /// Everything that was measured so far.
    pub fn durations(&self) -> Vec<(Answered, Distribution)> {
        let all = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(answered, durations)| (answered.clone(), durations.clone())).collect()
    }

    /// Whether such a failure was already logged: the store is away, and has not answered since.
    fn is_told(&self, kind: &str) -> bool {
        kind == Kind::Unavailable.as_str() && self.is_away.swap(true, Ordering::Relaxed)
    }
}

/// The key of a request, as the gate leaves it in the answer for the log.
#[derive(Debug, Clone)]
pub struct LoggedKey(pub KeyId);

/// The kind of the problem that a request was answered with.
#[derive(Debug, Clone, Copy)]
pub struct LoggedKind(pub &'static str);

/// Measures, counts and logs a request.
pub async fn observe(State(site): State<Site>, request: Request, next: Next) -> Response {
    let asked = SystemClock.now();
    let route = request.extensions().get::<MatchedPath>().map_or(NOWHERE, MatchedPath::as_str).to_owned();
    let method = method(request.method());
    let response = next.run(request).await;
    let took = SystemClock.now().saturating_since(asked);
    let status = response.status().as_u16();
    let key = response.extensions().get::<LoggedKey>().map(|key| key.0.to_string()).unwrap_or_default();
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let kind = response.extensions().get::<LoggedKind>().map(|kind| kind.0).unwrap_or_default();
    let whose = if key.is_empty() { String::new() } else { format!("key {key}") };
    let more = [kind, &whose].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ");
    let more = if more.is_empty() { more } else { format!(" ({more})") };
    let line = format!("{method} {route} {status} in {duration_ms} ms{more}");
    match status {
        500.. if site.traffic().is_told(kind) => {
            tracing::debug!(method, route, status, duration_ms, key, kind, "{line}");
        }
        500.. => tracing::warn!(method, route, status, duration_ms, key, kind, "{line}"),
        401 | 403 | 429 => tracing::info!(method, route, status, duration_ms, key, kind, "{line}"),
        _ => tracing::debug!(method, route, status, duration_ms, key, kind, "{line}"),
    }
    if status < 400 && route.contains("{namespace}") {
        site.traffic().is_away.store(false, Ordering::Relaxed);
    }
    let mut all = site.traffic().durations.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(Answered { route, method, status }).or_default().add(REQUESTS, took);
    drop(all);
    response
}

/// One of the methods that HTTP defines: a client may send any word, and each would be counted separately.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => OTHER,
    }
}
