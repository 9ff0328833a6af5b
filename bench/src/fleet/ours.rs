//! Ours: a coordinator on a store that was opened by its URL.

use super::Client;
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use leasehold_core::{Acquired, Ask, Coordinator, Grant, HolderId, Outcome, Released, Ttl};
use std::time::Duration;

/// Longer than any contest.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Ours {
    leases: Coordinator,
    ttl: Ttl,
    grant: Option<Grant>,
}

/// A client with a handle of its own.
pub async fn open(url: &str) -> Result<Box<dyn Client>> {
    let store = leasehold_stores::open(&url.parse()?).await?;
    Ok(Box::new(Ours { leases: Coordinator::new(store), ttl: "90s".parse()?, grant: None }))
}

impl Ours {
    fn take(&mut self, acquired: Acquired) -> bool {
        if let Acquired::Granted(grant) = acquired {
            self.grant = Some(*grant);
            return true;
        }
        false
    }
}

#[async_trait]
impl Client for Ours {
    async fn acquire(&mut self, lease: &str) -> Result<bool> {
        let ask = Ask::new(HolderId::new(None), self.ttl);
        let acquired = self.leases.acquire(&lease.parse()?, &ask).await?;
        Ok(self.take(acquired))
    }

    async fn acquire_waiting(&mut self, lease: &str) -> Result<()> {
        let ask = Ask::new(HolderId::new(None), self.ttl);
        let acquired = self.leases.acquire_within(&[lease.parse()?], &ask, PATIENCE).await?;
        ensure!(self.take(acquired), "the wait failed");
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        Ok(self.leases.renew(self.grant.as_mut().context("nothing to renew")?, None).await?)
    }

    async fn release(&mut self) -> Result<()> {
        let grant = self.grant.take().context("nothing to release")?;
        ensure!(self.leases.release(&grant, Outcome::Succeeded).await? == Released::Now, "it was lost");
        Ok(())
    }
}
