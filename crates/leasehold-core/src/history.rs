//! The history of a lease beyond its record: old transfers, in segments on a shelf of their own.
//!
//! Promise: a record drops a transfer only after the write of a segment that has it was *answered*; so at every instant each
//! transfer is in the record, in a segment, or in both. A segment has the transfers of 16 epochs and is written when the lease
//! has left the last of them behind, as a rule once; writing the same transfers again changes nothing. Two transfers of one
//! epoch, as a store that was restored from a copy may have, are both kept.
//! Non-promise: what is older than the [`Retention`] says is erased, whole segments at a time, oldest first.
//!
//! ```text
//! record     epochs 1..16, archived 0
//! segment    epochs 1..15                   written and answered
//! record     epochs 13..16, archived 15     by the next write that the holder makes anyway
//! ```

use crate::cell::{Fate, MAX_ATTEMPTS};
use crate::clock::Clock;
use crate::codec;
use crate::coordinator::Coordinator;
use crate::document::{Document, Edit};
use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::lease::record::Ownership;
use crate::lease::transfer::Transfer;
use crate::name::{Key, LeaseName, Shelf};
use crate::nonce::Lineage;
use crate::store::{Change, Range, Store};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

const KIND: &str = "history";
/// How many epochs a segment covers. Even with transfers of the greatest length, a segment fits into a record.
const EPOCHS: u64 = 16;
/// How many segments are read at once.
const PAGE: usize = 64;
/// How many old segments are erased when a new one begins.
const ERASED: usize = 4;

/// How much history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// At least so many transfers of a lease, besides those in its record.
    pub transfers: u64,
    /// Of these, only what is younger than this; for ever if none.
    pub age: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { transfers: 10_000, age: None }
    }
}

/// The transfers of some epochs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    /// The lease. None in a segment that was not written yet.
    lease: Option<LeaseName>,
    /// The epoch of the last transfer before it, zero if there is none. It shows whether a segment is missing.
    since: Epoch,
    /// How many transfers were archived before it.
    before: u64,
    /// In the order of epochs.
    transfers: Vec<Arc<Transfer>>,
}

impl Segment {
    /// How many transfers were archived up to its end.
    fn total(&self) -> u64 {
        self.before.saturating_add(self.transfers.len() as u64)
    }

    /// The segment with these transfers added.
    fn with(&self, lease: &LeaseName, more: &[Arc<Transfer>]) -> Self {
        let mut segment = Segment { lease: Some(lease.clone()), ..self.clone() };
        merge(&mut segment.transfers, more);
        segment
    }
}

/// Adds the transfers that are not there. The same epoch under another nonce is another transfer.
fn merge(transfers: &mut Vec<Arc<Transfer>>, more: &[Arc<Transfer>]) {
    let known = transfers.len();
    for transfer in more {
        let is_same = |t: &Arc<Transfer>| t.epoch == transfer.epoch && t.nonce == transfer.nonce;
        if !transfers[..known].iter().any(is_same) {
            transfers.push(transfer.clone());
        }
    }
    transfers.sort_by_key(|t| (t.epoch, t.at));
}

/// The transfers of a record that are not archived yet and whose segment is complete.
pub(crate) fn due(record: &Ownership) -> impl Iterator<Item = &Arc<Transfer>> {
    record.transfers.iter().filter(|t| t.epoch > record.archived && number(t.epoch) < number(record.epoch))
}

const fn number(epoch: Epoch) -> u64 {
    epoch.get() / EPOCHS
}

fn key(lineage: Lineage, number: u64) -> Result<Key> {
    Ok(Key::new(Shelf::History, &LeaseName::new(format!("{lineage}/{number:016}"))?))
}

/// The archive of one lease.
#[derive(Debug)]
pub(crate) struct Archive<'a> {
    store: &'a dyn Store,
    clock: &'a dyn Clock,
    lease: &'a LeaseName,
    retention: Retention,
}

impl<'a> Archive<'a> {
    pub(crate) fn new(store: &'a dyn Store, clock: &'a dyn Clock, lease: &'a LeaseName, retention: Retention) -> Self {
        Archive { store, clock, lease, retention }
    }

