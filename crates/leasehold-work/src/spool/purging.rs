//! Forgetting what was finished long ago: items, their notes and their keys.
//!
//! Promise: an error with one folder or item does not affect the others. An item is first taken, by a rename to a
//! hidden name in its own folder, so a concurrent operator's order finds it whole or not at all. Then its notes are
//! removed, then its file, and last its key. So whatever interrupts a purge, a new item with the key finds no notes of
//! the old one, and the next purge removes what is left. Non-promise: purging cannot be undone.

use super::first_epoch::first_epoch_after;
use super::folder::{Spool, SpoolFolder, failed, sync};
use super::listing::{listing, names};
use super::name::FileName;
use super::steps::SpoolStep;
use crate::queue::Purged;
use leasehold_core::{Epoch, Error, Result, Timestamp, format_duration};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often all folders are searched for a note's item: an item that is moved meanwhile may be missed.
const LOOKS: u32 = 3;

/// An item that is being purged, under its present name.
struct Leaving {
    name: FileName,
    path: PathBuf,
}

impl Leaving {
    /// Its path once a purge has taken it.
    fn taken(&self) -> PathBuf {
        self.path.with_file_name(format!(".{}", self.name))
    }
}

/// The notes, by item.
type Notes = HashMap<String, Vec<(Epoch, String)>>;

impl Spool {
    /// Removes items that were finished longer ago than this, with their notes and keys.
    pub fn purge(&self, older_than: Duration, kinds: &[SpoolFolder]) -> Result<Purged> {
        if older_than < self.abandoned() {
            let form = "use 1m or more: whoever is late with adding a follow-up must not find it gone";
            return Err(Error::invalid("age", format_duration(older_than), form));
        }
        let _alone = self.lock_keys();
        let now = self.now()?;
        let mut purged = Purged::default();
        let mut leaving = Vec::new();
        for kind in kinds {
            match self.finished(kind, older_than, now, &mut purged.troubles) {
                Ok(found) => leaving.extend(found),
                Err(error) => purged.troubles.push(error),
            }
        }
        let mut first = Epoch::ZERO;
        leaving.retain(|item| match first_epoch_after(&item.name) {
            Ok(after) => {
                first = first.max(after);
                true
            }
            Err(error) => {
                purged.troubles.push(error);
                false
            }
        });
        self.raise_first_epoch(first)?;
        let mut notes = self.noted()?;
        let mut taken = Vec::new();
        for item in leaving {
            match self.take_out(&item, &mut notes) {
                Ok(true) => taken.push(item),
                Ok(false) => {}
                Err(error) => purged.troubles.push(error),
            }
        }
        self.forget_orphans(&notes, older_than, now);
        // Before any key is freed.
        sync(&self.path("notes"))?;
        for item in &taken {
            match self.forget(item) {
                Ok(()) => purged.items += 1,
                Err(error) => purged.troubles.push(error),
            }
        }
        let mut folders: HashSet<PathBuf> =
            taken.iter().filter_map(|item| Some(item.path.parent()?.to_owned())).collect();
        folders.insert(self.path("keys"));
        purged.troubles.extend(folders.iter().filter_map(|folder| sync(folder).err()));
        Ok(purged)
    }

    /// Items that have been in a folder for long enough, and those that an earlier purge had begun to remove.
    fn finished(
        &self,
        kind: &SpoolFolder,
        older_than: Duration,
        now: Timestamp,
        troubles: &mut Vec<Error>,
    ) -> Result<Vec<Leaving>> {
        let folder = self.path(kind.path());
        let found = listing(&folder)?;
        let mut leaving = Vec::new();
        for text in found.files.iter().chain(&found.hidden) {
            let begun = text.strip_prefix('.');
            let Some(name) = FileName::parse(begun.unwrap_or(text)) else { continue };
            let path = folder.join(text);
            let old = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata.is_file() && (begun.is_some() || self.age(&path, &metadata, now) > older_than),
                Err(e) if e.kind() == ErrorKind::NotFound => false,
                Err(e) => {
                    troubles.push(failed(e, "look at", &path));
                    false
                }
            };
            // Follow-ups that are still to be added need the completion to count.
            if old && !self.outbox(&name).exists() {
                leaving.push(Leaving { name, path });
            }
        }
        Ok(leaving)
    }

    fn noted(&self) -> Result<Notes> {
        let mut notes = Notes::new();
        for note in names(&self.path("notes"))? {
            let parts = note.rsplit_once('.').and_then(|(rest, _)| rest.rsplit_once(".e"));
            let Some((id, Ok(epoch))) = parts.map(|(id, epoch)| (id, epoch.parse())) else { continue };
            notes.entry(id.to_owned()).or_default().push((epoch, note));
        }
        Ok(notes)
    }

    /// Hides an item, and removes its notes; those of a new item with its key
    /// have later epochs. False if somebody moved it.
    fn take_out(&self, item: &Leaving, notes: &mut Notes) -> Result<bool> {
        self.reach(SpoolStep::Collect);
        match fs::rename(&item.path, item.taken()) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed(e, "purge", &item.path)),
            Ok(()) => {}
        }
        let Some(mine) = notes.get_mut(item.name.id.as_str()) else { return Ok(true) };
        while let Some(at) = mine.iter().position(|(epoch, _)| *epoch <= item.name.epoch) {
            self.reach(SpoolStep::Collect);
            let path = self.path("notes").join(&mine[at].1);
            remove(&path).inspect_err(|_| drop(fs::rename(item.taken(), &item.path)))?;
            mine.swap_remove(at);
        }
        Ok(true)
    }

    /// Removes an item that was hidden, and frees its key.
    fn forget(&self, item: &Leaving) -> Result<()> {
        self.reach(SpoolStep::Collect);
        let taken = item.taken();
        let identity = |path: &Path| fs::symlink_metadata(path).map(|m| (m.dev(), m.ino())).ok();
        let file = identity(&taken);
        remove(&taken)?;
        let Some(key) = item.name.id.as_str().strip_prefix("k.") else { return Ok(()) };
        self.reach(SpoolStep::Collect);
        let key = self.path("keys").join(key);
        // The key may be another item's by now.
        if file.is_some() && identity(&key) == file { remove(&key) } else { Ok(()) }
    }

    /// Removes old notes whose item does not exist, which an interrupted purge leaves. They stay while there are
    /// folders that this user cannot look into: the item may be there.
    fn forget_orphans(&self, notes: &Notes, older_than: Duration, now: Timestamp) {
        let mut orphans: HashSet<&str> = notes.keys().map(String::as_str).collect();
        for _ in 0..LOOKS {
            let Ok(items) = self.everything() else { return };
            let known: HashSet<&str> = items.iter().map(|item| item.name.id.as_str()).collect();
            orphans.retain(|id| !known.contains(id));
        }
        for (_, note) in orphans.iter().flat_map(|id| &notes[*id]) {
            let path = self.path("notes").join(note);
            if fs::symlink_metadata(&path).is_ok_and(|m| self.age(&path, &m, now) > older_than) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(e, "remove", path)),
        _ => Ok(()),
    }
}
