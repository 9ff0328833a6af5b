//! The end of each run's output, in a small record of its own.
//!
//! Promise: there are never more records than a [`Ring`] may have, and a record is never replaced by one of an older
//! epoch. Non-promise: it is written best effort, and no decision depends on it. A record is replaced by the next run that
//! maps to it: of a lease, the newest runs are kept; of a queue, about as many.

use crate::digest::digest;
use leasehold_core::cell::{Fate, MAX_ATTEMPTS};
use leasehold_core::codec;
use leasehold_core::document::{Document, Edit};
use leasehold_core::item::{ItemName, QueueName};
use leasehold_core::store::Range;
use leasehold_core::{Coordinator, Epoch, Key, LeaseName, Lineage, Result, Shelf, Slot, Timestamp, Token};
use serde::{Deserialize, Serialize};

const KIND: &str = "output";
/// How many records are read at once.
const PAGE: usize = 100;
/// How many records of a queue are looked at for those of one item.
const OF_ITEM: usize = 250;

/// What a run has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, in user and kernel mode.
    pub cpu_ms: u64,
    /// The peak memory, in bytes.
    pub peak_memory_bytes: u64,
}

/// The end of a run's output, and where the rest of it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOutput {
    /// The lease, or the lease name in the item's tokens.
    pub lease: LeaseName,
    /// The epoch that it ran under.
    pub epoch: Epoch,
    /// The slot that it ran for.
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
    /// How much it printed, in bytes.
    pub bytes: u64,
    /// Where the complete output is stored, relative to the folder or address
    /// in the machine's settings; none if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether it printed more than the tail.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// The last lines, as the command printed them.
    pub tail: String,
}

/// A record of the ring; none if nothing was stored there yet.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct OutputEntry(Option<RunOutput>);

/// The lease or item whose run's output is in such a record; an error if the bytes are not one.
pub fn subject(bytes: &[u8], name: &str) -> Result<Option<LeaseName>> {
    let OutputEntry(kept) = codec::decode(KIND, bytes, name)?;
    Ok(kept.map(|kept| kept.lease))
}

/// The records in which the output of one lease's, or one queue's, runs is stored.
///
/// A lineage does not prove whose a record is: anyone who has seen it can make a lease of that lineage. So a ring knows its
/// lease, and what is stored in its records for another is not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    folder: String,
    /// Whose runs it is for; none of a queue, whose folder says it.
    lease: Option<LeaseName>,
    records: u64,
}

impl Ring {
    /// The ring of a lease with this lineage.
    pub fn of_lease(lease: &LeaseName, lineage: Lineage, records: u64) -> Self {
        Ring { folder: lineage.to_string(), lease: Some(lease.clone()), records: records.max(1) }
    }

    /// The ring of a queue.
    pub fn of_queue(queue: &QueueName, records: u64) -> Self {
        Ring { folder: format!("{}/{queue}", LeaseName::ITEMS), lease: None, records: records.max(1) }
    }

    /// Whether the output of this lease or item is stored here.
    fn is_for(&self, lease: &LeaseName) -> bool {
        match &self.lease {
            Some(own) => own == lease,
            None => lease.as_str().strip_prefix(&self.folder).is_some_and(|item| item.starts_with('/')),
        }
    }

    /// The name of the record for the run of this token. All runs of one item share a record.
    pub fn record_name(&self, token: &Token) -> Result<LeaseName> {
        let number = match token.lease.folder() {
            Some(LeaseName::ITEMS) => digest([token.lease.as_str()]) as u64,
            _ => token.epoch.get(),
        };
        LeaseName::new(format!("{}/{:05}", self.folder, number % self.records))
    }
}

/// Writes the end of a run's output; returns the record's name. `at` is set from the store's time.
pub async fn write(coordinator: &Coordinator, ring: &Ring, token: &Token, output: &RunOutput) -> Result<LeaseName> {
    let name = ring.record_name(token)?;
    let decide = |found: &OutputEntry, now: Timestamp| {
        let is_newer = |found: &RunOutput| found.lease == output.lease && found.epoch > output.epoch;
        let next = OutputEntry(Some(RunOutput { at: now, ..output.clone() }));
        Ok(Some(next).filter(|_| !found.0.as_ref().is_some_and(is_newer)))
    };
    // Written again, it is the same.
    let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
    document(coordinator, &name).change(coordinator.clock().as_ref(), &edit).await?;
    Ok(name)
}

/// The record that a journal names, if there is one: one read.
pub async fn at(coordinator: &Coordinator, name: &LeaseName) -> Result<Option<RunOutput>> {
    Ok(document(coordinator, name).look(coordinator.clock().now()).await?.record.0)
}

/// The stored outputs of a lease or a queue, oldest first. Records that cannot be read, or are another lease's, are left out.
pub async fn list(coordinator: &Coordinator, ring: &Ring) -> Result<Vec<RunOutput>> {
    let below = format!("{}/", ring.folder);
    // Just before the first record: other names may come between the folder's and its contents.
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
            let kept = codec::decode::<OutputEntry>(KIND, &value.bytes, name.as_str()).ok().and_then(|entry| entry.0);
            found.extend(kept.filter(|kept| ring.is_for(&kept.lease)));
            after = name;
        }
        if is_last {
            found.sort_by_key(|output| (output.at, output.epoch));
            return Ok(found);
        }
    }
}

/// The output of an item's newest run, if it is among the first records of its queue: one read.
pub async fn of_item(coordinator: &Coordinator, item: &ItemName) -> Result<Option<RunOutput>> {
    let below = format!("{}/", Ring::of_queue(&item.queue, 1).folder);
    let (lease, after) = (item.lease()?, LeaseName::new(format!("{below}0"))?);
    let page = coordinator.store().list(Shelf::Output, Range::new(Some(&after), OF_ITEM)).await?;
    let of_queue = page.entries.into_iter().take_while(|(name, _)| name.as_str().starts_with(&below));
    let kept = of_queue.filter_map(|(name, value)| {
        codec::decode::<OutputEntry>(KIND, &value.bytes, name.as_str()).ok().and_then(|entry| entry.0)
    });
    Ok(kept.filter(|kept| kept.lease == lease).max_by_key(|kept| kept.epoch))
}

fn document<'a>(coordinator: &'a Coordinator, name: &LeaseName) -> Document<'a, OutputEntry> {
    let what = format!("the output record `{name}`");
    Document::new(coordinator.store().as_ref(), Key::new(Shelf::Output, name), KIND, what)
}

/// Text without terminal sequences and control characters; line ends and tabs stay.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' | '\t' => plain.push(c),
            '\u{1b}' => match chars.next() {
                // Parameters, then one letter.
                Some('[') => drop(chars.by_ref().find(|c| ('\u{40}'..='\u{7e}').contains(c) || *c == '\n')),
                // A title, a link: up to a bell, or to the escape of its end.
                Some(']') => {
                    while let Some(c) = chars.next_if(|c| !matches!(c, '\u{7}' | '\n')) {
                        if c == '\u{1b}' && chars.next_if_eq(&'\\').is_some() {
                            break;
                        }
                    }
                    chars.next_if_eq(&'\u{7}');
                }
                _ => {}
            },
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}
