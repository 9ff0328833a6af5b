//! A folder for files that we exchange with a command.
//!
//! All of a user's are in one folder below the temporary folder, which is removed with the last of them. So a search for leftovers
//! does not read other users' files.
//!
//! Promise: only this user can read it; it goes with its process, and what a process that was killed left goes with the
//! next [`sweep`]. Non-promise: a folder with something in it that does not say whether its process lives is left alone.

use leasehold_core::{Error, Kind, Nonce, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "leasehold-run-";
/// The file whose flock lasts for as long as its process does.
const ALIVE: &str = "alive";

/// The folder. Dropped, it is removed.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    /// Held until the process ends, however it does; the command does not inherit it.
    _alive: File,
}

impl PrivateFolder {
    pub fn new() -> Result<Self> {
        const TRIES: u32 = 20;
        let mut last = None;
        for _ in 0..TRIES {
            let path = shared()?.join(format!("{PREFIX}{}", Nonce::random()));
            match DirBuilder::new().mode(0o700).create(&path).and_then(|()| claim(&path)) {
                Ok(alive) => return Ok(PrivateFolder { path, _alive: alive }),
                // Another's sweep was faster than the flock, or it was the last and took the shared folder along.
                Err(error) if error.kind() == ErrorKind::NotFound => last = Some(cannot(error, &path)),
                Err(error) => return Err(cannot(error, &path)),
            }
            let _ = std::fs::remove_dir_all(&path);
        }
        Err(last.unwrap_or_else(|| Error::new(Kind::Unavailable, "cannot make a folder for temporary files")))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether it is still there: of this user, and not what a link leads to.
    pub fn is_there(&self) -> bool {
        is_own_folder(&self.path)
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    // Refused as long as there are others.
    let _ = folder.parent().filter(|parent| **parent == *location()).map(std::fs::remove_dir);
}

/// The folder that all of this user's are in. If another user has taken its name, they are next to it, and nobody
/// searches for their leftovers.
fn shared() -> Result<PathBuf> {
    let path = location();
    match DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => return Ok(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error, &path)),
    }
    let is_anothers = path.symlink_metadata().is_ok() && !is_own_folder(&path);
    Ok(if is_anothers { temporary() } else { path })
}

fn location() -> PathBuf {
    temporary().join(format!("leasehold-{}", rustix::process::geteuid().as_raw()))
}

/// Absolute, whatever the environment says: a command may work in another folder.
fn temporary() -> PathBuf {
    let folder = std::env::temp_dir();
    if folder.is_absolute() { folder } else { PathBuf::from("/tmp") }
}

fn is_own_folder(path: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == me)
}

fn claim(folder: &Path) -> std::io::Result<File> {
    let path = folder.join(ALIVE);
    let file = File::create_new(&path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    // Gone if a sweep came between the two.
    std::fs::symlink_metadata(&path)?;
    Ok(file)
}

/// Removes what this user's dead processes left. Links are not followed, and others' folders are not touched.
pub fn sweep() {
    if !is_own_folder(&location()) {
        return;
    }
    for entry in std::fs::read_dir(location()).into_iter().flatten().flatten() {
        if !is_ours(&entry.file_name()) || !is_own_folder(&entry.path()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(alive) = rustix::fs::open(entry.path().join(ALIVE), flags, Mode::empty()) else {
            // An empty one is left by a process that was killed before it made its lock file. A process that is about to
            // make one makes another folder instead.
            let _ = std::fs::remove_dir(entry.path());
            continue;
        };
        if flock(&alive, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&entry.path());
        }
    }
}

/// Removes the folder that this file is in, if it is such a folder.
pub fn remove_with(file: &Path) {
    let folder =
        file.parent().filter(|folder| is_ours(folder.file_name().unwrap_or_default()) && is_own_folder(folder));
    if let Some(folder) = folder {
        remove(folder);
    }
}

fn is_ours(name: &OsStr) -> bool {
    name.to_str().and_then(|name| name.strip_prefix(PREFIX)).is_some_and(|nonce| nonce.parse::<Nonce>().is_ok())
}

pub fn cannot(error: std::io::Error, path: &Path) -> Error {
    Error::new(Kind::Unavailable, format!("cannot use `{}`", path.display())).with_source(error)
}
