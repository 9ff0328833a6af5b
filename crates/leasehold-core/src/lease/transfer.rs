//! A transfer: one advance of the epoch, why it happened and how its tenure ended.
//!
//! Promise: in a record it is one short row, not an object. A full record is read and
//! written at every acquisition, and keys that every transfer repeats would be half
//! of it. Non-promise: the row is for machines; `history --json` is the stable form.
//!
//! ```text
//! [epoch, at, reason, nonce, to, held_for_ms, outcome, slot, from, by, why]
//! [42,1700000000000,"released",null,"0123456789abcdef0123456789abcdef:7:host:worker",61250,"succeeded"]
//! ```
//! Missing values are `null`, and nulls at the end are left out. The nonce is `null` where it equals that of `to`,
//! which is so for everything but an operator's order that gives the lease to nobody.

use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::lease::record::Slot;
use crate::nonce::Nonce;
use crate::text::{Who, Why};
use crate::time::Timestamp;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};

leasehold_system::words! {
    /// Why an epoch advanced.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Reason {
        /// Nobody had ever held it.
        First = "first",
        /// The previous holder had released it.
        Released = "released",
        /// The previous holder's tenure expired.
        Expired = "expired",
        /// An operator took it from its holder.
        Revoked = "revoked",
        /// An operator gave it to another holder.
        HandedOff = "handed_off",
        /// A slot whose run died was claimed again.
        Recovered = "recovered",
        /// An operator moved the epoch past a guard's high water.
        Advanced = "advanced",
        /// An operator set the mark of the newest slot back to the store's time.
        Rewound = "rewound",
        /// An operator asked for a run of the job, and a process that has the job acquired the lease for it.
        Triggered = "triggered",
    }
}

leasehold_system::words! {
    /// How a tenure ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Outcome {
        /// Released after work that succeeded.
        Succeeded = "succeeded",
        /// Released after work that failed.
        Failed = "failed",
        /// Released after the holder found that it could not keep the lease.
        Lost = "lost",
        /// Released before the work began. A slot claimed with it is as open as before.
        NotStarted = "not_started",
        /// Released before the work was done, because an operator asked for it. A slot claimed with it is open again.
        Drained = "drained",
        /// Never released: it expired.
        Expired = "expired",
        /// Ended by an operator.
        Evicted = "evicted",
    }
}

/// One advance of the epoch: a tenure that began, or an operator's act.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "Row")]
pub struct Transfer {
    /// The epoch that began.
    pub epoch: Epoch,
    /// When, in store time.
    pub at: Timestamp,
    /// Why the lease was free, or which order moved it.
    pub reason: Reason,
    /// The nonce of the request, so that after a lost answer the transfer can be recognised.
    pub nonce: Nonce,
    /// The previous holder, if its tenure had not been released.
    pub from: Option<HolderId>,
    /// The new holder, if any.
    pub to: Option<HolderId>,
    /// The operator, if an order caused the transfer.
    pub by: Option<Who>,
    /// The operator's reason, if an order caused the transfer.
    pub why: Option<Why>,
    /// The slot that was claimed with it.
    pub slot: Option<Slot>,
    /// How long the tenure lasted, in milliseconds, once it is over.
    pub held_for_ms: Option<u64>,
    /// How it ended, once it is over.
    pub outcome: Option<Outcome>,
}

impl Transfer {
    /// The operator's order that caused it, in words for a message; empty if no order did.
    pub(crate) fn order_told(&self) -> String {
        match (&self.by, &self.why) {
            (Some(by), Some(why)) => format!("{} by {by} ({why}), ", self.reason.as_str().replace('_', " ")),
            _ => String::new(),
        }
    }
}

/// How many values every row has at least.
const LEAST: usize = 4;

impl Serialize for Transfer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nonce = Some(self.nonce).filter(|nonce| self.to.as_ref().is_none_or(|to| to.nonce != *nonce));
        let filled = [
            self.to.is_some(),
            self.held_for_ms.is_some(),
            self.outcome.is_some(),
            self.slot.is_some(),
            self.from.is_some(),
            self.by.is_some(),
            self.why.is_some(),
        ];
        let length = LEAST + filled.iter().rposition(|filled| *filled).map_or(0, |last| last + 1);
        let mut row = serializer.serialize_seq(Some(length))?;
        for index in 0..length {
            match index {
                0 => row.serialize_element(&self.epoch)?,
                1 => row.serialize_element(&self.at)?,
                2 => row.serialize_element(&self.reason)?,
                3 => row.serialize_element(&nonce)?,
                4 => row.serialize_element(&self.to)?,
                5 => row.serialize_element(&self.held_for_ms)?,
                6 => row.serialize_element(&self.outcome)?,
                7 => row.serialize_element(&self.slot)?,
                8 => row.serialize_element(&self.from)?,
                9 => row.serialize_element(&self.by)?,
                _ => row.serialize_element(&self.why)?,
            }
        }
        row.end()
    }
}

/// A row as it is read. One that is longer is refused.
#[derive(Deserialize)]
struct Row(
    Epoch,
    Timestamp,
    Reason,
    Option<Nonce>,
    #[serde(default)] Option<HolderId>,
    #[serde(default)] Option<u64>,
    #[serde(default)] Option<Outcome>,
    #[serde(default)] Option<Slot>,
    #[serde(default)] Option<HolderId>,
    #[serde(default)] Option<Who>,
    #[serde(default)] Option<Why>,
);

impl TryFrom<Row> for Transfer {
    type Error = &'static str;

    fn try_from(row: Row) -> Result<Self, Self::Error> {
        let Row(epoch, at, reason, nonce, to, held_for_ms, outcome, slot, from, by, why) = row;
        let nonce = nonce.or(to.as_ref().map(|to| to.nonce)).ok_or("a transfer to nobody has no nonce")?;
        Ok(Transfer { epoch, at, reason, nonce, from, to, by, why, slot, held_for_ms, outcome })
    }
}
