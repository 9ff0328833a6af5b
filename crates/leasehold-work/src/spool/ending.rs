//! Ending a claim: completed, failed, given back.
//!
//! Promise: the result and the follow-ups of a completion are written first, under the worker's own epoch. They count
//! if and only if the one rename that completes succeeds, so nothing that a stale worker leaves counts. Non-promise:
//! what a stale worker wrote stays until it is purged.

use super::claiming::SpoolGrant;
use super::folder::{Spool, SpoolFolder, SpoolItem, failed, is_folder, make, same_file, sync};
use super::listing::names;
use super::name::FileName;
use super::steps::SpoolStep;
use crate::queue::{Attempts, ItemId, NewItem, Payload, Reason};
use leasehold_core::{Checkpoint, Error, Kind, Result};
use leasehold_system::undo::{Fix, is_disabled};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many epochs back a checkpoint is searched.
pub(super) const REMEMBERED: usize = 64;

/// Who has a key.
enum Key {
    /// The item that is being added.
    Ours,
    /// Another item: this one is not added again.
    Taken,
    /// Not decided yet.
    Unsettled,
}

impl Spool {
    /// Publishes a note under the item's id and epoch.
    pub(super) fn note(&self, name: &FileName, kind: &str, content: &[u8]) -> Result<()> {
        let temporary = self.write_temporary(content)?;
        self.reach(SpoolStep::Note);
        let path = self.path("notes").join(name.note(kind));
        fs::rename(temporary.path(), &path).map_err(|e| failed(e, "publish", &path))?;
        sync(&self.path("notes"))
    }

    /// Stores what the next attempt needs. One file per epoch: a stale worker's is never the newest.
    pub fn checkpoint(&self, grant: &SpoolGrant, checkpoint: &Checkpoint) -> Result<()> {
        if grant.path().symlink_metadata().is_err() {
            let stale = self.stale(&grant.name.id, &grant.token);
            return Err(Error::new(Kind::Lost, stale.to_string()));
        }
        self.note(&grant.name, "checkpoint", checkpoint.as_str().as_bytes())
    }

    /// The checkpoint for an attempt under this name: the newest readable one of earlier attempts.
    pub fn checkpoint_for(&self, name: &FileName) -> Option<Checkpoint> {
        // By name and not by listing: there may be a note for each of a million items.
        let epochs = (1..=name.epoch.get()).rev().take(REMEMBERED);
        epochs.map(|epoch| self.path("notes").join(format!("{}.e{epoch}.checkpoint", name.id))).find_map(|path| {
            // A link, or a pipe without a writer, is not a note. If a note is damaged,
            // too long or unreadable for this user, the attempt only begins earlier.
            let plain = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
            let bytes = if plain { read_at_most(&path, Checkpoint::MAX_BYTES).ok()? } else { return None };
            let text = String::from_utf8(bytes);
            if text.is_err() && is_disabled(Fix::BadCheckpointEndsTheLane) {
                std::process::exit(65);
            }
            Checkpoint::new(text.ok()?).ok()
        })
    }

    /// Completes an item: the result and the follow-ups count if and only if
    /// this succeeds. A caller that is not sure whether it did may repeat it.
    pub fn complete(&self, grant: &SpoolGrant, result: Option<&Payload>, add: &[NewItem]) -> Result<SpoolItem> {
        let (outbox, done) = (self.outbox(&grant.name), self.at(&SpoolFolder::Done, &grant.name));
        let exists = |path: &Path| path.symlink_metadata().is_ok();
        // Once the item is done, what was written then counts. Nothing is
        // written again, because some of it may have been added.
        let again = !exists(grant.path()) && exists(&done);
        if !again {
            if let Some(result) = result {
                self.note(&grant.name, "result", result.bytes())?;
            }
            if !add.is_empty() {
                self.write_outbox(&outbox, add)?;
            }
        }
        if !self.end(grant.path(), &SpoolFolder::Done, &grant.name)? {
            let _ = fs::remove_dir_all(&outbox);
            return Err(self.stale(&grant.name.id, &grant.token));
        }
        self.add_follow_ups(&outbox)?;
        // The first try may have added these without syncing them.
        let lines = if again && !add.is_empty() { &["ready", "later"][..] } else { &[] };
        lines.iter().try_for_each(|line| sync(&self.path(line)))?;
        Ok(SpoolItem { name: grant.name.clone(), folder: SpoolFolder::Done })
    }

    pub(super) fn outbox(&self, name: &FileName) -> PathBuf {
        self.path("outbox").join(format!("{}.e{}", name.id, name.epoch))
    }

