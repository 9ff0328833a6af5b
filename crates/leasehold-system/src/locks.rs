//! Which process holds a lock on a part of a file (POSIX record locks).
//!
//! Promise: [`Owner::end_if_stopped`] ends a process only if it has the same user and the same program, is stopped but
//! not by a debugger, and still has the lock; never another process that got its id. Non-promise: [`owner`] does not
//! see processes in other PID namespaces, and none at all on macOS. There [`ask`] helps, in a process that does not use
//! the file: closing a descriptor drops all locks that its process has on the file.

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
    /// Clock ticks after boot. Tells it from a later process with the same id.
    pub(crate) started: u64,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It runs, or waits for something.
    Running,
    /// It was stopped by a signal and waits to be continued.
    Stopped,
    /// A debugger traces it.
    Traced,
}

impl Owner {
    /// Its process id.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Its state when it was looked at.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether it is this process.
    pub fn is_us(&self) -> bool {
        self.pid.cast_unsigned() == std::process::id()
    }

    /// Kills it, if it belongs to this user, runs this program, is stopped and not traced, and `still_owns` is true
    /// after these checks. Returns whether it was killed.
    pub fn end_if_stopped(&self, still_owns: impl FnOnce() -> bool) -> bool {
        self.state == State::Stopped && !self.is_us() && native::end_if_stopped(self, still_owns)
    }
}

/// For example `process 4242 (leasehold)`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// The process that has one of these bytes of a file locked exclusively; none if none is visible.
pub fn owner(file: &Path, bytes: &[RangeInclusive<u64>]) -> Option<Owner> {
    native::owner(file, bytes)
}

/// The kernel's answer about a lock's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockHolder {
    /// No process has it.
    Nobody,
    /// A process with this id.
    Process(i32),
    /// A process without an id here: it is in another PID namespace, such as another container.
    Elsewhere,
}

/// Asks the kernel which process has one of these bytes of a file locked exclusively. Never call it in a process that
/// has locks on the file: they would be dropped.
pub fn ask(file: &Path, bytes: &[RangeInclusive<u64>]) -> io::Result<LockHolder> {
    let file = File::open(file)?;
    for range in bytes {
        let length = range.end() - range.start() + 1;
        // The lock that a reader would wait for.
        let wanted = Flock { start: *range.start(), length, ..Flock::from(FlockType::ReadLock) };
        match rustix::process::fcntl_getlk(&file, &wanted)? {
            Some(Flock { pid: Some(pid), .. }) => return Ok(LockHolder::Process(pid.as_raw_nonzero().get())),
            Some(_) => return Ok(LockHolder::Elsewhere),
            None => {}
        }
    }
    Ok(LockHolder::Nobody)
}
