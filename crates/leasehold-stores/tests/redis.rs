//! Redis keeps every promise, on real servers: one, a cluster, and a primary with sentinels.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Class, Range, Store, Swap};
use leasehold_core::{Key, Kind, LeaseName, Shelf};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Opener, Server, redis, redis_cli, redis_cluster, redis_replica, redis_with, suite};
use std::sync::Arc;

async fn store(url: &str) -> Arc<dyn Store> {
    open(&url.parse::<StoreUrl>().unwrap()).await.unwrap()
}

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

fn bench(url: String) -> Bench {
    let url: StoreUrl = url.parse().unwrap();
    Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { open(&url).await }
    })
}

fn opener() -> Opener {
    Opener::new(|port| async move { open(&format!("redis://127.0.0.1:{port}").parse::<StoreUrl>()?).await })
}

fn key(name: &str) -> Key {
    Key::new(Shelf::Lease, &LeaseName::new(name).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keeps_every_promise() {
    let server = redis();
    exercise(&bench(url(&server))).await.assert_kept();
    let (plain, team) = (store(&url(&server)).await, store(&format!("{}?namespace=team", url(&server))).await);
    suite::namespaces_are_apart(plain, team).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_withstands_faults() {
    let mut server = redis();
    suite::withstands_faults(&mut server, &opener()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_waiter() {
    let server = redis();
    suite::a_release_wakes_the_waiter(server.port(), &opener()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_every_promise_wherever_the_namespace_is() {
    let nodes = redis_cluster();
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    // Namespaces whose slots are on all three nodes.
    for namespace in ["default", "team-a", "team-b", "team-c"] {
        let url = format!("redis://{}?mode=cluster&namespace={namespace}", hosts.join(","));
        let handle = store(&url).await;
        assert!(matches!(handle.swap(&key("x"), None, b"1").await.unwrap(), Swap::Done { .. }));
        assert_eq!(handle.read(&key("x")).await.unwrap().value.unwrap().bytes, b"1");
    }
    let kept: Vec<bool> = nodes.iter().map(|node| redis_cli(node.port(), &["dbsize"]).trim() != "0").collect();
    assert_eq!(kept, [true; 3], "the namespaces are not spread over the nodes: choose others");
    exercise(&bench(format!("redis://{}?mode=cluster&namespace=full", hosts[0]))).await.assert_kept();
    // The first node does not have the default namespace, and is asked as if it stood alone.
    let error = store(&url(&nodes[0])).await.read(&key("x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("add the option `mode=cluster`"), "{error}");
}

#[tokio::test]
async fn nothing_is_read_from_a_replica() {
    let primary = redis();
    let replica = redis_replica(primary.port(), &[]);
    let handle = store(&url(&primary)).await;
    handle.swap(&key("x"), None, b"1").await.unwrap();
    let handle = store(&url(&replica)).await;
    for error in [
        handle.read(&key("x")).await.unwrap_err(),
        handle.list(Shelf::Lease, Range::new(None, 10)).await.unwrap_err(),
        handle.swap(&key("x"), None, b"2").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains("is a read-only replica; name the primary"), "{error}");
    }
}

#[tokio::test]
async fn a_key_of_another_kind_is_refused_and_left_alone() {
    let server = redis();
    let handle = store(&url(&server)).await;
    redis_cli(server.port(), &["set", "leasehold:{default}:lease", "something"]);
    for error in [
        handle.read(&key("x")).await.unwrap_err(),
        handle.swap(&key("x"), None, b"1").await.unwrap_err(),
        handle.list(Shelf::Lease, Range::new(None, 9)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
    assert_eq!(redis_cli(server.port(), &["get", "leasehold:{default}:lease"]).trim(), "something");
    redis_cli(server.port(), &["del", "leasehold:{default}:lease"]);
    redis_cli(server.port(), &["set", "leasehold:{default}:lease:names", "something"]);
    assert_eq!(handle.swap(&key("x"), None, b"1").await.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(handle.read(&key("x")).await.unwrap().value, None, "an error means that nothing was changed");
    redis_cli(server.port(), &["del", "leasehold:{default}:lease:names"]);
    redis_cli(server.port(), &["hset", "leasehold:{default}:lease", "y", "no revision"]);
    assert_eq!(handle.read(&key("y")).await.unwrap_err().kind(), Kind::Corrupt);
}

#[tokio::test]
async fn reading_leaves_the_server_as_it_was_and_nothing_expires() {
    let server = redis();
    let handle = store(&url(&server)).await;
    assert_eq!(handle.read(&key("x")).await.unwrap().value, None);
    assert!(handle.list(Shelf::Lease, Range::new(None, 9)).await.unwrap().entries.is_empty());
    handle.survey().await.unwrap();
    assert_eq!(redis_cli(server.port(), &["dbsize"]).trim(), "0");
    handle.swap(&key("x"), None, b"1").await.unwrap();
    let changes = || {
        let info = redis_cli(server.port(), &["info", "persistence"]);
        info.lines().find(|line| line.starts_with("rdb_changes_since_last_save")).unwrap().to_owned()
    };
    let before = changes();
    handle.read(&key("x")).await.unwrap();
    handle.list(Shelf::Lease, Range::new(None, 9)).await.unwrap();
    handle.survey().await.unwrap();
    assert_eq!(changes(), before);
    for kept in ["leasehold:{default}:lease", "leasehold:{default}:lease:names"] {
        assert_eq!(redis_cli(server.port(), &["pttl", kept]).trim(), "-1", "{kept}");
    }
}

#[tokio::test]
async fn the_class_is_no_better_than_the_settings() {
    let careful = redis();
    assert_eq!(store(&url(&careful)).await.survey().await.unwrap().class, Class::A);
    let usual = redis_with(&["--appendfsync", "everysec"]);
    assert_eq!(store(&url(&usual)).await.survey().await.unwrap().class, Class::B);
}
