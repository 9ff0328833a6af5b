//! What a request passes before its handler: its key, the key's rate, its body, and a place among those under way.
//!
//! Promise: the key is checked before anything else is done for a request, and the whole body is here before it has a place, so
//! a slow client takes none. A handler that waits gives its place back first ([`Waiter::begin`]).

use super::admission::{Place, Urgency, Waits};
use super::extract::bearer;
use super::problem::Problem;
use super::site::Site;
use super::traffic::LoggedKey;
use crate::access::Caller;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use leasehold_core::{Jitter, Nonce};
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The longest body of somebody without a key: a token, and what is around it.
const MAX_STRANGER_BODY: usize = 32 * 1024;

/// The place of a request, until its handler is done or waits.
#[derive(Debug, Clone, Default)]
struct Held(Arc<Mutex<Option<Place>>>);

impl Held {
    fn put(&self, place: Place) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }

    fn give_back(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Lets a request pass if its key is known and counts. The handler finds the [`Caller`] and may ask for a [`Waiter`].
pub async fn keyed(State(site): State<Site>, request: Request, next: Next) -> Response {
    let caller = match authenticate(&site, request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    let key = LoggedKey(caller.key.clone());
    let mut response = match pass(&site, request, Some(caller)).await {
        Ok((request, held)) => {
            let response = next.run(request).await;
            held.give_back();
            response
        }
        Err(problem) => problem.into_response(),
    };
    response.extensions_mut().insert(key);
    response
}

/// The same for what needs no key, such as a form to sign in.
pub async fn open(State(site): State<Site>, request: Request, next: Next) -> Response {
    match pass(&site, request, None).await {
        Ok((request, held)) => {
            let response = next.run(request).await;
            held.give_back();
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// The same for those who have no key yet, and may have to wait for somebody else's service: they have no place among the requests
/// under way, so that none of these is kept out by them. How many they may be is the handler's to say.
pub async fn apart(State(site): State<Site>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match read(&site, &parts, body, site.limits().body.min(MAX_STRANGER_BODY)).await {
        Ok(body) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Err(problem) => problem.into_response(),
    }
}

async fn authenticate(site: &Site, headers: &HeaderMap) -> Result<Caller, Problem> {
    Ok(site.keys().caller(bearer(headers)?).await?)
}

async fn pass(site: &Site, request: Request, caller: Option<Caller>) -> Result<(Request, Held), Problem> {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let urgency = Urgency::of(route);
    if let Some(caller) = &caller {
        site.admission().count(&caller.key, urgency)?;
    }
    let (mut parts, body) = request.into_parts();
    let body = read(site, &parts, body, site.limits().body).await?;
    let held = Held::default();
    held.put(site.admission().place(urgency).await?);
    parts.extensions.insert(held.clone());
    if let Some(caller) = caller {
        parts.extensions.insert(caller);
    }
    Ok((Request::from_parts(parts, Body::from(body)), held))
}

/// The whole body, if it is short enough and comes in time.
async fn read(site: &Site, parts: &Parts, body: Body, limit: usize) -> Result<Bytes, Problem> {
    let too_long = || {
        let detail = format!("the body of a request may have {limit} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    };
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_long());
    }
    let patience = site.limits().client;
    match tokio::time::timeout(patience, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if error.source().is_some_and(|cause| cause.is::<LengthLimitError>()) => Err(too_long()),
        Ok(Err(_)) => Err(Problem::invalid("the body of the request ended too early")),
        Err(_) => {
            let detail = format!("the body of the request took longer than {} s", patience.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail))
        }
    }
}

/// For a handler that may wait long: for a lease, for an item, or with a stream of events.
#[derive(Debug)]
pub struct Waiter {
    site: Site,
    caller: Caller,
    held: Held,
}

impl Waiter {
    /// Begins to wait: the place among the requests under way is given back, and the key's waiters are counted.
    pub fn begin(&self) -> Result<Waiting, Problem> {
        let waits = self.site.admission().begin_waiting(&self.caller.key)?;
        let ending = self.site.ending();
        self.held.give_back();
        Ok(Waiting {
            _waits: waits,
            ending,
            spread: self.site.limits().spread,
            site: self.site.clone(),
            caller: self.caller.clone(),
        })
    }
}

impl FromRequestParts<Site> for Waiter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, site).await?;
        let held = parts.extensions.get::<Held>().cloned().unwrap_or_default();
        Ok(Waiter { site: site.clone(), caller, held })
    }
}

/// A request that waits. While it does, it is to be told when that is over.
#[derive(Debug)]
pub struct Waiting {
    _waits: Waits,
    ending: watch::Receiver<bool>,
    spread: Duration,
    site: Site,
    caller: Caller,
}

impl Waiting {
    /// Waits until there is no use in waiting: the server ends, or the key counts no more. The answer is the problem.
    pub async fn over(&mut self) -> Problem {
        let keys = self.site.keys().clone();
        tokio::select! {
            _ = self.ending.wait_for(|ending| *ending) => ending(self.spread),
            denied = keys.until_denied(&self.caller) => denied.into(),
        }
    }
}

/// The answer of a server that ends: to come back at some time, not all at once.
pub fn ending(spread: Duration) -> Problem {
    let ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX).max(1);
    let after = Duration::from_millis(1 + Jitter::new(Nonce::random()).below(ms));
    let detail = "this server is ending; nothing was done, ask again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ending", detail).retry_after(after)
}
