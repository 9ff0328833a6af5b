//! Renames beyond POSIX, by `renameatx_np`.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Lets two paths change places in one step: nobody ever sees either missing.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] where the file system cannot do it (APFS can, network and FAT volumes cannot).
pub fn exchange(a_at: impl AsFd, a: &Path, b_at: impl AsFd, b: &Path) -> io::Result<()> {
    match renameat_with(a_at, a, b_at, b, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        answer => Ok(answer?),
    }
}

/// Gives a file a name that nobody has, in one step: it never has two.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if somebody has it, [`io::ErrorKind::Unsupported`] where the file system cannot do it.
pub fn without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        answer => Ok(answer?),
    }
}
