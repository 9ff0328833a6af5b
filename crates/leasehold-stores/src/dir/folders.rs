//! The folders above a key's versions, made durable.
//!
//! Promise: a key's first version is linked only when every folder above it is durable,
//! whichever process created it. So a process that sees a version can rely on its folders
//! without a sync of its own. Non-promise: the folders above the store are the user's.

use super::layout;
use leasehold_system::sync::Mutex;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The folders that this process made durable: the store's own, its shelves, and those in which long names continue.
/// They are never removed, so once is enough.
#[derive(Debug, Default)]
pub struct Folders {
    durable: Mutex<HashSet<(u64, u64)>>,
}

impl Folders {
    /// Creates the folder of the store, which must not exist.
    pub fn create(&self, root: &Path) -> io::Result<()> {
        create_durable(root)?;
        self.remember(root)
    }

    /// Creates a shelf if it does not exist. It is durable in either case.
    pub fn make(&self, folder: &Path) -> io::Result<()> {
        make_durable(folder)?;
        self.remember(folder)
    }

    /// For a store's folder that another process created, which may have died before it synced it.
    fn find_root(&self, root: &Path) -> io::Result<()> {
        match sync_folder(above(root)) {
            // Then a process with more rights created it for us.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {}
            other => other?,
        }
        self.remember(root)
    }

    /// Creates the folder of a key that has no version yet, durable with every folder above it. A missing folder above
    /// is created only if a first write creates such folders: a share that is not mounted has none.
    pub fn lead_to(&self, root: &Path, key_folder: &Path) -> io::Result<()> {
        let mut way: Vec<&Path> = key_folder.ancestors().skip(1).take_while(|path| path.starts_with(root)).collect();
        way.reverse();
        for folder in way {
            match fs::metadata(folder) {
                Ok(metadata) if self.is_durable(&metadata) => {}
                Ok(_) if folder == root => self.find_root(root)?,
                Ok(_) => self.make(folder)?,
                Err(e) if e.kind() == ErrorKind::NotFound && may_be_made(folder) => self.make(folder)?,
                Err(e) => return Err(e),
            }
        }
        make_durable(key_folder)
    }

    fn is_durable(&self, metadata: &fs::Metadata) -> bool {
        let durable = self.durable.lock();
        durable.contains(&(metadata.dev(), metadata.ino()))
    }

    fn remember(&self, folder: &Path) -> io::Result<()> {
        let metadata = fs::metadata(folder)?;
        let mut durable = self.durable.lock();
        durable.insert((metadata.dev(), metadata.ino()));
        Ok(())
    }
}

fn may_be_made(folder: &Path) -> bool {
    folder.file_name().and_then(|name| name.to_str()).is_some_and(layout::may_be_made)
}

/// Creates a folder inside an existing one.
fn create_durable(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    sync_folder(above(folder)).inspect_err(|_| {
        // After a failed sync, a second sync of this folder proves nothing, but the sync of a newly created one does.
        let _ = fs::remove_dir(folder);
    })
}

/// The same if the folder does not exist. Even if it does, the folder above is synced: the process that created it may
/// have died before its sync, or not reached it yet.
fn make_durable(folder: &Path) -> io::Result<()> {
    match create_durable(folder) {
        Err(_) if folder.is_dir() => sync_folder(above(folder)),
        other => other,
    }
}

fn above(folder: &Path) -> &Path {
    folder.parent().unwrap_or(folder)
}

/// Makes the folder's entries durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some network file systems have no such call, because their servers write entries at once.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}
