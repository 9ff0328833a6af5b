//! Answers kept for clients that ask again: by epoch, grant and `Idempotency-Key`, bounded in number, size and age.
//!
//! Promise: while a key is remembered, its request is sent once. Asked again, it gets the same answer; with another
//! body or target it is refused. A request that may or may not have been applied is not sent again. Non-promise: a key
//! that was dropped (number, age, a restart of the proxy) is a new request.

use super::body::{self, Reply};
use super::config::Replay;
use super::problem::Problem;
use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Kind, Token};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// The longest answer that is kept.
pub(crate) const MAX_ANSWER: usize = 256 * 1024;
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// One operation of one grant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name(u64, u128, HeaderValue);

impl Name {
    pub(crate) fn new(token: &Token, key: HeaderValue) -> Self {
        Name(token.epoch.get(), token.nonce.as_u128(), key)
    }
}

/// An answer as it is kept.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Debug, Clone)]
enum Entry {
    UnderWay,
    Answered([u8; 32], Arc<Answer>),
    /// Applied, but the answer was too long to keep.
    Unkept([u8; 32]),
    /// Sent whole, and never answered.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Cache {
    settings: Replay,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Name, (u64, Entry)>,
    order: VecDeque<(Name, u64, Moment)>,
    next: u64,
}

/// What the cache says about a request.
pub(crate) enum Lookup {
    /// Send it on, and say how it went.
    New,
    /// Compare the body's hash, then give this.
    Seen([u8; 32], Option<Arc<Answer>>),
    Refused(Problem),
}

impl Cache {
    pub(crate) fn new(settings: Replay) -> Self {
        Cache { settings, inner: Mutex::default() }
    }

    /// Looks a request up, and marks it as under way if it is new.
    pub(crate) fn begin(&self, name: &Name) -> Lookup {
        let now = SystemClock.now();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.forget(now, &self.settings);
        let conflict = |detail: &str, kind| Lookup::Refused(Problem::new(StatusCode::CONFLICT, kind, detail));
        match inner.entries.get(name) {
            Some((_, Entry::Answered(hash, answer))) => Lookup::Seen(*hash, Some(answer.clone())),
            Some((_, Entry::Unkept(hash))) => Lookup::Seen(*hash, None),
            Some((_, Entry::UnderWay)) => {
                conflict("a request with this Idempotency-Key is under way; wait for its answer", Kind::Contended)
            }
            Some((_, Entry::Unknown)) => conflict(
                "a request with this Idempotency-Key was sent on and never answered: it may have been applied; check \
                 before you try again with another key",
                Kind::Indeterminate,
            ),
            None => {
                let id = inner.next;
                inner.next += 1;
                inner.entries.insert(name.clone(), (id, Entry::UnderWay));
                inner.order.push_back((name.clone(), id, now));
                Lookup::New
            }
        }
    }

    pub(crate) fn answered(&self, name: &Name, hash: [u8; 32], answer: Option<Answer>) {
        let entry = answer.map_or(Entry::Unkept(hash), |answer| Entry::Answered(hash, Arc::new(answer)));
        self.set(name, entry);
    }

    pub(crate) fn unknown(&self, name: &Name) {
        self.set(name, Entry::Unknown);
    }

    /// It was surely not applied: it may be sent again.
    pub(crate) fn not_sent(&self, name: &Name) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).entries.remove(name);
    }

    fn set(&self, name: &Name, entry: Entry) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = inner.entries.get_mut(name) {
            slot.1 = entry;
        }
    }
}

impl Inner {
    fn forget(&mut self, now: Moment, settings: &Replay) {
        while let Some((name, id, at)) = self.order.front() {
            let old = now.saturating_since(*at) >= settings.age || self.order.len() >= settings.entries.max(1);
            if !old {
                return;
            }
            if self.entries.get(name).is_some_and(|entry| entry.0 == *id) {
                self.entries.remove(name);
            }
            self.order.pop_front();
        }
    }
}

/// The kept answer, or the refusal of a body that is not the one it was given to.
pub(crate) fn again(kept: [u8; 32], asked: [u8; 32], answer: Option<&Answer>) -> Result<Response<Reply>, Problem> {
    if kept != asked {
        let detail = "this Idempotency-Key was used for another body or target; use a new key for a new request";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, Kind::Invalid, detail));
    }
    let Some(answer) = answer else {
        let detail = "the request with this Idempotency-Key was answered, but the answer was too long to keep; it was applied once";
        return Err(Problem::new(StatusCode::CONFLICT, Kind::Invalid, detail));
    };
    let mut response = Response::new(body::full(answer.body.clone()));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers.clone();
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}
