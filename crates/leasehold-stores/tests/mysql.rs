//! The MySQL store on a real MariaDB server: every promise, faults, credentials, TLS, time zones.

#![allow(clippy::unwrap_used)]

use leasehold::store::{Class, Store, Swap};
use leasehold::{Acquired, Ask, Coordinator, HolderId, Key, Kind, LeaseName, Outcome, Shelf, Timestamp, Ttl};
use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Proxy, Server, mariadb, mariadb_run, mariadb_with, namespaces_are_apart};
use std::sync::Arc;

fn url(text: &str) -> StoreUrl {
    text.parse().unwrap()
}

fn root_at(port: u16) -> StoreUrl {
    url(&format!("mysql://root@127.0.0.1:{port}/leases"))
}

async fn store(url: &StoreUrl) -> Arc<dyn Store> {
    open(url).await.unwrap()
}

fn key(name: &str) -> Key {
    Key::new(Shelf::Probe, &name.parse().unwrap())
}

fn tables(server: &Server) -> String {
    mariadb_run(server, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'leases'").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_keeps_every_promise() {
    let server = mariadb();
    let plain = root_at(server.port());
    // Looking makes nothing.
    let looking = store(&plain).await;
    assert_eq!(looking.read(&key("nothing")).await.unwrap().value, None);
    let page = looking.list(Shelf::Probe, None, 10).await.unwrap();
    assert!(page.entries.is_empty() && !page.more);
    assert_eq!(looking.survey().await.unwrap().class, Class::A);
    assert_eq!(tables(&server), "0");

    let opened = plain.clone();
    let bench = Bench::new(Effort::LIGHT, move || {
        let url = opened.clone();
        async move { open(&url).await }
    });
    exercise(&bench).await.assert_kept();
    let socket = format!("mariadb://root@/leases?namespace=team&socket={}/socket", server.folder().display());
    namespaces_are_apart(store(&plain).await, store(&url(&socket)).await).await;
    assert_eq!(tables(&server), "1");
}
