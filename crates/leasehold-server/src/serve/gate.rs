//! What a request passes before its handler: its key, the key's rate, its body, and a permit to be among those under way.
//!
//! Promise: the key is checked before anything else is done for a request, and the whole body is here before it has a permit, so
//! a slow client takes none. The key is checked again once the request has its permit: however slowly it came, what is done for it
//! is done under a key that counts now. The bodies that are held at once are bounded. A handler that waits gives its permit back
//! first ([`Waiter::begin`]). A change continues without its client (`detached`).

use super::admission::{AdmissionPermit, Claimed, Urgency, Waits};
use super::body_budget::{Charged, Sender};
use super::detached::{self, ClientLeft};
use super::extract::{In, bearer};
use super::newcomers::Newcomer;
use super::problem::Problem;
use super::site::Site;
use super::traffic::LoggedKey;
use crate::access::Caller;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use leasehold_core::{Jitter, Nonce};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The longest body of a client without a key: a token, and what is around it.
const MAX_STRANGER_BODY: usize = 32 * 1024;
/// The longest body of most requests: names, reasons, a token and a checkpoint, with room for the escapes of JSON.
const MAX_USUAL_BODY: usize = 64 * 1024;
/// The last segments of routes whose bodies may be as long as the server's limit: they carry payloads, records, or what was
/// counted.
const LONG_BODIES: [&str; 7] = ["items", "complete", "change", "hold", "retry", "purge", "dead-letters"];

/// The permit of a request, until its handler is done or waits.
#[derive(Debug, Clone, Default)]
struct Held(Arc<Mutex<Option<AdmissionPermit>>>);

