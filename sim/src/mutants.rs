//! Mutants: seeded bugs, each of which the model must catch by the promise that is named for it.
//!
//! Promise: each spoils one thing, by changing what goes into the real function or what comes out of it.
//! Non-promise: they are the mistakes that we thought of, or made.

use crate::config::{self, Config};
use crate::promises::Promise;
use leasehold_core::guard::{self, HighWater, Policy, Rejection};
use leasehold_core::lease::protocol::{self, Decision, Order, Request};
use leasehold_core::{Claim, Epoch, Nonce, Ownership, SlotState, Timestamp, Token, Ttl};
use std::sync::Arc;

/// A seeded bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A grant does not advance the epoch.
    AcquireKeepsEpoch,
    /// A grant does not wait for the deadline.
    AcquireTakesLive,
    /// A repeated acquisition does not find its own grant, and makes a second.
    AcquireForgetsNonce,
    /// A repeated acquisition finds its own grant even when it is over.
    AcquireClaimsOldGrant,
    /// Recovering a slot does not advance the epoch.
    RecoveryKeepsEpoch,
    /// A renewal advances the epoch.
    RenewAdvances,
    /// Whoever asks, the holder is renewed.
    RenewByAnyone,
    /// A renewal does not look at the deadline.
    RenewAfterDeadline,
    /// Whoever asks, the holder is released.
    ReleaseByAnyone,
    /// A release deletes the record.
    ReleaseForgetsEpoch,
    /// Whoever asks, progress is recorded.
    CheckpointByAnyone,
    /// Whoever asks, the slot is completed.
    CompleteByAnyone,
    /// A release opens the slot again that was completed.
    CompletionNotKept,
    /// A release after success does not close the slot.
    ReleaseLeavesSlotOpen,
    /// A slot is granted whatever became of it.
    SlotNotChecked,
    /// A slot earlier than the newest is granted.
    EarlierSlotOpen,
    /// A revocation does not advance the epoch.
    RevokeKeepsEpoch,
    /// A hand-off does not advance the epoch.
    HandOffKeepsEpoch,
    /// A repeated hand-off finds its own grant even when it is over.
    HandOffClaimsOldGrant,
    /// Advancing does not look at the number given.
    AdvanceStopsShort,
    /// A repeated order does not find that it was carried out.
    OrderForgetsNonce,
    /// A pause keeps nobody out.
    PauseIgnored,
    /// Asking a holder to finish keeps nobody out.
    DrainIgnored,
    /// Asking a holder to finish ends its tenure.
    DrainEvicts,
    /// A swap does not compare revisions.
    SwapIgnoresRevision,
    /// No answer is taken for a grant.
    LostReplyIsGrant,
    /// No answer is taken for a release.
    LostReplyIsRelease,
    /// A mismatch is taken for a grant.
    MismatchIsGrant,
    /// A seal leaves the fence where it was.
    SealSkipped,
    /// A seal lowers the fence.
    SealLowers,
    /// A guard admits a lower epoch.
    GuardAdmitsLower,
    /// A guard remembers a higher epoch than it was shown.
    GuardCountsAhead,
    /// A guard compares epochs only.
    GuardIgnoresNonce,
    /// A guard does not compare leases.
    GuardIgnoresLease,
    /// A guard of ordered writes does not compare sequences.
    GuardIgnoresSeq,
    /// A guard of ordered writes does not remember the sequence.
    GuardForgetsSeq,
    /// A once-per-epoch guard does not remember that it was written to.
    GuardForgetsSpent,
    /// A guard tells a regressed store as a stale epoch.
    RegressionAsStale,
}

