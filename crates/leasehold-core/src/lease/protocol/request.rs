//! What can be asked of a lease, and the answers: plain data.

use super::moving::{Holder, Newborn};
use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::lease::record::{Drain, OperatorMark, Ownership, Slot, SlotMark, Tenure};
use crate::lease::transfer::{Outcome, Transfer};
use crate::nonce::{Lineage, Nonce};
use crate::relocation::{self, Address, Relocation};
use crate::text::{Checkpoint, Marker, Who, Why};
use crate::time::{self, Timestamp, Ttl};
use crate::token::Claim;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A request on a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Become the holder.
    Acquire {
        /// The lineage of the record, if this request writes its first version.
        lineage: Lineage,
        /// Who asks. The grant gets this holder's nonce.
        holder: HolderId,
        /// How long the grant lasts unless renewed.
        ttl: Ttl,
        /// The scheduled slot to claim in the same step.
        slot: Option<SlotClaim>,
        /// The least time since the last run began, by whatever holder.
        #[serde(default, with = "time::optional_millis")]
        spacing: Option<Duration>,
        /// The operator's request that this carries out, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested: Option<RunRequest>,
    },
    /// Stay the holder.
    Renew {
        /// The tenure that asks.
        claim: Claim,
        /// How long from now.
        ttl: Ttl,
        /// New evidence of progress, if any.
        progress: Option<Report>,
    },
    /// Stop being the holder.
    Release {
        /// The tenure that asks.
        claim: Claim,
        /// How the work went. [`Outcome::Expired`] and [`Outcome::Evicted`] are
        /// not the holder's to report, and count as [`Outcome::Lost`].
        outcome: Outcome,
    },
    /// Record how far the work has come.
    Checkpoint {
        /// The tenure that asks.
        claim: Claim,
        /// The marker and the checkpoint to record.
        report: Report,
    },
    /// Record that the claimed slot's run is over, without releasing the lease.
    Complete {
        /// The tenure that asks.
        claim: Claim,
        /// How it went: [`Outcome::Succeeded`] makes the slot done, [`Outcome::Failed`] failed. Any other outcome
        /// leaves it open for another run to recover.
        outcome: Outcome,
    },
    /// An operator's request.
    Operate {
        /// Unique to this request, so that a lost answer does not apply it twice.
        nonce: Nonce,
        /// The lineage of the record, if this request writes its first version.
        lineage: Lineage,
        /// Who orders it.
        by: Who,
        /// Why, for the lease's history.
        why: Why,
        /// The epoch that the order was decided on; none if it does not matter.
        /// The order is refused at any other epoch.
        expected: Option<Epoch>,
        /// The order itself.
        order: Order,
    },
}

impl Request {
    /// The nonce by which its transfer is found: a new holder's own nonce, so
    /// that its release finds the transfer that began its tenure.
    pub(crate) fn transfer_nonce(&self) -> Option<Nonce> {
        match self {
            Request::Acquire { holder, .. } | Request::Operate { order: Order::HandOff { to: holder, .. }, .. } => {
                Some(holder.nonce)
            }
            Request::Operate { nonce, .. } => Some(*nonce),
            _ => None,
        }
    }

    /// The claim that it is made under.
    pub fn claim(&self) -> Option<Claim> {
        match self {
            Request::Renew { claim, .. }
            | Request::Release { claim, .. }
            | Request::Checkpoint { claim, .. }
            | Request::Complete { claim, .. } => Some(*claim),
            _ => None,
        }
    }

    /// Whether only the holder may make it. A lease that has left for another store has no holder.
    pub fn needs_a_claim(&self) -> bool {
        !matches!(self, Request::Acquire { .. } | Request::Operate { .. })
    }
}

