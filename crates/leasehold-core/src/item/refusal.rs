//! Why a request about an item is refused: data, and words for people.

use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::lease::record::Drain;
use crate::relocation::Relocation;
use crate::time::Timestamp;
use std::fmt;

/// Why a request is refused. The item is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Another worker has claimed it.
    Busy {
        /// Who claimed it.
        holder: HolderId,
        /// Until when, unless the claim is renewed.
        until: Timestamp,
    },
    /// It may not be claimed yet.
    NotDue {
        /// From when it may be claimed.
        due: Timestamp,
    },
    /// Its last claim expired, and it has no attempts left.
    Exhausted,
    /// It is finished: `done`, `dead` or `cancelled`.
    Finished {
        /// Which of the three.
        state: &'static str,
    },
    /// The claim is no longer the current one.
    Stale {
        /// The item's epoch now.
        seen: Epoch,
        /// Its state now.
        state: &'static str,
    },
    /// The item's epoch is not the one that the order was decided on.
    Changed {
        /// The epoch that was expected.
        expected: Epoch,
        /// The item's epoch.
        seen: Epoch,
    },
    /// It is moving to another store, has moved there, or has not finished arriving from there.
    Elsewhere(Relocation),
    /// No migration is moving it.
    NotMoving,
    /// An operator has asked its worker to finish, and nobody else can claim it meanwhile.
    Draining(Drain),
    /// Nobody has claimed it, so there is nobody to ask.
    NotClaimed,
    /// Its claim has not expired.
    NotExpired,
    /// There are no more epochs.
    OutOfEpochs,
    /// The record would be too large with what was to be added.
    TooLarge {
        /// How many bytes it would have.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
}

impl fmt::Display for Refusal {
    /// The obstacle, to follow the name of the item: `claimed by box-1 (pid 4711)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Busy { holder, .. } => write!(f, "claimed by {holder}"),
            Refusal::NotDue { .. } => f.write_str("it is not due yet"),
            Refusal::Exhausted => f.write_str("it was tried often enough"),
            Refusal::Finished { state } => write!(f, "it is {state}"),
            Refusal::Stale { seen, state } => write!(f, "it is {state} now, at epoch {seen}"),
            Refusal::Changed { expected, seen } => {
                write!(f, "decided on epoch {expected}, and it is at epoch {seen} now")
            }
            Refusal::Elsewhere(state) => write!(f, "{state}"),
            Refusal::NotMoving => f.write_str("no migration has it on its way"),
            Refusal::Draining(drain) => write!(f, "{drain}, and nobody new claims it meanwhile"),
            Refusal::NotClaimed => f.write_str("nobody has claimed it"),
            Refusal::NotExpired => f.write_str("its claim has not run out"),
            Refusal::OutOfEpochs => f.write_str("it has no epochs left"),
            Refusal::TooLarge { bytes, most } => write!(f, "its record would have {bytes} bytes, and {most} fit"),
        }
    }
}
