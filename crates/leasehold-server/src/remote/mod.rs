//! The server's half of `leasehold://`: records are read, listed and watched, and changed by verbs alone.
//!
//! Promise: a request is decided here, on the stored record and at the store's own time, by the same pure functions as everywhere.
//! A request names a verb; no bytes of a lease or an item are ever taken from a client, and a fence is moved only
//! forward, as [`fence`] says. Each request is checked against the caller's key by [`rules`], for every name that it touches. A
//! caller who may only look is never shown the nonce of a grant, which would let it write in the holder's name ([`hide`]).
//! Non-promise: counters, journals, kept output and definitions are stored as the client sends them, if they have the right form.

mod change;
mod fence;
mod hide;
mod listing;
mod presence;
mod rules;
mod tended;
mod watch;

use crate::access::{Caller, Denied, Verb};
use crate::serve::{Claimed, In, Json, Problem, Site};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
pub(crate) use hide::knows_origin;
use leasehold_core::item::{Item, ItemName};
use leasehold_core::lease::protocol::Order;
use leasehold_core::store::Versioned;
use leasehold_core::wire::{self, HeldReading, HeldRecord, Listing, Page, Reading};
use leasehold_core::{Claim, Key, LeaseName, Ownership, Shelf, Timestamp, codec};
use listing::{ListedEntries, ListingRequest};
use rules::Subject;
pub(crate) use rules::name_of;
pub(crate) use tended::Tended;

/// The most entries of one page, whatever the client asks for.
const MAX_ENTRIES: usize = 1000;

/// The routes, below the namespace's own address.
pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/v1/ns/{namespace}/records/read", post(read))
        .route("/v1/ns/{namespace}/records/recall", post(read_held))
        .route("/v1/ns/{namespace}/records/list", post(list))
        .route("/v1/ns/{namespace}/records/watch", post(watch::watch))
        .route("/v1/ns/{namespace}/records/change", post(change::change))
        .route("/v1/ns/{namespace}/records/hold", post(change::hold))
        .route_layer(middleware::from_fn(speaks_our_protocol))
}

/// Refuses a client of another protocol version, which may mean something else by a record or a verb. The namespace's own address
/// tells every client which version this server speaks.
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

