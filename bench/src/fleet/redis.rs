//! `SET NX PX` with a compare-and-delete script: the lease that Redis's own documentation shows.

use super::{Client, Engine, ours};
use anyhow::{Context, Result};
use async_trait::async_trait;
use leasehold_testbed::Server;
use redis::aio::MultiplexedConnection;
use redis::{Script, cmd};
use std::time::Duration;

const TTL_MS: u64 = 90_000;
const PAUSE: Duration = Duration::from_millis(2);

pub struct Redis(Server);

pub fn start() -> Result<Box<dyn Engine>> {
    Ok(Box::new(Redis(leasehold_testbed::redis())))
}

#[async_trait]
impl Engine for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn peer_is(&self) -> &'static str {
        "SET NX PX"
    }

    fn wakes(&self) -> bool {
        true
    }

    async fn ours(&self) -> Result<Box<dyn Client>> {
        ours::open(&format!("redis://127.0.0.1:{}", self.0.port())).await
    }

    async fn peer(&self) -> Result<Box<dyn Client>> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.0.port()))?;
        let connection = client.get_multiplexed_async_connection().await?;
        let script = |action: &str| {
            Script::new(&format!("if redis.call('get', KEYS[1]) == ARGV[1] then return {action} else return 0 end"))
        };
        Ok(Box::new(Peer {
            connection,
            renew: script("redis.call('pexpire', KEYS[1], ARGV[2])"),
            release: script("redis.call('del', KEYS[1])"),
            held: None,
        }))
    }
}

struct Peer {
    connection: MultiplexedConnection,
    renew: Script,
    release: Script,
    held: Option<(String, String)>,
}

#[async_trait]
impl Client for Peer {
    async fn acquire(&mut self, lease: &str) -> Result<bool> {
        let nonce = leasehold_core::Nonce::random().to_string();
        let set: Option<String> =
            cmd("SET").arg(lease).arg(&nonce).arg("NX").arg("PX").arg(TTL_MS).query_async(&mut self.connection).await?;
        if set.is_some() {
            self.held = Some((lease.to_owned(), nonce));
        }
        Ok(set.is_some())
    }

    async fn acquire_waiting(&mut self, lease: &str) -> Result<()> {
        while !self.acquire(lease).await? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        let (lease, nonce) = self.held.as_ref().context("nothing to renew")?;
        let done: u32 = self.renew.key(lease).arg(nonce).arg(TTL_MS).invoke_async(&mut self.connection).await?;
        anyhow::ensure!(done == 1, "it was lost");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let (lease, nonce) = self.held.take().context("nothing to release")?;
        let done: u32 = self.release.key(lease).arg(nonce).invoke_async(&mut self.connection).await?;
        anyhow::ensure!(done == 1, "it was lost");
        Ok(())
    }
}
