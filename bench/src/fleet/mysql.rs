//! A row per lease and `UPDATE … WHERE`, as for Postgres.

use super::{Client, Engine, ours};
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use leasehold_testbed::Server;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Statement};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(2);
const DATABASE: &str = "CREATE DATABASE IF NOT EXISTS peer";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS peer.lease
    (name varbinary(200) PRIMARY KEY, holder varbinary(64), until datetime(6) NOT NULL) ENGINE = InnoDB";
const MAKE: &str = "INSERT IGNORE INTO peer.lease VALUES (?, NULL, UTC_TIMESTAMP(6))";
const ACQUIRE: &str = "UPDATE peer.lease SET holder = ?, until = UTC_TIMESTAMP(6) + INTERVAL 90 SECOND
    WHERE name = ? AND (holder IS NULL OR until < UTC_TIMESTAMP(6))";
const RENEW: &str = "UPDATE peer.lease SET until = UTC_TIMESTAMP(6) + INTERVAL 90 SECOND
    WHERE name = ? AND holder = ? AND until > UTC_TIMESTAMP(6)";
const RELEASE: &str = "UPDATE peer.lease SET holder = NULL WHERE name = ? AND holder = ?";

pub struct Database(Server);

pub fn start() -> Result<Box<dyn Engine>> {
    // The log is as large as MariaDB makes it by itself; tests have a small one.
    let server = leasehold_testbed::mariadb_with(&["--max-connections=400", "--innodb-log-file-size=96M"], &[]);
    leasehold_testbed::mariadb_run(&server, "CREATE DATABASE IF NOT EXISTS leasehold");
    Ok(Box::new(Database(server)))
}

#[async_trait]
impl Engine for Database {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn peer_is(&self) -> &'static str {
        "UPDATE … WHERE"
    }

    fn wakes(&self) -> bool {
        false
    }

    async fn ours(&self) -> Result<Box<dyn Client>> {
        ours::open(&format!("mysql://root@127.0.0.1:{}/leasehold", self.0.port())).await
    }

    async fn peer(&self) -> Result<Box<dyn Client>> {
        let mut conn = Conn::new(Opts::from_url(&format!("mysql://root@127.0.0.1:{}", self.0.port()))?).await?;
        conn.query_drop(DATABASE).await?;
        conn.query_drop(TABLE).await?;
        let make = conn.prep(MAKE).await?;
        let [acquire, renew, release] = [conn.prep(ACQUIRE).await?, conn.prep(RENEW).await?, conn.prep(RELEASE).await?];
        Ok(Box::new(Peer { conn, make, acquire, renew, release, known: String::new(), held: None }))
    }
}

struct Peer {
    conn: Conn,
    make: Statement,
    acquire: Statement,
    renew: Statement,
    release: Statement,
    /// The lease whose row is known to be there.
    known: String,
    held: Option<(String, String)>,
}

impl Peer {
    async fn change(&mut self, statement: Statement, words: (&str, &str)) -> Result<bool> {
        self.conn.exec_drop(statement, words).await?;
        Ok(self.conn.affected_rows() == 1)
    }
}

#[async_trait]
impl Client for Peer {
    async fn acquire(&mut self, lease: &str) -> Result<bool> {
        if self.known != lease {
            self.conn.exec_drop(&self.make, (lease,)).await?;
            lease.clone_into(&mut self.known);
        }
        let nonce = leasehold_core::Nonce::random().to_string();
        let taken = self.change(self.acquire.clone(), (&nonce, lease)).await?;
        if taken {
            self.held = Some((lease.to_owned(), nonce));
        }
        Ok(taken)
    }

    async fn acquire_waiting(&mut self, lease: &str) -> Result<()> {
        while !self.acquire(lease).await? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        let (lease, nonce) = self.held.clone().context("nothing to renew")?;
        ensure!(self.change(self.renew.clone(), (&lease, &nonce)).await?, "it was lost");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let (lease, nonce) = self.held.take().context("nothing to release")?;
        ensure!(self.change(self.release.clone(), (&lease, &nonce)).await?, "it was lost");
        Ok(())
    }
}
