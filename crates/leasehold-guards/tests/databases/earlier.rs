//! Fences as an earlier version made them: they go on working, and setting up again brings them up to date.

use super::{Database, Engine};
use crate::common::token;
use leasehold::guard::Policy;
use leasehold_guards::sql::{Resource, Script, Setup};
use leasehold_guards::{mysql, postgres};
use mysql_async::prelude::Queryable;

const POSTGRES: &str = include_str!("earlier-postgres.sql");
const MYSQL: &str = "CREATE TABLE leasehold_fence (
    resource VARBINARY(255) NOT NULL PRIMARY KEY,
    lease VARBINARY(255) NOT NULL,
    epoch BIGINT NOT NULL,
    nonce VARBINARY(32) NOT NULL,
    seq BIGINT NOT NULL,
    wrote VARBINARY(32) NOT NULL DEFAULT '',
    prior_epoch BIGINT NOT NULL DEFAULT 0,
    prior_seq BIGINT NOT NULL DEFAULT 0,
    prior_wrote VARBINARY(32) NOT NULL DEFAULT '',
    claim BIGINT NULL,
    session BIGINT UNSIGNED NULL,
    admitted BIGINT UNSIGNED NULL
) ENGINE=InnoDB";
const MYSQL_TRIGGER: &str = "CREATE TRIGGER leasehold_insert_kept_c36d6ea4b2bbd5c5 BEFORE INSERT ON kept FOR EACH ROW IF NOT \
    EXISTS (SELECT 1 FROM leasehold_fence WHERE resource = x'6b657074' AND admitted = CONNECTION_ID()) THEN SIGNAL SQLSTATE \
    '45000' SET MESSAGE_TEXT = 'write refused: this transaction was not admitted by its leasehold guard; use leasehold sql'; \
    END IF";

impl Database {
    /// A fence and a protected table, as they were made before; in a database without any.
    pub async fn with_an_earlier_fence(&self) {
        self.execute("CREATE TABLE kept (n INTEGER)").await;
        self.execute("CREATE TABLE free (n INTEGER)").await;
        match self.engine {
            Engine::Postgres => {
                self.execute(POSTGRES).await;
                let trigger = "CREATE TRIGGER leasehold_protect BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON kept FOR \
                               EACH STATEMENT EXECUTE PROCEDURE leasehold_protect('kept')";
                self.execute(trigger).await;
            }
            Engine::Mysql => {
                self.execute(MYSQL).await;
                self.execute(MYSQL_TRIGGER).await;
            }
            Engine::Sqlite => {
                let setup = Setup { protect: vec!["kept".parse().unwrap()], unprotect: Vec::new() };
                self.guard("kept", Policy::Reentrant).init(&setup).await.unwrap();
            }
        }
        let row = "INSERT INTO leasehold_fence (resource, lease, epoch, nonce, seq) VALUES ";
        for resource in ["kept", "open"] {
            let nonce = token(5, 0).nonce;
            self.execute(&format!("{row} ('{resource}', 'job', 5, '{nonce}', 2)")).await;
        }
    }

    /// Every way in, under one epoch: of the protected table and of the other.
    pub async fn writes(&self, epoch: u64) {
        for (name, table) in [("kept", "kept"), ("open", "free")] {
            let insert = format!("INSERT INTO {table} VALUES ({epoch})");
            let guard = self.guard(name, Policy::Reentrant);
            let script = Script::parse(self.dialect(), &insert).unwrap();
            let before = guard.run(&token(epoch, 0), &script).await.unwrap().high.seq;
            let resource: Resource = name.parse().unwrap();
            for times in 1..=2 {
                match self.engine {
                    Engine::Postgres => {
                        let mut client = self.postgres().await;
                        let fenced =
                            postgres::begin(&mut client, &resource, &token(epoch, 0), Policy::Reentrant).await.unwrap();
                        fenced.batch_execute(&insert).await.unwrap();
                        fenced.commit().await.unwrap();
                    }
                    Engine::Mysql => {
                        let conn = self.mysql().await;
                        let mut fenced =
                            mysql::begin(conn, &resource, &token(epoch, 0), Policy::Reentrant).await.unwrap();
                        fenced.query_drop(&insert).await.unwrap();
                        let mut conn = fenced.commit().await.unwrap();
                        // The protected table is shut again, to this very connection too.
                        assert_eq!(conn.query_drop(&insert).await.is_err(), table == "kept", "{table}");
                    }
                    Engine::Sqlite => drop(guard.run(&token(epoch, 0), &script).await.unwrap()),
                }
                assert_eq!(guard.high_water().await.unwrap().unwrap().seq, before + times, "{name}");
            }
            let stale = guard.run(&token(epoch - 1, 0), &script).await.unwrap_err();
            assert_eq!(stale.kind(), leasehold::Kind::Fenced, "{stale}");
        }
        let refused = self.try_execute("INSERT INTO kept VALUES (0)").await.unwrap_err();
        assert!(refused.contains("was not admitted"), "{:?}: {refused}", self.engine);
    }
}
