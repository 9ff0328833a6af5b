//! The ownership record: who holds a lease, until when, and how that came about.
//!
//! Promise: one record per lease, never deleted, with the reasons of the last transfers in it. Non-promise: it is
//! plain data; only [`crate::lease::protocol`] changes it.

use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::lease::transfer::{Outcome, Transfer};
use crate::nonce::{Lineage, Nonce};
use crate::relocation::Relocation;
use crate::text::{Checkpoint, Marker, Who, Why};
use crate::time::{SKEW, Timestamp, Ttl};
use crate::token::Claim;
use leasehold_system::undo::{Fix, is_disabled};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The kind of an ownership record, as its header line says.
pub(crate) const KIND: &str = "ownership";

/// With more transfers than this, the process that acquires the lease archives before it works. A record may have more.
pub const TRANSFERS_KEPT: usize = 32;
/// How many of the newest transfers stay in the record even if they are archived.
const TRANSFERS_LEFT: usize = 4;

/// The record of one lease. [`Ownership::default`] is a lease that nobody ever held.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ownership {
    /// The fencing number of the last transfer.
    pub epoch: Epoch,
    /// The line that its epochs belong to; none before the first write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// Whether an operator set the lineage, to continue that of a lost store. That can be done once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub healed: bool,
    /// Set by the first write, and cleared when a holder does more than acquire. While it is set, an acquirer checks
    /// that the namespace did not move to another store without this record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newborn: bool,
    /// Set while it is moving to another store, or after it moved there. Then nothing is granted or changed here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relocation: Option<Relocation>,
    /// Who holds it, if anyone. It may have expired: only the store's clock can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenure: Option<Tenure>,
    /// The newest scheduled slot that was claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotMark>,
    /// The last evidence of progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Set while an operator keeps new holders out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<OperatorMark>,
    /// Who last ended a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed: Option<OperatorMark>,
    /// Set when an operator asks the holder to finish. It may have expired: only the store's clock can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// Set while it is a tombstone: an operator had everything forgotten but
    /// its epoch, its lineage and its newest slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<OperatorMark>,
    /// When the last finished tenure began, in store time, without tenures in which the work was not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Timestamp>,
    /// Every transfer up to this epoch is also archived, or was forgotten; zero if none is.
    #[serde(default, skip_serializing_if = "Epoch::is_zero")]
    pub archived: Epoch,
    /// Transfers up to this epoch were dropped when the lease was forgotten, so
    /// their absence from the history is no damage.
    #[serde(default, skip_serializing_if = "Epoch::is_zero")]
    pub dropped: Epoch,
    /// The last transfers, oldest first: all that are not archived, and a few
    /// that are. In `Arc`s, because each step copies the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Arc<Transfer>>,
}

impl Default for Ownership {
    fn default() -> Self {
        Ownership {
            epoch: Epoch::ZERO,
            lineage: None,
            healed: false,
            newborn: false,
            relocation: None,
            tenure: None,
            slot: None,
            progress: None,
            paused: None,
            resumed: None,
            drain: None,
            forgotten: None,
            last_run: None,
            archived: Epoch::ZERO,
            dropped: Epoch::ZERO,
            transfers: Vec::new(),
        }
    }
}

impl Ownership {
    /// Changes the newest transfer.
    pub(crate) fn amend_last(&mut self, change: impl FnOnce(&mut Transfer)) {
        if let Some(last) = self.transfers.last_mut() {
            change(Arc::make_mut(last));
        }
    }

    /// Drops old transfers that are archived.
    pub(crate) fn drop_archived(&mut self) {
        let surplus = self.transfers.len().saturating_sub(TRANSFERS_LEFT);
        let archived = self.transfers.iter().take_while(|transfer| transfer.epoch <= self.archived).count();
        self.transfers.drain(..surplus.min(archived));
    }

    /// Forgets the oldest transfers until the others have at most this many bytes. They count as archived although they
    /// are not: whatever they would have proved is unknown.
    pub(crate) fn forget_oldest(&mut self, most: usize) {
        let bytes = |transfer: &Arc<Transfer>| serde_json::to_vec(transfer).map_or(0, |bytes| bytes.len());
        let mut total: usize = self.transfers.iter().map(bytes).sum();
        while total > most && self.transfers.len() > TRANSFERS_LEFT {
            let forgotten = self.transfers.remove(0);
            total -= bytes(&forgotten);
            self.archived = self.archived.max(forgotten.epoch);
        }
    }

    /// True for a name that was never written, or whose first write was taken back.
    pub fn is_unknown(&self) -> bool {
        self.epoch == Epoch::ZERO && self.lineage.is_none()
    }

    /// The tenure, unless it has expired at `now`.
    pub fn live_tenure(&self, now: Timestamp) -> Option<&Tenure> {
        self.tenure.as_ref().filter(|t| now < t.deadline)
    }

    /// The request to finish that is in force at `now`.
    pub fn live_drain(&self, now: Timestamp) -> Option<&Drain> {
        self.drain.as_ref().filter(|drain| drain.is_live(self.epoch, now))
    }

    /// Since when nobody has held it, as far as known: when the last tenure ended, or expires.
    pub fn idle_since(&self) -> Option<Timestamp> {
        let over = |last: &Arc<Transfer>| last.at.plus(Duration::from_millis(last.held_for_ms.unwrap_or(0)));
        self.tenure.as_ref().map(|tenure| tenure.deadline).or_else(|| self.transfers.last().map(over))
    }

