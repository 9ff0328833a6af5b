//! The PostgreSQL store on real servers: every promise, directly and through a pooler, and through faults.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Range, Revision, Store, Swap, Watching};
use leasehold_core::{Key, Shelf};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Opener, Postgres, pgbouncer, postgres, suite, wait_until};
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

fn opener() -> Opener {
    Opener::new(|port| async move { open(&Postgres::url(port).parse().unwrap()).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_do_no_harm() {
    let mut server = postgres();
    leasehold_testbed::suite::withstands_faults(&mut server, &opener()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_woken_also_after_its_session_was_ended() {
    let server = postgres();
    leasehold_testbed::suite::a_release_wakes_the_waiter(server.port(), &opener()).await;
    let (writer, watcher) = (store(&Postgres::url(server.port())).await, store(&Postgres::url(server.port())).await);
    let key = probe("hint");
    let mut watch = watcher.watch(&key).await.unwrap();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted";
    // One that has nobody left to hint lets go in its own time.
    wait_until("the listener says what it listens for, and no other", || server.sql(held) == "1");
    let listeners = "FROM pg_stat_activity WHERE query LIKE '%pg_advisory_lock_shared%' AND pid <> pg_backend_pid()";
    let ended = server.sql(&format!("SELECT count(pg_terminate_backend(pid)) {listeners}"));
    assert_ne!(ended, "0", "there was a session to end");
    // What may have been missed is hinted at once it listens again.
    tokio::time::timeout(Duration::from_secs(10), watch.hint()).await.expect("a new session follows");
    write(&*writer, &key, None, b"1").await;
    tokio::time::timeout(Duration::from_secs(5), watch.hint()).await.expect("it hints again");
    drop(watch);
    wait_until("the listener has ended", || server.sql(held) == "0");
}

/// A fleet that waits for one lease must not use up the server's connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_has_one_connection_and_is_hinted_at_its_own_swaps() {
    let server = postgres();
    let store = store(&Postgres::url(server.port())).await;
    let key = probe("one");
    let mut revision = write(&*store, &key, None, b"0").await;
    let mut watch = store.watch(&key).await.unwrap();
    let backends =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    for round in 0..3 {
        revision = write(&*store, &key, Some(&revision), b"x").await;
        tokio::time::timeout(Duration::from_secs(5), watch.hint()).await.expect("its own swap is hinted at");
        watch.forget();
        store.read(&key).await.unwrap();
        assert_eq!(server.sql(backends), "1", "round {round}");
    }
    // Another's swap is hinted at too, though its session is not ours.
    let other = self::store(&Postgres::url(server.port())).await;
    write(&*other, &key, Some(&revision), b"y").await;
    tokio::time::timeout(Duration::from_secs(5), watch.hint()).await.expect("another's swap is hinted at");
}

async fn write(store: &dyn Store, key: &Key, expected: Option<&Revision>, value: &[u8]) -> Revision {
    match store.swap(key, expected, value).await.unwrap() {
        Swap::Done { revision, .. } => revision,
        Swap::Mismatch => panic!("nobody else writes {key}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_make_the_table_at_once_and_looking_makes_none() {
    let server = postgres();
    let url = Postgres::url(server.port());
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'leasehold_record'";
    for round in 0..5 {
        let looker = store(&url).await;
        assert_eq!(looker.read(&probe("x")).await.unwrap().value, None);
        assert!(looker.list(Shelf::Probe, Range::new(None, 10)).await.unwrap().entries.is_empty());
        let stale = Revision("7".into());
        assert_eq!(looker.swap(&probe("x"), Some(&stale), b"x").await.unwrap(), Swap::Mismatch);
        assert_eq!(looker.erase(&probe("x"), &stale).await.unwrap(), Swap::Mismatch);
        looker.survey().await.unwrap();
        assert_eq!(server.sql(tables), "0", "round {round}");
        let writers: Vec<_> = (0..12)
            .map(|n| {
                let url = url.clone();
                tokio::spawn(async move { write(&*store(&url).await, &probe(&format!("w{n:02}")), None, b"x").await })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!(looker.list(Shelf::Probe, Range::new(None, 100)).await.unwrap().entries.len(), 12);
        server.sql("DROP TABLE leasehold_record");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_that_a_failover_lost_does_not_come_again() {
    let server = postgres();
    let save = || drop(server.sql("CREATE TABLE saved AS SELECT * FROM leasehold_record"));
    let rewind = || drop(server.sql("DELETE FROM leasehold_record; INSERT INTO leasehold_record SELECT * FROM saved"));
    let store = store(&Postgres::url(server.port())).await;
    suite::a_forgotten_swap_does_not_come_again(&*store, save, rewind).await;
}

/// A database whose transactions are stricter than ours need be gives way with errors; none may be lost or shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stricter_isolation_loses_no_swap() {
    let server = postgres();
    for level in ["repeatable read", "serializable"] {
        server.sql(&format!("ALTER DATABASE postgres SET default_transaction_isolation TO '{level}'"));
        let key = probe(&level.replace(' ', "-"));
        let counters: Vec<_> = (0..6).map(|_| tokio::spawn(count(Postgres::url(server.port()), key.clone()))).collect();
        for counter in counters {
            counter.await.unwrap();
        }
        let value = store(&Postgres::url(server.port())).await.read(&key).await.unwrap().value.unwrap();
        assert_eq!(String::from_utf8(value.bytes).unwrap(), "60", "{level}");
    }
}

/// Adds ten to the number at a key, one by one.
async fn count(url: String, key: Key) {
    let store = store(&url).await;
    let mut added = 0;
    while added < 10 {
        let value = store.read(&key).await.unwrap().value;
        let number: u32 = value.as_ref().map_or(0, |v| String::from_utf8_lossy(&v.bytes).parse().unwrap());
        let next = (number + 1).to_string();
        let swap = store.swap(&key, value.as_ref().map(|v| &v.revision), next.as_bytes()).await.unwrap();
        added += u32::from(matches!(swap, Swap::Done { .. }));
    }
}
