//! One request, from its head to the upstream's answer.
//!
//! Promise: an exchange that has begun is followed to its end even if the client goes away, so that a newer epoch
//! waits for it. Nothing is sent to the upstream twice, and no redirect is followed. Non-promise: a response that
//! breaks off at the upstream breaks off at the client.

use super::body::{self, HashSlot, Outgoing, Reply};
use super::fence::{Purpose, Ticket};
use super::flight::Fault;
use super::problem::Problem;
use super::replay::{Answer, Lookup, MAX_ANSWER, Name, again};
use super::request::{Page, RequestKind, ask, onward, strip, too_large};
use super::{ProxyStep, Shared};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use leasehold_core::guard::{Rejection, Strength};
use leasehold_core::{Kind, Token};
use serde_json::json;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How much of a refused body is read, and for how long.
const DISCARD: usize = 64 * 1024;
const DISCARD_TIME: Duration = Duration::from_millis(250);

impl Shared {
    pub(crate) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Reply> {
        let (head, body) = request.into_parts();
        let mut body = Some(body);
        match self.clone().handle(head, &mut body).await {
            Ok(response) => response,
            Err(problem) => {
                if let Some(body) = body {
                    let _ = tokio::time::timeout(DISCARD_TIME, discard(body)).await;
                }
                problem.log();
                problem.response()
            }
        }
    }

    /// Takes the body when it is sent on; what is left is a refused request's.
    async fn handle(self: Arc<Self>, head: Parts, body: &mut Option<Incoming>) -> Result<Response<Reply>, Problem> {
        let asked = ask(&head, &self.settings)?;
        let _permit = self.permits.clone().try_acquire_owned().map_err(|_| {
            Problem::unavailable(format!("{} requests are under way; try again", self.settings.limits.max_requests))
        })?;
        match asked {
            RequestKind::Own(page) => self.own(page).await,
            RequestKind::Safe => self.spawned(head, body.take(), None, None).await,
            RequestKind::Fenced(token, key) => {
                let name = match (&self.replays, key) {
                    (Some(_), Some(key)) => Some(Name::new(&token, key)),
                    _ => None,
                };
                let (lease, epoch) = (token.lease.clone(), token.epoch);
                self.fenced(head, body, token, name).await.map_err(|problem| problem.of(lease, epoch))
            }
        }
    }

    async fn fenced(
        self: Arc<Self>,
        head: Parts,
        body: &mut Option<Incoming>,
        token: Token,
        name: Option<Name>,
    ) -> Result<Response<Reply>, Problem> {
        if let (Some(cache), Some(name)) = (&self.replays, &name) {
            // A replay tells what was applied. Only the holder that sent the request may learn it, and only while it
            // is the holder.
            let sealed = self.fence.admit(&token, Purpose::Seal).await?;
            drop(sealed);
            match cache.begin(name) {
                Lookup::Refused(problem) => return Err(problem),
                Lookup::Seen(hash, answer) => {
                    let body = body.take().ok_or_else(gone)?;
                    return again(hash, self.hash(&head, body).await?, answer.as_deref());
                }
                Lookup::New => {}
            }
        }
        let ticket = match self.fence.admit(&token, Purpose::Write).await {
            Ok(ticket) => ticket,
            Err(problem) => {
                if let (Some(cache), Some(name)) = (&self.replays, &name) {
                    cache.not_sent(name);
                }
                return Err(problem);
            }
        };
        self.spawned(head, body.take(), Some((token, ticket)), name).await
    }

    /// In a task of its own: if the client goes away, the exchange must still be tracked.
    async fn spawned(
        self: Arc<Self>,
        head: Parts,
        body: Option<Incoming>,
        pass: Option<(Token, Ticket)>,
        name: Option<Name>,
    ) -> Result<Response<Reply>, Problem> {
        let exchange = tokio::spawn(self.exchange(head, body.ok_or_else(gone)?, pass, name));
        exchange.await.unwrap_or_else(|_| Err(Problem::unavailable("the proxy is shutting down")))
    }

