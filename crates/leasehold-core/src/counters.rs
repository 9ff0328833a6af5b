//! Outcome counters: one record per lease, so that one-shot runs count too.
//!
//! Promise: each outcome has its own counter, and a skip is never a failure. Non-promise: best effort; a count may be
//! missed when the store is busy or away, and nothing is ever decided by one.

use crate::cell::{Fate, MAX_ATTEMPTS};
use crate::codec;
use crate::coordinator::Coordinator;
use crate::distribution::{Distribution, RUNS};
use crate::document::{Document, Edit};
use crate::error::{Kind, Result};
use crate::name::{Key, LeaseName, Shelf};
use crate::store::{Change, Range, Versioned};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const KIND: &str = "counters";

/// The outcome of an attempt to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The lease was acquired.
    Granted,
    /// Somebody else held it.
    SkippedOverlap,
    /// The slot had been run.
    AlreadyRun,
    /// The slot was too old to catch up on.
    DroppedTooOld,
    /// A newer slot was run instead.
    DroppedCoalesced,
    /// The slot came due while later slots were already claimed, because the store's clock had been ahead.
    DroppedClockAhead,
    /// An operator had paused it.
    Paused,
    /// The lease was lost while the work ran.
    Lost,
    /// A guard refused a stale write.
    Fenced,
    /// The work failed.
    Failed,
    /// The work ran to its end.
    Succeeded,
    /// The work ended without a word: its machine, or what watched over it, died.
    Died,
}

impl Event {
    /// Every event, in the order in which they are shown.
    pub const ALL: [Event; 12] = [
        Event::Granted,
        Event::SkippedOverlap,
        Event::AlreadyRun,
        Event::DroppedTooOld,
        Event::DroppedCoalesced,
        Event::DroppedClockAhead,
        Event::Paused,
        Event::Lost,
        Event::Fenced,
        Event::Failed,
        Event::Succeeded,
        Event::Died,
    ];

    /// The word in records, JSON and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Event::Granted => "granted",
            Event::SkippedOverlap => "skipped_overlap",
            Event::AlreadyRun => "already_run",
            Event::DroppedTooOld => "dropped_too_old",
            Event::DroppedCoalesced => "dropped_coalesced",
            Event::DroppedClockAhead => "dropped_clock_ahead",
            Event::Paused => "paused",
            Event::Lost => "lost",
            Event::Fenced => "fenced",
            Event::Failed => "failed",
            Event::Succeeded => "succeeded",
            Event::Died => "died",
        }
    }
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
    /// When a run of it last began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Timestamp>,
    /// When a run of it last succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
}

/// A run that is over.
#[derive(Debug, Clone, Default)]
pub struct EndedRun {
    /// What became of it.
    pub event: Option<Event>,
    /// How long it took; none if it was never started.
    pub took: Option<Duration>,
    /// How long the store took to answer its renewals.
    pub renewals: Distribution,
}

impl Counters {
    /// How often this happened.
    pub fn get(&self, event: Event) -> u64 {
        self.counts.get(&event).copied().unwrap_or(0)
    }

    /// Adds those of another lease.
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

    /// Counts an event that happened so many times, best effort.
    pub async fn count_many(&self, lease: &LeaseName, event: Event, times: u64) -> Result<()> {
        self.counted(lease, |counters, now| counters.count(event, times, now)).await
    }

    /// Counts a run that is over, and how long it took, best effort.
    pub async fn count_run(&self, lease: &LeaseName, run: &EndedRun) -> Result<()> {
        self.counted(lease, |counters, now| counters.end(run, now)).await
    }

    async fn counted(&self, lease: &LeaseName, count: impl Fn(&mut Counters, Timestamp) + Sync) -> Result<()> {
        let tries = AtomicU32::new(0);
        let counted = |before: &Counters, now| {
            tries.fetch_add(1, Ordering::Relaxed);
            let mut counters = before.clone();
            count(&mut counters, now);
            Ok(Some(counters))
        };
        // A count leaves no nonce in the record by which it could be found again.
        let edit = Edit { decide: &counted, fate: &|_| Fate::Unknown, attempts: MAX_ATTEMPTS };
        match self.document(lease).change(self.clock().as_ref(), &edit).await {
            // Others counted at the same time and were faster each time: this count is missed, silently.
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

    /// Drops the counts of a lease, which may be damaged.
    pub(crate) async fn erase_counters(&self, lease: &LeaseName) -> Result<()> {
        let key = Key::new(Shelf::Counters, lease);
        if let Some(value) = self.store().read(&key).await?.value {
            self.store().write(&Change::erase(&key, &value.revision)).await?;
        }
        Ok(())
    }

    /// The counts of all leases from just after a name, a page at a time, and whether there may be more. A damaged record
    /// is an error of its own: it hides no other.
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
