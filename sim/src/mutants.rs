//! Mutants: seeded bugs, each of which the model must catch by the promise that is named for it.
//!
//! Promise: each spoils one thing, by changing what goes into the real function or what comes out of it.
//! Non-promise: they are the mistakes that we thought of, or made.

use crate::promises::Promise;
use leasehold::guard::{self, HighWater, Policy, Rejection};
use leasehold::protocol::{self, Decision, Order, Request};
use leasehold::{Claim, Epoch, Ownership, SlotState, Timestamp, Token, Ttl};

/// A seeded bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    AcquireKeepsEpoch,
    AcquireTakesLive,
    AcquireForgetsNonce,
    AcquireClaimsOldGrant,
    RecoveryKeepsEpoch,
    RenewAdvances,
    RenewByAnyone,
    RenewAfterDeadline,
    ReleaseByAnyone,
    ReleaseForgetsEpoch,
    CheckpointByAnyone,
    CompleteByAnyone,
    CompletionNotKept,
    ReleaseLeavesSlotOpen,
    SlotNotChecked,
    EarlierSlotOpen,
    RevokeKeepsEpoch,
    HandOffKeepsEpoch,
    HandOffClaimsOldGrant,
    AdvanceStopsShort,
    OrderForgetsNonce,
    PauseIgnored,
    SwapIgnoresRevision,
    LostReplyIsGrant,
    LostReplyIsRelease,
    MismatchIsGrant,
    SealSkipped,
    SealLowers,
    GuardAdmitsLower,
    GuardIgnoresNonce,
    GuardIgnoresLease,
    GuardIgnoresSeq,
    GuardForgetsSeq,
    GuardForgetsSpent,
    RegressionAsStale,
}

impl Mutant {
    /// Each with its name on the command line and the promise that must catch it.
    pub const ALL: [(Mutant, &'static str, Promise); 35] = {
        use Mutant as M;
        use Promise as P;
        [
            (M::AcquireKeepsEpoch, "acquire-keeps-epoch", P::EpochsIncrease),
            (M::AcquireTakesLive, "acquire-takes-live", P::LiveTenureStays),
            (M::AcquireForgetsNonce, "acquire-forgets-nonce", P::AppliedOnce),
            (M::AcquireClaimsOldGrant, "acquire-claims-old-grant", P::GrantedIsGranted),
            (M::RecoveryKeepsEpoch, "recovery-keeps-epoch", P::EpochsIncrease),
            (M::RenewAdvances, "renew-advances", P::TransfersAdvance),
            (M::RenewByAnyone, "renew-by-anyone", P::OnlyTheHolder),
            (M::RenewAfterDeadline, "renew-after-deadline", P::OnlyTheHolder),
            (M::ReleaseByAnyone, "release-by-anyone", P::OnlyTheHolder),
            (M::ReleaseForgetsEpoch, "release-forgets-epoch", P::TransfersAdvance),
            (M::CheckpointByAnyone, "checkpoint-by-anyone", P::OnlyTheHolder),
            (M::CompleteByAnyone, "complete-by-anyone", P::OnlyTheHolder),
            (M::CompletionNotKept, "completion-not-kept", P::OneCompletion),
            (M::ReleaseLeavesSlotOpen, "release-leaves-slot-open", P::OneCompletion),
            (M::SlotNotChecked, "slot-not-checked", P::DoneSlotStaysDone),
            (M::EarlierSlotOpen, "earlier-slot-open", P::DoneSlotStaysDone),
            (M::RevokeKeepsEpoch, "revoke-keeps-epoch", P::TransfersAdvance),
            (M::HandOffKeepsEpoch, "hand-off-keeps-epoch", P::EpochsIncrease),
            (M::HandOffClaimsOldGrant, "hand-off-claims-old-grant", P::GrantedIsGranted),
            (M::AdvanceStopsShort, "advance-stops-short", P::AdvanceGoesPast),
            (M::OrderForgetsNonce, "order-forgets-nonce", P::AppliedOnce),
            (M::PauseIgnored, "pause-ignored", P::PauseHolds),
            (M::SwapIgnoresRevision, "swap-ignores-revision", P::SwapIsAtomic),
            (M::LostReplyIsGrant, "lost-reply-is-grant", P::GrantedIsGranted),
            (M::LostReplyIsRelease, "lost-reply-is-release", P::ReleasedIsReleased),
            (M::MismatchIsGrant, "mismatch-is-grant", P::GrantedIsGranted),
            (M::SealSkipped, "seal-skipped", P::NoLowerEpoch),
            (M::SealLowers, "seal-lowers", P::NoLowerEpoch),
            (M::GuardAdmitsLower, "guard-admits-lower", P::NoLowerEpoch),
            (M::GuardIgnoresNonce, "guard-ignores-nonce", P::OneGrantPerEpoch),
            (M::GuardIgnoresLease, "guard-ignores-lease", P::NoForeignToken),
            (M::GuardIgnoresSeq, "guard-ignores-seq", P::WritesInOrder),
            (M::GuardForgetsSeq, "guard-forgets-seq", P::WritesInOrder),
            (M::GuardForgetsSpent, "guard-forgets-spent", P::OneWritePerEpoch),
            (M::RegressionAsStale, "regression-as-stale", P::RegressionIsDistinct),
        ]
    };

    /// The mutant of that name.
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.iter().find(|(_, known, _)| *known == name).map(|(mutant, _, _)| *mutant)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Mutant::ALL[self as usize].1
    }

