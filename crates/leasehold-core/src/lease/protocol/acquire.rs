//! Who may become the holder: the rules of an acquisition, in the order in which they are checked.

use super::{AfterFailure, Decided, Refusal, RunRequest, SlotClaim, grant, lost, transfer, why_free};
use crate::holder::HolderId;
use crate::lease::record::{Ownership, SLOT_RUNS, SlotMark, SlotState};
use crate::lease::transfer::{Outcome, Reason};
use crate::nonce::Nonce;
use crate::time::{Timestamp, Ttl};
use std::time::Duration;

/// What an acquisition is for, and what else it depends on.
pub(super) struct Condition<'a> {
    pub(super) slot: Option<SlotClaim>,
    pub(super) spacing: Option<Duration>,
    pub(super) requested: Option<&'a RunRequest>,
}

pub(super) fn acquire(
    record: &Ownership,
    holder: &HolderId,
    ttl: Ttl,
    condition: &Condition<'_>,
    now: Timestamp,
) -> Decided {
    let Condition { slot, spacing, requested } = *condition;
    if record.transfer_by(holder.nonce).is_some() {
        return found_own_grant(record, holder.nonce, now);
    }
    if let Some(request) = requested {
        still_wanted(record, request, now)?;
    }
    let runs = match slot {
        Some(claim) => runs_so_far(record, claim)?,
        None => 0,
    };
    if let Some(tenure) = record.live_tenure(now) {
        return Err(Refusal::Held { tenure: tenure.clone(), epoch: record.epoch });
    }
    if let Some(mark) = &record.paused {
        return Err(Refusal::Paused(mark.clone()));
    }
    if let Some(drain) = record.live_drain(now) {
        return Err(Refusal::Draining(drain.clone()));
    }
    spaced(record, spacing, now)?;
    if let Some(claim) = slot {
        interrupted_comes_first(record, claim, now)?;
    }
    let reason = match requested {
        Some(_) => Reason::Triggered,
        None if runs > 0 => Reason::Recovered,
        None => why_free(record),
    };
    let mut next = transfer(record, now, holder.nonce, reason, Outcome::Expired)?;
    grant(&mut next, holder, ttl, now);
    if let Some(claim) = slot {
        let runs = runs.saturating_add(1);
        next.slot = Some(SlotMark { slot: claim.slot, state: SlotState::Running, epoch: next.epoch, runs });
        next.amend_last(|last| last.slot = Some(claim.slot));
    }
    if let Some(RunRequest { by, why, .. }) = requested {
        next.amend_last(|last| (last.by, last.why) = (Some(by.clone()), Some(why.clone())));
    }
    Ok(Some(next))
}

/// Whether an operator's request still counts: at the epoch that was seen, and before its time is over.
fn still_wanted(record: &Ownership, request: &RunRequest, now: Timestamp) -> Result<(), Refusal> {
    if request.expected != record.epoch {
        return Err(Refusal::Changed { expected: request.expected, seen: record.epoch });
    }
    if now >= request.until { Err(Refusal::RequestExpired { until: request.until }) } else { Ok(()) }
}

/// Whether the last run began long enough ago. A start in the future, by more
/// than the spacing, is from a clock that was set back since.
fn spaced(record: &Ownership, spacing: Option<Duration>, now: Timestamp) -> Result<(), Refusal> {
    let (Some(spacing), Some(began)) = (spacing, record.last_run_began()) else { return Ok(()) };
    let until = began.plus(spacing);
    if now < until && began < now.plus(spacing) { Err(Refusal::TooSoon { began, until }) } else { Ok(()) }
}

/// The grant under this nonce was made before, and its answer was lost. It counts only while it is in force: once
/// another holder was granted the lease, the record's epoch is that holder's.
pub(super) fn found_own_grant(record: &Ownership, nonce: Nonce, now: Timestamp) -> Decided {
    let still_ours = record.live_tenure(now).is_some_and(|t| t.holder.nonce == nonce);
    if still_ours { Ok(None) } else { Err(lost(record)) }
}

/// How often the slot was claimed before; a refusal if it may not be claimed.
fn runs_so_far(record: &Ownership, claim: SlotClaim) -> Result<u32, Refusal> {
    let Some(mark) = record.slot else { return Ok(0) };
    if claim.slot > mark.slot {
        return Ok(0);
    }
    if claim.slot < mark.slot {
        return Err(Refusal::AlreadyRun(mark));
    }
    match (mark.state, claim.after_failure) {
        (SlotState::Running, _) | (SlotState::Failed, AfterFailure::Retry) => Ok(mark.runs),
        (SlotState::Done | SlotState::Rewound, _) | (SlotState::Failed, AfterFailure::Leave) => {
            Err(Refusal::AlreadyRun(mark))
        }
    }
}

/// A newer slot waits for one whose run died, but that one is run only a bounded number of times.
fn interrupted_comes_first(record: &Ownership, claim: SlotClaim, now: Timestamp) -> Result<(), Refusal> {
    let Some(mark) = record.interrupted_slot(now) else { return Ok(()) };
    let is_worn_out = mark.runs >= SLOT_RUNS && claim.after_failure == AfterFailure::Leave;
    let refused = if claim.slot == mark.slot { is_worn_out } else { claim.gives_up != Some(mark.slot) };
    if refused { Err(Refusal::Interrupted(mark)) } else { Ok(()) }
}
