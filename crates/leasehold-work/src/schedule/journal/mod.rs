//! The journal of a scheduled job: every due slot and what became of it, one bounded record per job.
//!
//! Promise: a slot has one entry; an older epoch never overwrites the entry of a newer one; a dropped or skipped slot
//! is recorded once, by whoever is first. Non-promise: it decides no ownership. Whether a slot may run is decided by
//! the lease's record alone, in the same swap as the lease; an error in writing a journal loses history, not safety.

mod entry;
mod note;
mod stored;

use crate::schedule::due::{DropReason, Dropped};
pub use entry::{EndReason, Entry, Fate, RunEnd};
use leasehold_core::{Epoch, Slot, Timestamp};
pub use note::Note;
use serde::{Deserialize, Serialize};
pub(crate) use stored::check;
pub use stored::{JobVerbs, Journals, Listed};

/// How many entries are kept.
pub const ENTRIES_KEPT: usize = 128;
const KIND: &str = "runs";

/// The journal of one job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// Since when a scheduler knows the job. Slots before that were not to be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Every slot up to this one that was not run is settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_to: Option<Slot>,
    /// Up to this slot, entries were dropped to keep the journal small. A slot
    /// up to this one without an entry had a fate that is no longer known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten_to: Option<Slot>,
    /// Oldest slot first, at most [`ENTRIES_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
}

impl Journal {
    /// Whether the fate of this slot is final.
    pub fn is_settled(&self, slot: Slot) -> bool {
        // Its own entry takes precedence over a span that contains it: the
        // clock may have been ahead when others were dropped.
        let mut spans = self.entries.iter().filter(|e| e.slot <= slot && slot <= e.end());
        self.single(slot).map_or_else(|| spans.any(|e| e.fate.is_final()), |own| own.fate.is_final())
    }

    /// Whether the slot's run succeeded.
    pub fn has_succeeded(&self, slot: Slot) -> bool {
        self.single(slot).is_some_and(|entry| entry.fate == Fate::Succeeded)
    }

    /// Whether the slot had a fate that is no longer known.
    pub fn has_forgotten(&self, slot: Slot) -> bool {
        let has_entry = self.entries.iter().any(|e| e.slot <= slot && slot <= e.end());
        !has_entry && self.forgotten_to.is_some_and(|forgotten| slot <= forgotten)
    }

    /// The newest slot up to which slots that were not run are settled.
    pub fn settled_until(&self) -> Option<Slot> {
        [self.settled_to, self.forgotten_to, self.since.map(Slot)].into_iter().flatten().max()
    }

    /// The newest time up to which the fate of slots is known, without slots ahead of their time.
    pub(crate) fn told_until(&self, now: Timestamp) -> Timestamp {
        let ends = self.entries.iter().map(|entry| entry.end().0);
        ends.chain(self.since).filter(|at| *at <= now).max().unwrap_or(now)
    }

    /// Records dropped slots, unless they are recorded already; returns the new ones.
    pub fn drop_slots(&mut self, dropped: &[Dropped], at: Timestamp, host: &str) -> Vec<Dropped> {
        let settled_to = self.settled_to;
        let is_new = |d: &&Dropped| match d.reason {
            // A settled slot was settled ahead of its time.
            DropReason::ClockAhead => !self.is_settled(d.first),
            DropReason::TooOld | DropReason::Coalesced => settled_to.is_none_or(|settled| d.first > settled),
        };
        let new: Vec<Dropped> = dropped.iter().filter(is_new).copied().collect();
        for dropped in &new {
            let entry = Entry::new(dropped.first, dropped.reason.into(), at, host);
            let many = dropped.count > 1 || dropped.more;
            let (last, count) = (many.then_some(dropped.last), many.then_some(dropped.count));
            self.follow(dropped.before, Entry { last, count, more: dropped.more, ..entry });
            if dropped.reason != DropReason::ClockAhead {
                self.settled_to = self.settled_to.max(Some(dropped.last));
            }
        }
        new
    }

