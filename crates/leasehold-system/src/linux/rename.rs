//! Renames beyond POSIX, by `renameat2`.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Exchanges two paths in one step: neither is ever missing.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] where the file system cannot do it.
pub fn exchange(a_at: impl AsFd, a: &Path, b_at: impl AsFd, b: &Path) -> io::Result<()> {
    match renameat_with(a_at, a, b_at, b, RenameFlags::EXCHANGE) {
        // File systems that do not support the flag, and kernels without the call.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        answer => Ok(answer?),
    }
}

/// Renames a file to an unused name in one step: it never has two names.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the name is in use, [`io::ErrorKind::Unsupported`] where the file system cannot do it.
pub fn without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        answer => Ok(answer?),
    }
}
