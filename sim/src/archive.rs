//! The archive: every ownership record that the exploration has met, and every decision on it, once.
//!
//! Promise: a record is the real `Ownership`, and a decision is the real `decide` on it; because `decide` is pure, its
//! answer is kept and looked up when the same record meets the same request again. Times are folded to two, before the
//! deadline and after it, which is all that `decide` ever asks about them.
//! Non-promise: ids depend on the order of discovery, so they mean nothing outside one exploration.

use crate::ask::{Ask, Texts};
use crate::rules::Rules;
use leasehold_core::lease::protocol::{Decision, Refusal};
use leasehold_core::{Drain, OperatorMark, Ownership, Timestamp, Ttl};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

/// The number of a record in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(u32);

/// What the clock says at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Time {
    /// Before every deadline.
    Early,
    /// After every deadline.
    Late,
}

impl Time {
    fn timestamp(self) -> Timestamp {
        match self {
            Time::Early => EARLY,
            Time::Late => EARLY.plus(Ttl::MIN.get() * 2),
        }
    }
}

const EARLY: Timestamp = Timestamp::from_millis(0);

/// The answer of `decide`, with records by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Write(RecordId),
    AlreadyApplied,
    Refuse(No),
}

/// Why not, without the particulars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum No {
    Held,
    Paused,
    Draining,
    AlreadyRun,
    Lost,
    AlreadyReleased,
    Other,
}

/// All records met, and all decisions made.
#[derive(Debug)]
pub struct Archive {
    rules: Rules,
    texts: Texts,
    /// How many transfers a record keeps: the model's stand-in for `TRANSFERS_KEPT`, small enough to be outrun.
    transfers_kept: usize,
    shelves: RwLock<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    records: Vec<Arc<Ownership>>,
    ids: HashMap<Arc<Ownership>, RecordId>,
    verdicts: HashMap<(RecordId, Ask, Time), Verdict, BuildHasherDefault<Mixer>>,
}

/// A quick hash for short keys of our own making: the standard one costs more than the steps of the model.
#[derive(Debug, Default)]
struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }

    fn write_u8(&mut self, byte: u8) {
        self.mix(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_isize(&mut self, word: isize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

impl Archive {
    pub fn new(rules: Rules, transfers_kept: usize) -> Self {
        Archive { rules, texts: Texts::default(), transfers_kept, shelves: RwLock::default() }
    }

    /// The number of the record of a lease that nobody ever held.
    pub fn blank(&self) -> RecordId {
        self.file(Ownership::default())
    }

    pub fn record(&self, id: RecordId) -> Arc<Ownership> {
        let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&shelves.records[id.0 as usize])
    }

    /// Decides, by the rules or from memory.
    pub fn decide(&self, id: RecordId, ask: Ask, time: Time) -> Verdict {
        {
            let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(verdict) = shelves.verdicts.get(&(id, ask, time)) {
                return *verdict;
            }
        }
        let record = self.record(id);
        let verdict = match self.rules.decide(&record, &ask.request(&self.texts), time.timestamp()) {
            Decision::Write(next) => Verdict::Write(self.file(*next)),
            Decision::AlreadyApplied => Verdict::AlreadyApplied,
            Decision::Refuse(refusal) => Verdict::Refuse(match refusal {
                Refusal::Held { .. } => No::Held,
                Refusal::Paused(_) => No::Paused,
                Refusal::Draining(_) => No::Draining,
                Refusal::AlreadyRun(_) => No::AlreadyRun,
                Refusal::Lost { .. } => No::Lost,
                Refusal::AlreadyReleased { .. } => No::AlreadyReleased,
                Refusal::NeverHeld
                | Refusal::Interrupted(_)
                | Refusal::NotPaused
                | Refusal::NotHeld
                | Refusal::TooSoon { .. }
                | Refusal::Recent { .. }
                | Refusal::Forgotten(_)
                | Refusal::NoSlot
                | Refusal::LineageFixed { .. }
                | Refusal::Changed { .. }
                | Refusal::RequestExpired { .. }
                | Refusal::OtherPause(_)
                | Refusal::Elsewhere(_)
                | Refusal::NotMoving { .. }
                | Refusal::OtherLineage { .. }
                | Refusal::TooFar { .. }
                | Refusal::Exhausted => No::Other,
            }),
        };
        let mut shelves = self.shelves.write().unwrap_or_else(PoisonError::into_inner);
        shelves.verdicts.insert((id, ask, time), verdict);
        verdict
    }

    fn file(&self, mut record: Ownership) -> RecordId {
        fold_times(&mut record);
        let excess = record.transfers.len().saturating_sub(self.transfers_kept);
        record.transfers.drain(..excess);
        let mut shelves = self.shelves.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = shelves.ids.get(&record) {
            return *id;
        }
        let id = RecordId(shelves.records.len() as u32);
        let record = Arc::new(record);
        shelves.records.push(Arc::clone(&record));
        shelves.ids.insert(record, id);
        id
    }
}

/// Records that differ only in when things happened answer every request alike, so they are one record here: every
/// deadline lies between [`Time::Early`] and [`Time::Late`].
fn fold_times(record: &mut Ownership) {
    if let Some(tenure) = &mut record.tenure {
        tenure.granted_at = EARLY;
        tenure.deadline = EARLY.plus(tenure.ttl.get());
    }
    if let Some(progress) = &mut record.progress {
        progress.at = EARLY;
    }
    if let Some(drain) = &mut record.drain {
        let asked = OperatorMark { at: EARLY, ..drain.asked().clone() };
        *drain = Drain::new(None, drain.epoch(), asked, Ttl::MIN);
    }
    record.last_run = record.last_run.map(|_| EARLY);
    for mark in [&mut record.paused, &mut record.resumed].into_iter().flatten() {
        mark.at = EARLY;
    }
    for transfer in &mut record.transfers {
        let transfer = Arc::make_mut(transfer);
        transfer.at = EARLY;
        transfer.held_for_ms = transfer.held_for_ms.map(|_| 0);
    }
}