impl Mutant {
    /// Each with its name on the command line, the promise that must catch it, and where.
    pub const ALL: [(Mutant, &'static str, Promise, &'static Config); 38] = {
        use Mutant as M;
        use Promise as P;
        [
            (M::AcquireKeepsEpoch, "acquire-keeps-epoch", P::EpochsIncrease, &config::FAULTS),
            (M::AcquireTakesLive, "acquire-takes-live", P::LiveTenureStays, &config::FAULTS),
            (M::AcquireForgetsNonce, "acquire-forgets-nonce", P::AppliedOnce, &config::FAULTS),
            (M::AcquireClaimsOldGrant, "acquire-claims-old-grant", P::GrantedIsGranted, &config::FAULTS),
            (M::RecoveryKeepsEpoch, "recovery-keeps-epoch", P::EpochsIncrease, &config::SLOTS),
            (M::RenewAdvances, "renew-advances", P::TransfersAdvance, &config::FAULTS),
            (M::RenewByAnyone, "renew-by-anyone", P::OnlyTheHolder, &config::FAULTS),
            (M::RenewAfterDeadline, "renew-after-deadline", P::OnlyTheHolder, &config::FAULTS),
            (M::ReleaseByAnyone, "release-by-anyone", P::OnlyTheHolder, &config::FAULTS),
            (M::ReleaseForgetsEpoch, "release-forgets-epoch", P::TransfersAdvance, &config::FAULTS),
            (M::CheckpointByAnyone, "checkpoint-by-anyone", P::OnlyTheHolder, &config::FAULTS),
            (M::CompleteByAnyone, "complete-by-anyone", P::OnlyTheHolder, &config::SLOTS),
            (M::CompletionNotKept, "completion-not-kept", P::OneCompletion, &config::SLOTS),
            (M::ReleaseLeavesSlotOpen, "release-leaves-slot-open", P::OneCompletion, &config::SLOTS),
            (M::SlotNotChecked, "slot-not-checked", P::DoneSlotStaysDone, &config::SLOTS),
            (M::EarlierSlotOpen, "earlier-slot-open", P::DoneSlotStaysDone, &config::SLOTS),
            (M::RevokeKeepsEpoch, "revoke-keeps-epoch", P::TransfersAdvance, &config::OPERATOR),
            (M::HandOffKeepsEpoch, "hand-off-keeps-epoch", P::EpochsIncrease, &config::OPERATOR),
            (M::HandOffClaimsOldGrant, "hand-off-claims-old-grant", P::GrantedIsGranted, &config::OPERATOR),
            (M::AdvanceStopsShort, "advance-stops-short", P::AdvanceGoesPast, &config::ROLLBACK),
            (M::OrderForgetsNonce, "order-forgets-nonce", P::AppliedOnce, &config::OPERATOR),
            (M::PauseIgnored, "pause-ignored", P::PauseHolds, &config::OPERATOR),
            (M::DrainIgnored, "drain-ignored", P::DrainKeepsOut, &config::DRAIN),
            (M::DrainEvicts, "drain-evicts", P::DrainTakesNothing, &config::DRAIN),
            (M::SwapIgnoresRevision, "swap-ignores-revision", P::SwapIsAtomic, &config::FAULTS),
            (M::LostReplyIsGrant, "lost-reply-is-grant", P::GrantedIsGranted, &config::FAULTS),
            (M::LostReplyIsRelease, "lost-reply-is-release", P::ReleasedIsReleased, &config::FAULTS),
            (M::MismatchIsGrant, "mismatch-is-grant", P::GrantedIsGranted, &config::FAULTS),
            (M::SealSkipped, "seal-skipped", P::NoLowerEpoch, &config::FAULTS),
            (M::SealLowers, "seal-lowers", P::NoLowerEpoch, &config::FAULTS),
            (M::GuardAdmitsLower, "guard-admits-lower", P::NoLowerEpoch, &config::FAULTS),
            (M::GuardCountsAhead, "guard-counts-ahead", P::GuardNotAhead, &config::FAULTS),
            (M::GuardIgnoresNonce, "guard-ignores-nonce", P::OneGrantPerEpoch, &config::ROLLBACK),
            (M::GuardIgnoresLease, "guard-ignores-lease", P::NoForeignToken, &config::FAULTS),
            (M::GuardIgnoresSeq, "guard-ignores-seq", P::WritesInOrder, &config::FAULTS),
            (M::GuardForgetsSeq, "guard-forgets-seq", P::WritesInOrder, &config::FAULTS),
            (M::GuardForgetsSpent, "guard-forgets-spent", P::OneWritePerEpoch, &config::FAULTS),
            (M::RegressionAsStale, "regression-as-stale", P::RegressionIsDistinct, &config::ROLLBACK),
        ]
    };

    /// The mutant of that name.
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Mutant::ALL[self as usize].1
    }

    /// The promise that must catch it.
    pub fn caught_by(self) -> Promise {
        Mutant::ALL[self as usize].2
    }

    /// The configuration in which it shows.
    pub fn seen_in(self) -> &'static Config {
        Mutant::ALL[self as usize].3
    }
}

