//! Who has a part of a file locked against everybody else (POSIX record locks).
//!
//! Promise: [`Owner::end_if_stopped`] ends a process only if it is ours to end: the same user, the same program, stopped and
//! not by a debugger, and still the owner; never one that was merely given its number. Non-promise: [`owner`] finds none that
//! this system does not show, as one in another PID namespace, and none at all on macOS. There [`ask`] tells, in a process
//! that has nothing to do with the file: closing a descriptor drops all locks that its process has on the file.

use crate::native::locks as native;
use rustix::process::{Flock, FlockType};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

/// A process that has a part of a file locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub(crate) pid: i32,
    /// The program's short name.
    pub(crate) name: String,
    pub(crate) state: State,
    /// Clock ticks after boot: tells it from a later process of the same number.
    pub(crate) started: u64,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It runs, or waits for something.
    Running,
    /// It was stopped by a signal and waits to be continued.
    Stopped,
    /// A debugger has it.
    Traced,
}

impl Owner {
    /// Its number.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// What it did when it was looked at.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether it is this very process.
    pub fn is_us(&self) -> bool {
        self.pid.cast_unsigned() == std::process::id()
    }

    /// Kills it, if it is this user's, runs this very program, is stopped and not traced, and if `still_owns` it after all
    /// that was found. Says whether it was killed.
    pub fn end_if_stopped(&self, still_owns: impl FnOnce() -> bool) -> bool {
        self.state == State::Stopped && !self.is_us() && native::end_if_stopped(self, still_owns)
    }
}

/// As in `process 4242 (leasehold)`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// Who has one of these bytes of a file locked for itself alone; none if nobody is seen to.
pub fn owner(file: &Path, bytes: &[RangeInclusive<u64>]) -> Option<Owner> {
    native::owner(file, bytes)
}

/// What the lock itself tells of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Nobody has it.
    Nobody,
    /// A process of this number.
    Process(i32),
    /// A process that has no number here: it is in another PID namespace, as in another container.
    Elsewhere,
}

/// Asks the locks of a file who has one of these bytes locked for itself alone. Never in a process that has locks on the
/// file: they would be gone.
pub fn ask(file: &Path, bytes: &[RangeInclusive<u64>]) -> io::Result<Told> {
    let file = File::open(file)?;
    for range in bytes {
        let length = range.end() - range.start() + 1;
        // What a reader would wait for.
        let wanted = Flock { start: *range.start(), length, ..Flock::from(FlockType::ReadLock) };
        match rustix::process::fcntl_getlk(&file, &wanted)? {
            Some(Flock { pid: Some(pid), .. }) => return Ok(Told::Process(pid.as_raw_nonzero().get())),
            Some(_) => return Ok(Told::Elsewhere),
            None => {}
        }
    }
    Ok(Told::Nobody)
}
