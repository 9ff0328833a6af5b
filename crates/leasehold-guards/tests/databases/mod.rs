//! Real databases, each with a fence, and the guards for them.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

mod full;
mod own;

pub use full::a_full_disk_changes_nothing;
use leasehold_core::guard::{HighWater, Policy};
use leasehold_core::observe::Observer;
use leasehold_core::{Result, Token};
use leasehold_guards::sql::{Dialect, Resource, Script, Setup, SqlGuard};
use leasehold_guards::{MysqlGuard, PostgresGuard, SqliteGuard, WriteStep};
use leasehold_stores::StoreUrl;
use leasehold_testbed::{Postgres, Server, mariadb_with};
use mysql_async::prelude::Queryable;
pub use own::is_ended;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Postgres,
    Mysql,
    Sqlite,
}

/// A database with a name of its own.
pub struct Database {
    pub engine: Engine,
    pub url: String,
    _folder: Option<Arc<TempDir>>,
}

/// A guard, whatever its kind.
pub struct AnyGuard(pub Arc<dyn SqlGuard>);

impl Deref for AnyGuard {
    type Target = Arc<dyn SqlGuard>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl AnyGuard {
    /// Seals, or writes nothing in particular.
    pub async fn apply(&self, token: &Token, policy: Option<Policy>) -> Result<HighWater> {
        match policy {
            None => self.seal(token).await,
            Some(_) => {
                let script = Script::parse(self.dialect(), "SELECT 1").unwrap();
                self.run(token, &script).await.map(|outcome| outcome.high)
            }
        }
    }
}

/// The servers of this test binary; they end with it.
pub struct Servers {
    pub postgres: Postgres,
    pub mariadb: Server,
}

pub fn servers() -> &'static Servers {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        // Nobody cuts their power: what they flush is of no use here, and a race is mostly that.
        let other = std::thread::spawn(|| mariadb_with(&["--innodb-flush-log-at-trx-commit=0"], &[]));
        Servers { postgres: Postgres::with(&["fsync=off"]), mariadb: other.join().unwrap() }
    })
}

/// One runtime for the whole process: a pooled connection dies with the runtime that opened it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let start = || runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    RUNTIME.get_or_init(start).block_on(future)
}

/// One of each, without a fence.
pub async fn bare() -> Vec<Database> {
    let name = format!("t{}", &leasehold_core::Nonce::random().to_string()[..12]);
    let (pg, my) = (servers().postgres.port(), servers().mariadb.port());
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let path = folder.path().join("app.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA journal_mode = wal").unwrap();
    servers().postgres.sql(&format!("CREATE DATABASE {name}"));
    leasehold_testbed::mariadb_run(&servers().mariadb, &format!("CREATE DATABASE {name}"));
    let of = |engine, url: String, folder| Database { engine, url, _folder: folder };
    vec![
        of(Engine::Postgres, format!("postgres://postgres@127.0.0.1:{pg}/{name}"), None),
        of(Engine::Mysql, format!("mysql://root@127.0.0.1:{my}/{name}"), None),
        of(Engine::Sqlite, format!("sqlite:{}", path.display()), Some(folder)),
    ]
}

/// One of each, with a fence.
pub async fn all() -> Vec<Database> {
    let all = bare().await;
    for db in &all {
        db.guard("x", Policy::Reentrant).init(&Setup::default()).await.unwrap();
    }
    all
}

/// The guard of a resource at this URL.
pub fn guard_at(url: &str, resource: &str, policy: Policy, stages: Option<Arc<dyn Observer<WriteStep>>>) -> AnyGuard {
    let parsed: StoreUrl = url.parse().unwrap();
    let resource: Resource = resource.parse().unwrap();
    let Some(address) = parsed.address().cloned() else {
        let guard = SqliteGuard::new(parsed.path().unwrap(), resource, policy);
        return AnyGuard(match stages {
            Some(stages) => Arc::new(guard.with_observer(stages)),
            None => Arc::new(guard),
        });
    };
    let endpoint = address.to_string();
    if url.starts_with("postgres") {
        let connect = Arc::new(move || {
            let address = address.clone();
            Box::pin(async move { leasehold_stores::postgres::connect(&address).await }) as _
        });
        let guard = PostgresGuard::new(connect, endpoint, resource, policy);
        return AnyGuard(match stages {
            Some(stages) => Arc::new(guard.with_observer(stages)),
            None => Arc::new(guard),
        });
    }
    let connect = Arc::new(move || {
        let address = address.clone();
        Box::pin(async move { leasehold_stores::mysql::connect(&address).await }) as _
    });
    let guard = MysqlGuard::new(connect, endpoint, resource, policy);
    AnyGuard(match stages {
        Some(stages) => Arc::new(guard.with_observer(stages)),
        None => Arc::new(guard),
    })
}

