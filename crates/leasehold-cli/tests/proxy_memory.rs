//! What a proxy remembers when its store, its connections or the proxy itself are gone.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "http")]

#[path = "http/command.rs"]
#[allow(dead_code)]
mod command;
mod common;
#[path = "http/peer.rs"]
#[allow(dead_code)]
mod peer;
#[path = "http/upstream.rs"]
#[allow(dead_code)]
mod upstream;

use command::{Proxy, acquire};
use common::{Home, On};
use leasehold_core::lease::protocol::Order;
use leasehold_core::{Coordinator, Key, Operated, Shelf};
use leasehold_stores::{StoreUrl, open};
use peer::{Peer, once, post};
use std::path::PathBuf;
use std::time::Duration;
use upstream::Upstream;

/// Little to wait for where nobody knows what is at work.
const QUICK: [&str; 4] = ["--ttl", "1s", "--upstream-timeout", "1s"];

fn copy(home: &Home, from: &str, to: &str) {
    if home.path(to).exists() {
        std::fs::remove_dir_all(home.path(to)).unwrap();
    }
    let done = std::process::Command::new("cp").args(["-a", from, to]).current_dir(home.folder.path()).status();
    assert!(done.unwrap().success());
}

/// A proxy that is expected not to start.
fn refused(home: &Home, extra: &[&str]) -> common::Done {
    let good = ["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--resource", "api"];
    home.done(&[&good[..], extra].concat())
}

/// The one file in which the proxy of `api` keeps its high water.
fn state_files(home: &Home) -> Vec<PathBuf> {
    let folder = home.path(".local/state/leasehold/fences/http:api");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Does something with the store of this home.
fn in_store<T>(home: &Home, act: impl AsyncFnOnce(Coordinator) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = StoreUrl::parse_in(None, &home.store).unwrap();
    runtime.block_on(async { act(Coordinator::new(open(&url).await.unwrap())).await })
}

/// `leasehold advance job --past PAST --lineage LINEAGE`.
fn heal(home: &Home, past: u64, lineage: leasehold_core::Lineage) {
    let order = Order::Advance { past: leasehold_core::Epoch::new(past).unwrap(), lineage: Some(lineage) };
    in_store(home, async |leases| {
        let (lease, by, why) = ("job".parse().unwrap(), "test".parse().unwrap(), "lost".parse().unwrap());
        assert!(matches!(leases.operate(&lease, by, why, order).await.unwrap(), Operated::Done(_)));
    });
}

/// The fence of `api` as it is in the store.
fn stored_fence(home: &Home) -> String {
    let key = Key::new(Shelf::Fence, &"http/api".parse().unwrap());
    let reading = in_store(home, async |leases| leases.store().read(&key).await.unwrap());
    String::from_utf8(reading.value.unwrap().bytes).unwrap()
}

#[test]
fn a_store_that_was_restored_is_reported_by_a_proxy_that_was_started_again() {
    let (home, upstream) = (Home::new(On::Dir), Upstream::start());
    let mut proxy = Proxy::start(&home, &upstream, &QUICK).active();
    assert_eq!(proxy.write(&acquire(&home), "1").status, 200);
    proxy.end();
    copy(&home, "leases", "backup");
    proxy = Proxy::start(&home, &upstream, &QUICK).active();
    assert_eq!(proxy.write(&acquire(&home), "3").status, 200);
    assert_eq!(proxy.write(&acquire(&home), "5").status, 200);
    proxy.end();
    copy(&home, "backup", "leases");
    let told = refused(&home, &[]).expect(65);
    assert!(told.stderr.contains("store regressed: resource=`http:api` has seen epoch 5"), "{told:?}");
    assert!(told.stderr.contains("leasehold advance job --past 5"), "{told:?}");
    home.done(&["advance", "job", "--past", "5", "--why", "store was restored"]).expect(0);
    proxy = Proxy::start(&home, &upstream, &QUICK).active();
    assert_eq!(proxy.write_until(&acquire(&home), "7").status, 200);
    // Set back once more, behind the back of a proxy that stands by and takes over.
    let standby = Proxy::start(&home, &upstream, &QUICK);
    standby.signal("-STOP");
    proxy.kill();
    copy(&home, "backup", "leases");
    standby.signal("-CONT");
    let late = acquire(&home);
    let standby = standby.active();
    let answer = standby.write(&late, "late");
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.body.contains("store regressed"), "{answer:?}");
    assert_eq!(upstream.bodies(), ["1", "3", "5", "7"]);
}

