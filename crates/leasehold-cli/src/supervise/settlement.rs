//! The end of work under a lease or an item: what is made of it, one table, and telling the store, which may be away.
//!
//! Nobody renews meanwhile: an end is a write of the same record as a renewal, so where one would be answered the other is.
//!
//! Promise: it is tried until the store has answered, for as long as the lease or the item is trusted; then, or when a
//! signal comes, it is given up, and people are told that it is not recorded. Non-promise: that it was not applied. An
//! attempt without an answer may have been.

use super::{Asked, Ended, Finished, TimeLimit, told_limit};
use crate::exit::Exit;
use crate::output::rough;
use crate::{log, output};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{
    Coordinator, Distribution, EndedRun, Epoch, Error, Event, Kind, LeaseName, Outcome, Result, Slot, format_duration,
};
use leasehold_system::undo::{Fix, is_disabled};
use leasehold_work::output::Usage;
use leasehold_work::schedule::{EndReason, Fate, Journals, RunEnd};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

/// How long the bookkeeping after the command may take when the store does not answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long the telling may take where trust ends sooner, and how long an attempt that is under way has when a signal
/// comes: most stores answer well within it.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Between two attempts, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Of a command that `--max-runtime` cut off, whatever else happened then.
const CUT_OFF: Exit = Exit::Code(124);
/// A store that is back by then is not worth a word.
const QUIET: Duration = Duration::from_millis(500);

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Succeeded,
    Failed,
    /// Nothing was run, for a reason that passes: its slot stays open.
    NotStarted,
    /// It was asked to finish, and ended before its work was done: its slot stays open.
    Drained,
    /// The lease was lost while it ran.
    Lost,
    /// The lease was lost before it ran.
    LostUnstarted,
}

impl Verdict {
    /// Of a command that ended while its lease was held.
    pub fn of(ended: &Ended, time_limit: TimeLimit, asked: Asked) -> Self {
        match (ended, time_limit, asked) {
            (ended, ..) if ended.is_temporary() => Verdict::NotStarted,
            (Ended::Exited(0), TimeLimit::Kept, _) => Verdict::Succeeded,
            // Whether it was too slow in finishing or not, it would have gone on.
            (Ended::Exited(_) | Ended::Killed(_), _, Asked::ToFinish) => Verdict::Drained,
            _ => Verdict::Failed,
        }
    }

    /// Of a run that could not be begun because of an error of this kind.
    pub const fn of_error(kind: Kind) -> Self {
        if is_temporary(kind) { Verdict::NotStarted } else { Verdict::Failed }
    }

    /// Of our own `run`, if it ended with this code before it took its lease up: what it was told to run is wrong here, or
    /// the next try may go well. None for every other code.
    pub fn of_refusal(code: i32) -> Option<Self> {
        let is = |exit: Exit| i32::from(exit.code()) == code;
        match code {
            _ if is(Exit::Usage) || is(Exit::Misconfigured) => Some(Verdict::Failed),
            _ if is(Exit::Unavailable) => Some(Verdict::NotStarted),
            _ => None,
        }
    }

    /// The same, when the lease was lost.
    #[must_use]
    pub const fn lost(self) -> Self {
        if let Verdict::NotStarted | Verdict::LostUnstarted = self { Verdict::LostUnstarted } else { Verdict::Lost }
    }

    /// The table: how the lease is released, what the journal says of the slot, and what is counted.
    pub const fn row(self) -> (Outcome, Fate, Option<Event>) {
        match self {
            Verdict::Succeeded => (Outcome::Succeeded, Fate::Succeeded, Some(Event::Succeeded)),
            Verdict::Failed => (Outcome::Failed, Fate::Failed, Some(Event::Failed)),
            Verdict::NotStarted => (Outcome::NotStarted, Fate::NotStarted, None),
            Verdict::Drained => (Outcome::Drained, Fate::Drained, Some(Event::Drained)),
            Verdict::Lost => (Outcome::Lost, Fate::Lost, Some(Event::Lost)),
            Verdict::LostUnstarted => (Outcome::NotStarted, Fate::NotStarted, Some(Event::Lost)),
        }
    }

