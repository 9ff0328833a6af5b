//! The process that has a database locked, and keeps everybody else from writing.

use leasehold_system::locks::{self, Owner, State, Told};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The bytes of the `-shm` file that are locked by the one writer, by whoever rebuilds the index, and by whoever opens the
/// file first (SQLite's `walLockExclusive` and `unixLockSharedMemory`).
const INDEX_BYTES: [RangeInclusive<u64>; 3] = [120..=120, 122..=122, 128..=128];
/// The bytes of the database itself that are locked while it is turned to WAL, or closed by its last user.
const DATABASE_BYTES: [RangeInclusive<u64>; 1] = [0x4000_0000..=0x4000_01ff];

/// Somebody who has a database locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    owner: Owner,
    path: PathBuf,
}

/// Who has this database locked; none if nobody is seen to.
pub fn blocker(path: &Path) -> Option<Blocker> {
    let (file, index) = files(path).ok()?;
    let owner = locks::owner(&index, &INDEX_BYTES).or_else(|| locks::owner(&file, &DATABASE_BYTES))?;
    Some(Blocker { owner, path: path.to_owned() })
}

/// Asks the locks themselves who has this database locked, which tells where [`blocker`] sees nobody. Only in a process of
/// its own, which never opens the database: the locks of the asking process would be gone.
pub fn ask(path: &Path) -> io::Result<Told> {
    let (file, index) = files(path)?;
    match locks::ask(&index, &INDEX_BYTES)? {
        Told::Nobody => locks::ask(&file, &DATABASE_BYTES),
        told => Ok(told),
    }
}

/// The database and the index of its log. SQLite follows links before it names what is beside the file.
fn files(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let file = path.canonicalize()?;
    let mut index = OsString::from(&file);
    index.push("-shm");
    Ok((file, index.into()))
}

impl Blocker {
    /// Kills the process, if it is stopped in the middle of its write and is this user's own leasehold (any program that is
    /// the same as this one); says whether it did. What it was writing is not written.
    pub fn end_if_stopped(&self) -> bool {
        self.owner.end_if_stopped(|| blocker(&self.path).as_ref() == Some(self))
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.owner.pid()
    }
}

/// Who it is, what it does, and what to do about it.
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
                write!(f, "{owner} is held by a debugger in the middle of a write: let it go on, or end it")
            }
            State::Running => write!(
                f,
                "{owner} is in the middle of a write; try again, and if that goes on see whether it is frozen or its disk does not answer"
            ),
        }
    }
}
