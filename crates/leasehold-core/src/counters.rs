//! Outcome counters: one record per lease, so that one-shot runs count too.
//!
//! Promise: each outcome has its own counter, and a skip is never a failure. Non-promise: best effort; a count may be
//! missed when the store is busy or away, and nothing is ever decided by one.

use crate::cell::{Fate, MAX_ATTEMPTS};
use crate::codec;
use crate::coordinator::Coordinator;
use crate::document::{Document, Edit};
use crate::error::{Kind, Result};
use crate::name::{Key, LeaseName, Shelf};
use crate::store::{Range, Versioned};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

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
}

impl Event {
    /// Every event, in the order in which they are shown.
    pub const ALL: [Event; 10] = [
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
        }
    }
}

/// The counts of one lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counters(BTreeMap<Event, u64>);

impl Counters {
    /// How often this happened.
    pub fn get(&self, event: Event) -> u64 {
        self.0.get(&event).copied().unwrap_or(0)
    }
}

impl Coordinator {
    /// Counts an event, best effort.
    pub async fn count(&self, lease: &LeaseName, event: Event) -> Result<()> {
        self.count_many(lease, event, 1).await
    }

    /// Counts an event that happened so many times, best effort.
    pub async fn count_many(&self, lease: &LeaseName, event: Event, times: u64) -> Result<()> {
        let tries = AtomicU32::new(0);
        let counted = |before: &Counters, _| {
            tries.fetch_add(1, Ordering::Relaxed);
            let mut counters = before.clone();
            let count = counters.0.entry(event).or_default();
            *count = count.saturating_add(times);
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
