//! PostgreSQL with a standby, without flushing, and on a full disk: what is lost, and what the settings do about it.

#![allow(clippy::unwrap_used)]

use leasehold_core::store::{Class, Range, Revision, Store, Survey, Swap};
use leasehold_core::{Acquired, Ask, Coordinator, Grant, HolderId, Key, Kind, LeaseName, Outcome, Shelf, Ttl};
use leasehold_stores::open;
use leasehold_testbed::{Postgres, Proxy, SmallDisk, postgres, wait_until};
use std::sync::Arc;
use std::time::Duration;

async fn store(url: &str) -> Arc<dyn Store> {
    open(&url.parse().unwrap()).await.unwrap()
}

fn probe(name: &str) -> Key {
    Key::new(Shelf::Probe, &name.parse().unwrap())
}

/// A primary and a standby, with a proxy in between, and leases on whichever of them is the primary.
struct Cluster {
    primary: Postgres,
    standby: Postgres,
    between: Proxy,
    leases: Coordinator,
}

impl Cluster {
    async fn start(settings: &[&str]) -> Self {
        let primary = Postgres::with(settings);
        let between = Proxy::start(primary.port());
        let standby = Postgres::standby_of(between.port(), &[]);
        let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        wait_until("the standby follows", || primary.sql(streaming) == "1");
        // The standby first: the primary is found.
        let hosts = format!("127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
        let leases = Coordinator::new(store(&format!("postgres://postgres@{hosts}/postgres")).await);
        Cluster { primary, standby, between, leases }
    }

    fn wait_until_replayed(&self) {
        let written = self.primary.sql("SELECT pg_current_wal_lsn()");
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        wait_until("the standby has it all", || self.standby.sql(&replayed) == "t");
    }

    /// The primary is gone at once, with whatever it had not sent; the standby takes over.
    fn fail_over(&mut self) {
        self.primary.kill();
        self.between.sever();
        assert_eq!(self.standby.sql("SELECT pg_promote()"), "t");
    }
}

fn ask() -> Ask {
    Ask::new(HolderId::new(None), Ttl::new(Duration::from_secs(60)).unwrap())
}

async fn acquire(leases: &Coordinator, lease: &LeaseName) -> Grant {
    match leases.acquire(lease, &ask()).await.unwrap() {
        Acquired::Granted(grant) => *grant,
        Acquired::Refused { refusal, .. } => panic!("{refusal:?}"),
    }
}

fn advised(survey: &Survey) -> Vec<&str> {
    survey.remarks.iter().filter(|r| r.advice.is_some()).map(|r| r.setting.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_standby_issues_an_acknowledged_epoch_again() {
    let mut cluster = Cluster::start(&[]).await;
    let lease: LeaseName = "failover".parse().unwrap();
    let first = acquire(&cluster.leases, &lease).await;
    cluster.leases.release(&first, Outcome::Succeeded).await.unwrap();
    let survey = cluster.leases.store().survey().await.unwrap();
    assert_eq!((survey.class, advised(&survey)), (Class::B, vec!["synchronous_standby_names"]));
    assert_eq!(cluster.leases.store().capabilities().class, Class::B);
    cluster.wait_until_replayed();
    cluster.between.freeze();
    let mut acknowledged = acquire(&cluster.leases, &lease).await;
    cluster.fail_over();
    let again = acquire(&cluster.leases, &lease).await;
    assert_eq!(again.token().epoch, acknowledged.token().epoch, "class B means just this");
    assert_ne!(again.token().nonce, acknowledged.token().nonce, "guards tell them apart");
    let error = cluster.leases.renew(&mut acknowledged, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Lost, "the forgotten holder renewed over its successor: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_issues_no_acknowledged_epoch_again() {
    let mut cluster = Cluster::start(&["synchronous_standby_names=*"]).await;
    let states = "SELECT sync_state FROM pg_stat_replication";
    wait_until("the standby is waited for", || cluster.primary.sql(states) == "sync");
    let lease: LeaseName = "failover".parse().unwrap();
    let mut acknowledged = Vec::new();
    for _ in 0..20 {
        let grant = acquire(&cluster.leases, &lease).await;
        acknowledged.push(grant.token().epoch);
        cluster.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    }
    let survey = cluster.leases.store().survey().await.unwrap();
    assert_eq!((survey.class, advised(&survey)), (Class::A, vec![]), "{survey:?}");
    assert_eq!(cluster.leases.store().capabilities().class, Class::A);
    // Not waited for: the last answers are all that the standby is known to have.
    cluster.between.freeze();
    let error = cluster.leases.store().swap(&probe("unanswered"), None, b"x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Indeterminate, "no answer without the standby: {error}");
    let (leases, name) = (cluster.leases.clone(), lease.clone());
    let unanswered = tokio::spawn(async move { leases.acquire(&name, &ask()).await });
    let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_until("it waits for the standby", || cluster.primary.sql(waits) == "t");
    assert!(!unanswered.is_finished(), "something was granted without the standby");
    unanswered.abort();
    assert!(unanswered.await.unwrap_err().is_cancelled(), "something was granted without the standby");
    cluster.fail_over();
    let next = acquire(&cluster.leases, &lease).await;
    assert!(acknowledged.iter().all(|epoch| *epoch < next.token().epoch), "{acknowledged:?}, then {:?}", next.token());
    assert_eq!(cluster.leases.store().read(&probe("unanswered")).await.unwrap().value, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_neither_read_nor_written() {
    let cluster = Cluster::start(&[]).await;
    let lease: LeaseName = "standby".parse().unwrap();
    acquire(&cluster.leases, &lease).await;
    cluster.wait_until_replayed();
    let standby = store(&Postgres::url(cluster.standby.port())).await;
    let key = Key::new(Shelf::Lease, &lease);
    let revision = Revision("1".into());
    for error in [
        standby.read(&key).await.unwrap_err(),
        standby.list(Shelf::Lease, Range::new(None, 10)).await.unwrap_err(),
        standby.swap(&key, Some(&revision), b"x").await.unwrap_err(),
        standby.swap(&probe("new"), None, b"x").await.unwrap_err(),
        standby.survey().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(
            error.to_string().contains("is a standby") && error.to_string().contains("name the primary"),
            "{error}"
        );
    }
    // A connection that was made to a primary does not outlive its demotion unseen: the statement itself asks.
    let through = Proxy::start(cluster.primary.port());
    let moved = store(&Postgres::url(through.port())).await;
    assert!(moved.read(&key).await.unwrap().value.is_some());
    through.retarget(cluster.standby.port());
    through.cut();
    let error = moved.read(&key).await.unwrap_err();
    assert!(error.to_string().contains("is a standby"), "{error}");
    through.retarget(cluster.primary.port());
    through.cut();
    assert!(moved.read(&key).await.unwrap().value.is_some(), "the same handle, once it leads to the primary again");
}

/// The control beside it is what the setting does to others: its row was acknowledged, and is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_is_flushed_even_where_the_server_answers_early() {
    let mut server = Postgres::with(&["synchronous_commit=off", "wal_writer_delay=10s"]);
    let store = store(&Postgres::url(server.port())).await;
    server.sql("CREATE TABLE control (n int)");
    let warm_up = store.swap(&probe("warm-up"), None, b"x").await.unwrap();
    assert!(matches!(warm_up, Swap::Done { .. }));
    let survey = store.survey().await.unwrap();
    assert_eq!(survey.class, Class::A);
    let found = &survey.remarks.iter().find(|r| r.setting == "synchronous_commit").unwrap().found;
    assert_eq!(found, "off, but on for every write of this store");
    server.sql("CHECKPOINT");
    let swapped = store.swap(&probe("flushed"), None, b"x").await.unwrap();
    let Swap::Done { revision, .. } = swapped else { panic!("{swapped:?}") };
    server.sql("INSERT INTO control VALUES (1)");
    server.kill();
    server.restart();
    server.wait_until_ready();
    assert_eq!(server.sql("SELECT count(*) FROM control"), "0", "the control shows that the server does answer early");
    let value = store.read(&probe("flushed")).await.unwrap().value.unwrap();
    assert_eq!(value.revision, revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_flush_is_of_class_b() {
    let server = Postgres::with(&["fsync=off", "full_page_writes=off"]);
    let survey = store(&Postgres::url(server.port())).await.survey().await.unwrap();
    assert_eq!((survey.class, advised(&survey)), (Class::B, vec!["fsync", "full_page_writes"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_changes_nothing() {
    let server = postgres();
    let Some(disk) = SmallDisk::mount_for("postgres", server.folder(), "2m") else { return };
    let url = Postgres::url(server.port());
    let store = store(&url).await;
    let key = probe("full");
    let Swap::Done { revision, .. } = store.swap(&key, None, b"0").await.unwrap() else { panic!("a fresh key") };
    // In two calls: a tablespace cannot be made in a transaction.
    server.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.path().display()));
    server.sql("ALTER TABLE leasehold_record SET TABLESPACE small; ALTER TABLE leasehold_record ALTER value SET STORAGE EXTERNAL");
    let (mut stored, mut revision) = (1, revision);
    let error = loop {
        assert!(stored < 100_000_000, "the disk is never full");
        match store.swap(&key, Some(&revision), &vec![b'x'; stored + 32 * 1024]).await {
            Ok(Swap::Done { revision: new, .. }) => (stored, revision) = (stored + 32 * 1024, new),
            Ok(Swap::Mismatch) => panic!("nobody else writes here"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("no space left"), "{error}");
    let value = store.read(&key).await.unwrap().value.unwrap();
    assert_eq!((value.bytes.len(), &value.revision), (stored, &revision), "nothing was changed");
    disk.remount("size=64m");
    assert!(matches!(store.swap(&key, Some(&revision), b"again").await.unwrap(), Swap::Done { .. }));
    assert_eq!(store.read(&key).await.unwrap().value.unwrap().bytes, b"again");
}
