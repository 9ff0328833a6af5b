//! What kind of file system a path is on.
//!
//! Promise: [`Volume::Local`] means that only this kernel writes to the file system, so
//! its timestamps are from this machine's clock and shared memory works there.
//! Non-promise: a folder that a tool copies elsewhere (Dropbox, Syncthing) looks local.

use crate::native;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Who else may write to a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Volume {
    /// Nobody: a disk or the memory of this machine.
    Local,
    /// Other machines: a network or cluster file system of this name.
    Network(&'static str),
    /// Unknown: a program implements it (FUSE), or its kind is not in our list.
    Unknown,
}

/// How a file has more than one name. Files that a program names after it are then not the same for all its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondName {
    /// It has so many hard links.
    Links(u64),
    /// It is a mount point of its own, as with `docker run -v file:/file`, and may also be in use at its source.
    Mount,
}

impl SecondName {
    /// Whether a file has another hard link. Mounts are not checked.
    pub fn by_link(file: &Metadata) -> Option<Self> {
        (file.nlink() > 1).then(|| SecondName::Links(file.nlink()))
    }

    /// Whether a file has another path, or may have one.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let linked = SecondName::by_link(&std::fs::metadata(path)?);
        Ok(linked.or(native::volume::is_mount_point(path)?.then_some(SecondName::Mount)))
    }

    /// What is wrong, and what to do about it.
    pub fn advice(self, path: &Path) -> String {
        let file = path.display();
        match self {
            SecondName::Links(count) => {
                let log = path.with_file_name(format!("{}-wal", path.file_name().unwrap_or_default().display()));
                let keep = match log.exists() {
                    true => format!("keep this one, which has its log beside it ({})", log.display()),
                    false => "remove this one and keep the one that has its log beside it (its name and `-wal`)".into(),
                };
                format!(
                    "{file} has {count} names (hard links), and each would have a log of its own; find the others with `find \
                     FOLDER -samefile {file}`, and {keep}: what was written last is in the log. Use symbolic links instead"
                )
            }
            SecondName::Mount => format!(
                "{file} is mounted as a single file, so the log beside it would not be the one that others use; mount the folder \
                 that it is in instead"
            ),
        }
    }
}

/// The kind of file system of an existing path.
pub fn of(path: &Path) -> io::Result<Volume> {
    native::volume::of(path)
}

/// When a file, or a link itself, was last changed, in milliseconds of the file system's clock. A file server is asked
/// again, even if this machine has cached the answer.
pub fn changed_ms(path: &Path) -> io::Result<u64> {
    let (seconds, nanos) = native::volume::changed(path)?;
    Ok((seconds.max(0) as u64).saturating_mul(1000).saturating_add(u64::from(nanos) / 1_000_000))
}
