//! A lease that is not renewed in time: it is said while there is still time, and who is in the way is ended.
//!
//! SQLite has one writer at a time. One that is stopped in the middle of its commit (SIGSTOP cannot be held back) keeps
//! everybody from renewing, and every run on the machine would be ended for it. So when half of the trust that the last
//! renewal gave is gone, the supervisor looks for such a process, and ends it if it is stopped still at a second look.
//!
//! Promise: at that time it is said, too, what fails, since when, and when the command will be stopped for it; and that it
//! is over, if it is. Only a stopped leasehold of the same user is ended, and it is said. Non-promise: a renewal that goes
//! well at its second try is not worth a word. A process that is frozen, held by a debugger, another user's or in another
//! PID namespace is left alone; then the run is ended in time.

use super::deadlines::Deadlines;
use crate::log;
use crate::output::{rfc3339, rough};
use leasehold_core::Timestamp;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_stores::sqlite::Blocker;
use leasehold_stores::{StoreUrl, blocker};
use leasehold_system::clock::wall_ms;
use leasehold_system::locks::LockHolder;
use leasehold_system::process::own_program;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// The first argument that makes this binary ask who has a database locked. Not for people.
pub const ASK: &str = "__lock-owner";

/// Between two looks at most, and at least.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// How many looks there are at least before the command is told to end.
const LOOKS: u32 = 8;

/// When to warn, and whether that was done.
#[derive(Debug)]
pub struct Renewal {
    deadlines: Deadlines,
    trust_until: Moment,
    /// When trust was given last.
    since: Moment,
    warn_at: Option<Moment>,
    is_told: bool,
}

impl Renewal {
    pub fn new(deadlines: Deadlines, trust_until: Moment) -> Self {
        let since = SystemClock.now();
        Renewal { deadlines, trust_until, since, warn_at: Some(half_way(since, trust_until)), is_told: false }
    }

    /// The lease was renewed.
    pub fn renewed(&mut self, trust_until: Moment) {
        let now = SystemClock.now();
        if self.is_told {
            let (what, away) = (log::subject(), rough(now.saturating_since(self.since)));
            tracing::info!(target: log::SAY, "{what} is renewed again, after {away}");
        }
        *self = Renewal::new(self.deadlines, trust_until);
    }

    /// When to warn, if it is not renewed by then.
    pub fn warn_at(&self) -> Option<Moment> {
        self.warn_at
    }

    /// Warns, with what the last try to renew came to.
    pub fn warn(&mut self, trouble: Option<String>) {
        (self.warn_at, self.is_told) = (None, true);
        let (now, stop_at) = (SystemClock.now(), self.deadlines.term_at(self.trust_until));
        let left = stop_at.saturating_since(now);
        let error = trouble.unwrap_or_else(|| "the store does not answer".into());
        let (what, since) = (log::subject(), wall_time(now, self.since));
        let stop = format!("{} (in {})", wall_time(now, stop_at), rough(left));
        tracing::warn!(
            error,
            "{what} has not been renewed since {since}; unless that succeeds, its command will be stopped at {stop}: {error}"
        );
    }
}

/// When to look, and who was seen.
#[derive(Debug)]
pub struct Rescue {
    store: StoreUrl,
    deadlines: Deadlines,
    trust_until: Moment,
    look_at: Option<Moment>,
    seen: Option<Blocker>,
}

impl Rescue {
    pub fn new(store: StoreUrl, deadlines: Deadlines, trust_until: Moment) -> Self {
        let mut this = Rescue { store, deadlines, trust_until, look_at: None, seen: None };
        this.trusted(trust_until);
        this
    }

    /// The lease was renewed, so nobody blocks the store.
    pub fn trusted(&mut self, trust_until: Moment) {
        let now = SystemClock.now();
        self.trust_until = trust_until;
        self.seen = None;
        // Of the others, none is blocked by a process.
        self.look_at = (self.store.scheme() == "sqlite").then(|| half_way(now, trust_until));
    }

    /// When to look next.
    pub fn look_at(&self) -> Option<Moment> {
        self.look_at
    }

    /// Who was seen to block the store, if it was not ended.
    pub fn blocked(&self) -> Option<String> {
        let who = self.seen.as_ref().map(Blocker::to_string).or_else(|| told(self.store.path()?))?;
        Some(format!("{} is blocked: {who}", self.store))
    }

    /// Looks, and gives what people should know if a process was ended.
    pub fn look(&mut self) -> Option<String> {
        let now = SystemClock.now();
        let left = self.deadlines.term_at(self.trust_until).saturating_since(now);
        let pause = (left / LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.look_at = (now < self.trust_until).then(|| now + pause);
        let found = blocker(&self.store);
        let again = found.as_ref().filter(|found| self.seen.as_ref() == Some(found));
        let ended = again.filter(|found| found.end_if_stopped()).map(|found| {
            format!(
                "ended process {}: it was stopped in the middle of a write to `{}`, and no lease there could be renewed",
                found.pid(),
                self.store
            )
        });
        self.seen = found.filter(|_| ended.is_none());
        ended
    }
}

fn half_way(now: Moment, trust_until: Moment) -> Moment {
    now + trust_until.saturating_since(now) / 2
}

/// What the wall clock shows at a moment, to the second, as it shows the present.
fn wall_time(now: Moment, at: Moment) -> String {
    let ms = |duration: Duration| duration.as_millis() as u64;
    let wall = wall_ms().saturating_add(ms(at.saturating_since(now))).saturating_sub(ms(now.saturating_since(at)));
    rfc3339(Timestamp::from_millis(wall / 1000 * 1000))
}

/// What the lock tells where nobody is seen, found out by another process.
fn told(database: &Path) -> Option<String> {
    let asked =
        Command::new(own_program().ok()?).arg0("leasehold").arg(ASK).arg(database).stdin(Stdio::null()).output();
    let said = String::from_utf8(asked.ok()?.stdout).ok()?;
    (!said.trim().is_empty()).then(|| said.trim().to_owned())
}

/// Runs as that other process, with the arguments after [`ASK`]: prints who has the database locked, if somebody has.
pub fn ask(args: &[OsString]) -> ExitCode {
    let Some(database) = args.first() else { return ExitCode::FAILURE };
    match leasehold_stores::sqlite::ask(Path::new(database)) {
        Ok(LockHolder::Nobody) => {}
        Ok(LockHolder::Process(pid)) => {
            println!("process {pid} has it locked; if it is stopped or frozen, continue or end it")
        }
        Ok(LockHolder::Elsewhere) => println!(
            "a process in another PID namespace, as of another container, has it locked; if it is stopped or frozen, continue or \
             end it there"
        ),
        Err(_) => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}