    /// When the last run began, if there was one: the present tenure, or else the last one.
    pub fn last_run_began(&self) -> Option<Timestamp> {
        self.tenure.as_ref().map(|tenure| tenure.granted_at).or(self.last_run)
    }

    /// True when this claim is the tenure in the record, expired or not.
    pub fn is_held_by(&self, claim: Claim) -> bool {
        claim.holds(self.epoch, self.tenure.as_ref())
    }

    /// The slot whose run died or could not be started: it was claimed, did not end, and nobody holds the lease for it.
    pub fn interrupted_slot(&self, now: Timestamp) -> Option<SlotMark> {
        let is_at_work = |mark: &SlotMark| mark.epoch == self.epoch && self.live_tenure(now).is_some();
        let interrupted = self.slot.filter(|mark| mark.state == SlotState::Running && !is_at_work(mark));
        interrupted.filter(|_| !is_disabled(Fix::InterruptedSlotLeft))
    }

    /// The tenures that ended without a report and are found so by the present one, which counts them: the one before it,
    /// and the last one of its own slot. One of another slot is counted when that slot is run again, or given up.
    pub fn found_dead(&self) -> Vec<&Transfer> {
        let mut held = self.transfers.iter().rev().map(Arc::as_ref).filter(|transfer| transfer.to.is_some());
        let Some(own) = held.next() else { return Vec::new() };
        let before = held.clone().next().filter(|before| before.slot.is_none());
        let same_slot = own.slot.and_then(|slot| held.find(|earlier| earlier.slot == Some(slot)));
        let both = before.into_iter().chain(same_slot);
        both.filter(|transfer| transfer.outcome == Some(Outcome::Expired)).collect()
    }

    /// The transfer that this nonce caused, if the record still has it.
    pub fn transfer_by(&self, nonce: Nonce) -> Option<&Transfer> {
        self.transfers.iter().rev().map(Arc::as_ref).find(|t| t.nonce == nonce)
    }
}

/// A time-bounded hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenure {
    /// Who holds it, with the grant's nonce.
    pub holder: HolderId,
    /// Since when, in store time.
    pub granted_at: Timestamp,
    /// Until when, in store time, unless renewed.
    pub deadline: Timestamp,
    /// How far each renewal moves the deadline.
    pub ttl: Ttl,
}

/// The nominal instant of a scheduled run, however late it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub Timestamp);

leasehold_system::words! {
    /// What became of a claimed slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SlotState {
        /// Claimed; the run has not reported its end. If its tenure is over, the run died or could not be started.
        Running = "running",
        /// The run succeeded.
        Done = "done",
        /// The run failed.
        Failed = "failed",
        /// Not run: an operator set the mark back to this instant, because a
        /// clock was ahead. Slots up to it are settled.
        Rewound = "rewound",
    }
}

/// How often a slot is run in total, if its run dies each time.
pub const SLOT_RUNS: u32 = 3;

/// A claimed slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotMark {
    /// The slot's nominal instant.
    pub slot: Slot,
    /// How its run ended, if it did.
    pub state: SlotState,
    /// The epoch whose holder claimed it.
    pub epoch: Epoch,
    /// How often it was claimed, except when nothing was started or an operator ended the run. More than once means
    /// that a run died, or failed and was requested again.
    pub runs: u32,
}

/// Evidence that the work makes progress, as opposed to a mere renewal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// When it was reported, in store time.
    pub at: Timestamp,
    /// The epoch whose holder reported it.
    pub epoch: Epoch,
    /// How far the work has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marker: Option<Marker>,
    /// What the next attempt needs to continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
}

/// Who changed the lease by an order, why and when.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorMark {
    /// The operator, as the command or the server names them.
    pub by: Who,
    /// The operator's reason.
    pub why: Why,
    /// When, in store time.
    pub at: Timestamp,
    /// The nonce of the request, so that after a lost answer this order can be told from another operator's.
    pub nonce: Nonce,
}

/// An operator asks the holder of one epoch to finish. The lease or item is reserved for the operator meanwhile: nobody
/// else gets it until the time is over, or the epoch has moved on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    pub(crate) asked: OperatorMark,
    pub(crate) epoch: Epoch,
    pub(crate) until: Timestamp,
}

impl Drain {
    /// A request at this epoch. If it replaces one that is in force, the later end counts.
    pub fn new(earlier: Option<&Drain>, epoch: Epoch, asked: OperatorMark, within: Ttl) -> Self {
        let until = asked.at.plus(within.get());
        let earlier = earlier.filter(|earlier| earlier.is_live(epoch, asked.at)).map(|earlier| earlier.until);
        Drain { epoch, until: earlier.map_or(until, |earlier| earlier.max(until)), asked }
    }

    /// Who asks, why and when.
    pub const fn asked(&self) -> &OperatorMark {
        &self.asked
    }

    /// The epoch whose holder is asked.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// When the request expires, in store time.
    pub const fn until(&self) -> Timestamp {
        self.until
    }

    /// Whether it is in force at `now` for a record of this epoch. One that was asked in the future, by more than the skew, is
    /// from a clock that was set back since: it would keep everybody away for longer than was ever asked for.
    pub fn is_live(&self, epoch: Epoch, now: Timestamp) -> bool {
        self.epoch == epoch && now < self.until && self.asked.at <= now.plus(SKEW)
    }
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asked to finish by {}: {}", self.asked.by, self.asked.why)
    }
}
