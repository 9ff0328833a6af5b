//! A row per lease and `UPDATE … WHERE`: the lease that one writes when there is a database already.

use super::{Client, Engine, ours};
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use leasehold_testbed::Postgres;
use std::time::Duration;
use tokio_postgres::{NoTls, Statement};

const PAUSE: Duration = Duration::from_millis(2);
const TABLE: &str = "CREATE TABLE IF NOT EXISTS lease (name text PRIMARY KEY, holder text, until timestamptz NOT NULL)";
const ACQUIRE: &str = "INSERT INTO lease VALUES ($1, $2, now() + interval '90 s') ON CONFLICT (name) DO UPDATE
    SET holder = $2, until = now() + interval '90 s' WHERE lease.holder IS NULL OR lease.until < now()";
const RENEW: &str =
    "UPDATE lease SET until = now() + interval '90 s' WHERE name = $1 AND holder = $2 AND until > now()";
const RELEASE: &str = "UPDATE lease SET holder = NULL WHERE name = $1 AND holder = $2";

pub struct Database(Postgres);

pub fn start() -> Result<Box<dyn Engine>> {
    // 64 clients and their listeners, beside 64 of the peer's.
    Ok(Box::new(Database(Postgres::with(&["max_connections=400"]))))
}

#[async_trait]
impl Engine for Database {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn peer_is(&self) -> &'static str {
        "UPDATE … WHERE"
    }

    fn wakes(&self) -> bool {
        true
    }

    async fn ours(&self) -> Result<Box<dyn Client>> {
        ours::open(&Postgres::url(self.0.port())).await
    }

    async fn peer(&self) -> Result<Box<dyn Client>> {
        let (client, connection) = tokio_postgres::connect(&Postgres::url(self.0.port()), NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(TABLE).await?;
        let [acquire, renew, release] =
            [client.prepare(ACQUIRE).await?, client.prepare(RENEW).await?, client.prepare(RELEASE).await?];
        Ok(Box::new(Peer { client, acquire, renew, release, held: None }))
    }
}

struct Peer {
    client: tokio_postgres::Client,
    acquire: Statement,
    renew: Statement,
    release: Statement,
    held: Option<(String, String)>,
}

#[async_trait]
impl Client for Peer {
    async fn acquire(&mut self, lease: &str) -> Result<bool> {
        let nonce = leasehold_core::Nonce::random().to_string();
        let taken = self.client.execute(&self.acquire, &[&lease, &nonce]).await? == 1;
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
        let (lease, nonce) = self.held.as_ref().context("nothing to renew")?;
        ensure!(self.client.execute(&self.renew, &[lease, nonce]).await? == 1, "it was lost");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let (lease, nonce) = self.held.take().context("nothing to release")?;
        ensure!(self.client.execute(&self.release, &[&lease, &nonce]).await? == 1, "it was lost");
        Ok(())
    }
}
