//! The one function that changes an item: `decide(item, request, now)`.
//!
//! Promise: pure; it reads no clock and does no I/O. The epoch rises with every claim and every
//! operator's order. A completion counts only under the epoch and nonce that hold the item, so
//! each item is completed at most once and a stale worker changes nothing. Non-promise: it does
//! not know whether a worker is alive; time decides only when somebody else may try.

use super::budget::{self, Excess};
pub use super::fate::fate;
use super::payload::Payload;
use super::record::{EVENTS_KEPT, Ended, Event, FollowUp, How, Item, Reason, State, What};
pub use super::refusal::Refusal;
use crate::lease::protocol::{Holder, Report};
use crate::lease::record::{Drain, OperatorMark};
use crate::relocation::{Address, Relocated, Relocation, Step, relocate};
use crate::time;
use crate::{Claim, Epoch, HolderId, Nonce, Progress, Tenure, Timestamp, Ttl, Who, Why};
use leasehold_system::undo::{Fix, is_disabled};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What can be asked of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Become the item's worker.
    Claim {
        /// Who asks. The claim gets this holder's nonce.
        holder: HolderId,
        /// How long the claim lasts unless renewed.
        ttl: Ttl,
    },
    /// Keep working on it for another TTL.
    Renew {
        /// The claim that asks.
        claim: Claim,
        /// How long from now.
        ttl: Ttl,
    },
    /// Record how far the work has come.
    Progress {
        /// The claim that asks.
        claim: Claim,
        /// The marker and the checkpoint to record.
        report: Report,
    },
    /// Record that the work is done.
    Complete {
        /// The claim that asks.
        claim: Claim,
        /// The result that the worker leaves.
        result: Option<Payload>,
        /// The items to add in the same step.
        follow_ups: Vec<FollowUp>,
    },
    /// Record that the attempt failed.
    Fail {
        /// The claim that asks.
        claim: Claim,
        /// Why it failed.
        why: Reason,
        /// How soon it may be tried again, instead of the item's own backoff.
        #[serde(default, with = "time::optional_millis")]
        retry_in: Option<Duration>,
        /// Whether retrying is pointless.
        is_final: bool,
    },
    /// Give it back untried.
    Return {
        /// The claim that asks.
        claim: Claim,
        /// How long it then waits before it may be claimed again; none if it keeps its position in line.
        wait: Option<Duration>,
    },
    /// Put an item whose claim expired back in line, or give it up after its last attempt. Also shorten its wait to
    /// what was requested, if the store's clock was set back.
    Reap,
    /// Record that its follow-ups were added.
    Settle,
    /// An operator's order.
    Operate {
        /// Unique to this order, so that a lost answer does not apply it twice.
        nonce: Nonce,
        /// Who ordered it.
        by: Who,
        /// Why, for the item's history.
        why: Why,
        /// The epoch that the order was decided on; none if it does not matter.
        /// The order is refused at any other epoch.
        expected: Option<Epoch>,
        /// The order itself.
        order: Order,
    },
}

impl Request {
    /// The claim that it is made under.
    pub fn claim(&self) -> Option<Claim> {
        match self {
            Request::Renew { claim, .. }
            | Request::Progress { claim, .. }
            | Request::Complete { claim, .. }
            | Request::Fail { claim, .. }
            | Request::Return { claim, .. } => Some(*claim),
            _ => None,
        }
    }

    /// Whether only the worker that holds the item may make it. An item that has left for another store has no worker.
    pub fn needs_a_claim(&self) -> bool {
        !matches!(self, Request::Claim { .. } | Request::Reap | Request::Settle | Request::Operate { .. })
    }
}

