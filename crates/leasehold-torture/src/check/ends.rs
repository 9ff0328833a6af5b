//! Ends: at most one is accepted, nothing is run after it, and what is recorded was really run.

use super::{Promise, Verdict};
use crate::facts::{Happened, History, Location, Run, What};
use std::collections::{BTreeMap, BTreeSet};

/// The grace that every command has, and what a supervisor needs to hear of an end.
const GRACE_MS: u64 = 1_000;
/// How long the store must be there again, within the trust window, for the end to be told.
const TELLING_MS: u64 = 2_000;

pub(super) fn check(history: &History, verdicts: &mut Vec<Verdict>) {
    let runs = history.runs();
    for (job, slots) in &history.slots {
        if history.is_damaged(job, "") {
            continue;
        }
        let mut accepted: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for ((slot, epoch), outcome) in &slots.ends {
            if is_accepted(outcome) {
                accepted.entry(*slot).or_default().insert(*epoch);
            }
        }
        for (slot, seen) in &slots.seen {
            if let Some(epoch) = seen.epoch.filter(|_| is_accepted(&seen.fate)) {
                accepted.entry(*slot).or_default().insert(epoch);
            }
        }
        for (slot, epochs) in accepted {
            let succeeded = |epoch: &u64| {
                slots.ends.get(&(slot, *epoch)).is_some_and(|outcome| outcome == "succeeded")
                    || slots.seen.get(&slot).is_some_and(|seen| seen.epoch == Some(*epoch) && seen.fate == "succeeded")
            };
            one(job, &slot.to_string(), &epochs, succeeded, &runs, verdicts);
        }
    }
    for item in &history.items {
        let is_over = item.state == "done";
        if is_over && !history.is_damaged(&item.work, &item.id) {
            one(&item.work, &item.id, &BTreeSet::from([item.epoch]), |_| true, &runs, verdicts);
        }
    }
    follow_ups(history, &runs, verdicts);
    told(history, &runs, verdicts);
}

fn is_accepted(outcome: &str) -> bool {
    matches!(outcome, "succeeded" | "failed")
}

/// One slot or item, which ended under these epochs.
fn one(
    work: &str,
    id: &str,
    epochs: &BTreeSet<u64>,
    succeeded: impl Fn(&u64) -> bool,
    runs: &[Run<'_>],
    verdicts: &mut Vec<Verdict>,
) {
    let mut complain = |promise, what| verdicts.push(Verdict { promise, who: format!("{work}/{id}"), what });
    if epochs.len() > 1 {
        complain(Promise::OneEnd, format!("ended under each of the epochs {epochs:?}"));
    }
    let ours: Vec<&Run<'_>> = runs.iter().filter(|run| run.work.name == work && run.id == id).collect();
    let first = epochs.first().copied().unwrap_or_default();
    if let Some(run) = ours.iter().find(|run| run.epoch > first && !epochs.contains(&run.epoch)) {
        complain(Promise::NoRunAfterTheEnd, format!("ended under epoch {first}, and was run under {}", run.epoch));
    }
    for epoch in epochs.iter().filter(|epoch| succeeded(epoch)) {
        if !ours.iter().any(|run| run.epoch == *epoch && run.code == Some(0)) {
            complain(Promise::NoEndWithoutARun, format!("succeeded under epoch {epoch}, but no command ended so"));
        }
    }
}

/// Whose completion counts has added one item; whose does not, none.
fn follow_ups(history: &History, runs: &[Run<'_>], verdicts: &mut Vec<Verdict>) {
    for added in history.added.iter().filter(|added| added.has_child && !history.is_damaged(&added.work, &added.id)) {
        let children: BTreeSet<&str> = runs
            .iter()
            .filter(|run| run.work.name == added.work && run.payload == child_of(&added.id))
            .map(|run| run.id)
            .collect();
        let item = history.items.iter().find(|item| item.work == added.work && item.id == added.id);
        let wanted = usize::from(item.is_some_and(|item| item.state == "done"));
        // What of it was damaged is not missing.
        let excused = children.len() < wanted && history.damaged.iter().any(|name| name.starts_with(&added.work));
        if children.len() != wanted && !excused {
            let who = format!("{}/{}", added.work, added.id);
            let what = format!("it is {}, and added {children:?}", item.map_or("gone", |item| &item.state));
            verdicts.push(Verdict { promise: Promise::OneFollowUp, who, what });
        }
    }
}

/// The payload of what this item's completion adds.
pub(crate) fn child_of(id: &str) -> String {
    format!("child of {id}")
}

/// A command that ended well is not run again, unless its supervisor was hit or the store was away for too long.
fn told(history: &History, runs: &[Run<'_>], verdicts: &mut Vec<Verdict>) {
    for run in runs.iter().filter(|run| run.code == Some(0) && !history.is_damaged(&run.work.name, run.id)) {
        let again = runs.iter().find(|other| {
            other.work.name == run.work.name && other.id == run.id && other.epoch > run.epoch && other.start > run.last
        });
        let Some(again) = again else { continue };
        let ttl = run.work.ttl_ms;
        let Some((told, until)) = told_by(history, run) else { continue };
        let hit = |what: &What| match what {
            What::Killed(pid, ..) | What::Stopped(pid, ..) => run.pids.contains(pid),
            _ => false,
        };
        let granted = run.start.saturating_sub(GRACE_MS);
        // The lease was over by the store's clock before anybody could tell, unless it was renewed since.
        let renewed = granted.max(run.last.saturating_sub(ttl * 2 / 3));
        let forward = |h: &&Happened| run.work.location == Location::Server && h.from >= renewed && h.from <= told;
        let steps = history.happened.iter().filter(forward);
        let by: u64 = steps.map(|h| if let What::Forward(by) = h.what { by } else { 0 }).sum();
        if history.touched(granted, told, hit) || told + by > until {
            continue;
        }
        if history.stalls(run.last.saturating_sub(ttl / 3), told) > 0 {
            continue;
        }
        let who = format!("{}/{}", run.work.name, run.id);
        let what = format!(
            "it ended well under epoch {} at {}, with nobody hit and the store there in time, and was run again under {} \
             at {}",
            run.epoch, run.last, again.epoch, again.start
        );
        verdicts.push(Verdict { promise: Promise::TheEndIsTold, who, what });
    }
}

/// By when the end was surely told: the store was there for long enough between the end of a run and the end of its trust
/// window. And the end of that window.
fn told_by(history: &History, run: &Run<'_>) -> Option<(u64, u64)> {
    if run.work.location != Location::Server {
        return Some((run.last + TELLING_MS, run.last + run.work.ttl_ms));
    }
    let away = |happened: &&Happened| happened.what == What::Away;
    let ttl = run.work.ttl_ms;
    // An absence before the end may have cost renewals: then the window is what was left of it.
    let earliest = history
        .happened
        .iter()
        .filter(away)
        .filter(|happened| happened.to + ttl > run.last && happened.from < run.last + ttl)
        .map(|happened| happened.from)
        .min()
        .unwrap_or(run.last)
        .min(run.last);
    let until = (earliest + ttl * 2 / 3).saturating_sub(GRACE_MS);
    // The longest time without an absence.
    let mut at = run.last;
    let mut absences: Vec<_> = history.happened.iter().filter(away).filter(|happened| happened.to > at).collect();
    absences.sort_by_key(|happened| happened.from);
    for absence in absences {
        if absence.from.min(until) >= at + TELLING_MS {
            return Some((at + TELLING_MS, until));
        }
        at = at.max(absence.to);
    }
    Some((at + TELLING_MS, until)).filter(|(told, until)| until >= told)
}
