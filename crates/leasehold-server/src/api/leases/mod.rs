//! Leases: acquire, keep and release them, look at them, and what operators do to them.

mod hold;
mod look;
pub(super) mod operate;
mod view;

use crate::serve::Site;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) use look::Damaged;
pub(super) use view::state;

pub(super) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new()
        .routes(routes!(look::list))
        .routes(routes!(look::one))
        .routes(routes!(look::history))
        .routes(routes!(hold::acquire))
        .routes(routes!(hold::renew))
        .routes(routes!(hold::release))
        .routes(routes!(hold::progress))
        .routes(routes!(hold::checkpoint))
        .routes(routes!(operate::revoke))
        .routes(routes!(operate::hand_off))
        .routes(routes!(operate::drain))
        .routes(routes!(operate::pause))
        .routes(routes!(operate::resume))
        .routes(routes!(operate::advance))
}