/// `decide` with a seeded bug.
pub fn decide(mutant: Mutant, record: &Ownership, request: &Request, now: Timestamp) -> Decision {
    let real = |record: &Ownership, request: &Request| protocol::decide(record, request, now);
    let past_every_deadline = record.tenure.as_ref().map_or(now, |t| t.deadline.plus(Ttl::MIN.get()));
    match (mutant, request) {
        (Mutant::AcquireKeepsEpoch, Request::Acquire { .. }) if record.epoch > Epoch::ZERO => {
            change(real(record, request), |next| keep_epoch(record, next))
        }
        (Mutant::RecoveryKeepsEpoch, Request::Acquire { .. }) => change(real(record, request), |next| {
            if next.transfers.last().is_some_and(|t| t.reason == leasehold_core::Reason::Recovered) {
                keep_epoch(record, next);
            }
        }),
        (Mutant::AcquireTakesLive, Request::Acquire { .. }) => protocol::decide(record, request, past_every_deadline),
        (Mutant::AcquireForgetsNonce, Request::Acquire { holder, .. }) => {
            real(&forgetful(record, holder.nonce()), request)
        }
        (Mutant::AcquireClaimsOldGrant, Request::Acquire { holder, .. })
            if record.transfer_by(holder.nonce()).is_some() =>
        {
            Decision::AlreadyApplied
        }
        (Mutant::RenewAdvances, Request::Renew { .. }) => change(real(record, request), |next| {
            next.epoch = next.epoch.next().unwrap_or(Epoch::MAX);
        }),
        (Mutant::RenewAfterDeadline, Request::Renew { .. }) => {
            protocol::decide(record, request, Timestamp::from_millis(0))
        }
        (Mutant::RenewByAnyone, Request::Renew { .. })
        | (Mutant::ReleaseByAnyone, Request::Release { .. })
        | (Mutant::CheckpointByAnyone, Request::Checkpoint { .. })
        | (Mutant::CompleteByAnyone, Request::Complete { .. }) => real(record, &as_the_holder(record, request)),
        (Mutant::ReleaseForgetsEpoch, Request::Release { .. }) => {
            change(real(record, request), |next| *next = Ownership::default())
        }
        (Mutant::CompletionNotKept, Request::Release { .. })
        | (Mutant::ReleaseLeavesSlotOpen, Request::Release { .. }) => change(real(record, request), |next| {
            let was = record.slot.map(|mark| mark.state);
            let spoil = mutant == Mutant::CompletionNotKept || was == Some(SlotState::Running);
            if let Some(mark) = next.slot.as_mut().filter(|_| spoil) {
                mark.state = SlotState::Running;
            }
        }),
        (Mutant::SlotNotChecked, Request::Acquire { .. }) => real(&Ownership { slot: None, ..record.clone() }, request),
        (Mutant::EarlierSlotOpen, Request::Acquire { slot: Some(claim), .. })
            if record.slot.is_some_and(|mark| claim.slot < mark.slot) =>
        {
            real(&Ownership { slot: None, ..record.clone() }, request)
        }
        (Mutant::RevokeKeepsEpoch, Request::Operate { order: Order::Revoke, .. })
        | (Mutant::HandOffKeepsEpoch, Request::Operate { order: Order::HandOff { .. }, .. }) => {
            change(real(record, request), |next| keep_epoch(record, next))
        }
        (Mutant::HandOffClaimsOldGrant, Request::Operate { order: Order::HandOff { to, .. }, .. })
            if record.transfer_by(to.nonce()).is_some() =>
        {
            Decision::AlreadyApplied
        }
        (Mutant::AdvanceStopsShort, Request::Operate { order: Order::Advance { lineage, .. }, .. }) => {
            let mut short = request.clone();
            if let Request::Operate { order, .. } = &mut short {
                *order = Order::Advance { past: Epoch::ZERO, lineage: *lineage };
            }
            real(record, &short)
        }
        (Mutant::OrderForgetsNonce, Request::Operate { nonce, order, .. }) => {
            let nonce = if let Order::HandOff { to, .. } = order { to.nonce() } else { *nonce };
            real(&forgetful(record, nonce), request)
        }
        (Mutant::PauseIgnored, Request::Acquire { .. }) => {
            let paused = record.paused.clone();
            change(real(&Ownership { paused: None, ..record.clone() }, request), |next| next.paused = paused)
        }
        (Mutant::DrainIgnored, Request::Acquire { .. }) => real(&Ownership { drain: None, ..record.clone() }, request),
        (Mutant::DrainEvicts, Request::Operate { order: Order::Drain { .. }, .. }) => {
            change(real(record, request), |next| next.tenure = None)
        }
        _ => real(record, request),
    }
}

