//! Whether the server lives, and whether it can do anything.

use super::problem::Problem;
use super::site::Site;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use std::time::Duration;

/// How long the store may take to answer before the server counts as not ready.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn routes() -> Router<Site> {
    Router::new().route("/livez", get(|| async { "alive\n" })).route("/readyz", get(readyz))
}

async fn readyz(State(site): State<Site>) -> Result<&'static str, Problem> {
    if *site.ending().borrow() {
        return Err(Problem::overloaded("this server is ending"));
    }
    match tokio::time::timeout(PATIENCE, site.keys().keys().check()).await {
        Ok(Ok(())) => Ok("ready\n"),
        Ok(Err(error)) => Err(Problem::away(&error)),
        Err(_) => Err(Problem::overloaded("the store did not answer in time")),
    }
}