    /// Writes the follow-ups of a completion to its outbox, under their final names.
    fn write_outbox(&self, outbox: &Path, add: &[NewItem]) -> Result<()> {
        self.reach(SpoolStep::LayOut);
        // Removes what an earlier try of the same claim left.
        match fs::remove_dir_all(outbox) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e, "empty", outbox)),
            _ => {}
        }
        make(outbox, self.rights())?;
        for follow_up in add {
            let temporary = self.write_temporary(follow_up.payload.bytes())?;
            let path = outbox.join(self.name_for(follow_up)?.to_string());
            fs::rename(temporary.path(), &path).map_err(|e| failed(e, "lay out", &path))?;
        }
        sync(outbox)?;
        sync(&self.path("outbox"))
    }

    /// Adds the follow-ups in an outbox. Any number of processes may do so at once: each file is moved once.
    pub(super) fn add_follow_ups(&self, outbox: &Path) -> Result<()> {
        if !is_folder(outbox) {
            return Ok(());
        }
        for text in names(outbox)? {
            let Some(name) = FileName::parse(&text) else { continue };
            let from = outbox.join(&text);
            let mut next = self.with_times_reset(&from, &name).unwrap_or(name);
            if let Some(key) = next.id.as_str().strip_prefix("k.") {
                match self.take_key_of(&from, &self.path("keys").join(key), &next.id)? {
                    Key::Ours => next.epoch = next.epoch.max(self.first_epoch()?),
                    Key::Unsettled => continue,
                    Key::Taken => {
                        let _ = fs::remove_file(&from);
                        continue;
                    }
                }
            }
            let to = self.at(&self.line_of(&next)?, &next);
            self.shift(&from, &to, SpoolStep::FanOut, SpoolStep::SyncEntered)?;
        }
        self.reach(SpoolStep::Collect);
        let _ = fs::remove_dir(outbox);
        Ok(())
    }

    /// Takes the key of a follow-up.
    fn take_key_of(&self, laid_out: &Path, key: &Path, id: &ItemId) -> Result<Key> {
        match fs::hard_link(laid_out, key) {
            Err(_) if same_file(laid_out, key) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                // The janitor retries a key that is unsettled.
                return Ok(if self.has_item(key, id) { Key::Taken } else { Key::Unsettled });
            }
            // Added by another process that finishes the same completion.
            Err(_) if laid_out.symlink_metadata().is_err() => return Ok(Key::Unsettled),
            // Without its key it could be added twice, so it waits for a process that may link it.
            Err(e) => return Err(failed(e, "take the key", key)),
            Ok(()) => {}
        }
        sync(&self.path("keys")).map(|()| Key::Ours)
    }

    /// Gives an attempt up: the item is tried again after a pause, or becomes a dead letter.
    pub fn fail(
        &self,
        grant: &SpoolGrant,
        why: &Reason,
        retry_in: Option<Duration>,
        is_final: bool,
    ) -> Result<SpoolItem> {
        self.note(&grant.name, "failed", format!("{why}\n").as_bytes())?;
        let (folder, name) = self.after_failure(&grant.name, is_final, retry_in)?;
        if self.end(grant.path(), &folder, &name)? {
            return Ok(SpoolItem { name, folder });
        }
        // An earlier call may have moved it without syncing; then the item has another due time.
        let is_this = |there: &FileName| FileName { due: name.due, ..there.clone() } == name;
        if let Some(there) = self.items(&folder)?.into_iter().find(is_this) {
            sync(&self.path(folder.path()))?;
            return Ok(SpoolItem { name: there, folder });
        }
        Err(self.stale(&grant.name.id, &grant.token))
    }

    /// Gives an item back untried.
    pub fn give_back(&self, grant: &SpoolGrant) -> Result<()> {
        let is_back = self.end(grant.path(), &SpoolFolder::Ready, &grant.name.raised())?;
        if is_back { Ok(()) } else { Err(self.stale(&grant.name.id, &grant.token)) }
    }

    /// Where an item goes, and under which name, when an attempt has failed or expired.
    pub(super) fn after_failure(
        &self,
        name: &FileName,
        is_final: bool,
        retry_in: Option<Duration>,
    ) -> Result<(SpoolFolder, FileName)> {
        let mut next = name.raised();
        next.tried = name.tried.saturating_add(1);
        if is_final || next.tried >= name.most {
            return Ok((SpoolFolder::Failed, next));
        }
        let pause = retry_in.unwrap_or_else(|| Attempts::default().pause(next.tried));
        if pause.is_zero() {
            return Ok((SpoolFolder::Ready, next));
        }
        next.due = self.now()?.plus(pause);
        Ok((SpoolFolder::Later, next))
    }
}

/// Reads a file of at most this many bytes; of a longer one, one byte more.
pub(super) fn read_at_most(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
