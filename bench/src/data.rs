//! A fenced transaction beside the same without a fence, and a fenced put beside a plain one, on real servers.

use crate::measure::{Contestant, contest};
use crate::report::{Demand, Row, Unit};
use anyhow::{Context, Result};
use leasehold_core::guard::Policy;
use leasehold_core::{Epoch, Nonce, Token};
use leasehold_guards::object::{Salt, Tags, key};
use leasehold_guards::sql::{Resource, Setup, SqlGuard};
use leasehold_guards::sql::{mysql, postgres, sqlite};
use leasehold_guards::{MysqlGuard, ObjectGuard, PostgresGuard, SqliteGuard};
use leasehold_stores::{Address, StoreUrl};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use object_store::{ObjectStore, ObjectStoreExt};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

const TRANSACTION: Demand = Demand::AtMostTheTime(1.3);
const PUT: Demand = Demand::AtMostTheTime(2.0);
const UPDATE: &str = "UPDATE totals SET n = n + 1 WHERE id = 1";
const TABLE: &str = "CREATE TABLE totals (id INTEGER PRIMARY KEY, n INTEGER)";
const ROW: &str = "INSERT INTO totals VALUES (1, 0)";

fn token() -> Result<Token> {
    Ok(Token {
        lease: "job".parse()?,
        lineage: leasehold_core::Lineage::random(),
        epoch: Epoch::new(1)?,
        nonce: Nonce::random(),
        seq: 0,
    })
}

fn address(url: &str) -> Result<Address> {
    url.parse::<StoreUrl>()?.address().cloned().context("not an address")
}

/// Measures the three databases.
pub fn transactions(limit: Duration) -> Result<Vec<Row>> {
    Ok(vec![on_postgres(limit)?, on_mariadb(limit)?, on_sqlite(limit)?])
}

fn row(what: &str, fenced: Duration, plain: Duration) -> Row {
    Row::new(what, "the same without a fence", Unit::Milliseconds, fenced, Some(plain), TRANSACTION)
}

fn on_postgres(limit: Duration) -> Result<Row> {
    let server = leasehold_testbed::postgres();
    let address = address(&leasehold_testbed::Postgres::url(server.port()))?;
    let runtime = Runtime::new()?;
    let (resource, token) = (Resource::default(), token()?);
    let of = address.clone();
    let connect = Arc::new(move || {
        let address = of.clone();
        Box::pin(async move { leasehold_stores::postgres::connect(&address).await }) as _
    });
    let guard = PostgresGuard::new(connect, "postgres", resource.clone(), Policy::Reentrant);
    runtime.block_on(guard.init(&Setup::default()))?;
    let client = runtime.block_on(leasehold_stores::postgres::connect(&address))?;
    runtime.block_on(client.batch_execute(&format!("{TABLE}; {ROW}")))?;
    let client = RefCell::new(client);
    let run = |is_fenced: bool| -> Result<()> {
        let mut client = client.borrow_mut();
        runtime.block_on(async {
            if is_fenced {
                let transaction = postgres::begin(&mut client, &resource, &token, Policy::Reentrant).await?;
                transaction.simple_query(UPDATE).await?;
                return Ok(transaction.commit().await.map(drop)?);
            }
            let transaction = client.transaction().await?;
            transaction.simple_query(UPDATE).await?;
            Ok(transaction.commit().await?)
        })
    };
    let [fenced, plain] = contest(
        limit,
        [
            Contestant::new("fenced transaction", 1, || run(true)),
            Contestant::new("plain transaction", 1, || run(false)),
        ],
    )?;
    Ok(row("admit + update, PostgreSQL", fenced, plain))
}

