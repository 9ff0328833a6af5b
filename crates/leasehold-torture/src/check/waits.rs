//! Waits: from the moment when something can be run to its run, on the machine's own clock.
//!
//! What is not its fault is taken off: the store was away, the clock was set back since the last renewal, all lanes were
//! busy, who was to run it had just been killed, or the machine itself stood still.

use super::{Promise, Verdict};
use crate::facts::{Happened, History, Location, Run, What, Work};
use std::collections::BTreeMap;

/// What the promise allows beside TTL and backoff: one look.
const LOOK_MS: u64 = 2_000;
/// Starting processes on two busy cores.
const START_MS: u64 = 3_000;
/// After an absence everybody tries again after a pause, of at most this.
const RETRY_MS: u64 = 6_000;
/// How late a renewal may be.
const RENEWAL_MS: u64 = 500;
/// Until one that was killed is replaced and has looked around.
const REPLACED_MS: u64 = 3_000;
/// The pauses of a worker before it replaces lanes; from the first again after this time.
const PAUSES_MS: [u64; 5] = [1_000, 2_000, 5_000, 10_000, 30_000];
const STEADY_MS: u64 = 30_000;

pub(super) fn check(history: &History, verdicts: &mut Vec<Verdict>) {
    let runs = history.runs();
    for work in &history.works {
        let ours: Vec<&Run<'_>> = runs.iter().filter(|run| run.work == work).collect();
        let busy = busy(&ours, &gone(history, work), work.lanes);
        let mut by_id: BTreeMap<&str, Vec<&Run<'_>>> = BTreeMap::new();
        for run in &ours {
            by_id.entry(run.id).or_default().push(run);
        }
        for added in history.added.iter().filter(|added| added.work == work.name) {
            let first = by_id.get(added.id.as_str()).and_then(|runs| runs.iter().map(|run| run.start).min());
            let wait = Wait { work, id: &added.id, from: added.at, alive: added.at, ttl: 0, attempt: 0 };
            wait.judge(history, &busy, first, verdicts);
        }
        for (id, mut runs) in by_id {
            runs.sort_by_key(|run| (run.epoch, run.start));
            let is_over = is_over(history, work, id);
            for (at, run) in runs.iter().enumerate() {
                let next = runs.get(at + 1).map(|next| next.start);
                // The last run of what has ended was followed by nothing, and rightly.
                if next.is_none() && is_over {
                    continue;
                }
                let wait = Wait {
                    work,
                    id,
                    from: run.last,
                    alive: renewed(history, run),
                    ttl: work.ttl_ms,
                    attempt: run.attempt,
                };
                wait.judge(history, &busy, next, verdicts);
            }
        }
    }
}

fn is_over(history: &History, work: &Work, id: &str) -> bool {
    if work.is_job() {
        let slot = id.parse().unwrap_or(0);
        let known = history.slots.get(&work.name).and_then(|slots| Some((slots, slots.seen.get(&slot)?)));
        // What nobody told of is another check's.
        known.is_none_or(|(slots, seen)| !slots.is_open(slot, seen))
    } else {
        let item = history.items.iter().find(|item| item.work == work.name && item.id == id);
        item.is_none_or(|item| !matches!(item.state.as_str(), "ready" | "later" | "claimed"))
    }
}

/// Something that can be run.
struct Wait<'a> {
    work: &'a Work,
    id: &'a str,
    from: u64,
    /// When it was surely last renewed by the store's time: the renewal before that told what time it is.
    alive: u64,
    ttl: u64,
    attempt: u32,
}

