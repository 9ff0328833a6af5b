//! Transactions of the user's own, at every isolation level.

use super::{Database, Engine};
use crate::common::token;
use leasehold_core::guard::Policy;
use leasehold_core::{Error, Kind, Result, Token};
use leasehold_guards::sql::Resource;
use leasehold_guards::sql::{mysql, postgres, sqlite};
use mysql_async::prelude::Queryable;
use mysql_async::{IsolationLevel as My, TxOpts};
use tokio_postgres::IsolationLevel as Pg;

/// Whether the server ended the session: it says so, or the connection is gone.
pub fn is_ended(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Io(_)) || matches!(error, mysql_async::Error::Server(e) if e.code == 1927)
}

impl Database {
    /// An old transaction that has its snapshot before a newer holder seals, and admits after; one that admits first; and
    /// one that rolls back.
    pub async fn own_transactions(&self) {
        self.execute("CREATE TABLE own (id INTEGER PRIMARY KEY, epoch INTEGER)").await;
        self.execute("INSERT INTO own VALUES (1, 0)").await;
        match self.engine {
            Engine::Postgres => {
                for (at, level) in [Pg::ReadUncommitted, Pg::ReadCommitted, Pg::RepeatableRead, Pg::Serializable]
                    .into_iter()
                    .enumerate()
                {
                    self.own_postgres(level, &format!("own{at}")).await;
                }
                self.begun_postgres().await;
            }
            Engine::Mysql => {
                for (at, level) in [My::ReadUncommitted, My::ReadCommitted, My::RepeatableRead, My::Serializable]
                    .into_iter()
                    .enumerate()
                {
                    self.own_mysql(level, &format!("own{at}")).await;
                }
                self.begun_mysql().await;
            }
            Engine::Sqlite => {
                for (at, begin) in ["BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"].into_iter().enumerate() {
                    self.own_sqlite(begin, &format!("own{at}")).await;
                }
            }
        }
    }

    async fn own_postgres(&self, level: Pg, name: &str) {
        let resource: Resource = name.parse().unwrap();
        let guard = self.guard(name, Policy::Reentrant);
        guard.seal(&token(5, 0)).await.unwrap();
        let mut client = self.postgres().await;
        let old = client.build_transaction().isolation_level(level).start().await.unwrap();
        old.query("SELECT * FROM own", &[]).await.unwrap();
        guard.seal(&token(6, 0)).await.unwrap();
        refused(postgres::admit(&old, &resource, &token(5, 0), Policy::Reentrant).await);
        drop(old);
        let mut client = self.postgres().await;
        let new = client.build_transaction().isolation_level(level).start().await.unwrap();
        let high = postgres::admit(&new, &resource, &token(7, 0), Policy::Reentrant).await.unwrap();
        assert_eq!((high.epoch.get(), high.seq), (7, 1));
        new.execute("UPDATE own SET epoch = 7", &[]).await.unwrap();
        new.commit().await.unwrap();
        assert_eq!(guard.high_water().await.unwrap(), Some(high));
        let undone = client.build_transaction().isolation_level(level).start().await.unwrap();
        postgres::admit(&undone, &resource, &token(8, 0), Policy::Reentrant).await.unwrap();
        undone.rollback().await.unwrap();
        assert_eq!(guard.high_water().await.unwrap().unwrap().epoch.get(), 7);
    }

    /// Transactions that begin with their admit: the first of an epoch, the next, one that is dropped, and stale ones.
    async fn begun_postgres(&self) {
        let resource: Resource = "begun".parse().unwrap();
        let guard = self.guard("begun", Policy::Reentrant);
        let mut client = self.postgres().await;
        for (epoch, seq) in [(5, 1), (5, 2), (6, 1), (6, 2), (6, 3)] {
            let new = postgres::begin(&mut client, &resource, &token(epoch, 0), Policy::Reentrant).await.unwrap();
            assert_eq!((new.high_water().epoch.get(), new.high_water().seq), (epoch, seq));
            new.execute(&format!("UPDATE own SET epoch = {seq}"), &[]).await.unwrap();
            let high = new.commit().await.unwrap();
            assert_eq!(guard.high_water().await.unwrap(), Some(high));
            assert_eq!(self.ask("SELECT epoch FROM own").await, seq.to_string());
        }
        for stale in [token(5, 0), token(6, 1)] {
            let refused = postgres::begin(&mut client, &resource, &stale, Policy::Reentrant).await.unwrap_err();
            assert!(matches!(refused.kind(), Kind::Fenced | Kind::Regressed), "{refused}");
        }
        let undone = postgres::begin(&mut client, &resource, &token(6, 0), Policy::Reentrant).await.unwrap();
        undone.execute("UPDATE own SET epoch = 9", &[]).await.unwrap();
        drop(undone);
        // The very next question of the same client sees it gone.
        let row = client.query_one("SELECT epoch FROM own", &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 3);
        let undone = postgres::begin(&mut client, &resource, &token(6, 0), Policy::Reentrant).await.unwrap();
        undone.rollback().await.unwrap();
        assert_eq!(guard.high_water().await.unwrap().unwrap().seq, 3);
    }

