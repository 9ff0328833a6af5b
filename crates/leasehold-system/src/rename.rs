//! Renames beyond POSIX: `renameat2` on Linux, `renameatx_np` on macOS.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// The answers of file systems that do not support the flag, and of kernels without the call.
const UNSUPPORTED: [Errno; 4] = [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP];

/// Exchanges two paths in one step: neither is ever missing.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] where the file system cannot do it: APFS can, network and FAT volumes of macOS cannot.
pub fn exchange(a_at: impl AsFd, a: &Path, b_at: impl AsFd, b: &Path) -> io::Result<()> {
    answered(renameat_with(a_at, a, b_at, b, RenameFlags::EXCHANGE))
}

/// Renames a file to an unused name in one step: it never has two names.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the name is in use, [`io::ErrorKind::Unsupported`] where the file system cannot do it.
pub fn without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    answered(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE))
}

fn answered(answer: rustix::io::Result<()>) -> io::Result<()> {
    match answer {
        Err(errno) if UNSUPPORTED.contains(&errno) => Err(io::ErrorKind::Unsupported.into()),
        answer => Ok(answer?),
    }
}