#[test]
fn a_request_at_work_is_waited_for_though_two_proxies_are_gone() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let flags = ["--ttl", "1s", "--upstream-timeout", "5s"];
    let first = Proxy::start(&home, &upstream, &flags).active();
    let second = Proxy::start(&home, &upstream, &flags);
    let old = acquire(&home);
    let mut peer = Peer::connect(first.address);
    peer.send(&post("/late/3000", &old, b"old"));
    upstream.wait_received(1);
    first.kill();
    second.active().end();
    let new = acquire(&home);
    let third = Proxy::start(&home, &upstream, &flags).active();
    assert_eq!(third.write_until(&new, "new").status, 200);
    assert_eq!(upstream.bodies(), ["old", "new"]);
}

#[test]
fn a_request_whose_connection_broke_is_waited_for() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--upstream-timeout", "3s"]).active();
    let old = acquire(&home);
    let broken = once(proxy.address, &post("/cut/1000", &old, b"old")).unwrap();
    assert_eq!(broken.status, 502, "{broken:?}");
    assert!(broken.body.contains("may or may not have applied"), "{broken:?}");
    let new = acquire(&home);
    assert_eq!(proxy.write_until(&new, "new").status, 200);
    assert_eq!(upstream.bodies(), ["old", "new"]);
    // And told to end with such a request at work, it ends only when that is over, or says so in the fence.
    let broken = once(proxy.address, &post("/cut/1000", &new, b"late")).unwrap();
    assert_eq!(broken.status, 502, "{broken:?}");
    proxy.end();
    let newest = acquire(&home);
    let next = Proxy::start(&home, &upstream, &["--upstream-timeout", "3s"]).active();
    assert_eq!(next.write_until(&newest, "newest").status, 200);
    assert_eq!(upstream.bodies(), ["old", "new", "late", "newest"]);
}

#[test]
fn a_store_that_was_lost_is_reported_and_healed() {
    let (home, upstream) = (Home::new(On::Dir), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &QUICK).active();
    let token = acquire(&home);
    assert_eq!(proxy.write(&token, "1").status, 200);
    proxy.end();
    std::fs::remove_dir_all(home.path("leases")).unwrap();
    for _ in 0..3 {
        // Whether or not the new store has a lease of that name, with a higher number even.
        let told = refused(&home, &[]).expect(65);
        assert!(told.stderr.contains("store regressed"), "{told:?}");
        assert!(told.stderr.contains("leasehold advance job --past 1 --lineage "), "{told:?}");
        acquire(&home);
    }
    let lineage = token.split(':').nth(2).unwrap();
    std::fs::remove_dir_all(home.path("leases")).unwrap();
    heal(&home, 1, lineage.parse().unwrap());
    let proxy = Proxy::start(&home, &upstream, &QUICK).active();
    assert_eq!(proxy.write_until(&acquire(&home), "2").status, 200);
    assert_eq!(proxy.write(&token, "late").status, 412);
    assert_eq!(upstream.bodies(), ["1", "2"]);
}

#[test]
fn a_lease_of_the_same_name_in_another_store_is_not_this_one() {
    let (home, other, upstream) = (Home::new(On::Sqlite), Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &[]).active();
    let own = acquire(&home);
    for _ in 0..3 {
        acquire(&other);
    }
    let foreign = acquire(&other);
    // Before the fence has seen any, and after.
    for body in ["1", "2"] {
        let answer = proxy.write(&foreign, "foreign");
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(answer.body.contains("not this lease"), "{answer:?}");
        assert_eq!(proxy.write(&own, body).status, 200);
    }
    assert_eq!(upstream.bodies(), ["1", "2"]);
}