    /// Writes it into the journal of a scheduled job, and counts it.
    pub async fn note(self, coordinator: &Coordinator, lease: &LeaseName, run: Noted) {
        let Noted { slot, epoch, exit, ran_for_ms, tries, renewals, usage, output, why } = run;
        let (_, fate, event) = self.row();
        if let Some(slot) = slot {
            let is_known = fate.is_final() || fate == Fate::Drained;
            let why = why.map(|why| EndReason::lossy(&why, "-"));
            let end = RunEnd { fate, exit: exit.filter(|_| is_known), ran_for_ms, tries, usage, output, why };
            let journals = Journals::new(coordinator.clone());
            let _ = tokio::time::timeout(PATIENCE, journals.end(lease, slot, epoch, end)).await;
        }
        if event.is_some() {
            let is_started = !matches!(self, Verdict::NotStarted | Verdict::LostUnstarted) && ran_for_ms > 0;
            let took = is_started.then(|| Duration::from_millis(ran_for_ms));
            let ended = EndedRun { event, epoch: Some(epoch), took, renewals };
            let _ = tokio::time::timeout(PATIENCE, coordinator.count_run(lease, &ended)).await;
        }
    }
}

/// What is written down of a run, besides its verdict.
#[derive(Debug, Clone)]
pub struct Noted {
    /// None for what is on no schedule.
    pub slot: Option<Slot>,
    pub epoch: Epoch,
    pub exit: Option<u8>,
    /// Nothing if it was refused before it ran.
    pub ran_for_ms: u64,
    pub tries: u32,
    /// How long the store took to answer its renewals.
    pub renewals: Distribution,
    pub usage: Option<Usage>,
    /// The record with the end of its output.
    pub output: Option<LeaseName>,
    /// Why it did not end by itself, or could not be started.
    pub why: Option<String>,
}

