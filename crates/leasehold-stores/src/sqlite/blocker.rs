//! The process that has a database locked, and keeps all others from writing.

use leasehold_system::locks::{self, LockHolder, Owner, State};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The bytes of the `-shm` file that are locked by the writer, while the index is rebuilt, and by the first process
/// that opens the file (SQLite's `walLockExclusive` and `unixLockSharedMemory`).
const INDEX_BYTES: [RangeInclusive<u64>; 3] = [120..=120, 122..=122, 128..=128];
/// The bytes of the database that are locked while it is switched to WAL, or closed by its last user.
const DATABASE_BYTES: [RangeInclusive<u64>; 1] = [0x4000_0000..=0x4000_01ff];

/// The process that has a database locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    owner: Owner,
    path: PathBuf,
}

/// The process that has this database locked; none if none is visible.
pub fn blocker(path: &Path) -> Option<Blocker> {
    let (file, index) = files(path).ok()?;
    let owner = locks::owner(&index, &INDEX_BYTES).or_else(|| locks::owner(&file, &DATABASE_BYTES))?;
    Some(Blocker { owner, path: path.to_owned() })
}

/// Asks the kernel which process has this database locked, for when [`blocker`] sees none. Call it only in a separate
/// process that never opens the database: the caller's own locks would be dropped.
pub fn ask(path: &Path) -> io::Result<LockHolder> {
    let (file, index) = files(path)?;
    match locks::ask(&index, &INDEX_BYTES)? {
        LockHolder::Nobody => locks::ask(&file, &DATABASE_BYTES),
        told => Ok(told),
    }
}

/// The database and the index of its log. SQLite resolves links before it names these files.
fn files(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let file = path.canonicalize()?;
    let mut index = OsString::from(&file);
    index.push("-shm");
    Ok((file, index.into()))
}

impl Blocker {
    /// Kills the process, if it is stopped during its write, belongs to this user and runs this program. Returns
    /// whether it did. The interrupted write is lost.
    pub fn end_if_stopped(&self) -> bool {
        self.owner.end_if_stopped(|| blocker(&self.path).as_ref() == Some(self))
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.owner.pid()
    }
}

/// Which process it is, its state, and what to do about it.
impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, pid) = (&self.owner, self.owner.pid());
        if owner.is_us() {
            return write!(f, "another part of this process is writing; try again");
        }
        match owner.state() {
            State::Stopped => write!(
                f,
                "{owner} is stopped in the middle of a write: continue it with `kill -CONT {pid}`, or end it with `kill -KILL {pid}`"
            ),
            State::Traced => {
                write!(f, "{owner} is held by a debugger in the middle of a write: let it continue, or end it")
            }
            State::Running => write!(
                f,
                "{owner} is in the middle of a write; try again, and if that persists see whether it is frozen or its disk does not answer"
            ),
        }
    }
}
