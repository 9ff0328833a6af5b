//! Outcome counters: one record per lease, so that one-shot runs count too.
//!
//! Promise: each outcome has its own counter, and a skip is never counted as a failure. The last refusals of stale writes are kept
//! with where they were: a bounded number of them, each of bounded size, without the secrets of an address. A writer that is refused
//! repeatedly at one resource takes one place. Non-promise: best effort. A count may be missed when the store is busy or unreachable,
//! and no decision depends on one. Who was refused is what that process says of itself.

use crate::cell::{Fate, MAX_ATTEMPTS};
use crate::codec;
use crate::coordinator::Coordinator;
use crate::distribution::{Distribution, RUNS};
use crate::document::{Document, Edit};
use crate::epoch::Epoch;
use crate::error::{Kind, Result};
use crate::lease::transfer::Outcome;
use crate::name::{Key, LeaseName, Shelf};
use crate::secret::redacted;
use crate::store::{Change, Range, Versioned};
use crate::text::{Line, Who};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const KIND: &str = "counters";
/// How many refusals are kept of a lease.
pub const FENCED_KEPT: usize = 16;

leasehold_system::words! {
    /// The outcome of an attempt to run.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Event {
        /// The lease was acquired.
        Granted = "granted",
        /// Somebody else held it.
        SkippedOverlap = "skipped_overlap",
        /// The slot was already run.
        AlreadyRun = "already_run",
        /// The slot was too old to catch up on.
        DroppedTooOld = "dropped_too_old",
        /// A newer slot was run instead.
        DroppedCoalesced = "dropped_coalesced",
        /// The slot came due after later slots were claimed, because the store's clock had been ahead.
        DroppedClockAhead = "dropped_clock_ahead",
        /// An operator had paused the lease.
        Paused = "paused",
        /// The lease was lost while the work ran.
        Lost = "lost",
        /// A guard refused a stale write.
        Fenced = "fenced",
        /// The work failed.
        Failed = "failed",
        /// The work ended by itself, with success.
        Succeeded = "succeeded",
        /// The work ended without a report: its machine or its supervisor died.
        Died = "died",
        /// The work ended early, because an operator asked for it.
        Drained = "drained",
        /// The work was ended because an operator revoked its lease, handed it off or moved it.
        Evicted = "evicted",
    }
}

/// A write that was refused because its token is stale.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FencedWrite {
    /// The epoch of the token.
    pub held: Epoch,
    /// The epoch that it was compared with: of the resource, or of the lease if that had moved on.
    pub seen: Epoch,
    /// The resource, as its guard names it: `file:out.json`.
    pub resource: Line<200>,
    /// Who was refused, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
}

impl FencedWrite {
    /// A write to this resource. A longer name is cut, and what may be a secret in it is hidden.
    pub fn new(resource: &str, held: Epoch, seen: Epoch, by: Option<Who>) -> Self {
        FencedWrite { held, seen, resource: Line::lossy(&redacted(resource), "unnamed"), by }
    }
}

/// The same write, refused once or several times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencedMark {
    /// When it was last refused, by the store's clock.
    pub at: Timestamp,
    /// How often it was.
    pub times: u64,
    /// What was refused, and where.
    pub write: FencedWrite,
}

/// Adds a refusal as the latest. The oldest make room.
fn remember(marks: &mut Vec<FencedMark>, write: FencedWrite, now: Timestamp) {
    let before = marks.iter().position(|mark| mark.write == write).map(|at| marks.remove(at));
    let times = before.map_or(0, |mark| mark.times).saturating_add(1);
    marks.push(FencedMark { at: now, times, write });
    marks.drain(..marks.len().saturating_sub(FENCED_KEPT));
}

/// The counts of one lease, and how long its runs took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    #[serde(flatten)]
    counts: BTreeMap<Event, u64>,
    /// How long its runs took, on the scale of [`distribution::RUNS`](crate::distribution::RUNS).
    #[serde(default, skip_serializing_if = "Distribution::is_empty")]
    pub durations: Distribution,
    /// How long the store took to answer its renewals, on the scale of
    /// [`distribution::REQUESTS`](crate::distribution::REQUESTS).
    #[serde(default, skip_serializing_if = "Distribution::is_empty")]
    pub renewals: Distribution,
    /// When a run last began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Timestamp>,
    /// When a run last succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
    /// The last refusals of stale writes, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fenced_writes: Vec<FencedMark>,
}

