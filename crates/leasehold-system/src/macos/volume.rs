//! File systems, local or not according to the kernel, and the folders that Apple prescribes.

use crate::volume::Volume;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `MNT_LOCAL` of sys/mount.h: the file system is stored on this machine.
const LOCAL: u32 = 0x1000;

pub(crate) fn of(path: &Path) -> io::Result<Volume> {
    let flags = rustix::fs::statfs(path)?.f_flags;
    Ok(if flags & LOCAL != 0 { Volume::Local } else { Volume::Network("network") })
}

pub(crate) fn changed(path: &Path) -> io::Result<(i64, u32)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.ctime(), u32::try_from(found.ctime_nsec()).unwrap_or(0)))
}

/// Darwin mounts file systems on folders only.
pub(crate) fn is_mount_point(_file: &Path) -> io::Result<bool> {
    Ok(false)
}

pub(crate) fn state_dir(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    variable("HOME").map(|home| home.join("Library/Application Support/leasehold"))
}