    async fn begun_mysql(&self) {
        let resource: Resource = "begun".parse().unwrap();
        let guard = self.guard("begun", Policy::Reentrant);
        let mut conn = self.mysql().await;
        for (epoch, seq) in [(5, 1), (5, 2), (6, 1), (6, 2), (6, 3)] {
            let mut new = mysql::begin(conn, &resource, &token(epoch, 0), Policy::Reentrant).await.unwrap();
            let high = new.high_water().clone();
            assert_eq!((high.epoch.get(), high.seq), (epoch, seq));
            new.query_drop(format!("UPDATE own SET epoch = {seq}")).await.unwrap();
            conn = new.commit().await.unwrap();
            assert_eq!(guard.high_water().await.unwrap(), Some(high));
            assert_eq!(self.ask("SELECT epoch FROM own").await, seq.to_string());
        }
        for stale in [token(5, 0), token(6, 1)] {
            let conn = self.mysql().await;
            let refused = mysql::begin(conn, &resource, &stale, Policy::Reentrant).await.unwrap_err();
            assert!(matches!(refused.kind(), Kind::Fenced | Kind::Regressed), "{refused}");
        }
        let mut undone = mysql::begin(conn, &resource, &token(6, 0), Policy::Reentrant).await.unwrap();
        undone.query_drop("UPDATE own SET epoch = 9").await.unwrap();
        drop(undone);
        // Whoever comes next waits, if at all, until the server has noticed.
        let undone = mysql::begin(self.mysql().await, &resource, &token(6, 0), Policy::Reentrant).await.unwrap();
        assert_eq!(undone.high_water().seq, 4);
        let mut conn = undone.rollback().await.unwrap();
        assert_eq!(self.ask("SELECT epoch FROM own").await, "3");
        assert_eq!(guard.high_water().await.unwrap().unwrap().seq, 3);
        // What was left in the row by one who is through is no reason to end a session.
        mysql::evict(&mut self.mysql().await, &resource, &token(7, 0)).await.unwrap();
        conn.query_drop("SELECT 1").await.unwrap();
        self.evicted_mysql(&resource, conn).await;
        self.once_and_ordered_mysql().await;
    }

    /// One who stopped inside is told from one who was there, whichever way it came in.
    async fn evicted_mysql(&self, resource: &Resource, conn: mysql_async::Conn) {
        let guard = self.guard("begun", Policy::Reentrant);
        let again = mysql::begin(conn, resource, &token(6, 0), Policy::Reentrant).await.unwrap();
        guard.seal(&token(7, 0)).await.unwrap();
        let lost = again.commit().await.unwrap_err();
        assert!(matches!(lost.kind(), Kind::Indeterminate | Kind::Unavailable), "{lost}");
        // The same session and epoch as those that are in the row already, but by the long way.
        let first = mysql::begin(self.mysql().await, resource, &token(7, 0), Policy::Reentrant).await.unwrap();
        let mut conn = first.commit().await.unwrap();
        let mut long = conn.start_transaction(TxOpts::new()).await.unwrap();
        mysql::admit(&mut long, resource, &token(7, 0), Policy::Reentrant).await.unwrap();
        guard.seal(&token(8, 0)).await.unwrap();
        let ended = long.query_drop("SELECT 1").await.unwrap_err();
        assert!(is_ended(&ended), "its session was ended: {ended:?}");
        assert_eq!(guard.high_water().await.unwrap().unwrap().epoch.get(), 8);
    }

    async fn once_and_ordered_mysql(&self) {
        let resource: Resource = "few".parse().unwrap();
        let guard = self.guard("few", Policy::Reentrant);
        guard.seal(&token(1, 0)).await.unwrap();
        let begin = async |token: Token, policy| mysql::begin(self.mysql().await, &resource, &token, policy).await;
        begin(token(1, 0), Policy::OncePerEpoch).await.unwrap().commit().await.unwrap();
        let again = begin(token(1, 0), Policy::OncePerEpoch).await.unwrap_err();
        assert_eq!(again.kind(), Kind::Fenced, "{again}");
        for (seq, lands) in [(4, true), (4, false), (3, false), (5, true)] {
            let found = begin(Token { seq, ..token(1, 0) }, Policy::Ordered).await;
            match found {
                Ok(fenced) => {
                    assert!(lands, "{seq} was let in");
                    assert_eq!(fenced.high_water().seq, seq);
                    fenced.commit().await.unwrap();
                }
                Err(refused) => assert_eq!((refused.kind(), lands), (Kind::Fenced, false), "{seq}: {refused}"),
            }
        }
    }

