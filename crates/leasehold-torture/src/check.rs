//! The checker: from what the commands logged and what the stores say, to what went wrong.
//!
//! Promise: pure functions; each verdict names the work, and the numbers that it rests on. Non-promise: what was excused
//! because a fault was near is not proved to be right.

mod actors;
mod ends;
mod fates;
mod overlaps;
mod waits;

#[cfg(test)]
mod tests;

pub(crate) use ends::child_of;

use crate::facts::History;
use std::fmt;

/// What went wrong, in the words of the promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub promise: Promise,
    /// The job, queue or actor.
    pub who: String,
    pub what: String,
}

/// What must hold, whatever the faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// A slot or item has at most one accepted end.
    OneEnd,
    /// Nothing is run that has an accepted end.
    NoRunAfterTheEnd,
    /// What is said to have succeeded was run to its end under that epoch.
    NoEndWithoutARun,
    /// A completion adds what it triggers once.
    OneFollowUp,
    /// Once a fence has seen an epoch, no lower one writes.
    NoStaleWrite,
    /// A command is dead before its lease can be acquired again.
    NoOverlap,
    /// What ended while the store could be told in time is recorded as ended.
    TheEndIsTold,
    /// Every due slot has a fate.
    EverySlotHasAFate,
    /// What was added, and acknowledged, comes to an end.
    EveryItemEnds,
    /// Nothing waits for longer than its TTL, two seconds and its backoff.
    NothingIsStuck,
    /// No command is stopped that nothing had happened to.
    NoRunIsStopped,
    /// Nobody is stopped but who had the fault.
    NobodyElseStops,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.promise, self.who, self.what)
    }
}

/// Everything that went wrong.
pub(crate) fn check(history: &History) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    ends::check(history, &mut verdicts);
    overlaps::check(history, &mut verdicts);
    fates::check(history, &mut verdicts);
    waits::check(history, &mut verdicts);
    actors::check(history, &mut verdicts);
    verdicts.sort_by_key(|verdict| verdict.promise);
    verdicts
}