/// What an operator may order. A migration's own steps are never sent to a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Take the lease from its holder; anyone may acquire it next.
    Revoke,
    /// Take it from its holder and give it to this one in the same step.
    HandOff {
        /// The new holder.
        to: HolderId,
        /// How long its grant lasts unless renewed.
        ttl: Ttl,
    },
    /// Ask the holder to finish, and keep new holders out meanwhile. A second request replaces the first.
    Drain {
        /// How long the request is in force.
        within: Ttl,
    },
    /// Erase all but a tombstone of a lease that has been idle for this long.
    /// Its epochs continue from there when it is used again.
    Forget {
        /// The least time since it was last held.
        #[serde(with = "time::millis")]
        idle: Duration,
    },
    /// Keep new holders out. The present holder continues.
    Pause,
    /// Let new holders in again.
    Resume {
        /// The pause to end. A later pause stays in force.
        pause: Nonce,
    },
    /// Move the epoch past this number: repairs a store that was restored from an old backup.
    Advance {
        /// The highest epoch that any guard has seen.
        past: Epoch,
        /// The lineage that guards know, if the record was lost and began a new one.
        lineage: Option<Lineage>,
    },
    /// Take the lease from its holder, and set the mark of the newest slot back to the store's time if it is ahead of
    /// it. Repairs a job whose slots were claimed while the store's clock was ahead.
    Rewind,
    /// One step of a migration, on an existing record.
    #[serde(skip)]
    Relocate {
        /// The migration's own number.
        migration: Nonce,
        /// What the migration does next.
        step: relocation::Step,
        /// What [`relocation::Step::Leave`] does about the holder.
        holder: Holder,
    },
    /// Take in the record that this lease has in another store, so that its epochs continue from there.
    #[serde(skip)]
    Arrive {
        /// The migration's own number.
        migration: Nonce,
        /// The store that it comes from.
        from: Address,
        /// The record there, as it was when it left.
        record: Box<Ownership>,
        /// How to treat a record of this name here whose holder has done nothing since it acquired.
        newborn: Newborn,
    },
}

/// A slot to be claimed with the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotClaim {
    /// The slot's nominal instant.
    pub slot: Slot,
    /// What to do if that slot already ran and failed.
    pub after_failure: AfterFailure,
    /// The older slot whose run died and that is not run again; the requester has recorded its end. Without this, an
    /// interrupted slot keeps newer ones out, so that none is skipped silently.
    pub gives_up: Option<Slot>,
}

impl SlotClaim {
    /// This slot, giving up no older one.
    pub const fn new(slot: Slot, after_failure: AfterFailure) -> Self {
        SlotClaim { slot, after_failure, gives_up: None }
    }
}

/// An operator's request for a run, which any process that has the job carries out.
///
/// Of any number that try, only one is granted, because that moves the epoch that the operator saw.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The operator who asks for the run.
    pub by: Who,
    /// The operator's reason.
    pub why: Why,
    /// The epoch that the operator saw. The request is refused at any other epoch.
    pub expected: Epoch,
    /// When the request expires, in store time.
    pub until: Timestamp,
}

/// What a failed run of a slot means for a new claim on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterFailure {
    /// The slot counts as run: leave it.
    Leave,
    /// Run it again.
    Retry,
}

/// Evidence of progress.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// How far the work has come.
    pub marker: Option<Marker>,
    /// What the next attempt needs; none keeps the previous checkpoint.
    pub checkpoint: Option<Checkpoint>,
}

/// The answer of [`decide`](super::decide).
pub type Decision = crate::cell::Decision<Ownership, Refusal>;