#[test]
fn a_proxy_needs_a_folder_or_is_told_to_go_without() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    home.touch("file");
    for folder in ["file", "file/below", "/proc/none"] {
        let told = refused(&home, &["--state", folder]).expect(78);
        assert!(told.stderr.contains("--state") && told.stderr.contains("--no-state"), "{told:?}");
    }
    refused(&home, &["--state", "x", "--no-state"]).expect(64);
    let told = home
        .leasehold(&["mcp-gate", "--guard", "x", "--state", "file", "--", "true"])
        .env("LEASEHOLD_TOKEN", acquire(&home))
        .output();
    assert_eq!(told.unwrap().status.code(), Some(78));
    let proxy = Proxy::start(&home, &upstream, &["--state", "mine"]).active();
    assert_eq!(proxy.write(&acquire(&home), "1").status, 200);
    proxy.end();
    assert!(home.path("mine/fences/http:api").is_dir());
    let without = Proxy::start(&home, &upstream, &["--no-state"]).active();
    assert_eq!(without.write_until(&acquire(&home), "2").status, 200);
    without.end();
    assert!(!home.path(".local/state/leasehold/fences").exists());
}

#[test]
fn damaged_files_are_reported_and_left_as_they_are() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &[]).active();
    assert_eq!(proxy.write(&acquire(&home), "1").status, 200);
    let file = state_files(&home).pop().unwrap();
    let sound = std::fs::read(&file).unwrap();
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for bytes in [&damaged[..], &sound[..10], b""] {
        std::fs::write(&file, bytes).unwrap();
        let told = refused(&home, &[]).expect(65);
        assert!(told.stderr.contains("corrupt"), "{told:?}");
        // The proxy that runs lets nobody newer in.
        assert_eq!(proxy.write(&acquire(&home), "2").status, 500);
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
    }
    std::fs::write(&file, &sound).unwrap();
    assert_eq!(proxy.write(&acquire(&home), "3").status, 200);
    assert_eq!(upstream.bodies(), ["1", "3"]);
}

#[test]
fn requests_cost_no_write_to_the_store_and_a_clean_end_leaves_nothing_to_wait_for() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--upstream-timeout", "10m"]).active();
    let token = acquire(&home);
    assert_eq!(proxy.write(&token, "x").status, 200);
    let before = stored_fence(&home);
    assert!(before.contains("horizon"), "{before}");
    for _ in 0..20 {
        assert_eq!(proxy.write(&token, "x").status, 200);
    }
    // Every write has a tag of its own.
    assert_eq!(stored_fence(&home), before);
    proxy.end();
    let after = stored_fence(&home);
    assert!(!after.contains("horizon"), "{after}");
    let next = Proxy::start(&home, &upstream, &["--upstream-timeout", "10m"]).active();
    assert_eq!(next.write(&acquire(&home), "newer").status, 200);
}

#[test]
fn a_slow_request_outlasts_the_horizon_that_it_began_under() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--upstream-timeout", "400ms"]).active();
    let token = acquire(&home);
    let whole = post("/write", &token, b"by its length");
    let head =
        format!("POST /write HTTP/1.1\r\nHost: x\r\nLeasehold-Token: {token}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunked = format!("{head}5\r\nby it\r\n5\r\ns end\r\n0\r\n\r\n").into_bytes();
    for request in [whole, chunked] {
        let mut peer = Peer::connect(proxy.address);
        let cut = request.len() - 4;
        peer.send(&request[..cut]);
        std::thread::sleep(Duration::from_millis(600));
        peer.send(&request[cut..]);
        assert_eq!(peer.answer().unwrap().status, 200);
    }
    assert_eq!(upstream.bodies(), ["by its length", "by its end"]);
}
