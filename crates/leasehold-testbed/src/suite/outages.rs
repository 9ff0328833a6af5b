//! Servers that are away, killed, paused or frozen.

use super::{Opener, RECOVERY, acquire_in_the_end, ask, fresh_lease, granted, is_outage, ttl, warm_up};
use crate::{Proxy, Server};
use leasehold_core::store::{Store, Swap};
use leasehold_core::{Acquired, Coordinator, Epoch, Keeper, Key, Kind, LeaseName, Outcome, Shelf};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// A call must have failed by then: no server is waited for without end.
const PATIENCE: Duration = Duration::from_secs(25);
const CLIENTS: usize = 4;
/// How many grants there must be before the server is killed, and again after it is back.
const GRANTS: u64 = 40;

/// A server that is not there gives an error that says so, and the same handle works once it is back.
///
/// # Panics
/// If it does not.
pub async fn a_server_that_is_away_is_an_error(server: &mut Server, opener: &Opener) {
    let leases = opener.leases(server.port()).await;
    warm_up(&leases).await;
    server.kill();
    let lease = fresh_lease("away");
    let answer = timeout(PATIENCE, leases.acquire(&lease, &ask(ttl(30)))).await.expect("no call hangs");
    let error = answer.expect_err("a server that is away grants nothing");
    assert!(is_outage(error.kind()), "it looked like {}: {error}", error.kind().as_str());
    let opened = timeout(PATIENCE, opener.store(server.port())).await.expect("opening does not hang");
    if let Err(error) = opened {
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    }
    server.restart();
    acquire_in_the_end(&leases, &lease).await;
}

/// The holders die with the server and are waited out; see [`a_killed_server_never_reissues_an_epoch`].
///
/// # Panics
/// If the lease of a holder that is gone cannot be acquired after its TTL, or can be before.
pub async fn a_dead_server_is_waited_out(server: &mut Server, opener: &Opener) {
    let leases = opener.leases(server.port()).await;
    let lease = fresh_lease("waited-out");
    let first = granted(leases.acquire(&lease, &ask(ttl(4))).await.unwrap()).unwrap();
    server.kill();
    server.restart();
    let second = acquire_in_the_end(&leases, &lease).await;
    assert!(second.token().epoch > first.token().epoch);
    let now = leases.clock().now();
    assert!(now >= first.trust_until(), "granted while the first holder still trusted its lease");
}

/// Clients contend while the server is killed and comes back: every epoch is given once, and all clients recover by themselves.
///
/// # Panics
/// If an epoch was given twice, or the clients did not recover.
pub async fn a_killed_server_never_reissues_an_epoch(server: &mut Server, opener: &Opener) {
    let lease = fresh_lease("killed");
    let contest = Arc::new(Contest::default());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let leases = opener.leases(server.port()).await;
        warm_up(&leases).await;
        clients.push(tokio::spawn(contend(leases, lease.clone(), contest.clone())));
    }
    contest.wait_for("grants", &contest.grants, GRANTS).await;
    server.kill();
    contest.wait_for("errors", &contest.errors, 1).await;
    let before = contest.grants.load(Ordering::SeqCst);
    server.restart();
    contest.wait_for("grants", &contest.grants, before + GRANTS).await;
    contest.over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let highest = contest.epochs.lock().unwrap().iter().next_back().copied().unwrap();
    let record = opener.leases(server.port()).await.inspect(&lease).await.unwrap().record;
    assert!(record.epoch >= highest, "the record has epoch {}, {highest} was granted", record.epoch);
}

#[derive(Default)]
struct Contest {
    grants: AtomicU64,
    errors: AtomicU64,
    over: AtomicBool,
    epochs: Mutex<BTreeSet<Epoch>>,
}

