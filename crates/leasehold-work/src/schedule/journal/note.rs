//! A note: one change to a journal, as data.
//!
//! Promise: applying a note twice changes nothing more. Non-promise: notes are not stored; only the journal is.

use super::{Fate, Journal, RunEnd};
use crate::schedule::due::Dropped;
use leasehold_core::{Epoch, Slot, Timestamp};

/// A change to a journal: data, so that it can be sent to where the journal is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The job is known from now on, unless it was. A time in the future was recorded while the clock was ahead.
    Known,
    /// See [`Journal::drop_slots`].
    Dropped(Vec<Dropped>),
    /// See [`Journal::skip`].
    Skipped {
        /// The slot that was skipped.
        slot: Slot,
        /// The slot before it.
        before: Option<Slot>,
        /// Why it is not run.
        fate: Fate,
    },
    /// See [`Journal::give_up`].
    GivenUp(Slot),
    /// See [`Journal::rewind`].
    Rewound,
    /// See [`Journal::begin`].
    Began(Slot, Epoch),
    /// See [`Journal::end`].
    Ended(Slot, Epoch, RunEnd),
}

impl Journal {
    /// Applies a note, for this machine. Applying it twice changes nothing more.
    pub fn write(&mut self, note: &Note, at: Timestamp, host: &str) {
        match note {
            Note::Known => self.since = Some(self.since.map_or(at, |since| since.min(at))),
            Note::Dropped(dropped) => drop(self.drop_slots(dropped, at, host)),
            Note::Skipped { slot, before, fate } => drop(self.skip(*slot, *before, *fate, at, host)),
            Note::GivenUp(slot) => drop(self.give_up(*slot, at, host)),
            Note::Rewound => self.rewind(at),
            Note::Began(slot, epoch) => self.begin(*slot, *epoch, at, host),
            Note::Ended(slot, epoch, end) => self.end(*slot, *epoch, end.clone(), at, host),
        }
    }
}
