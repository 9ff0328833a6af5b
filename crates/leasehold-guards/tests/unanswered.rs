//! Writes without an answer, on real servers: what is not known stays so, and what is only visible does not count yet.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "databases/mod.rs"]
mod databases;

use common::token;
use databases::{Database, Engine, all, block_on, guard_at, servers};
use leasehold_core::Kind;
use leasehold_core::guard::{Guard, Policy};
use leasehold_core::observe::Observer;
use leasehold_guards::object::{Salt, Tags, key};
use leasehold_guards::sql::{Script, Setup};
use leasehold_guards::{ObjectGuard, WriteStep};
use leasehold_stores::StoreUrl;
use leasehold_testbed::{BUCKET, Fault, Flaw, Postgres, Proxy, StandIn, wait_until};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Does something whenever a guard comes to one stage.
struct At<F>(WriteStep, F);

impl<F> fmt::Debug for At<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "At({:?})", self.0)
    }
}

impl<F: Fn() -> std::io::Result<()> + Send + Sync> Observer<WriteStep> for At<F> {
    fn reach(&self, stage: WriteStep) -> std::io::Result<()> {
        if stage == self.0 { (self.1)() } else { Ok(()) }
    }
}

/// What only an exchange that commits has in it.
const COMMIT: &[u8] = b"; COMMIT";

fn insert(db: &Database, n: u64) -> Script {
    Script::parse(db.dialect(), &format!("INSERT INTO applied VALUES ({n})")).unwrap()
}

/// The primary commits, is gone before it has answered or replicated, and the number of the transaction is another's on
/// the standby that took over.
#[test]
fn a_commit_that_was_lost_with_its_primary_is_not_taken_for_anothers() {
    let primary = Postgres::with(&["fsync=off"]);
    let between = Proxy::start(primary.port());
    let standby = Postgres::standby_of(between.port(), &["fsync=off"]);
    let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    wait_until("the standby follows", || primary.sql(streaming) == "1");
    let way = Arc::new(Proxy::start(primary.port()));
    let db = Database::at(&Postgres::url(way.port()));
    block_on(async {
        let before = db.guard("r", Policy::Reentrant);
        before.init(&Setup::default()).await.unwrap();
        db.execute("CREATE TABLE applied (n INTEGER)").await;
        before.run(&token(1, 0), &insert(&db, 1)).await.unwrap();
    });
    let written = primary.sql("SELECT pg_current_wal_lsn()");
    wait_until("the standby has it all", || {
        standby.sql(&format!("SELECT pg_last_wal_replay_lsn() >= '{written}'")) == "t"
    });
    between.sever();
    assert_eq!(standby.sql("SELECT pg_promote()"), "t");
    standby.sql("DO $$ BEGIN FOR i IN 1..100 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$");
    let (turned, port) = (way.clone(), standby.port());
    let fail_over = At(WriteStep::ReadBack, move || {
        turned.retarget(port);
        Ok(())
    });
    let guard = guard_at(&db.url, "r", Policy::Reentrant, Some(Arc::new(fail_over)));
    way.arm_on(Fault::CutReply, 0, COMMIT);
    let answer = block_on(guard.run(&token(1, 0), &insert(&db, 2)));
    assert_eq!(primary.sql("SELECT count(*) FROM applied"), "2", "it was committed, and that was not answered");
    assert_eq!(standby.sql("SELECT count(*) FROM applied"), "1");
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    block_on(guard.run(&token(1, 0), &insert(&db, 2))).unwrap();
    assert_eq!(standby.sql("SELECT count(*) FROM applied"), "2");
}

/// A commit whose answer was lost counts when a new write was answered, and is unknown as long as none is.
#[test]
fn a_commit_that_is_only_visible_does_not_count() {
    for db in block_on(all()).into_iter().filter(|db| db.engine != Engine::Sqlite) {
        let port = if db.engine == Engine::Postgres { servers().postgres.port() } else { servers().mariadb.port() };
        let proxy = Arc::new(Proxy::start(port));
        let through = db.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        block_on(db.execute("CREATE TABLE applied (n INTEGER)"));
        let deaf = proxy.clone();
        let cut_again = At(WriteStep::ReadBack, move || {
            deaf.arm_on(Fault::CutRequest, 0, COMMIT);
            Ok(())
        });
        let guard = guard_at(&through, "r", Policy::Reentrant, Some(Arc::new(cut_again)));
        proxy.arm_on(Fault::CutReply, 0, COMMIT);
        let error = block_on(guard.run(&token(1, 0), &insert(&db, 1))).unwrap_err();
        assert_eq!(error.kind(), Kind::Indeterminate, "{:?}: {error}", db.engine);
        proxy.disarm();
        let guard = guard_at(&through, "r", Policy::Reentrant, None);
        proxy.arm_on(Fault::CutReply, 0, COMMIT);
        block_on(guard.run(&token(1, 0), &insert(&db, 2))).unwrap();
        proxy.arm_on(Fault::CutReply, 0, COMMIT);
        let sealed = block_on(guard.seal(&token(2, 0))).unwrap();
        assert_eq!(block_on(guard.high_water()).unwrap(), Some(sealed), "{:?}", db.engine);
        assert_eq!(block_on(db.ask("SELECT count(*) FROM applied")), "2", "{:?}", db.engine);
    }
}

