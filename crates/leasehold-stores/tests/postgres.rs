//! The PostgreSQL store on real servers: every promise, directly and through a pooler, and through faults.

#![allow(clippy::unwrap_used)]

use leasehold::store::{Store, Watching};
use leasehold::{Key, Shelf};
use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Postgres, pgbouncer, postgres};
use std::sync::Arc;
use std::time::Duration;

fn bench(url: &str) -> Bench {
    let url: StoreUrl = url.parse().unwrap();
    Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { open(&url).await }
    })
}

async fn store(url: &str) -> Arc<dyn Store> {
    open(&url.parse().unwrap()).await.unwrap()
}

fn probe(name: &str) -> Key {
    Key::new(Shelf::Probe, &name.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_every_promise() {
    let server = postgres();
    let url = Postgres::url(server.port());
    exercise(&bench(&url)).await.assert_kept();
    let (plain, team) = (store(&url).await, store(&format!("{url}?namespace=team")).await);
    leasehold_testbed::namespaces_are_apart(plain, team).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_mode_keeps_every_promise() {
    let server = postgres();
    let pooler = pgbouncer(&server);
    let url = Postgres::url(pooler.port());
    exercise(&bench(&url)).await.assert_kept();
    let pooled = store(&url).await;
    assert_eq!(pooled.capabilities().watch, Watching::Hints, "nobody has tried yet");
    let mut silent = pooled.watch(&probe("pooled")).await.unwrap();
    assert_eq!(pooled.capabilities().watch, Watching::None, "the pooler was noticed");
    let hint = tokio::time::timeout(Duration::from_millis(100), silent.hint()).await;
    assert!(hint.is_err(), "a silent watch never hints");
    let sessions = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.sql(sessions), "0", "nothing is left behind in the pooler's sessions");
}