fn on_mariadb(limit: Duration) -> Result<Row> {
    let server = leasehold_testbed::mariadb();
    let address = address(&format!("mysql://root@127.0.0.1:{}/leases", server.port()))?;
    let runtime = Runtime::new()?;
    let (resource, token) = (Resource::default(), token()?);
    let of = address.clone();
    let connect = Arc::new(move || {
        let address = of.clone();
        Box::pin(async move { leasehold_stores::mysql::connect(&address).await }) as _
    });
    let guard = MysqlGuard::new(connect, "mariadb", resource.clone(), Policy::Reentrant);
    runtime.block_on(guard.init(&Setup::default()))?;
    let mut conn: Conn = runtime.block_on(leasehold_stores::mysql::connect(&address))?;
    runtime.block_on(conn.query_drop(format!("{TABLE}; {ROW}")))?;
    let conn = RefCell::new(Some(conn));
    let run = |is_fenced: bool| -> Result<()> {
        let mut conn = conn.borrow_mut();
        runtime.block_on(async {
            if is_fenced {
                let own = conn.take().context("the connection was lost")?;
                let mut transaction = mysql::begin(own, &resource, &token, Policy::Reentrant).await?;
                transaction.query_drop(UPDATE).await?;
                *conn = Some(transaction.commit().await?);
                return Ok(());
            }
            let conn = conn.as_mut().context("the connection was lost")?;
            let mut transaction = conn.start_transaction(TxOpts::new()).await?;
            transaction.query_drop(UPDATE).await?;
            Ok(transaction.commit().await?)
        })
    };
    let [fenced, plain] = contest(
        limit,
        [
            Contestant::new("fenced transaction", 1, || run(true)),
            Contestant::new("plain transaction", 1, || run(false)),
        ],
    )?;
    Ok(row("admit + update, MariaDB", fenced, plain))
}

fn on_sqlite(limit: Duration) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("app.db");
    let (resource, token) = (Resource::default(), token()?);
    let guard = SqliteGuard::new(&path, resource.clone(), Policy::Reentrant);
    Runtime::new()?.block_on(guard.init(&Setup::default()))?;
    let db = rusqlite::Connection::open(&path)?;
    db.execute_batch(&format!("PRAGMA journal_mode = wal; PRAGMA synchronous = FULL; {TABLE}; {ROW}"))?;
    let run = |is_fenced: bool| -> Result<()> {
        db.execute_batch("BEGIN IMMEDIATE")?;
        if is_fenced {
            sqlite::admit(&db, &resource, &token, Policy::Reentrant)?;
        }
        db.execute(UPDATE, [])?;
        if is_fenced {
            sqlite::close(&db, &resource)?;
        }
        Ok(db.execute_batch("COMMIT")?)
    };
    let [fenced, plain] = contest(
        limit,
        [
            Contestant::new("fenced transaction", 1, || run(true)),
            Contestant::new("plain transaction", 1, || run(false)),
        ],
    )?;
    Ok(row("admit + update + close, SQLite", fenced, plain))
}

/// Measures a put, on S3 as moto does it.
pub fn puts(limit: Duration) -> Result<Vec<Row>> {
    let server = leasehold_testbed::moto();
    let url = format!("s3://id:secret@{}/x?endpoint=http://127.0.0.1:{}", leasehold_testbed::BUCKET, server.port());
    let store: Arc<dyn ObjectStore> = leasehold_stores::object::client(&address(&url)?)?;
    let guard = ObjectGuard::new(store.clone(), key("fenced.json")?, "s3", Tags::OfTheContent, Policy::Reentrant)?;
    let guard = guard.salted(Salt::Blank);
    let (runtime, token, plain) = (Runtime::new()?, token()?, key("plain.json")?);
    let body = vec![b' '; 4096];
    let put = |guard: &ObjectGuard| -> Result<()> {
        Ok(runtime.block_on(guard.put(&token, body.clone().into(), "application/json")).map(drop)?)
    };
    // One that has not put before has to look first.
    let new = || -> Result<ObjectGuard> {
        let guard = ObjectGuard::new(store.clone(), key("new.json")?, "s3", Tags::OfTheContent, Policy::Reentrant)?;
        Ok(guard.salted(Salt::Blank))
    };
    let [fenced, first, plain] = contest(
        limit,
        [
            Contestant::new("fenced put", 1, || put(&guard)),
            Contestant::new("first fenced put", 1, || put(&new()?)),
            Contestant::new("plain put", 1, || {
                Ok(runtime.block_on(store.put(&plain, body.clone().into())).map(drop)?)
            }),
        ],
    )?;
    let row = |what: &str, fenced| Row::new(what, "a plain put", Unit::Milliseconds, fenced, Some(plain), PUT);
    Ok(vec![
        row("fenced put, 4 KiB (ObjectGuard, moto)", fenced),
        row("a guard's first fenced put, with a look (moto)", first),
    ])
}
