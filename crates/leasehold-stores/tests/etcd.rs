//! The etcd store on real members: every promise, faults, round trips, TLS, users, and a cluster that loses its leader.

#![allow(clippy::unwrap_used)]

use leasehold::store::Store;
use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::suite::{self, Opener};
use leasehold_testbed::{Server, etcd, namespaces_are_apart};
use std::sync::Arc;

async fn opened(url: &str) -> leasehold::Result<Arc<dyn Store>> {
    open(&url.parse::<StoreUrl>()?).await
}

fn url(server: &Server) -> String {
    format!("etcd://127.0.0.1:{}", server.port())
}

fn opener() -> Opener {
    Opener::new(|port| async move { opened(&format!("etcd://127.0.0.1:{port}")).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_every_promise() {
    let server = etcd();
    let url = url(&server);
    let bench = Bench::new(Effort::LIGHT, {
        let url = url.clone();
        move || {
            let url = url.clone();
            async move { opened(&url).await }
        }
    });
    exercise(&bench).await.assert_kept();
    let team = opened(&format!("{url}?namespace=team")).await.unwrap();
    namespaces_are_apart(opened(&url).await.unwrap(), team).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_withstands_faults() {
    let mut server = etcd();
    suite::a_release_wakes_the_waiter(server.port(), &opener()).await;
    suite::withstands_faults(&mut server, &opener()).await;
}
