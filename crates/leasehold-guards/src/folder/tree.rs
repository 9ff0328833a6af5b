//! A whole tree, copied into a permit.
//!
//! Promise: files are synced, symlinks stay symlinks, modes are kept, the source is only read. Non-promise: times,
//! users, extended attributes and hard links are not kept, and fences in the tree are not copied. Devices, pipes and
//! sockets are refused.

use crate::observe::file::FileStep;
use crate::permit::Permits;
use crate::permit::error::{Scene, vanished};
use crate::permit::fence::open_folder;
use crate::permit::location::shown;
use crate::permit::nesting;
use leasehold_core::{Error, Kind, Remedy, Result};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// No path that the system accepts is deeper.
const MAX_DEPTH: usize = 2048;
/// The owner must be able to move and to empty a folder, or nobody could replace it later.
const OWN_FOLDER: u32 = 0o700;

/// Copies `source` to `into`, a path from the fence folder that must not exist.
///
/// Everything is created by its path from the fence folder: once a newer epoch has renamed our permit aside, nothing
/// more can be added to it.
pub(crate) fn copy(scene: &Scene<'_>, permits: &Permits<'_>, source: &Path, into: &Path) -> Result<()> {
    let stat = fs::metadata(source).map_err(|e| unreadable(scene, source, e))?;
    if !stat.is_dir() {
        return Err(Error::invalid("source", shown(source), "use a folder").with_remedy(Remedy::WriteTheFile));
    }
    Copier { scene, permits }.folder(source, &stat, into, 0)
}

struct Copier<'a> {
    scene: &'a Scene<'a>,
    permits: &'a Permits<'a>,
}

impl Copier<'_> {
    fn folder(&self, source: &Path, stat: &Metadata, into: &Path, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::invalid("source", shown(source), "it is too deep"));
        }
        self.made(rustix::fs::mkdirat(self.permits.fence(), into, Mode::from_raw_mode(OWN_FOLDER as _)))?;
        for entry in fs::read_dir(source).map_err(|e| unreadable(self.scene, source, e))? {
            let entry = entry.map_err(|e| unreadable(self.scene, source, e))?;
            let path = entry.path();
            let stat = path.symlink_metadata().map_err(|e| unreadable(self.scene, &path, e))?;
            let into = into.join(entry.file_name());
            if stat.is_dir() && nesting::is_fence(&path) {
                // It is the fence of a file in the source, not in the target.
                continue;
            }
            if stat.is_dir() {
                self.folder(&path, &stat, &into, depth + 1)?;
            } else if stat.is_symlink() {
                let to = fs::read_link(&path).map_err(|e| unreadable(self.scene, &path, e))?;
                self.made(rustix::fs::symlinkat(&to, self.permits.fence(), &into))?;
            } else if stat.is_file() {
                self.file(&path, &stat, &into)?;
            } else {
                let allowed = "it is a device, pipe or socket; only files, folders and symlinks are published";
                return Err(Error::invalid("source", shown(&path), allowed));
            }
        }
        let made = self.made(open_folder(self.permits.fence(), into))?;
        let mode = Mode::from_raw_mode(((stat.mode() & 0o777) | OWN_FOLDER) as _);
        self.made(rustix::fs::fchmod(&made, mode))?;
        File::from(made).sync_all().map_err(|e| self.scene.failed(FileStep::SyncPayload, e))
    }

    fn file(&self, source: &Path, stat: &Metadata, into: &Path) -> Result<()> {
        // It may have been replaced by a symlink or a pipe since its type was read.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let mut from = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(source)
            .map_err(|e| unreadable(self.scene, source, e))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(self.permits.fence(), into, flags, Mode::RUSR | Mode::WUSR);
        let mut made = File::from(self.made(made)?);
        io::copy(&mut from, &mut made).map_err(|e| self.scene.failed(FileStep::Stage, e))?;
        self.made(rustix::fs::fchmod(&made, Mode::from_raw_mode((stat.mode() & 0o777) as _)))?;
        made.sync_all().map_err(|e| self.scene.failed(FileStep::SyncPayload, e))
    }

    fn made<T>(&self, answer: rustix::io::Result<T>) -> Result<T> {
        answer.map_err(|e| self.permits.why(FileStep::Stage, e.into()))
    }
}

fn unreadable(scene: &Scene<'_>, source: &Path, cause: io::Error) -> Error {
    let message =
        |what: &str| format!("source `{}` {what}: resource=`{}` stays as it was", shown(source), scene.resource);
    if vanished(&cause) {
        return Error::new(Kind::Invalid, message("does not exist, or was removed while it was copied"));
    }
    Error::unavailable(message("cannot be read"), cause)
}
