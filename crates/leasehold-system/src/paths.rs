//! The folder for this user's lasting files.

use crate::native;
use std::io;
use std::path::PathBuf;

/// The folder for Leasehold's own state. It need not exist yet.
pub fn state_dir() -> io::Result<PathBuf> {
    native::volume::state_dir(&|name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute()))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "`HOME` is not set to an absolute path"))
}
