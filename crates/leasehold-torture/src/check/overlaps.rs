//! Overlaps: a command is dead before its successor runs, and a fence that saw a higher epoch takes no lower one. And a
//! command that nothing happened to runs to its end.

use super::{Promise, Verdict};
use crate::facts::{History, Location, Run, What};
use std::collections::BTreeMap;

/// Two clocks read in two processes, and a last tick, may lie so far apart.
const GRAIN_MS: u64 = 250;
/// How long a supervisor needs, after a renewal that comes too late, to end its command.
const ENDING_MS: u64 = 2_500;

pub(super) fn check(history: &History, verdicts: &mut Vec<Verdict>) {
    // A lease is a job's, whatever the slot; an item is a lease of its own.
    let mut leases: BTreeMap<String, Vec<Run<'_>>> = BTreeMap::new();
    for run in history.runs() {
        stopped(history, &run, verdicts);
        let lease = if run.work.is_job() { run.work.name.clone() } else { format!("{}/{}", run.work.name, run.id) };
        leases.entry(lease).or_default().push(run);
    }
    for (lease, mut runs) in leases {
        runs.sort_by_key(|run| (run.epoch, run.start));
        for (at, run) in runs.iter().enumerate() {
            for later in runs[at + 1..].iter().filter(|later| later.epoch > run.epoch) {
                overlap(history, &lease, run, later, verdicts);
                stale(&lease, run, later, verdicts);
            }
        }
    }
}

fn overlap(history: &History, lease: &str, run: &Run<'_>, later: &Run<'_>, verdicts: &mut Vec<Verdict>) {
    let together = run.last.saturating_sub(later.start);
    let ttl = run.work.ttl_ms;
    let forward = |what: &What| run.work.location == Location::Server && matches!(what, What::Forward(_));
    // A step of the clock ends a lease early; who holds it learns so with its next renewal.
    let stepped = history.touched(later.start.saturating_sub(ttl), later.start + ttl, forward);
    let learns = if stepped { ttl / 3 + ENDING_MS } else { 0 };
    let away =
        if stepped { history.time_of(later.start.saturating_sub(ttl), run.last, |w| *w == What::Away) } else { 0 };
    let stalls = history.stalls(later.start.saturating_sub(ttl), run.last);
    if together > GRAIN_MS + learns + away + stalls {
        let what = format!(
            "epoch {} was still running {together} ms after epoch {} had begun (allowed: {} ms)",
            run.epoch,
            later.epoch,
            GRAIN_MS + learns + away + stalls
        );
        verdicts.push(Verdict { promise: Promise::NoOverlap, who: lease.into(), what });
    }
}

/// A command that ended without logging it was hit, or its store or its clock was.
fn stopped(history: &History, run: &Run<'_>, verdicts: &mut Vec<Verdict>) {
    if run.code.is_some() || run.last >= history.looked || history.is_damaged(&run.work.name, run.id) {
        return;
    }
    let in_server = run.work.location == Location::Server;
    let ttl = run.work.ttl_ms;
    let hit = |what: &What| match what {
        What::Killed(pid, ..) | What::Stopped(pid, ..) => run.pids.contains(pid),
        What::Away | What::Forward(_) | What::Back(_) => in_server,
        What::Stall => true,
    };
    if !history.touched(run.start.saturating_sub(ttl), run.last + ttl, hit) {
        let what = format!(
            "epoch {} was stopped after {} ms, and nothing had happened to it",
            run.epoch,
            run.last - run.start
        );
        let who = format!("{}/{}", run.work.name, run.id);
        verdicts.push(Verdict { promise: Promise::NoRunIsStopped, who, what });
    }
}

fn stale(lease: &str, run: &Run<'_>, later: &Run<'_>, verdicts: &mut Vec<Verdict>) {
    let (Some(writing), Some((_, 0)), Some((higher, 0))) = (run.writing, run.wrote, later.wrote) else { return };
    if writing > higher {
        let (low, high) = (run.epoch, later.epoch);
        let what =
            format!("a write under epoch {low} that began at {writing} was admitted; {high} had written by {higher}");
        verdicts.push(Verdict { promise: Promise::NoStaleWrite, who: lease.into(), what });
    }
}
