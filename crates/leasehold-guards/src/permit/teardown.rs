//! How a permit is removed while others may still be using it.
//!
//! Promise: when [`discard`] returns, no handle that anybody holds to the directory can publish from it. Non-promise:
//! what was staged in there is gone; it was refused anyway.

use crate::observe::file::FileStep;
use crate::permit::error::{Scene, errno, vanished};
use crate::permit::fence::open_folder;
use leasehold_core::{Error, Kind, Nonce, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// How often a directory is emptied before we give up. A writer has at most one call in flight when its directory is
/// renamed, so two rounds are enough for each process that shares it.
const MAX_ROUNDS: usize = 256;
/// A staged tree is no deeper than a path can be long.
const MAX_DEPTH: usize = 2048;
/// Prefix of permits that are being removed; a random number follows.
pub(crate) const GONE: &str = "gone-";

/// A fresh name for what is being removed.
pub(crate) fn gone_name() -> String {
    format!("{GONE}{}", Nonce::random())
}

/// Empties and removes the directory `name`, or removes the file of that name.
///
/// It must be removed: a handle to a directory that was only renamed can still publish from it.
pub(crate) fn discard(scene: &Scene<'_>, fence: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    for _ in 0..MAX_ROUNDS {
        scene.take(FileStep::Empty, || empty(fence, fence, name, 0))?;
        match scene.attempt(FileStep::Remove, || remove(fence, name)) {
            Err(e) if matches!(errno(&e), Some(Errno::NOTEMPTY | Errno::EXIST)) => {}
            Err(e) => return Err(scene.failed(FileStep::Remove, e)),
            Ok(()) => return Ok(()),
        }
    }
    let message = format!("a lower permit fills up as fast as it is emptied: resource=`{}`; try again", scene.resource);
    Err(Error::new(Kind::Contended, message))
}

/// Removes `name` from the folder `at`, by way of `fence`; what cannot be removed now is left to the next seal. Nobody
/// watches: nothing is decided by it.
pub(crate) fn discard_aside(scene: &Scene<'_>, at: &OwnedFd, name: &str, fence: &OwnedFd) {
    let aside = gone_name();
    if rustix::fs::renameat(at, name, fence, aside.as_str()).is_ok() {
        let _ = discard(&scene.quiet(), fence.as_fd(), OsStr::new(&aside));
    }
}

fn remove(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTDIR) => gone_is_fine(rustix::fs::unlinkat(at, name, AtFlags::empty())),
        answer => gone_is_fine(answer),
    }
}

fn gone_is_fine(answer: rustix::io::Result<()>) -> io::Result<()> {
    match answer.map_err(io::Error::from) {
        Err(e) if vanished(&e) => Ok(()),
        answer => answer,
    }
}

fn empty(fence: BorrowedFd<'_>, at: BorrowedFd<'_>, name: &OsStr, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other("the staged tree is too deep"));
    }
    let opened = match open_folder(at, name) {
        // A tree is staged with the modes it had; a folder that its own owner may not enter must still go.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::empty())?;
            open_folder(at, name)
        }
        answer => answer,
    };
    let directory = match opened.map_err(io::Error::from) {
        Err(e) if vanished(&e) || matches!(errno(&e), Some(Errno::NOTDIR | Errno::LOOP)) => return Ok(()),
        answer => answer?,
    };
    // Between any two calls another may remove it: its handle is then stale over NFS.
    let entries = match Dir::read_from(&directory).map_err(io::Error::from) {
        Err(e) if vanished(&e) => return Ok(()),
        answer => answer?,
    };
    for entry in entries {
        let entry = match entry.map_err(io::Error::from) {
            Err(e) if vanished(&e) => return Ok(()),
            answer => answer?,
        };
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        match empty_entry(fence, directory.as_fd(), entry.file_name(), entry.file_type(), depth) {
            Err(e) if errno(&e) == Some(Errno::ACCESS) => {
                rustix::fs::fchmod(&directory, Mode::RWXU)?;
                empty_entry(fence, directory.as_fd(), entry.file_name(), entry.file_type(), depth)?;
            }
            answer => answer?,
        }
    }
    Ok(())
}

fn empty_entry(fence: BorrowedFd<'_>, at: BorrowedFd<'_>, name: &CStr, kind: FileType, depth: usize) -> io::Result<()> {
    let folder = match kind {
        FileType::Unknown => match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT | Errno::STALE) => return Ok(()),
            stat => FileType::from_raw_mode(stat?.st_mode) == FileType::Directory,
        },
        kind => kind == FileType::Directory,
    };
    if folder {
        let name = OsStr::from_bytes(name.to_bytes());
        empty(fence, at, name, depth + 1)?;
        return match remove(at, name) {
            // Filled again meanwhile: the next round empties it.
            Err(e) if matches!(errno(&e), Some(Errno::NOTEMPTY | Errno::EXIST)) => Ok(()),
            answer => answer,
        };
    }
    // Moved out first: over NFS, unlinking a file that a stopped process of this machine holds open leaves a `.nfs`
    // file in its place, and the directory could not be removed until that process is gone.
    let aside = gone_name();
    match rustix::fs::renameat(at, name, fence, aside.as_str()) {
        Err(Errno::NOENT | Errno::STALE) => Ok(()),
        Err(e) => Err(e.into()),
        Ok(()) => gone_is_fine(rustix::fs::unlinkat(fence, aside.as_str(), AtFlags::empty())),
    }
}