    /// The promise that must catch it.
    pub fn caught_by(self) -> Promise {
        Mutant::ALL[self as usize].2
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
            if next.transfers.last().is_some_and(|t| t.reason == leasehold::Reason::Recovered) {
                keep_epoch(record, next);
            }
        }),
        (Mutant::AcquireTakesLive, Request::Acquire { .. }) => protocol::decide(record, request, past_every_deadline),
        (Mutant::AcquireForgetsNonce, Request::Acquire { holder, .. }) => {
            let mut forgetful = record.clone();
            forgetful.transfers.retain(|t| t.nonce != holder.nonce);
            real(&forgetful, request)
        }
        (Mutant::AcquireClaimsOldGrant, Request::Acquire { holder, .. })
            if record.transfer_by(holder.nonce).is_some() =>
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
            if record.transfer_by(to.nonce).is_some() =>
        {
            Decision::AlreadyApplied
        }
        (Mutant::AdvanceStopsShort, Request::Operate { nonce, by, why, order: Order::Advance { .. } }) => {
            let order = Order::Advance { past: Epoch::ZERO };
            real(record, &Request::Operate { nonce: *nonce, by: by.clone(), why: why.clone(), order })
        }
        (Mutant::OrderForgetsNonce, Request::Operate { nonce, order, .. }) => {
            let nonce = if let Order::HandOff { to, .. } = order { to.nonce } else { *nonce };
            let mut forgetful = record.clone();
            forgetful.transfers.retain(|t| t.nonce != nonce);
            real(&forgetful, request)
        }
        (Mutant::PauseIgnored, Request::Acquire { .. }) => {
            let paused = record.paused.clone();
            change(real(&Ownership { paused: None, ..record.clone() }, request), |next| next.paused = paused)
        }
        _ => real(record, request),
    }
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
        last.epoch = record.epoch;
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
        *claim = Claim { epoch: record.epoch, nonce: tenure.holder.nonce };
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
        Ok(next) => Ok(next),
        Err(rejection) => Err(spoil_rejection(mutant, rejection)),
    }
}

/// What a guard that overlooks something believes to remember.
fn spoil_high(mutant: Mutant, high: Option<&HighWater>, token: &Token) -> Option<HighWater> {
    let mut high = high?.clone();
    match mutant {
        Mutant::GuardAdmitsLower => {
            if token.epoch < high.epoch {
                return None;
            }
        }
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

    #[test]
    fn every_mutant_stands_at_its_own_place_under_its_own_name() {
        for (index, (mutant, name, _)) in Mutant::ALL.iter().enumerate() {
            assert_eq!(*mutant as usize, index);
            assert_eq!(Mutant::named(name), Some(*mutant));
        }
    }
}