/// What an operator can order. A migration's own steps are never sent to a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Put it back in line, with all its attempts.
    Retry {
        /// An epoch that a guard has seen, but a store that was restored from an old copy does not know.
        past: Option<Epoch>,
    },
    /// Take it out of the line permanently.
    Cancel,
    /// Ask the worker that has claimed it to finish. The claim itself is not ended.
    Drain {
        /// How long the worker has. Meanwhile nobody else can claim the item.
        within: Ttl,
    },
    /// Give it to this holder.
    HandOff {
        /// The new holder.
        to: HolderId,
        /// How long the claim lasts unless renewed.
        ttl: Ttl,
    },
    /// One step of a migration.
    #[serde(skip)]
    Relocate {
        /// The migration's own number.
        migration: Nonce,
        /// What the migration does next.
        step: Step,
        /// What [`Step::Leave`] does if somebody has claimed it.
        holder: Holder,
    },
    /// Take in the item of this name from another store, over the one here.
    #[serde(skip)]
    Arrive {
        /// The migration's own number.
        migration: Nonce,
        /// The store that it comes from.
        from: Address,
        /// The item there, as it was when it left.
        item: Box<Item>,
    },
}

/// The answer of [`decide`].
pub type Decision = crate::cell::Decision<Item, Refusal>;

/// Decides a request on an item at `now`, by the store's clock. The next record fits into the store's limit.
pub fn decide(item: &Item, request: &Request, now: Timestamp) -> Decision {
    let mut next = match becomes(item, request, now) {
        Decision::Write(next) => next,
        other => return other,
    };
    match budget::fit(&mut next) {
        Ok(()) => Decision::Write(next),
        Err(Excess { bytes, most }) => Decision::Refuse(Refusal::TooLarge { bytes, most }),
    }
}

fn becomes(item: &Item, request: &Request, now: Timestamp) -> Decision {
    let is_a_migrations =
        matches!(request, Request::Operate { order: Order::Relocate { .. } | Order::Arrive { .. }, .. });
    if let Some(state) = item.relocation.as_ref().filter(|_| !is_a_migrations) {
        return Decision::Refuse(Refusal::Elsewhere(state.clone()));
    }
    match request {
        Request::Claim { holder, ttl } => claim(item, holder, *ttl, now),
        Request::Renew { claim, ttl } => held(item, *claim, None, |next| {
            let State::Claimed(tenure) = &mut next.state else { return false };
            // Even if that is sooner than before: otherwise, after the clock was set back, the worker would keep the
            // item for that much longer. Nobody trusts a renewal whose answer was lost.
            let earlier = tenure.deadline;
            tenure.deadline = now.plus(ttl.get());
            if is_disabled(Fix::ItemDeadlineNotShortened) {
                tenure.deadline = tenure.deadline.max(earlier);
            }
            tenure.ttl = *ttl;
            item.tenure().is_some_and(|t| now < t.deadline)
        }),
        Request::Progress { claim, report } => held(item, *claim, None, |next| {
            let earlier = item.progress.as_ref();
            let marker = earlier.filter(|p| p.epoch == item.epoch).and_then(|p| p.marker.clone());
            next.progress = Some(Progress {
                at: now,
                epoch: item.epoch,
                marker: report.marker.clone().or(marker),
                checkpoint: report.checkpoint.clone().or_else(|| earlier.and_then(|p| p.checkpoint.clone())),
            });
            true
        }),
        Request::Complete { claim, result, follow_ups } => held(item, *claim, Some(How::Completed), |next| {
            (next.state, next.drain) = (State::Done { at: now }, None);
            next.result.clone_from(result);
            next.follow_ups = follow_ups.iter().map(|f| f.name.clone()).collect();
            next.outbox.clone_from(follow_ups);
            next.note(now, What::Completed, holder_of(item), None);
            true
        }),
        Request::Fail { claim, why, retry_in, is_final } => held(item, *claim, Some(How::Failed), |next| {
            next.note(now, What::Failed, holder_of(item), Some(why.clone()));
            if *is_final || item.tried >= item.attempts.most {
                next.mark_dead(now, why.clone());
            } else {
                let pause = retry_in.unwrap_or_else(|| item.attempts.pause(item.tried));
                if pause.is_zero() { next.requeue(now) } else { next.wait(now, pause) }
            }
            true
        }),
        Request::Return { claim, wait } => held(item, *claim, Some(How::Returned), |next| {
            next.note(now, What::Returned, holder_of(item), None);
            next.return_untried(now, *wait);
            true
        }),
        Request::Reap => reap(item, now),
        Request::Settle => match &item.state {
            State::Done { .. } if !item.outbox.is_empty() => {
                let mut next = item.clone();
                next.outbox.clear();
                Decision::Write(Box::new(next))
            }
            _ => Decision::AlreadyApplied,
        },
        Request::Operate { nonce, by, why, expected, order } => {
            if item.ordered == Some(*nonce) {
                return Decision::AlreadyApplied;
            }
            if let Some(expected) = expected.filter(|expected| *expected != item.epoch) {
                return Decision::Refuse(Refusal::Changed { expected, seen: item.epoch });
            }
            match order {
                Order::Drain { within } => drain(item, (by, why, *nonce), *within, now),
                Order::Relocate { migration, step, holder } => moved(item, (by, why), *migration, step, *holder, now),
                Order::Arrive { migration, from, item: other } => arrive(item, *migration, from, other),
                _ => operate(item, *nonce, by, why, order, now),
            }
        }
    }
}