/// The same, that does not wait long for a file that a stopped process has.
pub fn guard_waiting(
    url: &str,
    resource: &str,
    policy: Policy,
    stages: Option<Arc<dyn Observer<WriteStep>>>,
) -> AnyGuard {
    if !url.starts_with("sqlite:") {
        return guard_at(url, resource, policy, stages);
    }
    let parsed: StoreUrl = url.parse().unwrap();
    let guard = SqliteGuard::new(parsed.path().unwrap(), resource.parse().unwrap(), policy);
    let guard = guard.waiting(std::time::Duration::from_millis(300));
    AnyGuard(match stages {
        Some(stages) => Arc::new(guard.with_observer(stages)),
        None => Arc::new(guard),
    })
}

impl Database {
    /// The database that another process made.
    pub fn at(url: &str) -> Self {
        let engine = match url.split(':').next() {
            Some("postgres") => Engine::Postgres,
            Some("mysql") => Engine::Mysql,
            _ => Engine::Sqlite,
        };
        Database { engine, url: url.to_owned(), _folder: None }
    }

    pub fn dialect(&self) -> Dialect {
        match self.engine {
            Engine::Postgres => Dialect::Postgres,
            Engine::Mysql => Dialect::Mysql,
            Engine::Sqlite => Dialect::Sqlite,
        }
    }

    pub fn guard(&self, resource: &str, policy: Policy) -> AnyGuard {
        guard_at(&self.url, resource, policy, None)
    }

    pub async fn postgres(&self) -> tokio_postgres::Client {
        let url: StoreUrl = self.url.parse().unwrap();
        leasehold_stores::postgres::connect(url.address().unwrap()).await.unwrap()
    }

    pub async fn mysql(&self) -> mysql_async::Conn {
        let url: StoreUrl = self.url.parse().unwrap();
        leasehold_stores::mysql::connect(url.address().unwrap()).await.unwrap()
    }

    pub fn sqlite(&self) -> rusqlite::Connection {
        let url: StoreUrl = self.url.parse().unwrap();
        let db = rusqlite::Connection::open(url.path().unwrap()).unwrap();
        db.busy_timeout(std::time::Duration::from_millis(800)).unwrap();
        db
    }

    /// Runs statements past the guard, as somebody by hand would.
    pub async fn try_execute(&self, sql: &str) -> Result<(), String> {
        match self.engine {
            Engine::Postgres => {
                let done = self.postgres().await.batch_execute(sql).await;
                done.map_err(|e| e.as_db_error().map_or_else(|| e.to_string(), |told| told.message().to_owned()))
            }
            Engine::Mysql => self.mysql().await.query_drop(sql).await.map_err(|e| e.to_string()),
            Engine::Sqlite => self.sqlite().execute_batch(sql).map_err(|e| e.to_string()),
        }
    }

    pub async fn execute(&self, sql: &str) {
        self.try_execute(sql).await.unwrap_or_else(|e| panic!("{:?}: {sql}: {e}", self.engine));
    }

    /// The one value of a query, as text.
    pub async fn ask(&self, sql: &str) -> String {
        self.try_ask(sql).await.unwrap_or_else(|e| panic!("{:?}: {sql}: {e}", self.engine))
    }

    /// The same; a file that a stopped process has cannot always be read.
    pub async fn try_ask(&self, sql: &str) -> Result<String, String> {
        Ok(match self.engine {
            Engine::Postgres => {
                let messages = self.postgres().await.simple_query(sql).await.unwrap();
                let row = messages.iter().find_map(|message| match message {
                    tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(ToOwned::to_owned),
                    _ => None,
                });
                row.unwrap_or_default()
            }
            Engine::Mysql => {
                let value: Option<Option<String>> = self.mysql().await.query_first(sql).await.unwrap();
                value.flatten().unwrap_or_default()
            }
            Engine::Sqlite => {
                let db = self.sqlite();
                let value: rusqlite::types::Value =
                    db.query_row(sql, [], |row| row.get(0)).map_err(|e| e.to_string())?;
                match value {
                    rusqlite::types::Value::Integer(n) => n.to_string(),
                    rusqlite::types::Value::Text(text) => text,
                    _ => String::new(),
                }
            }
        })
    }
}
