//! Permissions in a spool that several users share.
//!
//! Promise: whatever leasehold creates in a spool can be used by everybody who may write in the spool's own folder,
//! whatever the umask of its creator: the folder's group and mode say who shares it. Bits are only added, and group
//! bits only to files of that group (the setgid bit of the folders ensures that). Non-promise: files that shells put
//! there have the modes of their umask; access control lists are not read, but the system enforces them.

use super::folder::{FOLDERS, Spool};
use leasehold_core::{Error, Kind, Remedy, Result};
use rustix::fs::{Access, access};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

pub(super) const GROUP_WRITES: u32 = 0o020;
pub(super) const OTHERS_WRITE: u32 = 0o002;
pub(super) const SETGID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;

/// Who shares the spool, according to its own folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    group: u32,
    mode: u32,
}

impl Rights {
    pub fn of(root: &fs::Metadata) -> Self {
        Rights { group: root.gid(), mode: root.mode() }
    }

    /// The bits that a file or folder of this group needs in addition to its own.
    fn missing(self, of: &fs::Metadata) -> u32 {
        let each = if of.is_dir() { 7 } else { 6 };
        let mut bits = 0;
        if self.mode & GROUP_WRITES != 0 && of.gid() == self.group {
            bits |= each << 3;
            if of.is_dir() {
                bits |= self.mode & SETGID;
            }
        }
        if self.mode & OTHERS_WRITE != 0 {
            bits |= each;
        }
        bits & !of.mode()
    }

    /// Opens what this process has just created to everybody who shares the spool.
    pub fn share(self, made: &File) -> io::Result<()> {
        let metadata = made.metadata()?;
        match self.missing(&metadata) {
            0 => Ok(()),
            bits => made.set_permissions(fs::Permissions::from_mode((metadata.mode() | bits) & 0o7777)),
        }
    }
}

/// Whether this user may list a folder, and create, move and remove its entries.
pub(super) fn may_use(folder: &Path) -> bool {
    access(folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Whether only the owner of a file, or of the folder, may move the file out of this folder.
pub(super) fn is_sticky(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|m| m.mode() & STICKY != 0)
}

impl Spool {
    /// Refuses a worker that could claim but not complete: its commands would run for nothing.
    pub(super) fn check_rights(&self) -> Result<()> {
        // Only operators move files there.
        for folder in FOLDERS.iter().filter(|folder| **folder != "cancelled") {
            let path = self.path(folder);
            if !may_use(&path) {
                let message = format!(
                    "a worker must be able to read and write {}, and this user may not; nothing was claimed",
                    path.display()
                );
                let remedy = Remedy::ExamineSpool { path: Some(self.root().to_owned()) };
                return Err(Error::new(Kind::Unsupported, message).with_remedy(remedy));
            }
        }
        Ok(())
    }
}
