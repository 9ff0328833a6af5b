//! Who may do what in a spool that several users share.
//!
//! Promise: whatever leasehold makes in a spool can be used by everybody who may write in the spool's own folder, whatever
//! the umask of its maker: the folder's group and mode say who shares it. Bits are added, never taken away, and the group's
//! only to what belongs to that group (the setgid bit of the folders sees to that). Non-promise: files that shells put there
//! have the modes that their umask gave them; access control lists are not looked at, but the system heeds them.

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

/// What the spool's own folder says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    group: u32,
    mode: u32,
}

impl Rights {
    pub fn of(root: &fs::Metadata) -> Self {
        Rights { group: root.gid(), mode: root.mode() }
    }

    /// The bits that a file or folder of this group needs beside its own.
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

    /// Opens what this process has just made to everybody who shares the spool.
    pub fn share(self, made: &File) -> io::Result<()> {
        let metadata = made.metadata()?;
        match self.missing(&metadata) {
            0 => Ok(()),
            bits => made.set_permissions(fs::Permissions::from_mode((metadata.mode() | bits) & 0o7777)),
        }
    }
}

/// Whether this user may list a folder, and make, move and remove what is in it.
pub(super) fn may_use(folder: &Path) -> bool {
    access(folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Whether only a file's owner, and the folder's, may move a file out of this folder.
pub(super) fn is_sticky(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|m| m.mode() & STICKY != 0)
}

impl Spool {
    /// Refuses a worker that could claim and not complete: its commands would run for nothing.
    pub(super) fn check_rights(&self) -> Result<()> {
        // Only operators move anything there.
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