    fn document(&self, lineage: Lineage, number: u64) -> Result<Document<'a, Segment>> {
        let what = format!("the history of lease `{}`", self.lease);
        Ok(Document::new(self.store, key(lineage, number)?, KIND, what))
    }

    /// Archives what is due of this record; returns the epoch up to which everything is archived.
    pub(crate) async fn take(&self, record: &Ownership) -> Result<Epoch> {
        let Some(lineage) = record.lineage else { return Ok(record.archived) };
        let due: Vec<Arc<Transfer>> = due(record).cloned().collect();
        let mut archived = record.archived;
        for part in due.chunk_by(|a, b| number(a.epoch) == number(b.epoch)) {
            archived = self.write(lineage, archived, part).await?;
        }
        Ok(archived)
    }

    /// Writes transfers of one segment, of which all up to `since` are archived.
    async fn write(&self, lineage: Lineage, since: Epoch, part: &[Arc<Transfer>]) -> Result<Epoch> {
        let Some(last) = part.last() else { return Ok(since) };
        let number_of_this = number(last.epoch);
        let mut first = Segment { since, ..Segment::default() };
        let is_new = since == Epoch::ZERO || number(since) != number_of_this;
        if is_new && since > Epoch::ZERO {
            first.before = self.document(lineage, number(since))?.look(self.clock.now()).await?.record.total();
        }
        let lease = self.lease;
        let decide = |found: &Segment, _: Timestamp| {
            if found.lease.as_ref().is_some_and(|found| found != lease) {
                let message =
                    format!("corrupt history of lease `{lease}`: it is another lease's; it was left as it is");
                return Err(Error::new(Kind::Corrupt, message));
            }
            Ok(Some(if found.lease.is_none() { &first } else { found }.with(lease, part)))
        };
        // Writing it again changes nothing, also after a write without an answer.
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        self.document(lineage, number_of_this)?.change(self.clock, &edit).await?;
        if is_new {
            self.erase_old(lineage, first.before + part.len() as u64).await;
        }
        Ok(last.epoch)
    }

    /// Erases the oldest segments beyond the retention, best effort.
    async fn erase_old(&self, lineage: Lineage, total: u64) {
        let Ok(page) = self.page(lineage, None, ERASED).await else { return };
        for (name, revision, segment) in page.segments {
            let is_surplus = total.saturating_sub(segment.total()) >= self.retention.transfers;
            let is_young = |age| segment.transfers.last().is_none_or(|last| last.at.plus(age) >= page.now);
            let is_old = self.retention.age.is_some_and(|age| !is_young(age)) && total > segment.total();
            if !is_surplus && !is_old {
                return;
            }
            let key = Key::new(Shelf::History, &name);
            if self.store.write(&Change::erase(&key, &revision)).await.is_err() {
                return;
            }
        }
    }

    async fn page(&self, lineage: Lineage, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let begin = LeaseName::new(lineage.to_string())?;
        let page = self.store.list(Shelf::History, Range::new(Some(after.unwrap_or(&begin)), limit)).await?;
        let (mut more, mut segments) = (page.more && !page.entries.is_empty(), Vec::new());
        for (name, value) in page.entries {
            if !name.as_str().strip_prefix(begin.as_str()).is_some_and(|rest| rest.starts_with('/')) {
                more = false;
                break;
            }
            let segment = codec::decode(KIND, &value.bytes, name.as_str())?;
            segments.push((name, value.revision, segment));
        }
        Ok(Page { segments, more, now: page.now })
    }

    /// Every archived transfer of this record from this epoch on, oldest first; and whether none is missing.
    async fn since(&self, record: &Ownership, from: Epoch) -> Result<(Vec<Arc<Transfer>>, bool)> {
        let Some(lineage) = record.lineage.filter(|_| record.archived > Epoch::ZERO) else {
            return Ok((Vec::new(), record.archived == Epoch::ZERO));
        };
        let mut after = match number(from) {
            0 => None,
            first => Some(key(lineage, first - 1)?.name),
        };
        let (mut transfers, mut begins, mut ends) = (Vec::new(), None, Epoch::ZERO);
        loop {
            let page = self.page(lineage, after.as_ref(), PAGE).await?;
            after = page.segments.last().map(|(name, ..)| name.clone());
            for (_, _, segment) in page.segments {
                // What came before the segment is in the one before it, or nothing did.
                let follows = ends == Epoch::ZERO || segment.since <= ends;
                begins = if follows { begins.or(Some(segment.since)) } else { Some(segment.since) };
                ends = segment.transfers.last().map_or(ends, |last| last.epoch.max(ends));
                transfers.extend(segment.transfers.into_iter().filter(|t| t.epoch >= from));
            }
            if !page.more {
                let reaches_back = begins.is_some_and(|begins| begins < from || begins == Epoch::ZERO);
                let is_whole = reaches_back && ends >= record.archived;
                return Ok((transfers, is_whole));
            }
        }
    }

    /// The same record with the archived transfers around this epoch, if they can be read. Enough to look up one transfer.
    async fn around(&self, record: &Ownership, epoch: Epoch) -> Result<Ownership> {
        let Some(lineage) = record.lineage else { return Ok(record.clone()) };
        let found = self.document(lineage, number(epoch))?.look(self.clock.now()).await?.record;
        let mut more = record.clone();
        merge(&mut more.transfers, &found.transfers);
        Ok(more)
    }

    /// The same record with all of its transfers from this epoch on, if they are there.
    pub(crate) async fn remember(&self, record: &Ownership, from: Epoch) -> Result<Option<Ownership>> {
        let (archived, is_whole) = self.since(record, from).await?;
        let mut whole = record.clone();
        merge(&mut whole.transfers, &archived);
        Ok(is_whole.then_some(whole))
    }

    /// Copies the archive of a record to another store.
    pub(crate) async fn copy(&self, record: &Ownership, to: &Archive<'_>) -> Result<()> {
        let Some(lineage) = record.lineage else { return Ok(()) };
        let mut after = None;
        loop {
            let page = self.page(lineage, after.as_ref(), PAGE).await?;
            after = page.segments.last().map(|(name, ..)| name.clone());
            for (_, _, segment) in page.segments {
                let Some(last) = segment.transfers.last() else { continue };
                let lease = self.lease;
                let decide = |found: &Segment, _: Timestamp| {
                    Ok(Some(if found.lease.is_none() { &segment } else { found }.with(lease, &segment.transfers)))
                };
                let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
                to.document(lineage, number(last.epoch))?.change(to.clock, &edit).await?;
            }
            if !page.more {
                return Ok(());
            }
        }
    }
}

