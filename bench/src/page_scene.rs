//! What the pages show beside leases and items: jobs with full journals, fences, refused writes and processes.
//!
//! Promise: a few of each are made by the rules, within seconds, under names that [`multiply`](crate::lines::multiply) copies.
//! Non-promise: the copies differ in their names alone, so a copied fence is of the one lease that is measured.

use anyhow::{Result, bail};
use leasehold_core::guard::HighWater;
use leasehold_core::{
    Acquired, Ask, Coordinator, Epoch, FENCED_KEPT, FencedWrite, HolderId, LeaseName, Outcome, Slot, Timestamp,
};
use leasehold_guards::stored::{FenceDocument, FenceRecord};
use leasehold_work::presence::{Announced, Presence, Role, processes};
use leasehold_work::schedule::{Definitions, ENTRIES_KEPT, Fate, FileRevision, Job, JobVerbs, Note, Publisher, RunEnd};
use std::sync::Arc;
use std::time::Duration;

/// The lease whose page is measured, and a job of which each slot is known.
pub const LEASE: &str = "team-07/job-0007/00000001";
pub const JOB: &str = "rollup-1/00000001";
/// How many jobs are made by the rules. A journal is the largest record that a page reads many of.
const JOBS: usize = 3;
/// How many fences the page lists.
const FENCES: usize = 5;
const HOUR_MS: u64 = 3_600_000;

/// Adds them to a store in which the lease is held or free.
pub async fn fill(leases: &Coordinator) -> Result<()> {
    jobs(leases).await?;
    fences(leases).await?;
    process(leases).await
}

async fn jobs(leases: &Coordinator) -> Result<()> {
    let job = |number: usize| -> Result<Arc<Job>> {
        let name = format!("rollup-{number}/00000001");
        let table = serde_json::json!({ "name": name, "cron": "5 * * * *", "tz": "Europe/Berlin", "command": "true" });
        Ok(Arc::new(Job::read(serde_json::from_value(table)?, 0)?))
    };
    let all = (0..JOBS).map(job).collect::<Result<Vec<_>>>()?;
    let publisher = Publisher {
        owner: "/etc/leasehold/jobs.toml".to_owned(),
        revision: FileRevision::new(Some(1), Duration::from_secs(1_700_000_000), "jobs"),
        host: "scheduler-1".to_owned(),
    };
    Definitions::new(leases.clone()).publish(&all, &publisher).await?;
    for number in 0..JOBS {
        let name: LeaseName = format!("rollup-{number}/00000001").parse()?;
        free(leases, &name).await?;
        let (_, now) = leases.journal(&name).await?;
        let newest = now.as_millis() / HOUR_MS * HOUR_MS;
        for (epoch, hours) in (1..).zip((1..=ENTRIES_KEPT as u64).rev()) {
            let slot = Slot(Timestamp::from_millis(newest.saturating_sub(hours * HOUR_MS)));
            let (epoch, host) = (Epoch::new(epoch)?, format!("worker-{}", hours % 3));
            let fate = if hours % 11 == 5 { Fate::Failed } else { Fate::Succeeded };
            let end = RunEnd::new(fate, Some(u8::from(fate == Fate::Failed)), 41_000 + hours * 977);
            leases.write(&name, &Note::Began(slot, epoch), &host).await?;
            leases.write(&name, &Note::Ended(slot, epoch, end), &host).await?;
        }
    }
    Ok(())
}

async fn free(leases: &Coordinator, name: &LeaseName) -> Result<()> {
    let ask = Ask::new(HolderId::new(None), "24h".parse()?);
    let Acquired::Granted(grant) = leases.acquire(name, &ask).await? else { bail!("a free lease was refused") };
    leases.release(&grant, Outcome::Succeeded).await.map(drop)?;
    Ok(())
}

/// Fences of the lease, and writes that they refused.
async fn fences(leases: &Coordinator) -> Result<()> {
    let lease: LeaseName = LEASE.parse()?;
    let record = leases.inspect(&lease).await?.record;
    let Some((lineage, transfer)) = record.lineage.zip(record.transfers.last().cloned()) else {
        bail!("`{lease}` was never held")
    };
    let high = |seq| HighWater { lease: lease.clone(), lineage, epoch: record.epoch, nonce: transfer.nonce, seq };
    for number in 0..FENCES {
        let document = FenceDocument::new(leases, &format!("http/service-{number}/00000001").parse()?);
        let seen = document.look().await?;
        let next = FenceRecord { high: Some(high(number as u64)), ..FenceRecord::default() };
        if document.put(&seen, next).await?.is_none() {
            bail!("a fence of our own was written by somebody else");
        }
    }
    for number in 0..FENCED_KEPT {
        let write = FencedWrite::new(&format!("file:out-{number}.json"), Epoch::ZERO, record.epoch, None);
        leases.count_fenced(&lease, &write).await?;
    }
    Ok(())
}

/// A worker that says it is there. It is not ended: then it would be there no more.
async fn process(leases: &Coordinator) -> Result<()> {
    let mut own = Presence::own(Role::Worker, Some("mail".to_owned()));
    "worker-00000001".clone_into(&mut own.host);
    std::mem::forget(Announced::start(leases.store().clone(), own));
    // It says so after a second.
    for _ in 0..600 {
        if !processes(leases.store().as_ref(), 10).await?.processes.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("nobody reported within 30 s")
}