/// A body of JSON; if it is wrong, the problem says how.
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
    Body(key): Body<Key>,
) -> Result<Json<Reading>, Problem> {
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

/// A read by the holder of the lease or the worker of the item, as the record itself says: it is served before others. Any other
/// caller learns nothing here.
async fn read_held(
    State(site): State<Site>,
    In(namespace): In,
    caller: Caller,
    Body(HeldRecord { record: key, claim }): Body<HeldRecord>,
) -> Result<Json<HeldReading>, Problem> {
    if !matches!(key.shelf, Shelf::Lease | Shelf::Item) {
        return Err(Problem::invalid("only leases and items are held; send it to `records/read`"));
    }
    Subject::of(&key).may_read(&caller, &namespace, &key)?;
    let store = site.coordinator_of_holder(&namespace).await?.store().clone();
    let leasehold_core::store::Reading { value, now } = store.read(&key).await?;
    let Some(value) = value.filter(|value| is_held(&key, value, claim, now)) else {
        site.claimed_nothing(&caller, Claimed::ToRead);
        return Ok(Json(HeldReading { held: None }));
    };
    let value = hide::shown(&caller, &namespace, &key, value)?.map(|value| wire::Value::of(value, &key)).transpose()?;
    Ok(Json(HeldReading { held: Some(Reading { value, now }) }))
}

/// Whether a claim on a record is in force.
fn is_held(key: &Key, value: &Versioned, claim: Claim, now: Timestamp) -> bool {
    match key.shelf {
        Shelf::Lease => codec::decode::<Ownership>(hide::LEASE, &value.bytes, key.name.as_str())
            .is_ok_and(|record| claim.holds(record.epoch, record.live_tenure(now))),
        Shelf::Item => Item::decode(&value.bytes, key.name.as_str())
            .is_ok_and(|item| claim.holds(item.epoch, item.tenure().filter(|tenure| tenure.deadline > now))),
        _ => false,
    }
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
    if limit == 0 {
        return Err(Problem::invalid("ask for at least one entry").with("field", "limit"));
    }
    let shelf_name = format!("{shelf:?}");
    let own = ["records", &shelf_name, namespace.as_str()];
    let stopped_at = crate::api::cursor::read(&site, &own, continued_from.as_deref()).await?;
    let coordinator = site.coordinator(&namespace).await?;
    if shelf == Shelf::Line
        && let Some(Subject::Name(queue)) = start.as_ref().map(Subject::of)
        && caller.may(Verb::Work, &namespace, Some(&queue)).is_ok()
    {
        let patient = site.coordinator_of_waiter(&namespace).await?;
        site.tended().look_after(caller.account(), &namespace, &patient, &queue).await;
    }
    let limit = limit.min(MAX_ENTRIES);
    let asked = ListingRequest {
        caller: &caller,
        namespace: &namespace,
        shelf,
        after: after.as_ref(),
        stopped_at,
        skip,
        limit,
    };
    let ListedEntries { entries, more, stopped_at, now } = asked.find(coordinator.store().as_ref()).await?;
    let continued_from = crate::api::cursor::after(&site, &own, stopped_at.as_ref()).await?;
    Ok(Json(Page { entries, more, continued_from, now }))
}

/// Whether an item is finished or gone, so that it belongs in no line.
fn is_over(value: Option<&Versioned>, name: &ItemName) -> bool {
    value.is_none_or(|value| Item::decode(&value.bytes, name.id.as_str()).is_ok_and(|item| !item.is_open()))
}

/// Whether the caller may know of this lease, or of the item behind a token of this name.
pub(crate) fn may_know(caller: &Caller, namespace: &leasehold_stores::Namespace, lease: &LeaseName) -> bool {
    caller.sees(namespace, &name_of(lease)) || takes_part_in(caller, namespace, lease)
}

/// Whether the caller may give this order on a lease that it may operate on. An order that sets the lineage needs a key for all
/// names: it is for a lease whose record was lost, and nothing shows that the lineage belonged to that lease, and not to one that
/// the key may not see.
pub(crate) fn may_order(caller: &Caller, namespace: &leasehold_stores::Namespace, order: &Order) -> Result<(), Denied> {
    match order {
        Order::Advance { lineage: Some(_), .. } => caller.may(Verb::Operate, namespace, None),
        _ => Ok(()),
    }
}

/// Whether the caller may know of a resource that refused a write of a lease that it may read. Resources with fences in the store
/// are in scope by their names, like leases; other resources are shown to the lease's holders only.
pub(crate) fn knows_resource(caller: &Caller, namespace: &leasehold_stores::Namespace, resource: &str) -> bool {
    match resource.split_once(':') {
        Some(("api" | "http" | "mcp", name)) => {
            caller.sees(namespace, name) || takes_part(caller, namespace, Verb::Hold, name)
        }
        _ => true,
    }
}

/// Whether the caller may know of the items of this queue.
pub(crate) fn knows_queue(caller: &Caller, namespace: &leasehold_stores::Namespace, queue: &str) -> bool {
    caller.sees(namespace, queue) || takes_part(caller, namespace, Verb::Work, queue)
}

/// Whether the caller may hold the lease, work on the queue, or operate on it, and not only read.
pub(crate) fn takes_part(caller: &Caller, namespace: &leasehold_stores::Namespace, verb: Verb, name: &str) -> bool {
    [verb, Verb::Operate].into_iter().any(|verb| caller.may(verb, namespace, Some(name)).is_ok())
}

/// The same for a lease, or for the item behind a token of this name.
pub(crate) fn takes_part_in(caller: &Caller, namespace: &leasehold_stores::Namespace, lease: &LeaseName) -> bool {
    takes_part(caller, namespace, verb_of(lease), &name_of(lease))
}

/// The verb that the bearer of such a token needs: `hold` for a lease, `work` for an item.
pub(crate) fn verb_of(lease: &LeaseName) -> Verb {
    if lease.folder() == Some(LeaseName::ITEMS) { Verb::Work } else { Verb::Hold }
}