/// Why a request is refused. None of these is an error of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody else holds it.
    Held {
        /// The tenure of the holder.
        tenure: Tenure,
        /// The holder's epoch.
        epoch: Epoch,
    },
    /// An operator has paused it, so new holders are kept out or a second pause is refused.
    Paused(OperatorMark),
    /// The holder was asked to finish, and nobody else gets the lease meanwhile.
    Draining(Drain),
    /// The last run began too recently.
    TooSoon {
        /// When it began, in store time.
        began: Timestamp,
        /// When the next one may begin.
        until: Timestamp,
    },
    /// It was held too recently to forget it.
    Recent {
        /// When it became idle, or will.
        since: Timestamp,
    },
    /// It was already forgotten.
    Forgotten(OperatorMark),
    /// Nobody holds it, so there is nobody to ask.
    NotHeld,
    /// The slot was run, a later slot was claimed, or it was completed with another outcome.
    AlreadyRun(SlotMark),
    /// The run of this slot died or could not be started. It is run again, or given up, before a newer slot is claimed.
    /// It is run at most [`SLOT_RUNS`](crate::SLOT_RUNS) times, unless somebody asks for it by name.
    Interrupted(SlotMark),
    /// The requester is not, or no longer, the holder.
    Lost {
        /// The record's epoch.
        seen: Epoch,
        /// Who holds it now, if anyone.
        holder: Option<HolderId>,
        /// How the epoch last moved, if it did.
        last: Option<Arc<Transfer>>,
    },
    /// The requester has already released this tenure.
    AlreadyReleased {
        /// How it ended.
        outcome: Outcome,
    },
    /// Nobody ever held a lease of this name, so there is nothing to operate on.
    NeverHeld,
    /// There is no pause to end.
    NotPaused,
    /// There is no claimed slot to complete.
    NoSlot,
    /// The record's epoch is not the one that the order was decided on.
    Changed {
        /// The epoch that was expected.
        expected: Epoch,
        /// The record's epoch.
        seen: Epoch,
    },
    /// The operator's request expired before it was carried out.
    RequestExpired {
        /// When it expired.
        until: Timestamp,
    },
    /// The pause in force is not the one that was to end.
    OtherPause(OperatorMark),
    /// The lease is moving to another store, has moved there, or has not finished arriving from there.
    Elsewhere(Relocation),
    /// No migration is moving the lease.
    NotMoving {
        /// The lineage of the lease in this store.
        lineage: Option<Lineage>,
        /// The epoch of the lease in this store.
        epoch: Epoch,
    },
    /// The lease of this name in the other store has another lineage, with epochs of its own.
    OtherLineage {
        /// The lineage here.
        here: Option<Lineage>,
        /// The lineage there.
        there: Option<Lineage>,
    },
    /// An operator has already set the record's lineage. A second change would fence off what the first repaired.
    LineageFixed {
        /// The lineage that it has.
        lineage: Option<Lineage>,
    },
    /// No epoch is left.
    Exhausted,
    /// An advance that far would leave too few epochs.
    TooFar {
        /// The highest epoch that an advance may go past.
        most: Epoch,
    },
}

impl fmt::Display for Refusal {
    /// The obstacle, to follow the name of the lease: `held by box-1 (pid 4711) under epoch 3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Held { tenure, epoch } => write!(f, "held by {} under epoch {epoch}", tenure.holder),
            Refusal::Paused(mark) | Refusal::OtherPause(mark) => write!(f, "paused by {}: {}", mark.by, mark.why),
            Refusal::Draining(drain) => write!(f, "{drain}, and nobody new gets it meanwhile"),
            Refusal::TooSoon { .. } => f.write_str("its last run began too recently"),
            Refusal::Recent { .. } => f.write_str("it was held too recently to forget"),
            Refusal::Forgotten(mark) => write!(f, "forgotten before by {}: {}", mark.by, mark.why),
            Refusal::NotHeld => f.write_str("nobody holds it"),
            Refusal::AlreadyRun(mark) => write!(f, "its slot already ran, under epoch {}", mark.epoch),
            Refusal::Interrupted(mark) => {
                write!(f, "its slot was interrupted under epoch {}, and comes before a newer one", mark.epoch)
            }
            Refusal::Lost { seen, holder: Some(holder), .. } => write!(f, "now held by {holder} under epoch {seen}"),
            Refusal::Lost { seen, holder: None, .. } => write!(f, "free since epoch {seen}"),
            Refusal::AlreadyReleased { outcome } => write!(f, "released before, as {}", outcome.as_str()),
            Refusal::NeverHeld => f.write_str("nobody has ever held it"),
            Refusal::NotPaused => f.write_str("it is not paused"),
            Refusal::NoSlot => f.write_str("it has no slot to complete"),
            Refusal::Changed { expected, seen } => {
                write!(f, "decided on epoch {expected}, and it is at epoch {seen} now")
            }
            Refusal::RequestExpired { .. } => f.write_str("the request for this run was not taken up in time"),
            Refusal::Elsewhere(state) => write!(f, "{state}"),
            Refusal::NotMoving { epoch, .. } => {
                write!(f, "not on its way to another store; its epoch is {epoch}")
            }
            Refusal::OtherLineage { .. } => f.write_str("the lease of this name in the other store is another one"),
            Refusal::LineageFixed { .. } => f.write_str("an operator gave it a lineage before"),
            Refusal::Exhausted => f.write_str("it has no epochs left"),
            Refusal::TooFar { most } => write!(f, "an advance may go past {most} at most"),
        }
    }
}
