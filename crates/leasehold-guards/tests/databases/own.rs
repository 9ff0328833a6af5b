//! Transactions of the user's own, at every isolation level.

use super::{Database, Engine};
use crate::common::token;
use leasehold::guard::Policy;
use leasehold::{Kind, Result};
use leasehold_guards::sql::Resource;
use leasehold_guards::{mysql, postgres, sqlite};
use mysql_async::prelude::Queryable;
use mysql_async::{IsolationLevel as My, TxOpts};
use tokio_postgres::IsolationLevel as Pg;

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
            }
            Engine::Mysql => {
                for (at, level) in [My::ReadUncommitted, My::ReadCommitted, My::RepeatableRead, My::Serializable]
                    .into_iter()
                    .enumerate()
                {
                    self.own_mysql(level, &format!("own{at}")).await;
                }
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