/// Some segments of a lease.
struct Page {
    segments: Vec<(LeaseName, crate::store::Revision, Segment)>,
    more: bool,
    now: Timestamp,
}

impl Coordinator {
    pub(crate) fn archive<'a>(&'a self, lease: &'a LeaseName) -> Archive<'a> {
        Archive::new(self.store().as_ref(), self.clock().as_ref(), lease, self.retention())
    }

    /// Every transfer of a lease that is still known, oldest first: those in its record, and the archived ones.
    pub async fn history(&self, lease: &LeaseName, record: &Ownership) -> Result<Vec<Arc<Transfer>>> {
        let (mut transfers, _) = self.archive(lease).since(record, Epoch::ZERO).await?;
        merge(&mut transfers, &record.transfers);
        Ok(transfers)
    }

    /// Copies the archived transfers of a record to another store, before the record is copied there.
    pub async fn copy_history(&self, lease: &LeaseName, record: &Ownership, to: &Coordinator) -> Result<()> {
        self.archive(lease).copy(record, &to.archive(lease)).await
    }

    /// Archives old transfers in the background. The mark in the grant says how far that went.
    pub(crate) fn archive_in_background(&self, lease: &LeaseName, record: &Ownership, mark: &Mark) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (coordinator, lease, record, mark) = (self.clone(), lease.clone(), record.clone(), mark.clone());
        runtime.spawn(async move {
            if let Ok(archived) = coordinator.archive(&lease).take(&record).await {
                mark.set(archived);
            }
        });
    }

    /// The record with its transfers from this epoch on, as far as they are known.
    pub(crate) async fn with_history(&self, lease: &LeaseName, record: Ownership, from: Epoch) -> Ownership {
        if !is_archived(&record, from) {
            return record;
        }
        self.archive(lease).remember(&record, from).await.ok().flatten().unwrap_or(record)
    }

    /// The record with the transfer of this epoch, if that is known: one read, however long ago it was.
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

/// How far a record was archived since it was written, once that is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mark(Arc<std::sync::OnceLock<Epoch>>);

impl Mark {
    pub(crate) fn get(&self) -> Option<Epoch> {
        self.0.get().copied()
    }

    /// Only once: a grant's record is archived once.
    pub(crate) fn set(&self, archived: Epoch) {
        let _ = self.0.set(archived);
    }
}