impl Held {
    fn put(&self, permit: AdmissionPermit) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
    }

    fn give_back(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Lets a request pass if its key is known and valid. The handler finds the [`Caller`] and may ask for a [`Waiter`].
pub async fn keyed(State(site): State<Site>, request: Request, next: Next) -> Response {
    let caller = match authenticate(&site, request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => return refused(&request, problem),
    };
    is_known(&request);
    let (key, account) = (LoggedKey(caller.key.clone()), caller.account().clone());
    let claimed = Claimed::of(route(request.extensions()));
    let is_change = detached::is_change(request.method(), route(request.extensions()));
    let mut response = match pass(&site, request, caller).await {
        Ok(mut passed) => {
            let ongoing = site.ongoing().clone();
            let run = |passed: Passed| async move {
                let response = passed.run(next).await;
                // A caller whose token is made up, or no longer in force, is refused and has held nothing.
                if let Some(claimed) = claimed.filter(|_| response.status().is_client_error()) {
                    site.admission().count_unfounded(&account, claimed);
                }
                response
            };
            if is_change {
                let run = |undo, left: ClientLeft| {
                    passed.request.extensions_mut().insert(undo);
                    passed.request.extensions_mut().insert(left);
                    run(passed)
                };
                detached::to_its_end(&ongoing, run).await
            } else {
                run(passed).await
            }
        }
        Err(problem) => problem.into_response(),
    };
    response.extensions_mut().insert(key);
    response
}

/// The same for what is answered from memory, if the store of its namespace is open: it has no body and takes no permit, so that
/// nobody waits for one to learn what its key is for, and it is counted with what holders ask. If the store has to be opened, it
/// takes a permit, of a holder at first: it may be the first request of one. Whoever opens many is served like everybody else.
pub async fn light(State(site): State<Site>, request: Request, next: Next) -> Response {
    let caller = match authenticate(&site, request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => return refused(&request, problem),
    };
    is_known(&request);
    let key = LoggedKey(caller.key.clone());
    let mut response = match pass_light(&site, request, caller).await {
        Ok((request, _permit)) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    response.extensions_mut().insert(key);
    response
}

async fn pass_light(
    site: &Site,
    request: Request,
    caller: Caller,
) -> Result<(Request, Option<AdmissionPermit>), Problem> {
    let (mut parts, body) = request.into_parts();
    let named = In::from_request_parts(&mut parts, site).await.ok();
    // A request that names no namespace, or one that it may not enter, is refused before anything is opened.
    let is_light = named.is_none_or(|In(namespace)| caller.enters(&namespace).is_err() || site.is_open(&namespace));
    let (admission, account) = (site.admission(), caller.account());
    let urgency = if is_light { Urgency::Holder } else { admission.urgency_of(Claimed::ToRead, account) };
    admission.count(account, urgency)?;
    let mut permit = None;
    if !is_light {
        admission.count_unfounded(account, Claimed::ToRead);
        permit = Some(admission.admit(urgency).await?);
    }
    parts.extensions.insert(caller);
    Ok((Request::from_parts(parts, body), permit))
}

/// The same for those who have no key yet, such as a form to sign in, and may have to wait for somebody else's service, or for the
/// keys: they have no permit among the requests under way, so that none of these is kept out by them. How many they may be is the
/// handler's to say, or that of the keys that are looked up at once.
pub async fn apart(State(site): State<Site>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match read(&site, &parts, body, Sender::Stranger).await {
        Ok((body, _charged)) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Err(problem) => problem.into_response(),
    }
}

/// Notes that the connection has shown a valid key.
fn is_known(request: &Request) {
    if let Some(newcomer) = request.extensions().get::<Newcomer>() {
        newcomer.is_known();
    }
}

/// The answer to a request without a valid key. A key that was refused, and not one that could not be checked, makes the connection
/// one that others may take the place of.
fn refused(request: &Request, problem: Problem) -> Response {
    let response = problem.into_response();
    if response.status() == StatusCode::UNAUTHORIZED
        && let Some(newcomer) = request.extensions().get::<Newcomer>()
    {
        newcomer.is_unknown();
    }
    response
}

async fn authenticate(site: &Site, headers: &HeaderMap) -> Result<Caller, Problem> {
    Ok(site.keys().caller(bearer(headers)?).await?)
}

/// A request that has passed and may be handled.
struct Passed {
    request: Request,
    held: Held,
    /// Its body, which the handler may keep until it answers.
    _body: Charged,
}

impl Passed {
    async fn run(self, next: Next) -> Response {
        let response = next.run(self.request).await;
        self.held.give_back();
        response
    }
}

async fn pass(site: &Site, request: Request, caller: Caller) -> Result<Passed, Problem> {
    let urgency = site.admission().urgency(route(request.extensions()), caller.account());
    site.admission().count(caller.account(), urgency)?;
    let (mut parts, body) = request.into_parts();
    let (body, charged) = read(site, &parts, body, Sender::Keyed(urgency)).await?;
    let held = Held::default();
    held.put(site.admission().admit(urgency).await?);
    parts.extensions.insert(held.clone());
    // The body and the permit may have taken longer than a revocation may take to count.
    parts.extensions.insert(site.keys().again(&caller).await?);
    Ok(Passed { request: Request::from_parts(parts, Body::from(body)), held, _body: charged })
}

fn route(extensions: &Extensions) -> &str {
    extensions.get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default()
}

/// The longest body that is read for a request.
fn most_bytes(site: &Site, parts: &Parts, sender: Sender) -> usize {
    let last = route(&parts.extensions).rsplit('/').next().unwrap_or_default();
    let most = match sender {
        Sender::Stranger => MAX_STRANGER_BODY,
        Sender::Keyed(_) if LONG_BODIES.contains(&last) => usize::MAX,
        Sender::Keyed(_) => MAX_USUAL_BODY,
    };
    site.limits().body.min(most)
}

/// Refuses a body that says it has to be unpacked first: what somebody in between unpacks would be another request.
fn check_plain(headers: &HeaderMap) -> Result<(), Problem> {
    let is_plain = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Ok(());
    }
    let detail = "send the body as it is, without `Content-Encoding`";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid", detail).with("field", "Content-Encoding"))
}

/// The whole body, if it is short enough, arrives in time, and there is room for it.
async fn read(site: &Site, parts: &Parts, mut body: Body, sender: Sender) -> Result<(Bytes, Charged), Problem> {
    check_plain(&parts.headers)?;
    let limit = most_bytes(site, parts, sender);
    let too_long = || {
        let detail = format!("the body of this request may have {limit} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    };
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_long());
    }
    let (mut bytes, mut charged) = (Vec::<u8>::new(), Charged::default());
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Problem::invalid("the body of the request ended too early"))?;
            let Ok(piece) = frame.into_data() else { continue };
            if piece.len() > limit - bytes.len() {
                return Err(too_long());
            }
            site.bodies().charge(sender, piece.len(), &mut charged)?;
            // Copied: a small piece may keep a large buffer of its connection in memory.
            bytes.extend_from_slice(&piece);
        }
        Ok(())
    };
    let patience = site.limits().client;
    match tokio::time::timeout(patience, reading).await {
        Ok(read) => read?,
        Err(_) => {
            let detail = format!("the body of the request took longer than {} s", patience.as_secs());
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail));
        }
    }
    Ok((bytes.into(), charged))
}

