//! The janitor of a spool: puts expired items back, moves items that have
//! become due into line, and finishes what a dead worker left undone.
//!
//! Promise: any number may run at once, because each step is a rename, and only one succeeds.
//! If one file cannot be handled, that is reported, and everything else is done. Non-promise:
//! it does not know whether a worker is alive, only when it last gave a heartbeat.

use super::claiming::{SHORT, ttl_of};
use super::folder::{Spool, SpoolFolder, SpoolItem, sync};
use super::heartbeat::heartbeat_file;
use super::listing::{folders, foreign_entry, listing};
use super::name::FileName;
use super::steps::SpoolStep;
use crate::backlog::{Expired, ItemView};
use crate::queue::Chores;
use leasehold_core::{Result, Timestamp, format_duration};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The least age of an empty worker's folder that is removed.
const EMPTY_FOLDER: Duration = Duration::from_secs(3_600);

/// One round of the janitor.
struct Round {
    now: Timestamp,
    thorough: bool,
    chores: Chores,
}

impl Spool {
    /// Handles everything that needs it.
    pub fn clean(&self) -> Result<Chores> {
        let mut chores = self.look(true)?;
        match self.now() {
            Ok(now) => self.sweep(now),
            Err(error) => chores.troubles.push(error),
        }
        Ok(chores)
    }

    /// The part for which somebody may be waiting.
    pub(super) fn clean_urgent(&self) -> Result<Chores> {
        self.look(false)
    }

    fn look(&self, thorough: bool) -> Result<Chores> {
        let mut round = Round { now: self.now()?, thorough, chores: Chores::default() };
        let looked = [self.promote_due(&mut round), self.check_workers(&mut round), self.finish(&mut round)];
        round.chores.troubles.extend(looked.into_iter().filter_map(Result::err));
        Ok(round.chores)
    }

    /// Moves items that have become due into line.
    fn promote_due(&self, round: &mut Round) -> Result<()> {
        let later = self.path("later");
        let found = listing(&later)?;
        round.chores.foreign.extend(found.foreign(&later));
        // If there are many, the times at which they began to wait are checked only in thorough rounds.
        let look_at_all = round.thorough || found.files.len() <= SHORT;
        for text in found.files {
            let Some(name) = FileName::parse(&text) else {
                let why = "it has no item's name, so nobody knows when it is due; move it to ready/";
                round.chores.foreign.push(foreign_entry(&later, &text, why));
                continue;
            };
            let from = later.join(&text);
            let (to, due) = if name.due <= round.now {
                (self.path("ready").join(&text), true)
            } else if let Some(next) = look_at_all.then(|| self.with_times_reset(&from, &name)).flatten() {
                (later.join(next.to_string()), false)
            } else {
                continue;
            };
            match self.shift(&from, &to, SpoolStep::Enter, SpoolStep::SyncEntered) {
                Ok(moved) => round.chores.lined_up += usize::from(moved && due),
                Err(error) => round.chores.troubles.push(error),
            }
        }
        Ok(())
    }

    fn check_workers(&self, round: &mut Round) -> Result<()> {
        for worker in folders(&self.path("claimed"))? {
            if let Err(error) = self.check_worker(&worker, round) {
                round.chores.troubles.push(error);
            }
        }
        Ok(())
    }

    fn check_worker(&self, worker: &str, round: &mut Round) -> Result<()> {
        let folder = self.path("claimed").join(worker);
        let ttl = ttl_of(worker);
        let found = listing(&folder)?;
        round.chores.foreign.extend(found.foreign(&folder));
        for text in &found.files {
            let Some(name) = FileName::parse(text) else {
                let why = "it has no item's name; if nobody works on it, move it back to ready/";
                round.chores.foreign.push(foreign_entry(&folder, text, why));
                continue;
            };
            let Some(silent) = self.silent_for(&folder.join(text), ttl, round.now) else { continue };
            match self.put_back(worker, &folder.join(text), &name, silent) {
                Ok(Some(SpoolFolder::Failed)) => round.chores.buried += 1,
                Ok(Some(_)) => round.chores.requeued += 1,
                Ok(None) => {}
                Err(error) => round.chores.troubles.push(error),
            }
        }
        let old = |path: &Path, age| fs::symlink_metadata(path).is_ok_and(|m| self.age(path, &m, round.now) > age);
        // Heartbeats of items that were moved by a process that did not know about them.
        for heartbeat in
            found.hidden.iter().filter(|heartbeat| !found.files.iter().any(|file| heartbeat.get(1..) == Some(file)))
        {
            let path = folder.join(heartbeat);
            if old(&path, EMPTY_FOLDER + ttl) {
                let _ = fs::remove_file(path);
            }
        }
        if found.is_empty() && old(&folder, EMPTY_FOLDER + ttl) {
            let _ = fs::remove_dir(&folder);
        }
        Ok(())
    }

    /// Puts back an expired item; returns where it is then, unless another process was faster.
    fn put_back(&self, worker: &str, from: &Path, name: &FileName, silent: Duration) -> Result<Option<SpoolFolder>> {
        let (to, next) = self.after_failure(name, false, Some(Duration::ZERO))?;
        if !self.shift(from, &self.at(&to, &next), SpoolStep::Requeue, SpoolStep::SyncEnded)? {
            return Ok(None);
        }
        let _ = fs::remove_file(heartbeat_file(from));
        let why = format!("worker {worker} was silent for {}", format_duration(silent));
        let _ = self.note(name, "expired", format!("{why}\n").as_bytes());
        self.on_expired.call(|| {
            let seen = ItemView::File(SpoolItem { name: next.clone(), folder: to.clone() });
            Expired { id: name.id.clone(), epoch: name.epoch, seen }
        });
        Ok(Some(to))
    }

    /// Handles follow-ups that were written and not added: they count if the item is done under that very epoch.
    fn finish(&self, round: &mut Round) -> Result<()> {
        let waiting = folders(&self.path("outbox"))?;
        if waiting.is_empty() {
            return Ok(());
        }
        let done: HashSet<String> =
            self.items(&SpoolFolder::Done)?.iter().map(|name| format!("{}.e{}", name.id, name.epoch)).collect();
        // Before anything is added: if the completion were lost, the item would
        // be worked on again and its follow-ups added twice.
        if waiting.iter().any(|text| done.contains(text)) {
            sync(&self.path("done"))?;
        }
        for text in waiting {
            let outbox = self.path("outbox").join(&text);
            if done.contains(&text) {
                match self.add_follow_ups(&outbox) {
                    Ok(()) => round.chores.settled += 1,
                    Err(error) => round.chores.troubles.push(error),
                }
                continue;
            }
            let old = fs::metadata(&outbox).is_ok_and(|m| self.age(&outbox, &m, round.now) > self.abandoned());
            if !old {
                continue;
            }
            // A claim that is still in force may complete, even one that this user cannot see. Others never will.
            let is_of = |item: &FileName| format!("{}.e{}", item.id, item.epoch) == text;
            let held = self.everything()?.iter().any(|item| is_of(&item.name));
            if !held {
                let _ = fs::remove_dir_all(&outbox);
            }
        }
        Ok(())
    }
}