fn claim(item: &Item, holder: &HolderId, ttl: Ttl, now: Timestamp) -> Decision {
    match &item.state {
        State::Claimed(tenure) if tenure.holder.nonce == holder.nonce => return Decision::AlreadyApplied,
        State::Claimed(tenure) if now < tenure.deadline => {
            return Decision::Refuse(Refusal::Busy { holder: tenure.holder.clone(), until: tenure.deadline });
        }
        State::Claimed(_) if item.tried >= item.attempts.most => return Decision::Refuse(Refusal::Exhausted),
        State::Ready if !item.is_due(now) => {
            return Decision::Refuse(Refusal::NotDue { due: item.due.unwrap_or(now) });
        }
        State::Ready | State::Claimed(_) => {}
        other => return Decision::Refuse(Refusal::Finished { state: other.as_str() }),
    }
    if let Some(drain) = item.live_drain(now) {
        return Decision::Refuse(Refusal::Draining(drain.clone()));
    }
    let Some(epoch) = item.epoch.next() else { return Decision::Refuse(Refusal::OutOfEpochs) };
    let mut next = Item { drain: None, ..item.clone() };
    if item.tenure().is_some() {
        next.note(now, What::Expired, holder_of(item), None);
    }
    next.epoch = epoch;
    next.tried = item.tried.saturating_add(1);
    next.state = State::Claimed(Tenure { holder: holder.clone(), granted_at: now, deadline: now.plus(ttl.get()), ttl });
    next.note(now, What::Claimed, holder_of(&next), None);
    Decision::Write(Box::new(next))
}

/// A request of the worker that holds the item. `how` is set for those that end the claim.
fn held(item: &Item, claim: Claim, how: Option<How>, change: impl FnOnce(&mut Item) -> bool) -> Decision {
    let stale = || Decision::Refuse(Refusal::Stale { seen: item.epoch, state: item.state.as_str() });
    if !item.is_held_by(claim) {
        let ended = how.map(|how| Ended { epoch: claim.epoch, nonce: claim.nonce, how });
        // A repeated request that ended its own claim counts as already applied, until somebody else claims the item. From
        // then on it is stale.
        let heard = ended.is_some() && item.ended == ended && item.epoch == claim.epoch;
        return if heard { Decision::AlreadyApplied } else { stale() };
    }
    let mut next = item.clone();
    if let Some(how) = how {
        next.ended = Some(Ended { epoch: claim.epoch, nonce: claim.nonce, how });
    }
    if change(&mut next) { Decision::Write(Box::new(next)) } else { stale() }
}