/// A run that is over.
#[derive(Debug, Clone, Default)]
pub struct EndedRun {
    /// Its outcome. A lost lease is looked up: if an operator took it, the run counts as evicted.
    pub event: Option<Event>,
    /// The epoch that it ran under, if it had one.
    pub epoch: Option<Epoch>,
    /// How long it took; none if it was never started.
    pub took: Option<Duration>,
    /// How long the store took to answer its renewals.
    pub renewals: Distribution,
}

impl Counters {
    /// The counters in a record.
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self> {
        codec::decode(KIND, bytes, name)
    }

    /// How often this happened.
    pub fn get(&self, event: Event) -> u64 {
        self.counts.get(&event).copied().unwrap_or(0)
    }

    /// The last stale writes that were refused, the latest last, at most [`FENCED_KEPT`].
    pub fn fenced_writes(&self) -> &[FencedMark] {
        // A client of a server writes the record as it likes.
        &self.fenced_writes[self.fenced_writes.len().saturating_sub(FENCED_KEPT)..]
    }

    /// The same record with these refusals only.
    pub fn keep_fenced_writes(&mut self, is_kept: impl Fn(&FencedMark) -> bool) {
        self.fenced_writes.retain(is_kept);
    }

    /// Adds those of another lease, without where its writes were refused.
    pub fn merge(&mut self, other: &Counters) {
        for (event, times) in &other.counts {
            let count = self.counts.entry(*event).or_default();
            *count = count.saturating_add(*times);
        }
        self.durations.merge(&other.durations);
        self.renewals.merge(&other.renewals);
        self.last_run = self.last_run.max(other.last_run);
        self.last_success = self.last_success.max(other.last_success);
    }

    fn count(&mut self, event: Event, times: u64, now: Timestamp) {
        let count = self.counts.entry(event).or_default();
        *count = count.saturating_add(times);
        match event {
            Event::Granted => self.last_run = Some(now),
            Event::Succeeded => self.last_success = Some(now),
            _ => {}
        }
    }

    fn end(&mut self, run: &EndedRun, now: Timestamp) {
        if let Some(event) = run.event {
            self.count(event, 1, now);
        }
        if let Some(took) = run.took {
            self.durations.add(RUNS, took);
            let began = now.as_millis().saturating_sub(took.as_millis() as u64);
            self.last_run = self.last_run.max(Some(Timestamp::from_millis(began)));
        }
        self.renewals.merge(&run.renewals);
    }
}

impl Coordinator {
    /// Counts an event, best effort.
    pub async fn count(&self, lease: &LeaseName, event: Event) -> Result<()> {
        self.count_many(lease, event, 1).await
    }

    /// Counts an event that happened `times` times, best effort.
    pub async fn count_many(&self, lease: &LeaseName, event: Event, times: u64) -> Result<()> {
        self.counted(lease, |counters, now| counters.count(event, times, now)).await
    }

    /// Counts a stale write that a guard refused, and records where, best effort.
    pub async fn count_fenced(&self, lease: &LeaseName, write: &FencedWrite) -> Result<()> {
        let count = |counters: &mut Counters, now| {
            counters.count(Event::Fenced, 1, now);
            remember(&mut counters.fenced_writes, write.clone(), now);
        };
        self.counted(lease, count).await
    }

    /// Counts a run that is over, and how long it took, best effort.
    pub async fn count_run(&self, lease: &LeaseName, run: &EndedRun) -> Result<()> {
        let mut run = run.clone();
        if let (Some(Event::Lost), Some(epoch)) = (run.event, run.epoch)
            && self.was_evicted(lease, epoch).await?
        {
            run.event = Some(Event::Evicted);
        }
        self.counted(lease, |counters, now| counters.end(&run, now)).await
    }

