//! Counting what is in a spool, and whether anything is left to do.
//!
//! Promise: nothing is changed, and read access is enough. Non-promise: an entry that moves while its folder is read
//! may be missed; callers that have to be sure look twice.

use super::ending::{REMEMBERED, read_at_most};
use super::folder::{Spool, SpoolFolder, SpoolItem};
use super::heartbeat::changed;
use super::listing::{SpoolSurvey, folders};
use crate::queue::Reason;
use crate::tally::{DeadLetter, Tally};
use leasehold_core::{Error, Result, Timestamp};
use std::fs;
use std::io::Read;

/// The longest reason that is read, in bytes.
const REASON: usize = 500;

impl Spool {
    /// Counts the items of each state.
    pub fn tally(&self) -> Tally {
        let now = Timestamp::from_millis(leasehold_system::clock::wall_ms());
        let SpoolSurvey { items, closed, .. } = self.survey();
        let mut tally = Tally { troubles: closed, ..Tally::at(now) };
        for item in &items {
            match item.folder {
                // Its time has come, whatever the clock says.
                SpoolFolder::Ready => tally.waits(item.name.due, None),
                SpoolFolder::Later => tally.delayed += 1,
                SpoolFolder::Claimed(_) => tally.claimed += 1,
                SpoolFolder::Done => tally.done += 1,
                SpoolFolder::Failed => tally.dead += 1,
                SpoolFolder::Cancelled => tally.cancelled += 1,
            }
        }
        for file in self.plain_files().unwrap_or_default() {
            let at = fs::symlink_metadata(self.path("ready").join(&file.name)).map_or(now, |m| changed(&m));
            tally.waits(at, None);
        }
        tally
    }

    /// The dead letters, in the order in which they were given up. Errors of
    /// folders that this user cannot read are added to `troubles`.
    pub fn dead_letters(&self, troubles: &mut Vec<Error>) -> Vec<DeadLetter> {
        let names = self.items(&SpoolFolder::Failed).unwrap_or_else(|error| {
            troubles.push(error);
            Vec::new()
        });
        let letter = |name| self.dead_letter(&SpoolItem { name, folder: SpoolFolder::Failed });
        let mut letters: Vec<DeadLetter> = names.into_iter().filter_map(letter).collect();
        letters.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        letters
    }

    /// The dead letter for an item, if it is one and still exists.
    pub fn dead_letter(&self, item: &SpoolItem) -> Option<DeadLetter> {
        let file = Some(self.at(&item.folder, &item.name)).filter(|_| item.folder == SpoolFolder::Failed)?;
        let at = fs::symlink_metadata(file).map(|m| changed(&m)).ok()?;
        Some(DeadLetter { why: self.why_dead(item), id: item.name.id.clone(), epoch: item.name.epoch, at, tail: None })
    }

    /// Why an item is dead: its last note.
    pub fn why_dead(&self, item: &SpoolItem) -> Option<Reason> {
        if item.folder != SpoolFolder::Failed {
            return None;
        }
        // By name and not by listing: there may be a note for each of a million items.
        let epochs = (1..=item.name.epoch.get()).rev().take(REMEMBERED);
        epochs.flat_map(|epoch| ["failed", "expired"].map(|kind| format!("{}.e{epoch}.{kind}", item.name.id))).find_map(
            |note| {
                let path = self.path("notes").join(note);
                let is_plain = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
                let bytes = is_plain.then(|| read_at_most(&path, REASON).ok()).flatten()?;
                Some(Reason::lossy(&String::from_utf8_lossy(&bytes), "it failed"))
            },
        )
    }

    /// The first bytes of an item's payload; none if this user may not read it.
    pub fn beginning(&self, item: &SpoolItem, most: usize) -> Option<Vec<u8>> {
        self.beginning_of(&self.at(&item.folder, &item.name), most)
    }

    /// The same for a file with a plain name.
    pub fn beginning_of_plain(&self, name: &str, most: usize) -> Option<Vec<u8>> {
        self.beginning_of(&self.path("ready").join(name), most)
    }

    fn beginning_of(&self, path: &std::path::Path, most: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        // Opening a pipe without a writer would block.
        if !fs::symlink_metadata(path).ok()?.is_file() {
            return None;
        }
        fs::File::open(path).ok()?.take(most as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Whether every item is finished: none waits, none is claimed, and no completion has follow-ups left to add.
    pub fn is_finished(&self) -> Result<bool> {
        // Items go from `later/` to `ready/` to `claimed/` and back. An item that
        // moves on after its next folder was read is seen by the second look.
        for _ in 0..2 {
            let open = |item: &SpoolItem| {
                matches!(item.folder, SpoolFolder::Ready | SpoolFolder::Later | SpoolFolder::Claimed(_))
            };
            if self.everything()?.iter().any(open) || !self.plain_files()?.is_empty() {
                return Ok(false);
            }
            let done = self.items(&SpoolFolder::Done)?;
            let waiting = folders(&self.path("outbox"))?;
            if done.iter().any(|name| waiting.contains(&format!("{}.e{}", name.id, name.epoch))) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
