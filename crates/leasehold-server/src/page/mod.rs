//! The page for people: leases, queues and jobs to look at, and an operator's orders with their reasons.
//!
//! Everything is rendered here, by templates that escape by type, and is a plain page without script. One small module of our
//! own fetches the same address again when the server hints at a change, and puts the marked parts in place of the old ones.
//!
//! Promise: each page reads a bounded part of the store ([`budget`]), whatever is in it, and says so where it did not look at
//! everything. An order carries a reason and the epoch that its sender saw; what has changed since is refused and shown. A key
//! that may not operate sees no button, and is refused. Nothing is fetched from other hosts. Non-promise: a page is what the
//! store said when it was read; it decides nothing.

mod act;
mod arrival;
mod assets;
pub mod budget;
mod bulk;
mod changes;
mod counts;
mod entry;
mod fences;
mod form;
mod frame;
mod health;
mod item;
mod jobs;
mod lease;
mod leases;
mod notice;
mod printed;
mod queues;
mod runs;
mod subject;
mod throughput;
mod timeline;
mod times;
mod visit;

pub(crate) use notice::{not_allowed, nothing};
pub(crate) use visit::{by_cookie, from_own_site};

use crate::serve::Site;
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use std::sync::Arc;

/// What all pages of one server share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pulses: changes::Pulses,
    bounds: counts::Bounds,
}

/// What needs no key: the way in, and the way out.
pub(crate) fn open() -> Router<Site> {
    Router::new()
        .route("/", get(entry::home))
        .route("/sign-in", get(entry::to_home).post(entry::sign_in))
        .route("/sign-out", post(entry::sign_out))
}

/// What needs one. It is in a cookie, which [`by_cookie`] reads.
pub(crate) fn keyed() -> Router<Site> {
    Router::new()
        .route("/ns/{namespace}", get(entry::namespace))
        .route("/ns/{namespace}/leases", get(leases::page))
        .route("/ns/{namespace}/lease/{*name}", get(lease::page).post(act::on_lease))
        .route("/ns/{namespace}/queues", get(queues::all))
        .route("/ns/{namespace}/queue/{queue}", get(queues::one))
        .route("/ns/{namespace}/queue/{queue}/dead-letters", get(bulk::confirm).post(bulk::act))
        .route("/ns/{namespace}/item/{queue}/{id}", get(item::page).post(act::on_item))
        .route("/ns/{namespace}/jobs", get(jobs::page))
        .route("/ns/{namespace}/job/{*name}", get(runs::page).post(act::on_job))
        .route("/ns/{namespace}/health", get(health::page))
        .route("/ns/{namespace}/changes", get(changes::stream))
}

/// All of it, with what the pages share: style and script, and problems as pages.
pub(crate) fn complete(routes: Router<Site>, site: &Site) -> Router<Site> {
    routes
        .route_layer(middleware::from_fn_with_state(site.clone(), notice::as_page))
        .route_layer(middleware::from_fn(arrival::from_elsewhere))
        .route("/assets/{version}/{file}", get(assets::one))
        .layer(Extension(Arc::new(Shared::default())))
}