    /// Records that a slot whose run died, or could not be started, is not run
    /// again, unless its fate is known. Returns the new fate.
    pub fn give_up(&mut self, slot: Slot, at: Timestamp, host: &str) -> Option<Fate> {
        if self.is_settled(slot) {
            return None;
        }
        let old = self.single(slot).cloned();
        // Neither of these counts as one of its runs, so it was waited for until it was too old.
        let is_open = old.as_ref().is_some_and(|old| matches!(old.fate, Fate::NotStarted | Fate::Drained));
        let fate = if is_open { Fate::DroppedTooOld } else { Fate::Died };
        self.put(match old {
            // The machine and the epoch of its last run are more useful than ours.
            Some(old) => Entry { fate, ..old },
            None => Entry::new(slot, fate, at, host),
        });
        Some(fate)
    }

    /// Removes what was recorded for slots after this time while the clock was
    /// ahead, including runs: such a slot is run again when its time comes.
    pub fn rewind(&mut self, now: Timestamp) {
        self.entries.retain_mut(|entry| {
            if entry.end().0 > now && entry.slot.0 <= now {
                // The schedule is not known here, so neither is how many of them have come due.
                (entry.last, entry.count, entry.more) = (Some(Slot(now)), Some(1), true);
            }
            entry.end().0 <= now
        });
        let back = |slot: Option<Slot>| slot.map(|slot| slot.min(Slot(now)));
        (self.settled_to, self.forgotten_to) = (back(self.settled_to), back(self.forgotten_to));
        self.since = self.since.map(|since| since.min(now));
    }

    /// Records that a slot was not run, unless its fate is known; returns whether that is new. `before` is the previous
    /// slot: consecutive slots that were not run share an entry.
    pub fn skip(&mut self, slot: Slot, before: Option<Slot>, fate: Fate, at: Timestamp, host: &str) -> bool {
        if self.single(slot).is_some() || self.is_settled(slot) || self.has_forgotten(slot) {
            return false;
        }
        self.follow(before, Entry::new(slot, fate, at, host));
        true
    }

    /// Records that a run began.
    pub fn begin(&mut self, slot: Slot, epoch: Epoch, at: Timestamp, host: &str) {
        let old = self.single(slot);
        if old.is_some_and(|old| old.epoch >= Some(epoch)) {
            return;
        }
        let attempts = old.map_or(0, |old| old.attempts).saturating_add(1);
        self.put(Entry { epoch: Some(epoch), attempts, ..Entry::new(slot, Fate::Running, at, host) });
    }

    /// Records how a run ended, unless a newer one began since, or a rewind removed its beginning.
    pub fn end(&mut self, slot: Slot, epoch: Epoch, end: RunEnd, at: Timestamp, host: &str) {
        let old = self.single(slot).cloned();
        let is_taken_back = old.is_none() && slot.0 > at;
        if is_taken_back || old.as_ref().is_some_and(|old| old.epoch > Some(epoch)) {
            return;
        }
        // Given up by another process, and this run did not finish it: nobody
        // will run it any more. And a final end of the same run stays.
        let given_up = |old: &Entry| matches!(old.fate, Fate::Died | Fate::DroppedTooOld);
        let is_over = |old: &Entry| old.epoch == Some(epoch) && old.fate.is_final();
        if !end.fate.is_final() && old.as_ref().is_some_and(|old| given_up(old) || is_over(old)) {
            return;
        }
        let same = old.as_ref().filter(|old| old.epoch == Some(epoch));
        let earlier = match (same, &old) {
            (Some(same), _) => same.attempts.saturating_sub(1),
            (None, Some(old)) => old.attempts,
            (None, None) => 0,
        };
        self.put(Entry {
            epoch: Some(epoch),
            attempts: earlier.saturating_add(end.tries),
            exit: end.exit,
            ran_for_ms: Some(end.ran_for_ms),
            usage: end.usage,
            output: end.output,
            why: end.why,
            at: same.map_or(at, |same| same.at),
            ..Entry::new(slot, end.fate, at, host)
        });
    }