/// SQLite has no server whose answer gets lost, but a disk that fails in the middle of a commit.
#[test]
fn a_commit_that_the_disk_did_not_confirm_is_confirmed_by_another_or_unknown() {
    let db = block_on(all()).into_iter().find(|db| db.engine == Engine::Sqlite).unwrap();
    block_on(db.execute("CREATE TABLE applied (n INTEGER)"));
    let failing = |times: usize| {
        let left = std::sync::atomic::AtomicUsize::new(times);
        let fails = move || {
            let is_left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if is_left { Err(std::io::Error::other("no word from the disk")) } else { Ok(()) }
        };
        guard_at(&db.url, "r", Policy::Reentrant, Some(Arc::new(At(WriteStep::Reply, fails))))
    };
    block_on(async {
        assert_eq!(failing(1).run(&token(1, 0), &insert(&db, 1)).await.unwrap().high.seq, 1);
        failing(1).seal(&token(2, 0)).await.unwrap();
        for error in [
            failing(99).run(&token(2, 0), &insert(&db, 2)).await.unwrap_err(),
            failing(99).seal(&token(3, 0)).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
            assert!(error.to_string().contains("check the data"), "{error}");
        }
        assert_eq!(db.ask("SELECT count(*) FROM applied").await, "2");
    });
}

fn object(port: u16, stages: Option<Arc<dyn Observer<WriteStep>>>) -> ObjectGuard {
    let url: StoreUrl = format!("s3://id:secret@{BUCKET}/o?endpoint=http://127.0.0.1:{port}").parse().unwrap();
    let address = url.address().unwrap();
    let client = leasehold_stores::object::client(address).unwrap();
    let key = key(&address.path).unwrap();
    let guard = ObjectGuard::new(client, key, address.to_string(), Tags::OfTheContent, Policy::Reentrant).unwrap();
    match stages {
        Some(stages) => guard.salted(Salt::Blank).with_observer(stages),
        None => guard.salted(Salt::Blank),
    }
}

/// The same of an object: its tag may be seen before the service keeps it for good.
#[test]
fn a_put_that_is_only_visible_does_not_count() {
    let server = StandIn::s3(Flaw::None);
    let proxy = Arc::new(Proxy::start(server.port()));
    let deaf = proxy.clone();
    let cut_again = At(WriteStep::ReadBack, move || {
        deaf.arm_on(Fault::CutRequest, 0, b"PUT ");
        Ok(())
    });
    block_on(async {
        let before = object(server.port(), None);
        before.put(&token(1, 0), "1".into(), "text/plain").await.unwrap();
        let guard = object(proxy.port(), Some(Arc::new(cut_again)));
        for is_seal in [false, true] {
            proxy.arm_on(Fault::CutReply, 0, b"PUT ");
            let answer = match is_seal {
                false => guard.put(&token(2, 0), "2".into(), "text/plain").await,
                true => guard.seal(&token(3, 0)).await,
            };
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
            proxy.disarm();
        }
        assert_eq!(before.high_water().await.unwrap().unwrap().epoch.get(), 3, "it was there to be seen");
        let guard = object(proxy.port(), None);
        proxy.arm_on(Fault::CutReply, 0, b"PUT ");
        let high = guard.put(&token(4, 0), "4".into(), "text/plain").await.unwrap();
        assert_eq!((high.epoch.get(), high.seq), (4, 1), "confirmed, and counted once");
        assert_eq!(before.high_water().await.unwrap(), Some(high));
        proxy.arm_on(Fault::CutReply, 0, b"PUT ");
        let sealed = guard.seal(&token(5, 0)).await.unwrap();
        assert_eq!(before.high_water().await.unwrap(), Some(sealed));
    });
}

/// What was sealed or written is there after a crash, also where the server answers before it has flushed. The control
/// beside it is what that setting does to others.
#[test]
fn a_seal_is_flushed_even_where_the_server_answers_early() {
    let mut server = Postgres::with(&["synchronous_commit=off", "wal_writer_delay=10s"]);
    let db = Database::at(&Postgres::url(server.port()));
    let guard = db.guard("r", Policy::Reentrant);
    block_on(async {
        guard.init(&Setup::default()).await.unwrap();
        guard.seal(&token(1, 0)).await.unwrap();
    });
    server.sql("CREATE TABLE control (n int)");
    server.sql("CHECKPOINT");
    for epoch in 2..=5 {
        block_on(guard.seal(&token(epoch, 0))).unwrap();
    }
    server.sql("INSERT INTO control VALUES (1)");
    server.kill();
    server.restart();
    server.wait_until_ready();
    assert_eq!(server.sql("SELECT count(*) FROM control"), "0", "the control shows that the server does answer early");
    assert_eq!(block_on(guard.high_water()).unwrap().unwrap().epoch.get(), 5);
}
