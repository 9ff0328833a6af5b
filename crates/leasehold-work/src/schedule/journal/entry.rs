//! An entry of a journal: a slot, or several consecutive ones, and what became of them.
//!
//! Promise: its words and fields are the ones in stored records and in JSON. Non-promise: it does not decide which entry
//! is kept when two differ; the journal does.

use crate::output::Usage;
use crate::schedule::due::DropReason;
use leasehold_core::{Epoch, Event, LeaseName, Line, Slot, Timestamp};
use serde::{Deserialize, Serialize};

leasehold_system::words! {
    /// What became of a slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Fate {
        /// It is running, or its run died and that was not noticed yet.
        Running = "running",
        /// Its run succeeded.
        Succeeded = "succeeded",
        /// Its run failed.
        Failed = "failed",
        /// Its run lost the lease and was stopped; another run may follow.
        Lost = "lost",
        /// It could not be started; it stays open, and is tried again.
        NotStarted = "not_started",
        /// An operator asked its run to finish early; another run may follow.
        Drained = "drained",
        /// Not run: an earlier run had not ended.
        SkippedOverlap = "skipped_overlap",
        /// Not run: it was too old to catch up on.
        DroppedTooOld = "dropped_too_old",
        /// Not run: a newer slot was run instead.
        DroppedCoalesced = "dropped_coalesced",
        /// Not run: slots that are still in the future had been claimed while the store's clock was ahead.
        DroppedClockAhead = "dropped_clock_ahead",
        /// Not run: an operator had paused the job.
        Paused = "paused",
        /// Its run died as often as it may be run, or it then became too old to be run again.
        Died = "died",
    }
}

impl Fate {
    /// Whether it can no longer change.
    pub const fn is_final(self) -> bool {
        !matches!(self, Fate::Running | Fate::Lost | Fate::NotStarted | Fate::Drained)
    }

    /// The counter for a fate that is recorded without a run that would count it.
    pub const fn event(self) -> Option<Event> {
        if let Fate::Died = self { Some(Event::Died) } else { self.skipped() }
    }

    /// Whether the slot was not run although nobody wanted that.
    pub const fn is_missed(self) -> bool {
        matches!(self, Fate::DroppedTooOld | Fate::DroppedCoalesced | Fate::DroppedClockAhead)
    }

    /// The counter for a slot that was not run; none for one that was.
    pub const fn skipped(self) -> Option<Event> {
        match self {
            Fate::SkippedOverlap => Some(Event::SkippedOverlap),
            Fate::DroppedTooOld => Some(Event::DroppedTooOld),
            Fate::DroppedCoalesced => Some(Event::DroppedCoalesced),
            Fate::DroppedClockAhead => Some(Event::DroppedClockAhead),
            Fate::Paused => Some(Event::Paused),
            Fate::Running | Fate::Succeeded | Fate::Failed | Fate::Lost => None,
            Fate::NotStarted | Fate::Drained | Fate::Died => None,
        }
    }
}

impl From<DropReason> for Fate {
    fn from(reason: DropReason) -> Fate {
        match reason {
            DropReason::TooOld => Fate::DroppedTooOld,
            DropReason::Coalesced => Fate::DroppedCoalesced,
            DropReason::ClockAhead => Fate::DroppedClockAhead,
        }
    }
}

/// One slot, or several consecutive ones that were not run for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The slot; the first, if there are several.
    pub slot: Slot,
    /// The last slot, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Slot>,
    /// How many, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Whether there were more than were counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// What became of it.
    pub fate: Fate,
    /// When the entry was written, in store time; for a run, when it began.
    pub at: Timestamp,
    /// The machine that ran it, or that wrote the entry.
    pub host: String,
    /// The epoch of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// How often a run began.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// The command's exit code, 128 + n for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// How long it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_for_ms: Option<u64>,
    /// What the run has used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The name, on its shelf, of the record with the end of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<LeaseName>,
    /// Why it did not end by itself, or could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<EndReason>,
}

/// A reason in an entry.
pub type EndReason = Line<160>;

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Entry {
    /// An entry for one slot, without further details.
    pub fn new(slot: Slot, fate: Fate, at: Timestamp, host: &str) -> Self {
        Entry {
            slot,
            last: None,
            count: None,
            more: false,
            fate,
            at,
            host: host.to_owned(),
            epoch: None,
            attempts: 0,
            exit: None,
            ran_for_ms: None,
            usage: None,
            output: None,
            why: None,
        }
    }

    /// The slot; the last, if there are several.
    pub fn end(&self) -> Slot {
        self.last.unwrap_or(self.slot)
    }

    /// Whether the end of the run under this epoch is known, and so was counted.
    pub fn tells_end(&self, epoch: Epoch) -> bool {
        let is_given_up = matches!(self.fate, Fate::Died | Fate::DroppedTooOld);
        is_given_up || (self.fate != Fate::Running && self.epoch >= Some(epoch))
    }
}

/// How a run of a slot ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// One of succeeded, failed, lost, not started and drained.
    pub fate: Fate,
    /// The exit code, if the command had one.
    pub exit: Option<u8>,
    /// How long it ran.
    pub ran_for_ms: u64,
    /// How often the command was started under this epoch.
    pub tries: u32,
    /// What it has used, if known.
    pub usage: Option<Usage>,
    /// The name of the record with the end of its output, if that is stored.
    pub output: Option<LeaseName>,
    /// Why it did not end by itself, or could not be started.
    pub why: Option<EndReason>,
}

impl RunEnd {
    /// One try that ended before the command was started.
    pub const NOT_STARTED: Self = RunEnd::new(Fate::NotStarted, None, 0);

    /// One try, without further details.
    pub const fn new(fate: Fate, exit: Option<u8>, ran_for_ms: u64) -> Self {
        RunEnd { fate, exit, ran_for_ms, tries: 1, usage: None, output: None, why: None }
    }

    /// The same, with a reason.
    #[must_use]
    pub fn because(self, why: &str) -> Self {
        RunEnd { why: Some(EndReason::lossy(why, "-")), ..self }
    }
}
