//! The private folder in which a command finds its payload and leaves its result.
//!
//! Promise: only this user can read it; it goes with its process, and what a process that was killed left goes with the
//! next one's start. Non-promise: a folder that does not say whether its process lives is left alone.

use leasehold_core::{Error, Kind, Nonce, Result};
use leasehold_system::undo::{Mend, undone};
use leasehold_work::backlog::Content;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "leasehold-work-";
/// The file whose flock lasts for as long as its process does.
const ALIVE: &str = "alive";

pub struct WorkFolder {
    path: PathBuf,
    /// Held until the process ends, however it does; the command does not inherit it.
    _alive: File,
}

impl WorkFolder {
    pub fn new() -> Result<Self> {
        const TRIES: u32 = 5;
        let folder = std::env::temp_dir();
        sweep(&folder);
        let mut last = None;
        for _ in 0..TRIES {
            let path = folder.join(format!("{PREFIX}{}", Nonce::random()));
            DirBuilder::new().mode(0o700).create(&path).map_err(|e| cannot(e, &path))?;
            match claim(&path) {
                Ok(alive) => return Ok(WorkFolder { path, _alive: alive }),
                // Another's sweep was faster than the flock.
                Err(error) => last = Some(cannot(error, &path)),
            }
            let _ = std::fs::remove_dir_all(&path);
        }
        Err(last.unwrap_or_else(|| Error::new(Kind::Unavailable, "cannot make a folder for payloads")))
    }

    /// Clears it, and lays out the payload; gives its path. A folder that was removed, as cleaners of temporary files do, is
    /// made anew under another name.
    pub fn prepare(&mut self, payload: &Content) -> Result<PathBuf> {
        if !is_own_folder(&self.path) && !undone(Mend::LaneFolderNotMadeAnew) {
            *self = WorkFolder::new()?;
        }
        for path in [self.result(), self.follow_ups()] {
            let _ = std::fs::remove_file(path);
        }
        let bytes = match payload {
            Content::File(path) => return Ok(path.clone()),
            Content::Bytes(bytes) => bytes,
        };
        let path = self.path.join("payload");
        File::create(&path).and_then(|mut file| file.write_all(bytes)).map_err(|e| cannot(e, &path))?;
        Ok(path)
    }

    pub fn result(&self) -> PathBuf {
        self.path.join("result")
    }

    pub fn follow_ups(&self) -> PathBuf {
        self.path.join("follow-ups")
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Of this user, and not what a link leads to.
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
fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).is_some_and(|n| n.parse::<Nonce>().is_ok());
        if !ours || !is_own_folder(&entry.path()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(alive) = rustix::fs::open(entry.path().join(ALIVE), flags, Mode::empty()) else { continue };
        if flock(&alive, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

pub fn cannot(error: std::io::Error, path: &Path) -> Error {
    Error::new(Kind::Unavailable, format!("cannot use `{}`", path.display())).with_source(error)
}
