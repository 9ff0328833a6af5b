//! The NATS store on real servers: every promise, faults, credentials, TLS, settings, and a cluster that loses its leader.

#![allow(clippy::unwrap_used)]

use leasehold::store::Store;
use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Opener, Server, nats, suite};
use std::sync::Arc;

async fn store(url: &str) -> leasehold::Result<Arc<dyn Store>> {
    let url: StoreUrl = url.parse()?;
    open(&url).await
}

fn opener() -> Opener {
    Opener::new(|port| async move { store(&format!("nats://127.0.0.1:{port}")).await })
}

fn url(server: &Server) -> String {
    format!("nats://127.0.0.1:{}", server.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_keeps_every_promise() {
    let server = nats();
    let url = url(&server);
    let bench = Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { store(&url).await }
    });
    exercise(&bench).await.assert_kept();
}

// On one thread the two halves of an exchange leave together, as the count wants it.
#[tokio::test]
async fn round_trips_are_few() {
    let server = nats();
    suite::round_trips_are_few(server.port(), &opener()).await;
}