fn reap(item: &Item, now: Timestamp) -> Decision {
    if item.has_future_times(now) {
        return Decision::Write(Box::new(with_times_reset(item, now)));
    }
    let Some(tenure) = item.tenure() else { return Decision::AlreadyApplied };
    if now < tenure.deadline {
        return Decision::Refuse(Refusal::NotExpired);
    }
    let mut next = item.clone();
    next.note(now, What::Expired, holder_of(item), None);
    if item.tried >= item.attempts.most {
        let why = format!("attempt {} of {} ran out of time, and it is the last", item.tried, item.attempts.most);
        next.mark_dead(now, Reason::lossy(&why, "expired"));
    } else {
        next.requeue(now);
    }
    Decision::Write(Box::new(next))
}

/// The item as if its wait, or its claim, had begun now. A worker trusts its claim for at most a TTL from asking.
fn with_times_reset(item: &Item, now: Timestamp) -> Item {
    let mut next = item.clone();
    match &mut next.state {
        State::Claimed(tenure) => tenure.deadline = now.plus(tenure.ttl.get()),
        _ => {
            next.due = item.due.map(|due| now.plus(due.saturating_since(item.since)));
            next.since = now;
        }
    }
    next
}

fn operate(item: &Item, nonce: Nonce, by: &Who, why: &Why, order: &Order, now: Timestamp) -> Decision {
    let finished = Decision::Refuse(Refusal::Finished { state: item.state.as_str() });
    let allowed = match (order, &item.state) {
        // A completed item is never started again: that would allow a second completion.
        (Order::Retry { .. }, state) => !matches!(state, State::Done { .. } | State::Purged { .. }),
        (Order::Cancel, state) => !matches!(state, State::Done { .. } | State::Cancelled { .. } | State::Purged { .. }),
        (Order::HandOff { .. }, State::Ready | State::Claimed(_)) => true,
        (Order::HandOff { .. } | Order::Drain { .. } | Order::Relocate { .. } | Order::Arrive { .. }, _) => false,
    };
    if !allowed {
        return finished;
    }
    let last = match order {
        Order::Retry { past: Some(past) } if *past > Epoch::HIGHEST_ADVANCE => {
            return Decision::Refuse(Refusal::OutOfEpochs);
        }
        Order::Retry { past: Some(past) } => item.epoch.max(*past),
        _ => item.epoch,
    };
    let Some(epoch) = last.next() else { return Decision::Refuse(Refusal::OutOfEpochs) };
    let mut next = Item { drain: None, ..item.clone() };
    next.epoch = epoch;
    next.ordered = Some(nonce);
    let what = match order {
        Order::Retry { .. } => {
            next.tried = 0;
            next.requeue(now);
            What::Retried
        }
        Order::Cancel => {
            next.state = State::Cancelled { at: now };
            What::Cancelled
        }
        Order::HandOff { to, ttl } => {
            next.tried = item.tried.saturating_add(1);
            next.state = State::Claimed(Tenure {
                holder: to.clone(),
                granted_at: now,
                deadline: now.plus(ttl.get()),
                ttl: *ttl,
            });
            What::HandedOff
        }
        Order::Drain { .. } | Order::Relocate { .. } | Order::Arrive { .. } => return finished,
    };
    next.note(now, what, Some(by.clone()), Some(Reason::lossy(why.as_str(), "-")));
    Decision::Write(Box::new(next))
}

/// Asks the worker that has claimed it to finish. Replaces an earlier request, but never shortens its time.
fn drain(item: &Item, (by, why, nonce): (&Who, &Why, Nonce), within: Ttl, now: Timestamp) -> Decision {
    let asked = OperatorMark { by: by.clone(), why: why.clone(), at: now, nonce };
    if item.drain.as_ref().is_some_and(|old| old.asked.nonce == asked.nonce) {
        return Decision::AlreadyApplied;
    }
    if item.tenure().is_none_or(|tenure| asked.at >= tenure.deadline) {
        return Decision::Refuse(Refusal::NotClaimed);
    }
    let drain = Drain::new(item.drain.as_ref(), item.epoch, asked, within);
    Decision::Write(Box::new(Item { drain: Some(drain), ..item.clone() }))
}

