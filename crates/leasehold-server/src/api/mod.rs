//! The public HTTP API, `/v1/ns/{namespace}`: leases, queues, jobs, events and fences, for everyone with a URL and a key.
//!
//! Promise: each request is decided by the same code as the command's, at the store's time; the key is checked before the body is
//! read. Every write may carry an `Idempotency-Key`. Nothing that a caller may only read shows a token or a nonce. Non-promise: a
//! server remembers nothing by itself: a repeated request finds what the records say.

mod asked;
pub(crate) mod cursor;
mod document;
mod events;
mod exchange;
mod fences;
mod idempotency;
mod jobs;
mod keys;
mod leases;
pub(crate) mod problems;
mod queues;
pub(crate) mod reading;
pub(crate) mod tally;
pub(crate) mod trigger;
pub(crate) mod values;
pub(crate) mod walk;

pub use document::document;

use crate::serve::Site;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

/// Where the description of this API is.
const DESCRIPTION: &str = "/v1/openapi.json";

/// Every route of the API that needs a key.
pub fn routes() -> Router<Site> {
    let (router, _) = document::keyed().split_for_parts();
    router.route(DESCRIPTION, get(|| async { ([(CONTENT_TYPE, "application/json")], document()) }))
}

/// Routes for clients that have no key yet.
pub fn open_routes() -> Router<Site> {
    document::open().split_for_parts().0
}