    /// The refusal of a transaction of the user's own, whose client is kept until then.
    pub async fn refused_begin(&self, resource: &str, token: &Token) -> Error {
        let resource: Resource = resource.parse().unwrap();
        if self.engine == Engine::Mysql {
            mysql::begin(self.mysql().await, &resource, token, Policy::Reentrant).await.unwrap_err()
        } else {
            let mut client = self.postgres().await;
            postgres::begin(&mut client, &resource, token, Policy::Reentrant).await.map(drop).unwrap_err()
        }
    }

    /// One that lands.
    pub async fn begin_and_commit(&self, resource: &str, token: &Token) {
        let resource: Resource = resource.parse().unwrap();
        if self.engine == Engine::Mysql {
            let fenced = mysql::begin(self.mysql().await, &resource, token, Policy::Reentrant).await.unwrap();
            fenced.commit().await.unwrap();
        } else {
            let mut client = self.postgres().await;
            let fenced = postgres::begin(&mut client, &resource, token, Policy::Reentrant).await.unwrap();
            fenced.commit().await.unwrap();
        }
    }

    async fn own_mysql(&self, level: My, name: &str) {
        let resource: Resource = name.parse().unwrap();
        let guard = self.guard(name, Policy::Reentrant);
        guard.seal(&token(5, 0)).await.unwrap();
        let options = || {
            let mut options = TxOpts::new();
            options.with_isolation_level(level);
            options
        };
        let mut conn = self.mysql().await;
        let mut old = conn.start_transaction(options()).await.unwrap();
        // At this level a read locks what it reads, so the table that is read is another one.
        old.query_drop("SELECT * FROM own").await.unwrap();
        guard.seal(&token(6, 0)).await.unwrap();
        refused(mysql::admit(&mut old, &resource, &token(5, 0), Policy::Reentrant).await);
        old.rollback().await.unwrap();
        let mut new = conn.start_transaction(options()).await.unwrap();
        let high = mysql::admit(&mut new, &resource, &token(7, 0), Policy::Reentrant).await.unwrap();
        new.query_drop("UPDATE own SET epoch = 7").await.unwrap();
        mysql::close(&mut new, &resource).await.unwrap();
        new.commit().await.unwrap();
        assert_eq!(guard.high_water().await.unwrap(), Some(high));
        let mut undone = conn.start_transaction(options()).await.unwrap();
        mysql::admit(&mut undone, &resource, &token(8, 0), Policy::Reentrant).await.unwrap();
        undone.rollback().await.unwrap();
        assert_eq!(guard.high_water().await.unwrap().unwrap().epoch.get(), 7);
    }

    async fn own_sqlite(&self, begin: &str, name: &str) {
        let resource: Resource = name.parse().unwrap();
        let guard = self.guard(name, Policy::Reentrant);
        guard.seal(&token(5, 0)).await.unwrap();
        if begin == "BEGIN" {
            let db = self.sqlite();
            db.execute_batch("BEGIN; SELECT * FROM own").unwrap();
            guard.seal(&token(6, 0)).await.unwrap();
            // It still sees 5, but what it saw cannot be written over.
            refused(sqlite::admit(&db, &resource, &token(5, 0), Policy::Reentrant));
            db.execute_batch("ROLLBACK").unwrap();
        }
        let db = self.sqlite();
        let outside = sqlite::admit(&db, &resource, &token(7, 0), Policy::Reentrant).unwrap_err();
        assert_eq!(outside.kind(), Kind::Invalid);
        db.execute_batch(begin).unwrap();
        let high = sqlite::admit(&db, &resource, &token(7, 0), Policy::Reentrant).unwrap();
        db.execute_batch("UPDATE own SET epoch = 7").unwrap();
        sqlite::close(&db, &resource).unwrap();
        db.execute_batch("COMMIT").unwrap();
        assert_eq!(guard.high_water().await.unwrap(), Some(high));
        db.execute_batch(begin).unwrap();
        sqlite::admit(&db, &resource, &token(8, 0), Policy::Reentrant).unwrap();
        db.execute_batch("ROLLBACK").unwrap();
        assert_eq!(guard.high_water().await.unwrap().unwrap().epoch.get(), 7);
    }
}

/// Fenced, or undone by the database because what the transaction saw is no longer so.
fn refused<T: std::fmt::Debug>(answer: Result<T>) {
    let error = answer.unwrap_err();
    assert!(matches!(error.kind(), Kind::Fenced | Kind::Contended), "{error}");
}
