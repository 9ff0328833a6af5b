//! Exit codes: one table, which docs/exit-codes.md repeats and a test compares.

use crate::output::OutputFailed;
use leasehold_core::{Error, Kind};
use std::process::ExitCode;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked.
    Done,
    /// `acquire`: somebody else holds it.
    Held,
    /// `renew`, `progress`, `release`, `gate`: the lease was already lost.
    Lost,
    /// A guard refused a stale write.
    Fenced,
    /// The input is wrong.
    Usage,
    /// What was read back is damaged, or the store went back in time: call a person.
    Corrupt,
    /// The store could not be reached or written, and surely nothing was applied.
    Unavailable,
    /// No answer came: perhaps applied, perhaps not.
    Unknown,
    /// It was done, but could not be reported: standard output did not take what there was to print, or the store not how a run
    /// ended.
    Unreported,
    /// `run`: the lease was lost while the command ran.
    LostInRun,
    /// This set-up cannot do it.
    Misconfigured,
    /// `run`, `gate`: the command's own code, or one that the user chose.
    Code(u8),
    /// `run` in a terminal: a key ended the command by this signal, and a shell that sees us end by it too ends its loop.
    /// `push`, `drill`: it ended us.
    Signal(u8),
}

/// Code, name and meaning of every exit that is leasehold's own.
pub const TABLE: &[(Exit, &str)] = &[
    (
        Exit::Done,
        "done; in `run` also: skipped, because somebody else holds the lease or its flock, it is paused, its slot already ran or \
         is too old, it ran within --min-interval, or `--wait` ran out (set another with --held-exit-code)",
    ),
    (
        Exit::Held,
        "`acquire`, `schedule trigger`, `run --dry-run`: somebody else holds the lease, or it is paused; `migrate`: leases or queue items are held",
    ),
    (
        Exit::Lost,
        "`renew`, `release`, `progress`, `gate`: the lease or item is no longer held; `hand-off`: it was carried out, but is over; `write` and other guards: it was released, or has expired (--strict)",
    ),
    (
        Exit::Fenced,
        "a guard refused a stale write, or an operator's order was decided on another epoch (--if-epoch); nothing was changed",
    ),
    (Exit::Usage, "the input is wrong; nothing was done"),
    (Exit::Corrupt, "what was read back is damaged, or the store went back in time: call a person"),
    (
        Exit::Unavailable,
        "the store or resource could not be reached or written, and surely nothing was applied: try again",
    ),
    (Exit::Unknown, "no answer came: perhaps it was applied, perhaps not; look before trying again"),
    (
        Exit::Unreported,
        "it was done, but its output could not be written to standard output; `run`, `work --items`: the end could not be \
         recorded in the store, so it may be run again",
    ),
    (Exit::LostInRun, "`run`: the lease was lost while the command ran, and the command was stopped"),
    (
        Exit::Misconfigured,
        "this set-up cannot do it: unsupported or misconfigured, or the lease or queue has moved to another store; for `drill`, that a stale write got through",
    ),
];

impl Exit {
    /// As a shell shows a command that this signal ended.
    pub fn by_signal(number: i32) -> Self {
        Exit::Code(128_u8.saturating_add(u8::try_from(number).unwrap_or(0)))
    }

    /// As the operating system gets it.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Held => 11,
            Exit::Lost => 12,
            Exit::Fenced => 13,
            Exit::Usage => 64,
            Exit::Corrupt => 65,
            Exit::Unavailable => 69,
            Exit::Unknown => 70,
            Exit::Unreported => 74,
            Exit::LostInRun => 75,
            Exit::Misconfigured => 78,
            Exit::Code(code) => code,
            Exit::Signal(number) => 128_u8.saturating_add(number),
        }
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Exit {
        if std::error::Error::source(error).is_some_and(|cause| cause.is::<OutputFailed>()) {
            return Exit::Unreported;
        }
        match error.kind() {
            Kind::Lost => Exit::Lost,
            Kind::Fenced => Exit::Fenced,
            Kind::Invalid => Exit::Usage,
            Kind::Unsupported | Kind::Moved => Exit::Misconfigured,
            Kind::Indeterminate => Exit::Unknown,
            Kind::Corrupt | Kind::Regressed => Exit::Corrupt,
            _ => Exit::Unavailable,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