    /// Whether an operator ended this tenure, as far back as the record itself remembers.
    async fn was_evicted(&self, lease: &LeaseName, epoch: Epoch) -> Result<bool> {
        let seen = self.inspect(lease).await?;
        let tenure = seen.record.transfers.iter().find(|transfer| transfer.epoch == epoch);
        Ok(tenure.is_some_and(|tenure| tenure.outcome == Some(Outcome::Evicted)))
    }

    async fn counted(&self, lease: &LeaseName, count: impl Fn(&mut Counters, Timestamp) + Sync) -> Result<()> {
        let tries = AtomicU32::new(0);
        let counted = |before: &Counters, now| {
            tries.fetch_add(1, Ordering::Relaxed);
            let mut counters = before.clone();
            count(&mut counters, now);
            Ok(Some(counters))
        };
        // A count leaves no nonce in the record, so it cannot be found again.
        let edit = Edit { decide: &counted, fate: &|_| Fate::Unknown, attempts: MAX_ATTEMPTS };
        match self.document(lease).change(self.clock().as_ref(), &edit).await {
            // Other processes were faster at every attempt: this count is missed, silently.
            Err(error) if error.kind() == Kind::Contended && tries.into_inner() == MAX_ATTEMPTS => Ok(()),
            counted => counted.map(|_| ()),
        }
    }

    fn document(&self, lease: &LeaseName) -> Document<'_, Counters> {
        let what = format!("the counters of `{lease}`");
        Document::new(self.store().as_ref(), Key::new(Shelf::Counters, lease), KIND, what)
    }

    /// The counts of one lease.
    pub async fn counters(&self, lease: &LeaseName) -> Result<Counters> {
        Ok(self.document(lease).look(self.clock().now()).await?.record)
    }

    /// Erases the counts of a lease, even if they are damaged.
    pub(crate) async fn erase_counters(&self, lease: &LeaseName) -> Result<()> {
        let key = Key::new(Shelf::Counters, lease);
        if let Some(value) = self.store().read(&key).await?.value {
            self.store().write(&Change::erase(&key, &value.revision)).await?;
        }
        Ok(())
    }

    /// The counts of all leases after a name, a page at a time, and whether there may be more. A damaged record is
    /// returned as an error of its own and does not hide the others.
    pub async fn list_counters(
        &self,
        after: Option<&LeaseName>,
        limit: usize,
    ) -> Result<(Vec<(LeaseName, Result<Counters>)>, bool)> {
        let page = self.store().list(Shelf::Counters, Range::new(after, limit)).await?;
        let decode = |(lease, value): (LeaseName, Versioned)| {
            let counters = codec::decode(KIND, &value.bytes, lease.as_str());
            (lease, counters)
        };
        Ok((page.entries.into_iter().map(decode).collect(), page.more))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn write(held: u64, resource: &str) -> FencedWrite {
        FencedWrite::new(resource, Epoch::new(held).unwrap(), Epoch::new(99).unwrap(), None)
    }

    #[test]
    fn the_latest_are_kept_and_a_repeated_one_takes_one_place() {
        let mut marks = Vec::new();
        for n in 0..40 {
            remember(&mut marks, write(n, "file:a"), Timestamp::from_millis(n));
            remember(&mut marks, write(1, "file:loop"), Timestamp::from_millis(n));
        }
        assert_eq!(marks.len(), FENCED_KEPT);
        let last = marks.last().unwrap();
        assert_eq!((last.write.resource.as_str(), last.times, last.at.as_millis()), ("file:loop", 40, 39));
        let held: Vec<u64> = marks.iter().rev().skip(1).map(|mark| mark.write.held.get()).collect();
        assert_eq!(held, (25..40).rev().collect::<Vec<_>>());
    }

    #[test]
    fn a_resource_is_one_short_line_without_secrets() {
        let shown = |text: &str| write(1, text).resource.as_str().to_owned();
        assert_eq!(shown("git:https://joe:hunter2@host/x"), "git:https://joe:***@host/x");
        assert_eq!(shown("file:a\nb"), "file:ab");
        assert_eq!(shown(&"x".repeat(9_000)).len(), 200);
        assert_eq!(shown("\n"), "unnamed");
    }
}