/// The record without the transfer of this nonce.
fn forgetful(record: &Ownership, nonce: Nonce) -> Ownership {
    let mut forgetful = record.clone();
    forgetful.transfers.retain(|t| t.nonce != nonce);
    forgetful
}

fn change(decision: Decision, spoil: impl FnOnce(&mut Ownership)) -> Decision {
    match decision {
        Decision::Write(mut next) => {
            spoil(&mut next);
            Decision::Write(next)
        }
        other => other,
    }
}

fn keep_epoch(record: &Ownership, next: &mut Ownership) {
    next.epoch = record.epoch;
    if let Some(last) = next.transfers.last_mut() {
        Arc::make_mut(last).epoch = record.epoch;
    }
}

/// The same request in the name of whoever holds the lease.
fn as_the_holder(record: &Ownership, request: &Request) -> Request {
    let mut request = request.clone();
    if let (
        Some(tenure),
        Request::Renew { claim, .. }
        | Request::Release { claim, .. }
        | Request::Checkpoint { claim, .. }
        | Request::Complete { claim, .. },
    ) = (&record.tenure, &mut request)
    {
        *claim = Claim { epoch: record.epoch, nonce: tenure.holder.nonce() };
    }
    request
}

/// `seal` with a seeded bug.
pub fn seal(mutant: Mutant, high: Option<&HighWater>, token: &Token) -> Result<HighWater, Rejection> {
    match mutant {
        Mutant::SealSkipped => match (high, guard::seal(high, token)?) {
            (Some(high), _) => Ok(high.clone()),
            // A fence must exist to be skipped: the lowest there is.
            (None, sealed) => Ok(HighWater { epoch: Epoch::ZERO, ..sealed }),
        },
        Mutant::SealLowers => guard::seal(None, token),
        _ => guard::seal(spoil_high(mutant, high, token).as_ref(), token).map_err(|r| spoil_rejection(mutant, r)),
    }
}

/// `admit` with a seeded bug.
pub fn admit(mutant: Mutant, high: Option<&HighWater>, token: &Token, policy: Policy) -> Result<HighWater, Rejection> {
    let admitted = guard::admit(spoil_high(mutant, high, token).as_ref(), token, policy);
    match admitted {
        Ok(next) if mutant == Mutant::GuardForgetsSeq => Ok(HighWater { seq: 0, ..next }),
        Ok(next) if mutant == Mutant::GuardCountsAhead => {
            Ok(HighWater { epoch: next.epoch.next().unwrap_or(Epoch::MAX), ..next })
        }
        Ok(next) => Ok(next),
        Err(rejection) => Err(spoil_rejection(mutant, rejection)),
    }
}

/// What a guard that overlooks something believes to remember.
fn spoil_high(mutant: Mutant, high: Option<&HighWater>, token: &Token) -> Option<HighWater> {
    let mut high = high?.clone();
    match mutant {
        Mutant::GuardAdmitsLower if token.epoch < high.epoch => return None,
        Mutant::GuardIgnoresNonce => high.nonce = token.nonce,
        Mutant::GuardIgnoresLease => high.lease = token.lease.clone(),
        Mutant::GuardIgnoresSeq if token.seq > 0 => high.seq = token.seq - 1,
        Mutant::GuardForgetsSpent => high.seq = 0,
        _ => {}
    }
    Some(high)
}

fn spoil_rejection(mutant: Mutant, rejection: Rejection) -> Rejection {
    match rejection {
        Rejection::Regressed { seen, .. } if mutant == Mutant::RegressionAsStale => {
            Rejection::Stale { held: seen, seen }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promises::PROMISES;

    #[test]
    fn every_mutant_stands_at_its_own_place_under_its_own_name() {
        for (index, (mutant, name, _, _)) in Mutant::ALL.iter().enumerate() {
            assert_eq!(*mutant as usize, index);
            assert_eq!(Mutant::named(name), Some(*mutant));
        }
    }

    #[test]
    fn every_promise_has_a_mutant_of_its_own() {
        for (promise, name, _) in PROMISES {
            assert!(Mutant::ALL.iter().any(|row| row.2 == promise), "nothing shows that `{name}` can fail");
        }
    }
}
