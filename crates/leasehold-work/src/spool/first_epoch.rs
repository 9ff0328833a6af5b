//! The first epoch of an item with a key, and the lock for freeing keys.
//!
//! Promise: no epoch of a key is given twice, even though a purged key may be used again. A purge raises the first
//! epoch past every epoch that it is about to forget, durably and before it removes anything. An addition reads it
//! after it has taken the key. It is the highest number among the names in `epochs/`: files are added before lower ones
//! are removed, so it never falls, even if several processes raise it at once or one dies. Non-promise: an item that is
//! removed by hand is forgotten with its epochs.

use super::ending::REMEMBERED;
use super::folder::{LINEAGE, Spool, failed, sync};
use super::listing::names;
use super::name::FileName;
use super::steps::SpoolStep;
use leasehold_core::{Epoch, Error, Kind, Result};
use leasehold_system::volume;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

/// The highest first epoch. It leaves 2^39 epochs above it, and as many for
/// purges above what an operator may advance an item to.
const HIGHEST: u64 = Epoch::MAX.get() - (1 << 39);

/// The first epoch of later items, once this item is forgotten. It is so far above the item's epoch that a new item
/// with the same key never finds a checkpoint of the old one, whatever an old worker may still write.
pub(super) fn first_epoch_after(name: &FileName) -> Result<Epoch> {
    let epoch = name.epoch.get().saturating_add(REMEMBERED as u64);
    if !name.id.is_keyed() {
        return Ok(Epoch::ZERO);
    }
    if epoch > HIGHEST {
        let message = format!(
            "item `{}` is kept: its epoch {} is so high that none could be told from it if its key was used again",
            name.id, name.epoch
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    Epoch::new(epoch)
}

impl Spool {
    /// The epoch of an item whose key was just taken, before its first claim.
    pub(super) fn first_epoch(&self) -> Result<Epoch> {
        Ok(self.first_epochs()?.into_iter().max().unwrap_or(Epoch::ZERO))
    }

    fn first_epochs(&self) -> Result<Vec<Epoch>> {
        let folder = self.path("epochs");
        // Asks a file server whether the folder has changed. Otherwise the client may use a listing from a minute ago.
        volume::changed_ms(&folder).map_err(|e| failed(e, "look at", &folder))?;
        let known = names(&folder)?.into_iter().filter_map(|name| name.parse().ok());
        Ok(known.filter(|epoch: &Epoch| epoch.get() <= HIGHEST).collect())
    }

    /// Ensures that no item begins below this epoch from now on.
    pub(super) fn raise_first_epoch(&self, to: Epoch) -> Result<()> {
        if to == Epoch::ZERO {
            return Ok(());
        }
        let (folder, known) = (self.path("epochs"), self.first_epochs()?);
        let path = |epoch: Epoch| folder.join(epoch.to_string());
        if known.iter().all(|epoch| *epoch < to) {
            self.reach(SpoolStep::Collect);
            match File::create_new(path(to)) {
                Ok(file) => self.rights().share(&file).map_err(|e| failed(e, "open to others", &path(to)))?,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(e, "raise the first epoch by", &path(to))),
            }
            // Removed again: the next purge must not find what may not last.
            sync(&folder).inspect_err(|_| drop(fs::remove_file(path(to))))?;
        } else {
            // The process that raised it may have died before it was synced.
            sync(&folder)?;
        }
        self.reach(SpoolStep::Collect);
        let highest = known.iter().copied().max().unwrap_or(Epoch::ZERO).max(to);
        known.into_iter().filter(|epoch| *epoch < highest).for_each(|epoch| drop(fs::remove_file(path(epoch))));
        Ok(())
    }

    /// Waits until only this process may free keys, until the result is
    /// dropped. Where there are no locks, it returns at once.
    pub(super) fn lock_keys(&self) -> Option<File> {
        let file = lockable(&self.path(LINEAGE))?;
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).ok().map(|()| file)
    }

    /// The same, or false if another process has the lock.
    pub(super) fn try_lock_keys(&self) -> (bool, Option<File>) {
        let Some(file) = lockable(&self.path(LINEAGE)) else { return (true, None) };
        match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) => (false, None),
            _ => (true, Some(file)),
        }
    }
}

/// On a network file system, only a file opened for writing can be locked.
fn lockable(path: &Path) -> Option<File> {
    File::options().read(true).write(true).open(path).or_else(|_| File::open(path)).ok()
}