    pub(super) fn single(&self, slot: Slot) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.slot == slot && entry.last.is_none())
    }

    /// Adds slots that were not run to the entry that ends just before them, if it has the same fate.
    fn follow(&mut self, before: Option<Slot>, entry: Entry) {
        let continues = |old: &&mut Entry| Some(old.end()) == before && old.fate == entry.fate && old.epoch.is_none();
        match self.entries.iter_mut().find(continues).filter(|_| !entry.more) {
            Some(old) => {
                old.count = Some(old.count.unwrap_or(1).saturating_add(entry.count.unwrap_or(1)));
                (old.last, old.at, old.host) = (Some(entry.end()), entry.at, entry.host);
            }
            None => self.put(entry),
        }
    }

    fn put(&mut self, entry: Entry) {
        // A span of dropped slots stays when one of them is run after all.
        self.entries.retain(|old| old.slot != entry.slot || old.last.is_some() != entry.last.is_some());
        let index = self.entries.partition_point(|old| old.slot < entry.slot);
        self.entries.insert(index, entry);
        if self.entries.len() > ENTRIES_KEPT {
            // The oldest entry is dropped, but never the one that was just written.
            let gone = self.entries.remove(usize::from(index == 0));
            self.forgotten_to = self.forgotten_to.max(Some(gone.end()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::codec;

    fn slot(ms: u64) -> Slot {
        Slot(Timestamp::from_millis(ms))
    }

    fn epoch(n: u64) -> Epoch {
        serde_json::from_value(serde_json::json!(n)).unwrap()
    }

    #[test]
    fn an_older_epoch_never_overwrites_a_newer_ones_word() {
        let at = Timestamp::from_millis(5);
        let end = |fate| RunEnd::new(fate, Some(0), 7);
        let mut journal = Journal::default();
        journal.begin(slot(1_000), epoch(1), at, "a");
        journal.begin(slot(1_000), epoch(2), at, "b");
        journal.end(slot(1_000), epoch(1), end(Fate::Failed), at, "a");
        assert_eq!((journal.entries[0].fate, journal.entries[0].attempts), (Fate::Running, 2));
        journal.end(slot(1_000), epoch(2), end(Fate::Succeeded), at, "b");
        journal.begin(slot(1_000), epoch(1), at, "a");
        let entry = &journal.entries[0];
        assert_eq!((entry.fate, entry.host.as_str(), entry.attempts), (Fate::Succeeded, "b", 2));
        assert!(journal.is_settled(slot(1_000)) && !journal.is_settled(slot(2_000)));
        assert!(!journal.skip(slot(1_000), None, Fate::SkippedOverlap, at, "c"));
    }

    #[test]
    fn a_rewind_forgets_what_ran_ahead_of_its_time() {
        let at = Timestamp::from_millis(5_000);
        let end = || RunEnd::new(Fate::Succeeded, Some(0), 7);
        let mut journal = Journal::default();
        for (ms, n) in [(5_000, 1), (6_000, 2), (7_000, 3)] {
            journal.begin(slot(ms), epoch(n), at, "a");
        }
        journal.end(slot(5_000), epoch(1), end(), at, "a");
        journal.end(slot(6_000), epoch(2), end(), at, "a");
        journal.rewind(at);
        // The third run was evicted, and reports so only now.
        journal.end(slot(7_000), epoch(3), RunEnd::new(Fate::Lost, None, 7), at, "a");
        assert_eq!(journal.entries.iter().map(|entry| entry.slot).collect::<Vec<_>>(), [slot(5_000)]);
    }

    #[test]
    fn what_was_dropped_is_written_once() {
        let at = Timestamp::from_millis(9_999);
        let dropped = |first, last, count| Dropped {
            first: slot(first),
            last: slot(last),
            count,
            more: false,
            reason: DropReason::TooOld,
            before: None,
        };
        let mut journal = Journal::default();
        assert_eq!(journal.drop_slots(&[dropped(1_000, 3_000, 3)], at, "a").len(), 1);
        assert!(journal.drop_slots(&[dropped(1_000, 3_000, 3)], at, "b").is_empty());
        assert!(journal.is_settled(slot(2_000)));
        assert_eq!(journal.settled_to, Some(slot(3_000)));
        assert_eq!(journal.entries.len(), 1);
    }

    #[test]
    fn it_is_bounded() {
        let mut journal = Journal::default();
        let (host, why) = ("a-machine-with-a-name", "\"".repeat(1_000));
        for n in 0..1_000 {
            let (slot, epoch, at) = (slot(n * 1_000), epoch(n + 1), Timestamp::from_millis(n));
            journal.begin(slot, epoch, at, host);
            journal.end(slot, epoch, RunEnd::new(Fate::Failed, Some(255), u64::MAX).because(&why), at, host);
        }
        assert_eq!(journal.entries.len(), ENTRIES_KEPT);
        assert_eq!(journal.entries.last().unwrap().slot, slot(999_000));
        assert!(codec::encode(KIND, &journal).unwrap().len() < codec::MAX_RECORD_BYTES / 2);
    }
}