/// For a handler that may wait for a long time: for a lease, an item, or events of a stream.
#[derive(Debug)]
pub struct Waiter {
    site: Site,
    caller: Caller,
    held: Held,
    left: Option<ClientLeft>,
}

impl Waiter {
    /// Begins to wait: the permit is given back, and the request is counted as one of the key's waiters.
    pub fn begin(&self) -> Result<Waiting, Problem> {
        let waits = self.site.admission().begin_waiting(self.caller.account())?;
        let ending = self.site.ending();
        self.held.give_back();
        Ok(Waiting {
            _waits: waits,
            ending,
            spread: self.site.limits().spread,
            site: self.site.clone(),
            caller: self.caller.clone(),
            left: self.left.clone(),
        })
    }
}

impl FromRequestParts<Site> for Waiter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, site).await?;
        let held = parts.extensions.get::<Held>().cloned().unwrap_or_default();
        let left = parts.extensions.get::<ClientLeft>().cloned();
        Ok(Waiter { site: site.clone(), caller, held, left })
    }
}

/// A request that waits, and learns when waiting becomes useless.
#[derive(Debug)]
pub struct Waiting {
    _waits: Waits,
    ending: watch::Receiver<bool>,
    spread: Duration,
    site: Site,
    caller: Caller,
    left: Option<ClientLeft>,
}

/// Why waiting has become useless.
#[derive(Debug)]
pub enum Over {
    /// The server shuts down. The client may ask another one.
    Ending(Problem),
    /// The key is no longer valid: nobody will ask with it again.
    Denied(Problem),
    /// The client has disconnected. Nobody reads the answer.
    Left(Problem),
}

impl From<Over> for Problem {
    fn from(over: Over) -> Self {
        let (Over::Ending(problem) | Over::Denied(problem) | Over::Left(problem)) = over;
        problem
    }
}

impl Waiting {
    /// Waits until waiting has become useless; returns why.
    pub async fn over(&mut self) -> Over {
        let keys = self.site.keys().clone();
        tokio::select! {
            _ = self.ending.wait_for(|ending| *ending) => Over::Ending(ending(self.spread)),
            denied = keys.until_denied(&self.caller) => Over::Denied(denied.into()),
            () = left(&mut self.left) => Over::Left(Problem::overloaded("the client has left; nothing was done")),
        }
    }
}

async fn left(client: &mut Option<ClientLeft>) {
    match client {
        Some(client) => client.left().await,
        None => std::future::pending().await,
    }
}

/// The answer of a server that shuts down: clients should come back, but not all at once.
pub fn ending(spread: Duration) -> Problem {
    let ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX).max(1);
    let after = Duration::from_millis(1 + Jitter::new(Nonce::random()).below(ms));
    let detail = "this server is ending; nothing was done, ask again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ending", detail).retry_after(after)
}
