//! The ownership record: who holds a lease, until when, and how it came to be so.
//!
//! Promise: one record per lease, never deleted, with the reasons of the last transfers in it. Non-promise: it is
//! plain data; only [`crate::protocol`] changes it.

use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::nonce::Nonce;
use crate::text::{Checkpoint, Marker, Who, Why};
use crate::time::{Timestamp, Ttl};
use crate::token::Claim;
use serde::{Deserialize, Serialize};

/// How many transfers a record remembers.
pub const TRANSFERS_KEPT: usize = 32;

/// The record of one lease. [`Ownership::default`] is a lease that nobody ever held.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ownership {
    /// The fencing number of the last transfer.
    pub epoch: Epoch,
    /// Who holds it, if anyone does. May have run out: only the store's clock can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenure: Option<Tenure>,
    /// The newest scheduled slot that was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotMark>,
    /// The last evidence of progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Set while an operator keeps new holders out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<OperatorMark>,
    /// Who last ended a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<OperatorMark>,
    /// The last transfers, oldest first, at most [`TRANSFERS_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Transfer>,
}

impl Default for Ownership {
    fn default() -> Self {
        Ownership {
            epoch: Epoch::ZERO,
            tenure: None,
            slot: None,
            progress: None,
            paused: None,
            resumed: None,
            transfers: Vec::new(),
        }
    }
}

impl Ownership {
    /// The tenure that has not run out at `now`.
    pub fn live_tenure(&self, now: Timestamp) -> Option<&Tenure> {
        self.tenure.as_ref().filter(|t| now < t.deadline)
    }

    /// True when this claim is the tenure in the record, run out or not.
    pub fn is_held_by(&self, claim: Claim) -> bool {
        self.epoch == claim.epoch && self.tenure.as_ref().is_some_and(|t| t.holder.nonce == claim.nonce)
    }

    /// The transfer that this nonce caused, if it is still remembered.
    pub fn transfer_by(&self, nonce: Nonce) -> Option<&Transfer> {
        self.transfers.iter().rev().find(|t| t.nonce == nonce)
    }
}

/// A time-bounded hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenure {
    /// Who holds.
    pub holder: HolderId,
    /// Since when, in store time.
    pub granted_at: Timestamp,
    /// Until when, in store time, unless renewed.
    pub deadline: Timestamp,
    /// How far each renewal moves the deadline.
    pub ttl: Ttl,
}

/// The nominal instant of a scheduled run, whatever any clock says when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub Timestamp);

/// What became of a claimed slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Claimed; the run has not said how it ended. If its tenure is over, it died.
    Running,
    /// Ran to its end.
    Done,
    /// Ran and failed.
    Failed,
}

impl SlotState {
    /// The word in records, JSON and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            SlotState::Running => "running",
            SlotState::Done => "done",
            SlotState::Failed => "failed",
        }
    }
}

/// A claimed slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotMark {
    /// Which slot.
    pub slot: Slot,
    /// What became of it.
    pub state: SlotState,
    /// The epoch whose holder claimed it.
    pub epoch: Epoch,
}

/// Evidence that the work moves, apart from the heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// When it was reported, in store time.
    pub at: Timestamp,
    /// The epoch whose holder reported it.
    pub epoch: Epoch,
    /// How far the work has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Marker>,
    /// What the next attempt needs to carry on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
}

/// Who did something to the lease by hand, why and when.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorMark {
    /// Who.
    pub by: Who,
    /// Why.
    pub why: Why,
    /// When, in store time.
    pub at: Timestamp,
    /// The nonce of the request, so that a lost reply can be told from another operator's order.
    pub nonce: Nonce,
}

/// Why an epoch advanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Nobody ever held it.
    First,
    /// The holder before had released it.
    Released,
    /// The holder before ran out of time.
    Expired,
    /// An operator took it away.
    Revoked,
    /// An operator gave it to somebody else.
    HandedOff,
    /// A slot whose run died was claimed again.
    Recovered,
    /// An operator moved the epoch past a guard's high water.
    Advanced,
}

impl Reason {
    /// The word in records, JSON and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::First => "first",
            Reason::Released => "released",
            Reason::Expired => "expired",
            Reason::Revoked => "revoked",
            Reason::HandedOff => "handed_off",
            Reason::Recovered => "recovered",
            Reason::Advanced => "advanced",
        }
    }
}

/// How a tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Released after work that went well.
    Succeeded,
    /// Released after work that failed.
    Failed,
    /// Released after the holder found that it could not keep the lease.
    Lost,
    /// Never released: it ran out.
    Expired,
    /// Ended by an operator.
    Evicted,
}

impl Outcome {
    /// The word in records, JSON and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Lost => "lost",
            Outcome::Expired => "expired",
            Outcome::Evicted => "evicted",
        }
    }
}

/// One advance of the epoch: a tenure that began, or an operator's act.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The epoch that began.
    pub epoch: Epoch,
    /// When, in store time.
    pub at: Timestamp,
    /// Why the lease was there to be had.
    pub reason: Reason,
    /// The nonce of the request, so that a lost reply can be told from a refusal.
    pub nonce: Nonce,
    /// Who held it just before, if that tenure had not been released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<HolderId>,
    /// Who holds it from here, if anyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<HolderId>,
    /// The operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
    /// The operator's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// The slot that was claimed with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// How long the tenure lasted, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_for_ms: Option<u64>,
    /// How it ended, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}