    async fn exchange(
        self: Arc<Self>,
        mut head: Parts,
        body: Incoming,
        pass: Option<(Token, Ticket)>,
        name: Option<Name>,
    ) -> Result<Response<Reply>, Problem> {
        let limits = &self.settings.limits;
        let (token, ticket) = pass.map_or((None, None), |(token, ticket)| (Some(token), Some(Arc::new(ticket))));
        let described = describe(&head);
        onward(&mut head, &self.settings, token.as_ref())?;
        if let Some(ticket) = &ticket {
            ticket.at(ProxyStep::Upstream);
        }
        let slot = HashSlot::default();
        let mut outgoing = Outgoing::new(body, ticket.clone(), limits.max_body, limits.client_timeout);
        if name.is_some() {
            outgoing = outgoing.hashed(&described, slot.clone());
        }
        let sent = match begin(&mut outgoing, ticket.as_deref()).await {
            Ok(()) => self.send(Request::from_parts(head, outgoing), ticket.as_deref()).await,
            Err(_) => Err(None),
        };
        if let Some(ticket) = &ticket {
            ticket.at(ProxyStep::Respond);
            // Otherwise it may still be running, and counts as such for as long as the upstream may take.
            if sent.as_ref().map_or_else(|e| e.as_ref().is_some_and(|e| e.is_connect()), |_| true) {
                ticket.flight().settle();
            }
        }
        match sent {
            Ok(response) => Ok(self.respond(response, name, &slot).await),
            Err(error) => {
                let was_sent = ticket.as_ref().is_some_and(|ticket| ticket.flight().is_sent());
                if let (Some(cache), Some(name)) = (&self.replays, &name) {
                    if was_sent { cache.unknown(name) } else { cache.not_sent(name) }
                }
                Err(self.failure(ticket.as_deref(), token.as_ref(), error))
            }
        }
    }

    /// Sends the request. The upstream's time for an answer begins when the request is complete.
    async fn send(
        &self,
        request: Request<Outgoing>,
        ticket: Option<&Ticket>,
    ) -> Result<Response<Incoming>, Option<hyper_util::client::legacy::Error>> {
        let limit = self.settings.limits.upstream_timeout;
        let exchange = self.client.request(request);
        tokio::pin!(exchange);
        loop {
            let sent = ticket.is_none_or(|ticket| ticket.flight().is_sent());
            match tokio::time::timeout(limit, &mut exchange).await {
                Ok(answer) => return answer.map_err(Some),
                // The time counts from the last piece, which has been sent by now for a whole limit at least.
                Err(_) if sent => return Err(None),
                Err(_) => {}
            }
        }
    }

    async fn respond(&self, response: Response<Incoming>, name: Option<Name>, slot: &HashSlot) -> Response<Reply> {
        let (mut head, body) = response.into_parts();
        strip(&mut head.headers);
        let (Some(cache), Some(name)) = (&self.replays, name) else {
            return Response::from_parts(head, body.boxed_unsync());
        };
        let hash = *slot.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, rest) = collect(body).await;
        let (Some(hash), Ok(read)) = (hash, read) else {
            // Answered before the whole body was sent, or broken off: nothing that could be given again.
            cache.unknown(&name);
            let rest = rest.map_or_else(|| body::full(""), BodyExt::boxed_unsync);
            return Response::from_parts(head, rest);
        };
        let whole = rest.is_none();
        let kept = Answer { status: head.status, headers: head.headers.clone(), body: read.clone() };
        cache.answered(&name, hash, whole.then_some(kept));
        let reply = match rest {
            None => body::full(read),
            Some(rest) => body::rest(read, rest),
        };
        Response::from_parts(head, reply)
    }

    /// Why there is no answer.
    fn failure(
        &self,
        ticket: Option<&Ticket>,
        token: Option<&Token>,
        error: Option<hyper_util::client::legacy::Error>,
    ) -> Problem {
        let limits = &self.settings.limits;
        match (ticket.and_then(|ticket| ticket.flight().fault()), token) {
            (Some(Fault::Overtaken(seen)), Some(token)) => {
                Problem::rejection(Rejection::Stale { held: token.epoch, seen }, &self.fence.resource)
            }
            (Some(Fault::Deposed), _) => {
                Problem::unavailable("this proxy was replaced; nothing was applied, try again")
            }
            (Some(Fault::TooLarge), _) => too_large(limits.max_body),
            (Some(Fault::Idle), _) => {
                Problem::new(StatusCode::REQUEST_TIMEOUT, Kind::Unavailable, "the body did not come in time")
            }
            (Some(Fault::Client), _) => Problem::bad("the body ended early"),
            _ => upstream_failed(ticket.is_none_or(|ticket| ticket.flight().is_sent()), error),
        }
    }

    /// The hash of a request that is not sent on.
    async fn hash(&self, head: &Parts, body: Incoming) -> Result<[u8; 32], Problem> {
        let limits = &self.settings.limits;
        let slot = HashSlot::default();
        let mut body =
            Outgoing::new(body, None, limits.max_body, limits.client_timeout).hashed(&describe(head), slot.clone());
        begin(&mut body, None).await.map_err(|_| Problem::bad("the body ended early"))?;
        while let Some(frame) = body.frame().await {
            frame.map_err(|fault| match fault {
                Fault::TooLarge => too_large(limits.max_body),
                _ => Problem::bad("the body ended early"),
            })?;
        }
        let hash = *slot.lock().unwrap_or_else(PoisonError::into_inner);
        hash.ok_or_else(|| Problem::bad("the body ended early"))
    }

    async fn own(&self, page: Page) -> Result<Response<Reply>, Problem> {
        let value = match page {
            Page::Health => {
                self.fence.high_water()?;
                json!({ "status": "active", "resource": self.fence.resource })
            }
            Page::HighWater => self.high_water()?,
            Page::Seal(token) => {
                let (lease, epoch) = (token.lease.clone(), token.epoch);
                let sealed = self.fence.admit(&token, Purpose::Seal).await;
                drop(sealed.map_err(|problem| problem.of(lease, epoch))?);
                self.high_water()?
            }
        };
        let mut response = Response::new(body::full(format!("{value}\n")));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// Without the nonce: whoever has it may write in the holder's name.
    fn high_water(&self) -> Result<serde_json::Value, Problem> {
        let high = self.fence.high_water()?;
        Ok(json!({
            "resource": self.fence.resource,
            "lease": high.as_ref().map(|high| high.lease.as_str()),
            "lineage": high.as_ref().map(|high| high.lineage),
            "epoch": high.as_ref().map(|high| high.epoch.get()),
            "seq": high.as_ref().map(|high| high.seq),
            "strength": Strength::Atomic.to_string(),
        }))
    }
}

