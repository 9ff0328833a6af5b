//! The janitor of a spool: puts back what ran out, brings in what is due, finishes what a dead worker left undone.
//!
//! Promise: any number at once are safe, because each step is a rename of which one succeeds. Non-promise: it does not
//! judge whether a worker lives, only when its file last gave a sign of life.

use super::claiming::ttl_of;
use super::folder::{Spool, Where, changed, folders, listing, names, sync};
use super::name::FileName;
use super::steps::SpoolStep;
use leasehold::{Error, Result, Timestamp, format_duration};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// How old what a dead process left must be before it is removed.
const ABANDONED: Duration = Duration::from_secs(60);
/// How old a worker's empty folder must be.
const EMPTY_FOLDER: Duration = Duration::from_secs(3_600);

/// What a janitor did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolChores {
    /// Claims that had run out, put back in line.
    pub requeued: usize,
    /// Items that were tried often enough, and are dead letters now.
    pub buried: usize,
    /// Items that had become due.
    pub lined_up: usize,
    /// Completions whose follow-ups were still to be added.
    pub settled: usize,
}

impl Spool {
    /// Looks after everything that needs it.
    pub fn clean(&self) -> Result<SpoolChores> {
        let chores = self.tend()?;
        self.sweep(self.now()?);
        Ok(chores)
    }

    /// The part of it that somebody may be waiting for.
    pub(super) fn tend(&self) -> Result<SpoolChores> {
        let mut chores = SpoolChores::default();
        let now = self.now()?;
        self.bring_in(now, &mut chores)?;
        for worker in self.workers()? {
            self.look_after(&worker, now, &mut chores)?;
        }
        self.finish(now, &mut chores)?;
        Ok(chores)
    }

    /// What has become due.
    fn bring_in(&self, now: Timestamp, chores: &mut SpoolChores) -> Result<()> {
        for name in self.items(&Where::Later)? {
            if name.due > now {
                continue;
            }
            let text = name.to_string();
            let (from, to) = (self.path("later").join(&text), self.path("ready").join(&text));
            if self.shift(&from, &to, SpoolStep::Enter, SpoolStep::SyncEntered)? {
                chores.lined_up += 1;
            }
        }
        Ok(())
    }

    fn look_after(&self, worker: &str, now: Timestamp, chores: &mut SpoolChores) -> Result<()> {
        let place = Where::Claimed(worker.to_owned());
        let folder = self.path(place.folder());
        let ttl = ttl_of(worker);
        let found = listing(&folder)?;
        let empty = found.files.is_empty() && found.folders.is_empty() && found.others.is_empty();
        for text in found.files {
            let from = folder.join(&text);
            let Ok(metadata) = fs::symlink_metadata(&from) else { continue };
            // Whatever may be rounded away is given to the worker.
            let silent = now.saturating_since(changed(&metadata));
            let Some(name) = FileName::parse(&text).filter(|_| metadata.is_file() && silent > ttl) else { continue };
            let (to, next) = self.after_failure(&name, false, Some(Duration::ZERO))?;
            let target = self.path(to.folder()).join(next.to_string());
            if !self.shift(&from, &target, SpoolStep::Requeue, SpoolStep::SyncEnded)? {
                continue;
            }
            let why = format!("worker {worker} was silent for {}", format_duration(silent));
            let _ = self.note(&name, "expired", format!("{why}\n").as_bytes());
            if to == Where::Failed {
                chores.buried += 1;
            } else {
                chores.requeued += 1;
            }
        }
        let old = fs::metadata(&folder).is_ok_and(|m| now.saturating_since(changed(&m)) > EMPTY_FOLDER + ttl);
        if empty && old {
            let _ = fs::remove_dir(&folder);
        }
        Ok(())
    }

    /// What completions laid out and nobody added: it counts if the item is done under that very epoch.
    fn finish(&self, now: Timestamp, chores: &mut SpoolChores) -> Result<()> {
        let waiting = folders(&self.path("outbox"))?;
        if waiting.is_empty() {
            return Ok(());
        }
        let done: HashSet<String> =
            self.items(&Where::Done)?.iter().map(|name| format!("{}.e{}", name.id, name.epoch)).collect();
        for text in waiting {
            let outbox = self.path("outbox").join(&text);
            if done.contains(&text) {
                self.fan_out(&outbox)?;
                chores.settled += 1;
                continue;
            }
            // A claim that is still in force may complete. One that is not, never will.
            let id = text.rsplit_once(".e").map_or(&*text, |(id, _)| id);
            let held = self
                .everything()?
                .into_iter()
                .any(|item| item.name.id.as_str() == id && format!("{}.e{}", item.name.id, item.name.epoch) == text);
            let old = fs::metadata(&outbox).is_ok_and(|m| now.saturating_since(changed(&m)) > ABANDONED);
            if !held && old {
                let _ = fs::remove_dir_all(&outbox);
            }
        }
        Ok(())
    }

    /// What dead processes left behind: staged files, and keys of additions that were cut off.
    fn sweep(&self, now: Timestamp) {
        let old = |metadata: &fs::Metadata| now.saturating_since(changed(metadata)) > ABANDONED;
        for entry in fs::read_dir(self.path("tmp")).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|m| old(&m)) {
                let _ = fs::remove_file(entry.path());
            }
        }
        for entry in fs::read_dir(self.path("keys")).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|m| m.nlink() == 1 && old(&m)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Removes items that have been finished for longer than this, with their notes and keys; gives how many.
    pub fn purge(&self, older_than: Duration, places: &[Where]) -> Result<usize> {
        if older_than < ABANDONED {
            let form = "use 1m or more: whoever is late with adding a follow-up must not find it gone";
            return Err(Error::invalid("age", format_duration(older_than), form));
        }
        let now = self.now()?;
        let mut gone = HashSet::new();
        for place in places {
            for name in self.items(place)? {
                let path = self.path(place.folder()).join(name.to_string());
                let old = fs::metadata(&path).is_ok_and(|m| now.saturating_since(changed(&m)) > older_than);
                if old && !self.outbox(&name).exists() && fs::remove_file(&path).is_ok() {
                    if let Some(key) = name.id.as_str().strip_prefix("k.") {
                        let _ = fs::remove_file(self.path("keys").join(key));
                    }
                    gone.insert(name.id.as_str().to_owned());
                }
            }
            sync(&self.path(place.folder()))?;
        }
        for note in names(&self.path("notes"))? {
            let id = note.rsplit_once('.').and_then(|(rest, _)| rest.rsplit_once(".e")).map(|(id, _)| id);
            if id.is_some_and(|id| gone.contains(id)) {
                let _ = fs::remove_file(self.path("notes").join(&note));
            }
        }
        Ok(gone.len())
    }
}