impl Wait<'_> {
    /// Until it was run, or until all was over.
    fn judge(&self, history: &History, busy: &[(u64, u64)], next: Option<u64>, verdicts: &mut Vec<Verdict>) {
        let to = next.unwrap_or(history.looked);
        if history.is_damaged(&self.work.name, self.id) || to <= self.from {
            return;
        }
        let waited = to - self.from;
        let allowed = self.allowed(history, busy, to);
        if waited > allowed {
            let (from, run) = (self.from, if next.is_some() { "" } else { ", and was never run" });
            let who = format!("{}/{}", self.work.name, self.id);
            let what = format!("from {from} on it waited for {waited} ms{run}; {allowed} ms are allowed");
            verdicts.push(Verdict { promise: Promise::NothingIsStuck, who, what });
        }
    }

    fn allowed(&self, history: &History, busy: &[(u64, u64)], to: u64) -> u64 {
        let (from, in_server) = (self.from, self.work.location == Location::Server);
        let doublings = self.attempt.saturating_sub(1).min(12);
        let backoff = if self.attempt == 0 { 0 } else { self.work.backoff_ms << doublings };
        let mut allowed = self.ttl + LOOK_MS + START_MS + backoff + history.stalls(from, to);
        let (mut excused, mut unbegun) = (busy.to_vec(), 0);
        for happened in history.happened.iter().filter(|h| h.from <= to && h.to >= from.min(self.alive)) {
            let after = match &happened.what {
                // A worker's pauses grow with the absence; a scheduler's does not.
                What::Away if in_server && self.work.is_job() => RETRY_MS,
                What::Away if in_server => RETRY_MS.min(START_MS + happened.to - happened.from),
                // It may have claimed it, and not begun.
                What::Killed(_, owner, _) | What::Stopped(_, owner, _) if self.work.is_of(owner) => {
                    unbegun = self.work.ttl_ms.saturating_sub(self.ttl);
                    continue;
                }
                // A deadline that was not renewed since, and a backoff, are that much later now.
                What::Back(by) if in_server && (self.ttl > 0 || backoff > 0) => {
                    allowed += *by;
                    continue;
                }
                _ => continue,
            };
            excused.push((happened.from, happened.to + after));
        }
        // Nobody could have claimed it before.
        let free = (from + self.ttl + backoff).min(to);
        allowed + unbegun + covered(excused, free, to)
    }
}

/// When a run was surely last renewed by the store's time, unless what was to renew it was kept from it.
fn renewed(history: &History, run: &Run<'_>) -> u64 {
    let ttl = run.work.ttl_ms;
    let is_kept = |what: &What| match what {
        What::Away => run.work.location == Location::Server,
        What::Stopped(pid, ..) => run.pids.contains(pid),
        _ => false,
    };
    let kept = history.time_of(run.last.saturating_sub(2 * ttl), run.last, is_kept);
    let late = if kept > 0 { kept + ttl / 3 } else { 0 };
    run.last.saturating_sub(ttl * 2 / 3 + RENEWAL_MS + late)
}

/// How much of a span these cover together.
fn covered(mut spans: Vec<(u64, u64)>, from: u64, to: u64) -> u64 {
    spans.sort_unstable();
    let (mut at, mut sum) = (from, 0);
    for (begin, end) in spans {
        let (begin, end) = (begin.max(at), end.min(to));
        if end > begin {
            sum += end - begin;
            at = end;
        }
    }
    sum
}

/// When lanes of it were not there, one span for each.
fn gone(history: &History, work: &Work) -> Vec<(u64, u64)> {
    let mut spans = Vec::new();
    for happened in &history.happened {
        let (after, count) = match &happened.what {
            What::Stopped(_, owner, count) if work.is_of(owner) => (REPLACED_MS, *count),
            What::Killed(_, owner, count) if work.is_of(owner) => {
                // The more of them end, the longer is the pause before the next one is replaced.
                let is_before = |h: &&Happened| h.from < happened.from && h.to + STEADY_MS > happened.from;
                let is_same = |h: &&Happened| matches!(&h.what, What::Killed(_, other, _) if other == owner);
                let earlier = history.happened.iter().filter(is_before).filter(is_same).count();
                (REPLACED_MS + PAUSES_MS[earlier.min(PAUSES_MS.len() - 1)], *count)
            }
            _ => continue,
        };
        spans.extend(std::iter::repeat_n((happened.from, happened.to + after), count));
    }
    spans
}

/// When at least so many ran, or were gone, at once.
fn busy(runs: &[&Run<'_>], gone: &[(u64, u64)], lanes: usize) -> Vec<(u64, u64)> {
    let ran = runs.iter().map(|run| (run.start, run.last));
    let mut changes: Vec<(u64, i64)> =
        ran.chain(gone.iter().copied()).flat_map(|(from, to)| [(from, 1), (to, -1)]).collect();
    changes.sort_unstable();
    let (mut count, mut since, mut busy) = (0_i64, None, Vec::new());
    for (at, change) in changes {
        count += change;
        let is_full = count >= lanes.try_into().unwrap_or(i64::MAX);
        match since {
            None if is_full => since = Some(at),
            Some(begin) if !is_full => {
                busy.push((begin, at));
                since = None;
            }
            _ => {}
        }
    }
    busy
}
