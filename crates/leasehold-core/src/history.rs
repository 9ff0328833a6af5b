//! The history of a lease beyond its record: old transfers, in segments on a shelf of their own.
//!
//! Promise: a record drops a transfer only after the write of the segment that contains it was *answered*. So at every
//! instant each transfer is in the record, in a segment, or in both. A segment has the transfers of 16 epochs. It is
//! written when the lease has left the last of them behind, usually once; writing the same transfers again changes
//! nothing. A restored store may have two transfers of one epoch; both are kept.
//! A segment that cannot be read is left as it is and reported, and archiving continues beside it.
//! Non-promise: whatever exceeds the [`Retention`] is erased, whole segments at a time, oldest first. If the archive of
//! a lease cannot be written at all, its oldest transfers are forgotten before its record becomes too large to write.
//!
//! ```text
//! record     epochs 1..16, archived 0
//! segment    epochs 1..15                   written and answered
//! record     epochs 13..16, archived 15     by the next write that the holder makes anyway
//! ```

use crate::coordinator::Coordinator;
use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::lease::record::Ownership;
use crate::lease::transfer::Transfer;
use crate::name::LeaseName;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

mod archive;

pub(crate) use archive::{Archive, due, is_damage};
pub use archive::{masked as masked_history, subject as history_subject};

/// How much history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// At least this many transfers of a lease, besides those in its record.
    pub transfers: u64,
    /// Of these, only those younger than this; none means no limit.
    pub age: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { transfers: 10_000, age: None }
    }
}

/// The transfers of a lease that are still known.
#[derive(Debug, Default)]
pub struct History {
    /// Oldest first, without the ones that retention has removed.
    pub transfers: Vec<Arc<Transfer>>,
    /// What is missing between them: each error names the epochs and the cause.
    pub damaged: Vec<Error>,
}

impl Coordinator {
    pub(crate) fn archive<'a>(&'a self, lease: &'a LeaseName) -> Archive<'a> {
        Archive::new(self.store().as_ref(), self.clock().as_ref(), lease, self.retention())
    }

    /// Every transfer of a lease that is still known: those in its record, and the archived ones. An error only if the
    /// store does not answer: damaged segments are left out and reported.
    pub async fn history(&self, lease: &LeaseName, record: &Ownership) -> Result<History> {
        self.history_since(lease, record, Epoch::ZERO).await
    }

    /// The same from this epoch on. Takes a few reads, however long the history is.
    pub async fn history_since(&self, lease: &LeaseName, record: &Ownership, from: Epoch) -> Result<History> {
        let mut history = self.archive(lease).since(record, from).await?.history;
        archive::merge(&mut history.transfers, &record.transfers);
        Ok(history)
    }

    /// Erases what a forgotten lease leaves behind: its archived transfers and
    /// its counters. Safe to repeat. A server has already done it.
    pub async fn erase_leftovers(&self, lease: &LeaseName, record: &Ownership) -> Result<()> {
        if self.store().capabilities().by_verbs {
            return Ok(());
        }
        if let Some(lineage) = record.lineage {
            self.archive(lease).erase(lineage).await?;
        }
        self.erase_counters(lease).await
    }

    /// Copies the archived transfers of a record to another store, before the record is copied there. What cannot be
    /// read stays behind and is returned as errors.
    pub async fn copy_history(&self, lease: &LeaseName, record: &Ownership, to: &Coordinator) -> Result<Vec<Error>> {
        self.archive(lease).copy(record, &to.archive(lease)).await
    }

    /// Archives old transfers in the background. The grant's mark then says how far.
    pub(crate) fn archive_in_background(&self, lease: &LeaseName, record: &Ownership, mark: &Mark) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (coordinator, lease, record, mark) = (self.clone(), lease.clone(), record.clone(), mark.clone());
        runtime.spawn(async move {
            if let Ok(archived) = coordinator.archive(&lease).take(&record).await {
                mark.set(archived);
            }
        });
    }

    /// The record with its transfers from this epoch on, as far as known.
    pub(crate) async fn with_history(&self, lease: &LeaseName, record: Ownership, from: Epoch) -> Ownership {
        if !is_archived(&record, from) {
            return record;
        }
        self.archive(lease).remember(&record, from).await.ok().flatten().unwrap_or(record)
    }

    /// The record with the transfer of this epoch, if known: one read, however old the epoch is.
    pub(crate) async fn with_transfer<'a>(
        &self,
        lease: &LeaseName,
        record: &'a Ownership,
        epoch: Epoch,
    ) -> Cow<'a, Ownership> {
        if !is_archived(record, epoch) {
            return Cow::Borrowed(record);
        }
        self.archive(lease).around(record, epoch).await.map_or(Cow::Borrowed(record), Cow::Owned)
    }
}

/// Whether the transfer of this epoch is no longer in the record.
fn is_archived(record: &Ownership, epoch: Epoch) -> bool {
    epoch <= record.archived && record.transfers.first().is_none_or(|first| first.epoch > epoch)
}

/// How far a record was archived since it was written, once known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mark(Arc<std::sync::OnceLock<Epoch>>);

impl Mark {
    pub(crate) fn get(&self) -> Option<Epoch> {
        self.0.get().copied()
    }

    /// Only the first call counts: a grant's record is archived once.
    pub(crate) fn set(&self, archived: Epoch) {
        let _ = self.0.set(archived);
    }
}