/// Logs how a run under a lease ended. That it was lost has been told.
pub fn log_end(verdict: Verdict, exit_code: Option<u8>, ran_for_ms: u64, tries: u32) {
    if !tracing::event_enabled!(target: log::RUNS, tracing::Level::WARN) {
        // Nor is what is less than a warning.
        return;
    }
    let what = log::subject();
    let (outcome, duration_ms, ran) = (verdict.row().1.as_str(), ran_for_ms, rough(Duration::from_millis(ran_for_ms)));
    let tried = if tries > 1 { format!(", at try {tries}") } else { String::new() };
    let code = exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
    match verdict {
        Verdict::Succeeded => {
            tracing::info!(target: log::RUNS, outcome, duration_ms, exit_code, "{what} succeeded after {ran}{tried}");
        }
        Verdict::Failed => {
            tracing::warn!(target: log::RUNS, outcome, duration_ms, exit_code, "{what} failed{code} after {ran}{tried}");
        }
        Verdict::Drained => {
            tracing::info!(
                target: log::RUNS, outcome, duration_ms, exit_code,
                "{what} was asked to finish and ended before it was done{code}, after {ran}{tried}"
            );
        }
        Verdict::NotStarted => {
            tracing::warn!(target: log::RUNS, outcome, exit_code, "{what} was not started; it may be tried again");
        }
        Verdict::Lost | Verdict::LostUnstarted => {}
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Settlement {
    pub verdict: Verdict,
    pub exit: Exit,
    pub ended: Ended,
    /// Whether the end is recorded in the store or the queue.
    pub is_recorded: bool,
    /// What it has used, where the system says so.
    pub usage: Option<Usage>,
    /// Why it was ended, if it did not end by itself.
    pub why: Option<String>,
}

/// Ends a run: tells the store by `record`, and people what they should know. `record` gives why the lease or item is lost,
/// if it finds that it is. `stop` ends the waiting for a store that is away.
pub async fn settle<G>(
    finished: Finished<G>,
    name: &str,
    program: &OsStr,
    stop: impl Future<Output = ()>,
    mut record: impl AsyncFnMut(&G, Verdict) -> Result<Option<String>>,
) -> Settlement {
    let Finished {
        ended,
        time_limit,
        run_limit,
        asked,
        lost,
        survivors,
        grant,
        trust_until,
        notes,
        ran_for,
        usage,
        mut dead_man,
        ..
    } = finished;
    notes.iter().for_each(|note| output::warn(note));
    let held = Verdict::of(&ended, time_limit, asked);
    let verdict = if lost.is_some() { held.lost() } else { held };
    let told = if survivors.is_empty() {
        let telling = tell(name, trust_until, stop, async || record(&grant, verdict).await);
        // A lease that is lost is released only if that can be done at once.
        let told = match &lost {
            None => telling.await,
            Some(_) => tokio::time::timeout(PATIENCE, telling).await.unwrap_or(Ok(None)).or(Ok(None)),
        };
        let _ = dead_man.wait();
        told
    } else {
        tracing::warn!(
            "these processes could not be ended, they are another user's or wait for a disk: {survivors:?}; {name} is not \
             released, it expires by itself"
        );
        Ok(None)
    };
    let stopped = if survivors.is_empty() { "the command was stopped" } else { "the command was not stopped" };
    let (lost, unrecorded) = match (lost, told) {
        (Some(why), _) => (Some((format!(", {stopped}: {why}"), why)), None),
        (None, Ok(found)) => (found.map(|why| (format!(": {why}"), why)), None),
        (None, Err(why)) => (None, Some(why)),
    };
    if let Some((lost, why)) = lost {
        let exit = if time_limit == TimeLimit::Exceeded { CUT_OFF } else { Exit::LostInRun };
        let (outcome, duration_ms) = (verdict.lost().row().1.as_str(), ran_for.as_millis() as u64);
        tracing::warn!(outcome, duration_ms, exit_code = exit.code(), "lost {name}{lost}");
        return Settlement { verdict: verdict.lost(), exit, ended, is_recorded: true, usage, why: Some(why) };
    }
    let exit = own_exit(&ended, time_limit, program);
    let ended_why = match &ended {
        Ended::NotStarted(trouble) => Some(format!("cannot start `{}`: {trouble}", program.display())),
        _ => (time_limit == TimeLimit::Exceeded).then(|| format!("it ran for longer than {}", told_limit(run_limit))),
    };
    let Some(why) = unrecorded else {
        return Settlement { verdict, exit, ended, is_recorded: true, usage, why: ended_why };
    };
    // A command that failed keeps its own code.
    let (how, exit) = match exit.code() {
        0 => ("is done".to_owned(), Exit::Unreported),
        code => (format!("ended with exit code {code}"), exit),
    };
    let (outcome, duration_ms) = (verdict.row().1.as_str(), ran_for.as_millis() as u64);
    tracing::warn!(
        outcome,
        duration_ms,
        exit_code = exit.code(),
        error = why,
        "not recorded: {name}: the command {how}, but the store could not be told; it expires by itself, and what it was run \
         for may be run again: {why}"
    );
    Settlement { verdict, exit, ended, is_recorded: false, usage, why: ended_why }
}

/// The command's own exit code, as a shell would show it.
pub fn own_exit(ended: &Ended, time_limit: TimeLimit, program: &OsStr) -> Exit {
    match ended {
        // As timeout(1) does: a command that was cut off has not succeeded, however it says it ended.
        Ended::Exited(_) | Ended::Killed(_) if time_limit == TimeLimit::Exceeded => CUT_OFF,
        Ended::Exited(code) => Exit::Code(u8::try_from(code & 0xff).unwrap_or(1)),
        Ended::Killed(signal @ (2 | 3)) if std::io::stdin().is_terminal() => Exit::Signal(*signal as u8),
        Ended::Killed(signal) => Exit::by_signal(*signal),
        Ended::NotStarted(trouble) => {
            output::complain(&format!("cannot run `{}`: {trouble}", program.to_string_lossy()));
            if trouble.is_temporary() { Exit::Unavailable } else { Exit::Code(trouble.code()) }
        }
    }
}

/// Retries until the end is recorded, or returns why it could not be. `stop` ends the waiting.
async fn tell<T>(
    name: &str,
    trust_until: Moment,
    stop: impl Future<Output = ()>,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T, String> {
    let until = trust_until.max(SystemClock.now() + LAST_WORD);
    let begun = SystemClock.now();
    let (mut stop, mut is_stopped, mut is_quiet, mut pause) = (pin!(stop), false, true, FIRST_PAUSE);
    let mut trouble: Option<Error> = None;
    loop {
        let attempted = {
            let mut attempting = pin!(attempt());
            tokio::select! {
                biased;
                attempted = &mut attempting => Some(attempted),
                () = SystemClock.sleep_until(until) => None,
                () = &mut stop, if !is_stopped => {
                    is_stopped = true;
                    let last = SystemClock.now() + LAST_WORD;
                    tokio::select! {
                        biased;
                        attempted = &mut attempting => Some(attempted),
                        () = SystemClock.sleep_until(last.min(until)) => None,
                    }
                }
            }
        };
        match attempted {
            Some(Ok(told)) => return Ok(told),
            Some(Err(error)) if !is_temporary(error.kind()) => return Err(error.to_string()),
            Some(Err(error)) => trouble = Some(error),
            None => return Err(given_up(is_stopped, trouble)),
        }
        let now = SystemClock.now();
        if is_stopped || now + pause >= until || is_disabled(Fix::EndToldOnce) {
            return Err(given_up(is_stopped, trouble));
        }
        if is_quiet && now.saturating_since(begun) >= QUIET {
            is_quiet = false;
            let left = format_duration(rounded(until.saturating_since(now)));
            let trouble = trouble.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::warn!("cannot record the end of {name} yet; retrying for up to {left}: {trouble}");
        }
        tokio::select! {
            () = SystemClock.sleep_until(now + pause) => {}
            () = &mut stop => return Err(given_up(true, trouble)),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Rounded up to whole seconds, for messages.
const fn rounded(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + 1)
}

fn given_up(is_stopped: bool, trouble: Option<Error>) -> String {
    let trouble = trouble.map_or_else(|| "the store did not answer".to_owned(), |error| error.to_string());
    if is_stopped { format!("stopped by a signal while the store was away: {trouble}") } else { trouble }
}

/// Whether it may go well the next time.
pub const fn is_temporary(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Contended | Kind::Indeterminate)
}

#[cfg(test)]
mod tests {
    use super::super::Trouble;
    use super::*;

    const NO_MEMORY: i32 = 12;
    const NO_SUCH_FILE: i32 = 2;

    #[test]
    fn a_verdict_says_what_is_released_recorded_and_counted() {
        let of = |ended: Ended, time_limit| Verdict::of(&ended, time_limit, Asked::No);
        let asked = |ended: Ended, time_limit| Verdict::of(&ended, time_limit, Asked::ToFinish);
        assert_eq!(asked(Ended::Exited(0), TimeLimit::Kept), Verdict::Succeeded);
        assert_eq!(asked(Ended::Killed(15), TimeLimit::Kept), Verdict::Drained);
        assert_eq!(asked(Ended::Exited(1), TimeLimit::Kept), Verdict::Drained);
        assert_eq!(asked(Ended::Killed(15), TimeLimit::Exceeded), Verdict::Drained);
        assert_eq!(asked(Ended::Exited(0), TimeLimit::Exceeded), Verdict::Drained);
        assert_eq!(asked(Ended::NotStarted(Trouble(NO_SUCH_FILE)), TimeLimit::Kept), Verdict::Failed);
        assert_eq!(of(Ended::Exited(0), TimeLimit::Kept), Verdict::Succeeded);
        assert_eq!(of(Ended::Exited(0), TimeLimit::Exceeded), Verdict::Failed);
        assert_eq!(of(Ended::Exited(3), TimeLimit::Kept), Verdict::Failed);
        assert_eq!(of(Ended::Killed(9), TimeLimit::Kept), Verdict::Failed);
        assert_eq!(of(Ended::NotStarted(Trouble(NO_MEMORY)), TimeLimit::Kept), Verdict::NotStarted);
        assert_eq!(of(Ended::NotStarted(Trouble(NO_SUCH_FILE)), TimeLimit::Kept), Verdict::Failed);
        for verdict in [Verdict::Succeeded, Verdict::Failed, Verdict::Drained, Verdict::Lost] {
            assert_eq!(verdict.lost(), Verdict::Lost);
        }
        let unstarted = Verdict::NotStarted.lost();
        assert_eq!(unstarted.row(), (Outcome::NotStarted, Fate::NotStarted, Some(Event::Lost)));
        assert_eq!(unstarted.lost(), unstarted);
    }

    #[test]
    fn a_run_that_refused_its_settings_has_failed_and_one_without_a_store_is_tried_again() {
        let codes = [0, 1, 13, 64, 65, 69, 70, 74, 75, 78];
        let judged = codes.map(Verdict::of_refusal);
        let (failed, open) = (Some(Verdict::Failed), Some(Verdict::NotStarted));
        assert_eq!(judged, [None, None, None, failed, None, open, None, None, None, failed]);
    }
}