impl Contest {
    async fn wait_for(&self, what: &str, count: &AtomicU64, least: u64) {
        let reached = async {
            while count.load(Ordering::SeqCst) < least {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let reached = timeout(RECOVERY, reached).await;
        assert!(reached.is_ok(), "{count:?} {what} instead of {least} within {RECOVERY:?}");
    }
}

async fn contend(leases: Coordinator, lease: LeaseName, contest: Arc<Contest>) {
    while !contest.over.load(Ordering::SeqCst) {
        match leases.acquire(&lease, &ask(ttl(3))).await {
            Ok(Acquired::Granted(grant)) => {
                let is_new = contest.epochs.lock().unwrap().insert(grant.token().epoch);
                assert!(is_new, "epoch {} was granted twice", grant.token().epoch);
                contest.grants.fetch_add(1, Ordering::SeqCst);
                let _ = leases.release(&grant, Outcome::Succeeded).await;
            }
            Ok(Acquired::Refused { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => {
                assert!(is_outage(error.kind()), "it looked like {}: {error}", error.kind().as_str());
                contest.errors.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A server that is paused for longer than the TTL: the holder gives up in time by its own clock, the next one gets a
/// higher epoch, and the first one cannot renew any more.
///
/// # Panics
/// If not.
pub async fn a_paused_server_loses_the_lease(server: &Server, opener: &Opener) {
    let (holder, other) = (opener.leases(server.port()).await, opener.leases(server.port()).await);
    let lease = fresh_lease("paused");
    let mut first = granted(holder.acquire(&lease, &ask(ttl(4))).await.unwrap()).unwrap();
    let keeper = Keeper::start(holder.clone(), first.clone());
    server.pause();
    let lost = timeout(Duration::from_secs(20), keeper.lost()).await;
    server.resume();
    lost.expect("the holder knows by its own clock that its time is over");
    drop(keeper);
    let second = acquire_in_the_end(&other, &lease).await;
    assert!(second.token().epoch > first.token().epoch);
    // The same client may need to find its connection again; what it must never do is succeed.
    let mut kind = Kind::Unavailable;
    for _ in 0..100 {
        match holder.renew(&mut first, None).await {
            Ok(()) => panic!("a lease that was lost was renewed"),
            Err(error) => kind = error.kind(),
        }
        if kind == Kind::Lost {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(kind, Kind::Lost);
}

/// A server that takes everything and answers nothing: calls end in time, and a write's outcome is said to be unknown.
///
/// # Panics
/// If a call hangs or claims to know.
pub async fn a_frozen_server_is_given_up_on(port: u16, opener: &Opener) {
    let proxy = Proxy::start(port);
    let store = opener.store(proxy.port()).await.unwrap();
    warm_up(&Coordinator::new(store.clone())).await;
    let key = Key::new(Shelf::Probe, &fresh_lease("frozen"));
    let Swap::Done { revision, .. } = store.swap(&key, None, b"1").await.unwrap() else { panic!("a fresh key") };
    proxy.freeze();
    let (read, written) =
        tokio::join!(timeout(PATIENCE, store.read(&key)), timeout(PATIENCE, store.swap(&key, Some(&revision), b"2")));
    proxy.thaw();
    let read = read.expect("a read does not hang").expect_err("a frozen server does not answer");
    assert!(is_outage(read.kind()), "a read looked like {}: {read}", read.kind().as_str());
    let written = written.expect("a write does not hang").expect_err("a frozen server does not answer");
    assert!(is_outage(written.kind()), "a write looked like {}: {written}", written.kind().as_str());
    recover(&*store, &key).await;
    // What it held back may have arrived by now: then, and only then, the value is the new one.
    let value = store.read(&key).await.unwrap().value.expect("nothing is lost");
    assert!(value.bytes == b"1" || value.bytes == b"2");
    if written.kind() == Kind::Unavailable {
        assert_eq!(value.bytes, b"1", "`unavailable` means surely not applied");
    }
}

async fn recover(store: &dyn Store, key: &Key) {
    let again = async {
        while store.read(key).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(RECOVERY, again).await.expect("the client recovers by itself");
}