/// Waits until the request may be sent: by then the fence in the store says how long it may run.
async fn begin(outgoing: &mut Outgoing, ticket: Option<&Ticket>) -> Result<(), Fault> {
    loop {
        if let Some(ticket) = ticket {
            ticket.covered().await?;
        }
        if outgoing.begin()? {
            return Ok(());
        }
    }
}

fn gone() -> Problem {
    Problem::bad("the body was read before")
}

/// Reads a little of a refused body: closing a connection with unread bytes may discard the answer.
async fn discard(mut body: Incoming) {
    let mut left = DISCARD;
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        if read >= left {
            return;
        }
        left -= read;
    }
}

/// What makes two requests with one key the same, before their bodies.
fn describe(head: &Parts) -> Vec<u8> {
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    format!("{}\n{target}\n", head.method).into_bytes()
}

/// Reads as much of an answer as is kept; the rest, if there is more.
async fn collect(mut body: Incoming) -> (Result<Bytes, hyper::Error>, Option<Incoming>) {
    let mut read = BytesMut::new();
    while !body.is_end_stream() {
        match body.frame().await {
            None => break,
            Some(Err(error)) => return (Err(error), Some(body)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    read.extend_from_slice(&data);
                }
            }
        }
        if read.len() > MAX_ANSWER {
            return (Ok(read.freeze()), Some(body));
        }
    }
    (Ok(read.freeze()), None)
}

fn upstream_failed(sent: bool, error: Option<hyper_util::client::legacy::Error>) -> Problem {
    match error {
        Some(error) if error.is_connect() => {
            Problem::new(StatusCode::BAD_GATEWAY, Kind::Unavailable, "cannot reach the upstream; nothing was applied")
        }
        None if sent => {
            let detail = "the upstream did not answer in time; it may or may not have applied the request";
            Problem::new(StatusCode::GATEWAY_TIMEOUT, Kind::Indeterminate, detail)
        }
        _ if sent => {
            let detail = "the upstream ended the connection; it may or may not have applied the request";
            Problem::new(StatusCode::BAD_GATEWAY, Kind::Indeterminate, detail)
        }
        _ => {
            let detail = "the upstream ended the connection before the whole request was sent";
            Problem::new(StatusCode::BAD_GATEWAY, Kind::Unavailable, detail)
        }
    }
}