/// A step of a migration on an existing item.
fn moved(
    item: &Item,
    (by, why): (&Who, &Why),
    migration: Nonce,
    step: &Step,
    holder: Holder,
    now: Timestamp,
) -> Decision {
    let relocation = match relocate(item.relocation.as_ref(), step, migration) {
        Relocated::To(next) => next,
        Relocated::AlreadyDone => return Decision::AlreadyApplied,
        Relocated::Invalid => {
            let refusal = item.relocation.clone().map_or(Refusal::NotMoving, Refusal::Elsewhere);
            return Decision::Refuse(refusal);
        }
    };
    let why = Some(Reason::lossy(why.as_str(), "-"));
    let mut next = match item.tenure() {
        Some(tenure) if now < tenure.deadline && holder == Holder::Stays => {
            return Decision::Refuse(Refusal::Busy { holder: tenure.holder.clone(), until: tenure.deadline });
        }
        Some(tenure) if now < tenure.deadline => {
            let Some(epoch) = item.epoch.next() else { return Decision::Refuse(Refusal::OutOfEpochs) };
            let mut next = Item { epoch, ..item.clone() };
            next.note(now, What::Evicted, Some(by.clone()), why.clone());
            next.requeue(now);
            next
        }
        Some(_) => match reap(item, now) {
            Decision::Write(next) => *next,
            other => return other,
        },
        None => item.clone(),
    };
    if matches!(step, Step::Leave { .. } | Step::Settle) {
        next.note(now, What::Moved, Some(by.clone()), why);
    }
    (next.relocation, next.drain) = (relocation, None);
    Decision::Write(Box::new(next))
}

/// Takes in the item of another store, in place of its former record here.
fn arrive(item: &Item, migration: Nonce, from: &Address, other: &Item) -> Decision {
    match &item.relocation {
        Some(Relocation::Arriving { migration: known, .. }) if *known == migration => Decision::AlreadyApplied,
        Some(Relocation::Moved { .. }) if item.lineage == other.lineage && item.epoch <= other.epoch => {
            Decision::Write(Box::new(arriving(other, migration, from)))
        }
        Some(state) => Decision::Refuse(Refusal::Elsewhere(state.clone())),
        None => Decision::Refuse(Refusal::NotMoving),
    }
}

/// An item of another store, as this store takes it in.
pub fn arriving(other: &Item, migration: Nonce, from: &Address) -> Item {
    let relocation = Some(Relocation::Arriving { from: from.clone(), migration });
    // A new turn, so that no earlier position in line is taken for its own.
    Item { relocation, turn: other.epoch, ..other.clone() }
}

impl Item {
    /// Puts it back in line at its old position, under a turn that no earlier position had.
    fn requeue(&mut self, now: Timestamp) {
        let stood = self.due.take().unwrap_or(self.since);
        (self.state, self.since, self.turn) = (State::Ready, stood.min(now), self.epoch);
    }

    /// The same, but only after a pause.
    fn wait(&mut self, now: Timestamp, pause: Duration) {
        (self.state, self.since, self.due, self.turn) = (State::Ready, now, Some(now.plus(pause)), self.epoch);
    }

    /// Gives back an attempt and puts it back in line, at once or after a pause.
    fn return_untried(&mut self, now: Timestamp, pause: Option<Duration>) {
        self.tried = self.tried.saturating_sub(1);
        match pause {
            Some(pause) => self.wait(now, pause),
            None => self.requeue(now),
        }
    }

    fn mark_dead(&mut self, now: Timestamp, why: Reason) {
        self.note(now, What::Died, None, Some(why.clone()));
        self.state = State::Dead { at: now, why };
    }

    fn note(&mut self, at: Timestamp, what: What, by: Option<Who>, why: Option<Reason>) {
        self.history.push(Event { at, epoch: self.epoch, what, by, why });
        if self.history.len() > EVENTS_KEPT {
            self.history.remove(0);
        }
    }
}

fn holder_of(item: &Item) -> Option<Who> {
    item.tenure().map(|t| Who::lossy(&t.holder.to_string(), "unknown"))
}
