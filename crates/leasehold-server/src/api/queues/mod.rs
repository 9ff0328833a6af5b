//! Queues: add items, claim and end them, look at them, and what operators do to them.

mod add;
mod bulk;
mod claim;
mod end;
mod look;
mod operate;
mod recent;
mod view;

use crate::serve::Site;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new()
        .routes(routes!(look::queues))
        .routes(routes!(look::counts))
        .routes(routes!(look::items, add::add))
        .routes(routes!(look::item))
        .routes(routes!(claim::claim))
        .routes(routes!(claim::renew))
        .routes(routes!(claim::progress))
        .routes(routes!(end::complete))
        .routes(routes!(end::fail))
        .routes(routes!(end::give_back))
        .routes(routes!(operate::retry))
        .routes(routes!(operate::cancel))
        .routes(routes!(operate::hand_off))
        .routes(routes!(bulk::count))
        .routes(routes!(bulk::retry))
        .routes(routes!(bulk::purge))
        .layer(axum::Extension(recent::Recent::default()))
}
