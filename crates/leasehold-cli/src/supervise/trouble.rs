//! Why a command could not be started.

use rustix::io::Errno;
use std::fmt;

/// The system's error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble(pub(super) i32);

impl Trouble {
    /// Whether the next try may go well: the machine was short of something, the program was just being written, or the
    /// lease had run out before it was started.
    pub fn passes(self) -> bool {
        const PASSING: [Errno; 8] = [
            Errno::AGAIN,
            Errno::INTR,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::TIMEDOUT,
            Errno::TXTBSY,
        ];
        PASSING.iter().any(|errno| errno.raw_os_error() == self.0)
    }

    /// The exit code that a shell gives where it does not pass.
    pub fn code(self) -> u8 {
        if self.0 == Errno::NOENT.raw_os_error() { 127 } else { 126 }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}
