//! What became of a command and of its lease.

use super::Copying;
use leasehold_core::clock::Moment;
use leasehold_core::{Distribution, Grant, format_duration};
use leasehold_work::output::Usage;
use rustix::io::Errno;
use std::process::Child;
use std::time::Duration;

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// It could not be started.
    NotStarted(Trouble),
}

impl Ended {
    /// Whether nothing was run, for a reason that passes.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Ended::NotStarted(trouble) if trouble.is_temporary())
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Exited(code) => write!(f, "exit code {code}"),
            Ended::Killed(signal) => write!(f, "signal {signal}"),
            Ended::NotStarted(trouble) => trouble.fmt(f),
        }
    }
}

/// Why a command could not be started: the system's error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble(pub(super) i32);

impl Trouble {
    /// Whether the next try may go well: the machine was short of something, the program was just being written, or the
    /// lease had run out before it was started.
    pub fn is_temporary(self) -> bool {
        const TEMPORARY: [Errno; 8] = [
            Errno::AGAIN,
            Errno::INTR,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::TIMEDOUT,
            Errno::TXTBSY,
        ];
        TEMPORARY.iter().any(|errno| errno.raw_os_error() == self.0)
    }

    /// The exit code that a shell gives where it does not pass.
    pub fn code(self) -> u8 {
        if self.0 == Errno::NOENT.raw_os_error() { 127 } else { 126 }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Whether the command stayed within `--max-runtime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// It did, or had no limit.
    Kept,
    /// It was stopped for it.
    Exceeded,
}

/// The longest that a command may run.
#[derive(Debug, Clone, Copy)]
pub struct RunLimit {
    pub longest: Duration,
    /// What sets it, as messages have it.
    pub setting: &'static str,
}

/// It, for messages about a command that was stopped for it.
pub fn told_limit(limit: Option<RunLimit>) -> String {
    limit.map_or_else(|| "it may".to_owned(), |limit| limit.to_string())
}

impl std::fmt::Display for RunLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", format_duration(self.longest), self.setting)
    }
}

/// Whether somebody asked the command to finish before it had: an operator by `--drain`, or whoever ends the scheduler that
/// runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The command ended without being asked to.
    No,
    /// It was sent SIGTERM for it.
    ToFinish,
}

/// What became of the command and of the lease.
#[derive(Debug)]
pub struct Finished<G = Grant> {
    /// How the command ended.
    pub ended: Ended,
    /// Whether it was stopped for its run time.
    pub time_limit: TimeLimit,
    /// The longest that it was allowed to run.
    pub run_limit: Option<RunLimit>,
    /// Whether it was asked to finish.
    pub asked: Asked,
    /// Why the lease was lost, if it was.
    pub lost: Option<String>,
    /// Processes that could not be ended: while they live, the lease must not be given back.
    pub survivors: Vec<i32>,
    /// The grant, to be released.
    pub grant: G,
    /// Until when it is trusted.
    pub trust_until: Moment,
    /// How long the store took to answer its renewals.
    pub renewals: Distribution,
    /// From the order to begin until it had ended.
    pub ran_for: Duration,
    /// When it had ended.
    pub ended_at: Moment,
    /// Lines for people, in order.
    pub notes: Vec<String>,
    /// Output that has not arrived yet; to be waited for at the very end.
    pub output: Option<Copying>,
    /// The signal that came before all output had arrived: the rest is lost.
    pub cut: Option<i32>,
    /// What it has used, where the system says so.
    pub usage: Option<Usage>,
    /// The dead-man, which has nothing left to do but to exit; to be waited for once the lease is released.
    pub dead_man: Child,
}
