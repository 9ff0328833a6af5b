//! How far a migration has come, for the user who interrupts it.
//!
//! Promise: from before the first write of a phase until after its last, the account names that phase and the commands that end
//! the state in between. Non-promise: the numbers are those of this run.

use crate::patience::Patience;
use crate::remedy;
use leasehold_core::relocation::Address;
use leasehold_core::{Error, Kind};
use leasehold_system::sync::Mutex;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was changed, or everything was done.
    Untouched,
    /// The namespaces and the records of the old store are marked.
    Marking,
    /// Records are copied.
    Copying,
    /// There is no way back: marks become final, copies are settled.
    Settling,
    /// Copies and marks are taken back.
    GivingUp,
}

/// One run of a migration.
#[derive(Debug)]
pub struct Course {
    pub from: Address,
    pub to: Address,
    at: Mutex<(Phase, usize)>,
    /// Shows the progress to the user who waits.
    patience: Patience,
}

impl Course {
    pub fn new(from: Address, to: Address, patience: Patience) -> Self {
        Course { from, to, at: Mutex::new((Phase::Untouched, 0)), patience }
    }

    /// To be called before the first write of the phase.
    pub fn enter(&self, phase: Phase) {
        *self.at.lock() = (phase, 0);
    }

    /// One more record is done.
    pub fn count(&self) {
        let (phase, done) = {
            let mut at = self.at.lock();
            at.1 += 1;
            *at
        };
        let what = match phase {
            Phase::Untouched => return,
            Phase::Marking => "marked",
            Phase::Copying => "copied",
            Phase::Settling => "settled",
            Phase::GivingUp => "taken back",
        };
        self.patience.at(format!("the records of `{}` ({done} {what})", self.from));
    }

    /// The state of the migration if it is interrupted here, and what to do about it.
    pub fn account(&self) -> String {
        let (phase, done) = *self.at.lock();
        let (finish, give_up) = remedy::migration(&self.from, &self.to);
        let Course { from, to, .. } = self;
        let frozen = "nothing is lost, and every lease and queue of it is frozen until that is over";
        let either = format!("finish with `{finish}`, or give it up with `{give_up}`");
        match phase {
            Phase::Untouched => "nothing was changed".to_owned(),
            Phase::Marking => {
                format!("`{from}` is marked as moving to `{to}` ({done} records marked so far): {frozen}: {either}")
            }
            Phase::Copying => {
                format!("`{from}` is marked as moving to `{to}` ({done} records copied so far): {frozen}: {either}")
            }
            Phase::Settling => format!(
                "`{from}` has moved to `{to}`, where what has arrived is frozen until the rest is done ({done} steps of it so \
                 far); nothing is lost: finish with `{finish}`"
            ),
            Phase::GivingUp => format!(
                "moving `{from}` to `{to}` was being given up ({done} steps of it so far); what is not done yet is frozen, and \
                 nothing is lost: go on giving up with `{give_up}`"
            ),
        }
    }

    /// An error that broke it off, with where that leaves it. What was begun is neither done nor surely undone.
    pub fn told(&self, error: Error) -> Error {
        let (phase, _) = *self.at.lock();
        if phase == Phase::Untouched {
            return error;
        }
        let kind = match error.kind() {
            Kind::Unavailable | Kind::Contended => Kind::Indeterminate,
            other => other,
        };
        Error::new(kind, format!("the migration was interrupted; {}", self.account())).with_source(error)
    }
}
