//! The end of each run's output, in a small record of its own.
//!
//! Promise: there are never more records than a [`Ring`] has places, and a record never gives way to that of an older epoch.
//! Non-promise: it is written best effort, and nothing is ever decided by one. A place is taken by the next run that falls on
//! it: of a lease's runs the newest ones are there, of a queue's items about as many.

use crate::digest::digest;
use leasehold_core::cell::{Fate, MAX_ATTEMPTS};
use leasehold_core::codec;
use leasehold_core::document::{Document, Edit};
use leasehold_core::item::QueueName;
use leasehold_core::store::Range;
use leasehold_core::{Coordinator, Epoch, Key, LeaseName, Lineage, Result, Shelf, Slot, Timestamp, Token};
use serde::{Deserialize, Serialize};

const KIND: &str = "output";
/// How many records are read at once.
const PAGE: usize = 100;

/// What a run has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, in user and kernel mode.
    pub cpu_ms: u64,
    /// The most memory at one time.
    pub peak_memory_bytes: u64,
}

/// The end of a run's output, and where the rest of it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOutput {
    /// The lease, or the item as its token names it.
    pub lease: LeaseName,
    /// The epoch that it ran under.
    pub epoch: Epoch,
    /// The slot that it was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// The machine that it ran on.
    pub host: String,
    /// When it ended, in store time.
    pub at: Timestamp,
    /// Its exit code, 128 + n for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// Why it was ended, if it did not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What it has used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How much it printed.
    pub bytes: u64,
    /// Where all of it is kept, below the folder or the address that the machine's settings name; none if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether there was more than the tail.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// The last lines.
    pub tail: String,
}

/// Nothing was kept in this place yet.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Place(Option<RunOutput>);

/// The lease, or the item, whose run printed what is kept in such a record; an error if it is none.
pub fn subject(bytes: &[u8], place: &str) -> Result<Option<LeaseName>> {
    let Place(kept) = codec::decode(KIND, bytes, place)?;
    Ok(kept.map(|kept| kept.lease))
}

/// The places in which the ends of one lease's, or one queue's, runs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    folder: String,
    places: u64,
}

impl Ring {
    /// Of a lease with this lineage.
    pub fn of_lease(lineage: Lineage, places: u64) -> Self {
        Ring { folder: lineage.to_string(), places: places.max(1) }
    }

    /// Of a queue.
    pub fn of_queue(queue: &QueueName, places: u64) -> Self {
        Ring { folder: format!("{}/{queue}", LeaseName::ITEMS), places: places.max(1) }
    }

    /// Where what this token's run printed is kept. One item's runs share a place.
    pub fn place(&self, token: &Token) -> Result<LeaseName> {
        let number = match token.lease.folder() {
            Some(LeaseName::ITEMS) => digest([token.lease.as_str()]) as u64,
            _ => token.epoch.get(),
        };
        LeaseName::new(format!("{}/{:05}", self.folder, number % self.places))
    }
}

/// Writes the end of a run's output; gives the record's name. `at` is taken from the store.
pub async fn write(coordinator: &Coordinator, ring: &Ring, token: &Token, output: &RunOutput) -> Result<LeaseName> {
    let name = ring.place(token)?;
    let decide = |found: &Place, now: Timestamp| {
        let is_newer = |found: &RunOutput| found.lease == output.lease && found.epoch > output.epoch;
        let next = Place(Some(RunOutput { at: now, ..output.clone() }));
        Ok(Some(next).filter(|_| !found.0.as_ref().is_some_and(is_newer)))
    };
    // Written again, it is the same.
    let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
    document(coordinator, &name).change(coordinator.clock().as_ref(), &edit).await?;
    Ok(name)
}

/// What lies in a place that a journal names, if anything does: one read.
pub async fn at(coordinator: &Coordinator, name: &LeaseName) -> Result<Option<RunOutput>> {
    Ok(document(coordinator, name).look(coordinator.clock().now()).await?.record.0)
}

/// What is kept of the runs of a lease or a queue, oldest first. What cannot be read is left out.
pub async fn list(coordinator: &Coordinator, ring: &Ring) -> Result<Vec<RunOutput>> {
    let below = format!("{}/", ring.folder);
    // Just before the first place: other names may lie between the folder's and what is in it.
    let mut after = LeaseName::new(format!("{below}0"))?;
    let mut found = Vec::new();
    loop {
        let page = coordinator.store().list(Shelf::Output, Range::new(Some(&after), PAGE)).await?;
        let is_last = !page.more || page.entries.is_empty();
        for (name, value) in page.entries {
            if !name.as_str().starts_with(&below) {
                found.sort_by_key(|output: &RunOutput| (output.at, output.epoch));
                return Ok(found);
            }
            found.extend(codec::decode::<Place>(KIND, &value.bytes, name.as_str()).ok().and_then(|place| place.0));
            after = name;
        }
        if is_last {
            found.sort_by_key(|output| (output.at, output.epoch));
            return Ok(found);
        }
    }
}

fn document<'a>(coordinator: &'a Coordinator, name: &LeaseName) -> Document<'a, Place> {
    let what = format!("the output record `{name}`");
    Document::new(coordinator.store().as_ref(), Key::new(Shelf::Output, name), KIND, what)
}
