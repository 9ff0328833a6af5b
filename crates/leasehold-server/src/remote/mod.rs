//! The server's half of `leasehold://`: records are read, listed and watched, and changed by verbs alone.
//!
//! Promise: a request is decided here, on the record that is stored and at the store's own time, by the same pure functions as
//! everywhere. What arrives names a verb; no bytes of a lease or an item are ever taken from a client, and a fence is moved only
//! forward, as [`fence`] says. Each request is checked against the caller's key by [`rules`], for every name that it touches. A
//! caller who may only look is never shown the nonce of a grant that is in force, which would let it write in the holder's name.
//! Non-promise: counters, journals, kept output and definitions are stored as the client sends them, if they have the right form.

mod change;
mod fence;
mod hide;
mod rules;
mod tended;
mod watch;

use crate::access::{Caller, Verb};
use crate::serve::{In, Problem, Site};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use leasehold_core::item::{Item, ItemName};
use leasehold_core::store::{Range, Versioned};
use leasehold_core::wire::{self, Listing, Page, Reading, Record};
use leasehold_core::{Key, LeaseName, Shelf};
use rules::Subject;
pub(crate) use rules::name_of;
pub(crate) use tended::Tended;

/// The most entries of one page, whatever is asked for.
const MAX_ENTRIES: usize = 1000;

/// The routes, below the namespace's own address.
pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/v1/ns/{namespace}/records/read", post(read))
        .route("/v1/ns/{namespace}/records/list", post(list))
        .route("/v1/ns/{namespace}/records/watch", post(watch::watch))
        .route("/v1/ns/{namespace}/records/change", post(change::change))
        .route("/v1/ns/{namespace}/records/hold", post(change::hold))
        .route_layer(middleware::from_fn(speaks_our_protocol))
}

/// Refuses a client of another version: what it means by a record or a verb may be something else. Which one this server speaks
/// is said to everybody at the namespace's own address.
async fn speaks_our_protocol(request: Request, next: Next) -> Response {
    let Some(named) = request.headers().get(wire::SPEAKS) else { return next.run(request).await };
    match named.to_str().ok().and_then(|named| named.parse().ok()) {
        None => Problem::invalid(format!("the header `{}` is a number", wire::SPEAKS)).into_response(),
        Some(theirs) => match wire::disagreement(theirs, wire::PROTOCOL) {
            None => next.run(request).await,
            Some(what) => {
                let detail = format!("{what}. Nothing was done");
                Problem::new(StatusCode::NOT_IMPLEMENTED, "unsupported", detail).into_response()
            }
        },
    }
}

/// A body of JSON; what is wrong with it is said as a problem.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: serde::de::DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            let detail = "send JSON, with the header `Content-Type: application/json`";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid", detail));
        }
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|e| Problem::new(e.status(), "invalid", e.body_text()))?;
        crate::api::reading::read(&bytes).map(Body)
    }
}

async fn read(
    State(site): State<Site>,
    In(namespace): In,
    caller: Caller,
    Body(record): Body<Record>,
) -> Result<Json<Reading>, Problem> {
    let key = record.key();
    let subject = Subject::of(&key);
    subject.may_read(&caller, &namespace, &key)?;
    let store = site.coordinator(&namespace).await?.store().clone();
    let leasehold_core::store::Reading { value, now } = store.read(&key).await?;
    if let Some(item) = rules::item_of(&key)
        && is_over(value.as_ref(), &item)
        && caller.may(Verb::Work, &namespace, Some(item.queue.as_str())).is_ok()
    {
        site.tended().suspect(&namespace, item);
    }
    let value = value.map(|value| hide::shown(&caller, &namespace, &key, value)).transpose()?.flatten();
    Ok(Json(Reading { value: value.map(|value| wire::Value::of(value, &key)).transpose()?, now }))
}

async fn list(
    State(site): State<Site>,
    In(namespace): In,
    caller: Caller,
    Body(listing): Body<Listing>,
) -> Result<Json<Page>, Problem> {
    let Listing { shelf, after, continued_from, skip, limit } = listing;
    let start = after.as_ref().map(|after| Key::new(shelf, after));
    rules::may_list(&caller, &namespace, shelf, start.as_ref())?;
    let after = match continued_from {
        Some(cursor) => crate::api::cursor::read(&site, Some(&cursor)).await?,
        None => after,
    };
    let coordinator = site.coordinator(&namespace).await?;
    if shelf == Shelf::Line
        && let Some(Subject::Name(queue)) = start.as_ref().map(Subject::of)
        && caller.may(Verb::Work, &namespace, Some(&queue)).is_ok()
    {
        site.tended().look_after(&namespace, &coordinator, &queue);
    }
    let range = Range { after: after.as_ref(), skip, limit: limit.min(MAX_ENTRIES) };
    let page = coordinator.store().list(shelf, range).await?;
    let mut entries = Vec::with_capacity(page.entries.len());
    // The last name that was read is needed to continue, so a page that shows nothing of it is continued here.
    let last = page.entries.last().map(|(name, _)| name.clone());
    for (name, value) in page.entries {
        let key = Key::new(shelf, &name);
        if rules::is_listed(&caller, &namespace, &key, start.as_ref())
            && let Some(value) = hide::shown(&caller, &namespace, &key, value)?
        {
            entries.push((name, wire::Value::of(value, &key)?));
        }
    }
    // Behind the lineage that was asked for there is nothing for a key that may not read everything.
    let subject = start.as_ref().map(Subject::of);
    let is_past = matches!(subject, Some(Subject::Lineage(_)))
        && caller.may(Verb::Read, &namespace, None).is_err()
        && last.as_ref().is_some_and(|name| Some(Subject::of(&Key::new(shelf, name))) != subject);
    let more = page.more && !is_past;
    let last = last.filter(|_| more && entries.is_empty());
    let continued_from = crate::api::cursor::after(&site, last.as_ref()).await?;
    Ok(Json(Page { entries, more, continued_from, now: page.now }))
}

/// Whether an item is finished or gone, and should stand in no line.
fn is_over(value: Option<&Versioned>, name: &ItemName) -> bool {
    value.is_none_or(|value| Item::decode(&value.bytes, name.id.as_str()).is_ok_and(|item| !item.is_open()))
}

/// Whether the caller may know of this lease, or of the item that a token names so.
pub(crate) fn may_know(caller: &Caller, namespace: &leasehold_stores::Namespace, lease: &LeaseName) -> bool {
    caller.sees(namespace, &name_of(lease)) || takes_part_in(caller, namespace, lease)
}

/// What is allowed to those who hold a lease, or work on a queue, or give orders about it, and not only look.
pub(crate) fn takes_part(caller: &Caller, namespace: &leasehold_stores::Namespace, verb: Verb, name: &str) -> bool {
    [verb, Verb::Operate].into_iter().any(|verb| caller.may(verb, namespace, Some(name)).is_ok())
}

/// The same, of a lease, or of the item that a token names so.
pub(crate) fn takes_part_in(caller: &Caller, namespace: &leasehold_stores::Namespace, lease: &LeaseName) -> bool {
    takes_part(caller, namespace, verb_of(lease), &name_of(lease))
}

/// What whoever has it must be allowed: to hold a lease, or to work on an item.
pub(crate) fn verb_of(lease: &LeaseName) -> Verb {
    if lease.folder() == Some(LeaseName::ITEMS) { Verb::Work } else { Verb::Hold }
}
