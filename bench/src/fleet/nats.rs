//! A KV entry that is created, updated at its revision and deleted.

use super::{Client, Engine, ours};
use anyhow::{Context, Result, anyhow};
use async_nats::jetstream::kv::{Config, CreateErrorKind, Store};
use async_trait::async_trait;
use leasehold_testbed::Server;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(2);

pub struct Nats(Server);

pub fn start() -> Result<Box<dyn Engine>> {
    Ok(Box::new(Nats(leasehold_testbed::nats())))
}

#[async_trait]
impl Engine for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn peer_is(&self) -> &'static str {
        "KV create/update"
    }

    fn wakes(&self) -> bool {
        true
    }

    async fn ours(&self) -> Result<Box<dyn Client>> {
        ours::open(&format!("nats://127.0.0.1:{}", self.0.port())).await
    }

    async fn peer(&self) -> Result<Box<dyn Client>> {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.0.port())).await?;
        let config = Config { bucket: "peer".into(), history: 1, ..Config::default() };
        let bucket = async_nats::jetstream::new(client).create_key_value(config).await?;
        Ok(Box::new(Peer { bucket, held: None }))
    }
}

struct Peer {
    bucket: Store,
    held: Option<(String, u64)>,
}

#[async_trait]
impl Client for Peer {
    async fn acquire(&mut self, lease: &str) -> Result<bool> {
        let nonce = leasehold_core::Nonce::random().to_string();
        match self.bucket.create(lease, nonce.into()).await {
            Ok(revision) => {
                self.held = Some((lease.to_owned(), revision));
                Ok(true)
            }
            Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(false),
            // Two creators after a deletion: the slower one is told that its sequence is old.
            Err(error) if error.to_string().contains("wrong last sequence") => Ok(false),
            Err(error) => Err(anyhow!(error)),
        }
    }

    async fn acquire_waiting(&mut self, lease: &str) -> Result<()> {
        while !self.acquire(lease).await? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        let (lease, revision) = self.held.as_mut().context("nothing to renew")?;
        *revision = self.bucket.update(&*lease, "until".into(), *revision).await?;
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let (lease, revision) = self.held.take().context("nothing to release")?;
        self.bucket.delete_expect_revision(lease, Some(revision)).await?;
        Ok(())
    }
}
