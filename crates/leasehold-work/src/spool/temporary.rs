//! Files that are being written, under names that nobody reads.
//!
//! Promise: the file of a living producer is not removed, however long its input is silent; a dead producer's is, a
//! minute after its last heartbeat. A producer holds a lock on its file while it writes, which ends with the process.
//! It also touches the file four times a minute, for janitors that cannot see the lock (on another machine that mounts
//! the share without locks). Non-promise: a producer that is stopped for a minute may lose its file to such a janitor.
//! It then gets an error, and nothing was added.

use super::folder::{Spool, failed};
use super::steps::SpoolStep;
use crate::queue::ItemId;
use leasehold_core::{Kind, Nonce, Result, Timestamp};
use rustix::fs::{FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, futimens, open};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long the leftovers of a dead process stay.
pub(super) const ABANDONED: Duration = Duration::from_secs(60);
/// How many times a producer touches its file before it could count as dead.
const BEATS: u32 = 4;
/// How long a shell's file without a key stays: shells hold no lock.
const SHELLS: Duration = Duration::from_secs(86_400);

/// A file that is written and synced. Its lock lasts until this is dropped.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    _locked: File,
}

impl Temporary {
    /// Its path, until it is moved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, if that is possible. What stays is removed by the janitor.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Spool {
    /// Writes these bytes to a file, and syncs it.
    pub(super) fn write_temporary(&self, content: &[u8]) -> Result<Temporary> {
        self.temporary_with(|file| file.write_all(content))
    }

    /// Copies an input, which may pause, to a file, and syncs it.
    pub(super) fn copy_to_temporary(&self, input: &mut dyn io::Read) -> Result<Temporary> {
        self.temporary_with(|file| {
            let beating = beat(file, self.abandoned() / BEATS);
            io::copy(input, file)?;
            drop(beating);
            Ok(())
        })
    }

    fn temporary_with(&self, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<Temporary> {
        self.reach(SpoolStep::Stage);
        let path = self.path("tmp").join(Nonce::random().to_string());
        let temporary = || {
            let mut file = File::create_new(&path)?;
            // Where there are no locks, only the touches show that the producer is alive.
            let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
            self.rights().share(&file)?;
            write(&mut file)?;
            file.sync_all()?;
            Ok(file)
        };
        match temporary() {
            Ok(locked) => Ok(Temporary { path, _locked: locked }),
            Err(e) => {
                let _ = fs::remove_file(&path);
                Err(failed(e, "write", &path))
            }
        }
    }

    /// Whether the file with this inode is still a temporary one.
    pub(super) fn is_temporary(&self, inode: u64) -> bool {
        let temporary = fs::read_dir(self.path("tmp")).into_iter().flatten().flatten();
        temporary.filter_map(|entry| entry.metadata().ok()).any(|found| found.ino() == inode)
    }

    /// Removes what dead processes left: temporary files, and keys of interrupted additions.
    pub(super) fn sweep(&self, now: Timestamp) {
        for entry in fs::read_dir(self.path("tmp")).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            let ours = entry.file_name().to_str().is_some_and(is_ours);
            let limit = if ours || metadata.nlink() > 1 { self.abandoned() } else { SHELLS };
            if self.age(&entry.path(), &metadata, now) > limit && !is_locked(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        // A process that is freeing a key must not free the one that replaced it.
        let (true, _alone) = self.try_lock_keys() else { return };
        for entry in fs::read_dir(self.path("keys")).into_iter().flatten().flatten() {
            let alone = |m: &fs::Metadata| m.is_file() && m.nlink() == 1;
            let is_old = |m: fs::Metadata| alone(&m) && self.age(&entry.path(), &m, now) > self.abandoned();
            if entry.metadata().is_ok_and(is_old) && self.is_free(&entry.file_name()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Whether certainly no item has this key, whatever file the key itself is.
    fn is_free(&self, key: &OsStr) -> bool {
        let Some(key) = key.to_str().and_then(|key| key.parse().ok()) else { return true };
        self.find(&ItemId::keyed(&key)).is_err_and(|error| error.kind() == Kind::Invalid)
    }
}

/// Whether leasehold created a file in `tmp/`, judged by its name.
fn is_ours(name: &str) -> bool {
    let nonce = name.strip_prefix("lineage-").or_else(|| name.strip_prefix("clock-")).unwrap_or(name);
    nonce.parse::<Nonce>().is_ok()
}

/// Whether a living process holds the lock of this file, as far as visible from here.
fn is_locked(path: &Path) -> bool {
    // Never blocks, not even on a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = open(path, flags, Mode::empty()) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Touches a file at intervals, until the sender is dropped. A process that cannot start a thread has only its lock.
fn beat(file: &File, every: Duration) -> io::Result<Sender<()>> {
    let (beating, over) = channel::<()>();
    let file = file.try_clone()?;
    std::thread::Builder::new().name("leasehold-heartbeat".into()).spawn(move || {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            let _ = futimens(&file, &Timestamps { last_access: now, last_modification: now });
        }
    })?;
    Ok(beating)
}
