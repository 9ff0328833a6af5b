//! The epoch that an item with a key begins with, and the lock of those who free keys.
//!
//! Promise: no epoch of a key is given twice, though a purged key may be used again. A purge raises the floor past every
//! epoch that it is about to forget, durably and before it removes anything, and whoever takes a key reads the floor after
//! that. The floor is the highest number among the names in `floor/`: files are added before lower ones are removed, so it
//! never falls, whoever raises it at the same time or dies in between. Non-promise: what is removed by hand is forgotten with
//! its epochs.

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

/// The highest floor: 2^39 epochs are left above it, and as many for purges above what an operator may advance an item to.
const HIGHEST: u64 = Epoch::MAX.get() - (1 << 39);

/// The floor that forgetting this item takes. It lies so far above the item's epoch that a new item of its key never looks
/// back to a checkpoint of the old one, whatever a worker of old may still write.
pub(super) fn floor_after(name: &FileName) -> Result<Epoch> {
    let floor = name.epoch.get().saturating_add(REMEMBERED as u64);
    if !name.id.is_keyed() {
        return Ok(Epoch::ZERO);
    }
    if floor > HIGHEST {
        let message = format!(
            "item `{}` is kept: its epoch {} is so high that none could be told from it if its key was used again",
            name.id, name.epoch
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    Epoch::new(floor)
}

impl Spool {
    /// The epoch that an item begins with whose key was just taken.
    pub(super) fn floor(&self) -> Result<Epoch> {
        Ok(self.floors()?.into_iter().max().unwrap_or(Epoch::ZERO))
    }

    fn floors(&self) -> Result<Vec<Epoch>> {
        let folder = self.path("floor");
        // A file server is asked whether the folder has changed: otherwise a listing of a minute ago may be remembered.
        volume::changed_ms(&folder).map_err(|e| failed(e, "look at", &folder))?;
        let floors = names(&folder)?.into_iter().filter_map(|name| name.parse().ok());
        Ok(floors.filter(|floor: &Epoch| floor.get() <= HIGHEST).collect())
    }

    /// Sees to it that no item begins below this from now on.
    pub(super) fn raise_floor(&self, to: Epoch) -> Result<()> {
        if to == Epoch::ZERO {
            return Ok(());
        }
        let (folder, floors) = (self.path("floor"), self.floors()?);
        let path = |floor: Epoch| folder.join(floor.to_string());
        if floors.iter().all(|floor| *floor < to) {
            self.reach(SpoolStep::Collect);
            match File::create_new(path(to)) {
                Ok(file) => self.rights().share(&file).map_err(|e| failed(e, "open to others", &path(to)))?,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(e, "raise the floor by", &path(to))),
            }
            // Taken back: the next purge must not find what may not last.
            sync(&folder).inspect_err(|_| drop(fs::remove_file(path(to))))?;
        } else {
            // Whoever raised it may have died before it was synced.
            sync(&folder)?;
        }
        self.reach(SpoolStep::Collect);
        let highest = floors.iter().copied().max().unwrap_or(Epoch::ZERO).max(to);
        floors.into_iter().filter(|floor| *floor < highest).for_each(|floor| drop(fs::remove_file(path(floor))));
        Ok(())
    }

    /// Waits until this process alone may free keys, which it may until this is dropped. Where there are no locks, it may at
    /// once.
    pub(super) fn lock_keys(&self) -> Option<File> {
        let file = lockable(&self.path(LINEAGE))?;
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).ok().map(|()| file)
    }

    /// The same, or false if another process has the right.
    pub(super) fn try_lock_keys(&self) -> (bool, Option<File>) {
        let Some(file) = lockable(&self.path(LINEAGE)) else { return (true, None) };
        match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) => (false, None),
            _ => (true, Some(file)),
        }
    }
}

/// Over a network, only a file that may be written can be locked.
fn lockable(path: &Path) -> Option<File> {
    File::options().read(true).write(true).open(path).or_else(|_| File::open(path)).ok()
}
