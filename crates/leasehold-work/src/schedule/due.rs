//! Catching up: which of the slots that are due are run, and which are dropped and why.
//!
//! Promise: a pure function; what it gives to run is never more than the policy's count nor older than its age, comes
//! oldest first, and every other due slot is named as dropped, with a reason. Non-promise: a gap of very many slots is
//! counted up to a bound, and then said to be at least so many.

use crate::schedule::slots::Schedule;
use leasehold_core::{Error, Event, Result, Slot, Timestamp};
use std::time::Duration;

/// How many dropped slots are counted one by one.
pub const COUNTED: u64 = 10_000;

/// How much is caught up on after an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchUp {
    count: u32,
    max_age: Duration,
}

impl CatchUp {
    /// At most this many slots, none older than this.
    pub fn new(count: u32, max_age: Duration) -> Result<Self> {
        if !(1..=1_000).contains(&count) {
            return Err(Error::invalid("catch_up", count, "use 1 (the newest slot only) to 1000"));
        }
        if max_age < Duration::from_secs(1) {
            let age = leasehold_core::format_duration(max_age);
            return Err(Error::invalid("catch_up_max_age", age, "use 1s or more, such as 1h or 2d"));
        }
        Ok(CatchUp { count, max_age })
    }

    /// How many.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// How old.
    pub const fn max_age(&self) -> Duration {
        self.max_age
    }
}

impl Default for CatchUp {
    fn default() -> Self {
        CatchUp { count: 1, max_age: Duration::from_secs(86_400) }
    }
}

/// Up to where a job's slots are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// It was never run, and nobody knows since when it is there: only its newest slot can be due.
    Never,
    /// Every slot up to this time is settled, or was before the job's time.
    Settled(Timestamp),
    /// Slots were claimed or settled while the store's clock was ahead of what it shows now, so none can be claimed
    /// until then. Those that came due after this time have no fate yet.
    Ahead(Timestamp),
}

/// Why a slot is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// It is older than the policy's age.
    TooOld,
    /// A newer slot stands in for it.
    Coalesced,
    /// A slot that is still to come was claimed while the store's clock was ahead.
    ClockAhead,
}

impl DropReason {
    /// The counter for it.
    pub const fn event(self) -> Event {
        match self {
            DropReason::TooOld => Event::DroppedTooOld,
            DropReason::Coalesced => Event::DroppedCoalesced,
            DropReason::ClockAhead => Event::DroppedClockAhead,
        }
    }
}

/// Consecutive slots that are dropped for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// The oldest; when they were not all counted, the oldest that was.
    pub first: Slot,
    /// The newest.
    pub last: Slot,
    /// How many.
    pub count: u64,
    /// Whether there are more of them than were counted.
    pub more: bool,
    /// Why.
    pub reason: DropReason,
    /// The slot before the oldest, so that spans that follow each other are written as one.
    pub before: Option<Slot>,
}

/// What is to be done about the slots that are due.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// To be run, oldest first.
    pub run: Vec<Slot>,
    /// Not to be run, oldest first.
    pub dropped: Vec<Dropped>,
}

/// Decides about every slot up to `now`. `settled` says of a slot that its fate is known already.
pub fn due(schedule: &Schedule, now: Timestamp, last: Last, policy: CatchUp, settled: impl Fn(Slot) -> bool) -> Due {
    let after = match last {
        Last::Never => None,
        Last::Settled(at) | Last::Ahead(at) => Some(at),
    };
    let is_ahead = matches!(last, Last::Ahead(_));
    let mut due = Due::default();
    let mut counted = 0;
    let mut next = schedule.latest(now);
    while let Some(slot) = next.filter(|slot| after.is_none_or(|after| slot.0 > after)) {
        next = if last == Last::Never { None } else { schedule.before(slot) };
        if settled(slot) {
            continue;
        }
        let too_old = now.saturating_since(slot.0) > policy.max_age;
        if !is_ahead && !too_old && due.run.len() < policy.count as usize {
            due.run.push(slot);
            continue;
        }
        let reason = match (is_ahead, too_old) {
            (true, _) => DropReason::ClockAhead,
            (false, true) => DropReason::TooOld,
            (false, false) => DropReason::Coalesced,
        };
        counted += 1;
        let more = counted == COUNTED && next.is_some_and(|next| after.is_none_or(|after| next.0 > after));
        match due.dropped.last_mut().filter(|dropped| dropped.reason == reason) {
            Some(dropped) => (dropped.first, dropped.count, dropped.more) = (slot, dropped.count + 1, more),
            None => due.dropped.push(Dropped { first: slot, last: slot, count: 1, more, reason, before: None }),
        }
        if counted == COUNTED {
            break;
        }
    }
    for dropped in &mut due.dropped {
        dropped.before = schedule.before(dropped.first);
    }
    due.run.reverse();
    due.dropped.reverse();
    due
}
