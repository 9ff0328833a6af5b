//! Databases whose disk is full: a clear error, nothing half applied, the fence as it was, and all is well once there is room.

use super::{Database, Engine, all, servers};
use crate::common::token;
use leasehold_core::Kind;
use leasehold_core::guard::{Guard, Policy};
use leasehold_guards::sql::Script;
use leasehold_testbed::SmallDisk;

impl Database {
    /// A first statement that fits, a second that does not; `make_room` gives the disk the room for it.
    async fn withstands_a_full_disk(&self, big: &str, make_room: impl FnOnce()) {
        let guard = self.guard("full", Policy::Reentrant);
        let run = async |epoch: u64, sql: &str| {
            guard.run(&token(epoch, 0), &Script::parse(self.dialect(), sql).unwrap()).await
        };
        let name = format!("{:?}", self.engine);
        run(1, "INSERT INTO filled VALUES (1, 'old')").await.unwrap();
        let before = guard.high_water().await.unwrap();
        assert!(before.is_some(), "{name}");
        let both = format!("INSERT INTO filled VALUES (2, 'half');\n{big}");
        for _ in 0..2 {
            let error = run(2, &both).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable, "{name}: {error}");
            assert!(error.to_string().contains("disk is full, all was rolled back"), "{name}: {error}");
            assert!(error.to_string().contains("statement in line 2"), "{name}: {error}");
            assert_eq!(self.ask("SELECT count(*) FROM filled").await, "1", "{name}: half of it was applied");
            assert_eq!(guard.high_water().await.unwrap(), before, "{name}: the fence moved without the rest");
        }
        make_room();
        run(2, &both).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(self.ask("SELECT count(*) FROM filled").await, "3", "{name}");
        assert_eq!(guard.high_water().await.unwrap().unwrap().epoch.get(), 2, "{name}");
        assert_eq!(run(1, "DELETE FROM filled").await.unwrap_err().kind(), Kind::Fenced, "{name}");
    }
}

/// On every engine, each with a table on a small disk of its own.
pub async fn a_full_disk_changes_nothing() {
    for db in all().await {
        match db.engine {
            Engine::Postgres => {
                let server = &servers().postgres;
                let Some(disk) = SmallDisk::mount_for("postgres", server.folder(), "2m") else { return };
                let space = db.url.rsplit('/').next().unwrap();
                server.sql(&format!("CREATE TABLESPACE {space} LOCATION '{}'", disk.path().display()));
                db.execute(&format!("CREATE TABLE filled (id INTEGER, body TEXT) TABLESPACE {space}")).await;
                db.execute("ALTER TABLE filled ALTER body SET STORAGE EXTERNAL").await;
                let big = "INSERT INTO filled VALUES (3, repeat('x', 4000000))";
                db.withstands_a_full_disk(big, || disk.remount("size=64m")).await;
                db.execute("DROP TABLE filled").await;
            }
            // A MariaDB whose disk fills up breaks the connection instead, which is told as that: the answer of one that
            // does not is made by a trigger.
            Engine::Mysql => {
                db.execute("CREATE TABLE filled (id INTEGER, body LONGTEXT)").await;
                db.execute("CREATE TABLE room (n INTEGER)").await;
                let full = "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'";
                db.execute(&format!(
                    "CREATE TRIGGER fills BEFORE INSERT ON filled FOR EACH ROW IF NEW.id = 3 AND NOT EXISTS (SELECT 1 FROM \
                     room) THEN {full}; END IF"
                ))
                .await;
                let database = db.url.rsplit('/').next().unwrap();
                let make_room = || {
                    leasehold_testbed::mariadb_run(
                        &servers().mariadb,
                        &format!("INSERT INTO {database}.room VALUES (1)"),
                    );
                };
                db.withstands_a_full_disk("INSERT INTO filled VALUES (3, 'x')", make_room).await;
            }
            Engine::Sqlite => {
                let Some(disk) = SmallDisk::mount("512k") else { return };
                let db = Database::at(&format!("sqlite:{}/app.db", disk.path().display()));
                db.sqlite().execute_batch("PRAGMA journal_mode = wal").unwrap();
                db.guard("full", Policy::Reentrant).init(&Default::default()).await.unwrap();
                db.execute("CREATE TABLE filled (id INTEGER, body)").await;
                let big = "INSERT INTO filled VALUES (3, zeroblob(4000000))";
                db.withstands_a_full_disk(big, || disk.remount("size=64m")).await;
            }
        }
    }
}
