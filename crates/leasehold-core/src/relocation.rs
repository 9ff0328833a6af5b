//! A record that is moving to another store, or has moved there.
//!
//! Promise: the steps are one pure function for leases and for queue items. Each is idempotent by its migration's
//! number, so a migration that died is continued by running it again. Only a migration brings back a record that has
//! left. Non-promise: nothing here reads or writes a store.
//!
//! ```text
//! old store:   here ── Leave ──> moving ── Depart ──> moved        moving ── Stay ──> here
//! new store:   nothing, or moved ── Arrive ──> arriving ── Settle ──> here     arriving ── Withdraw ──> moved
//! ```
//! In every state but *here* nothing is granted, renewed, completed or ordered. The new store's copy stays *arriving* until
//! the old one is *moved*, so at no time do both grant.

use crate::error::{Error, Kind};
use crate::nonce::Nonce;
use crate::remedy::Remedy;
use crate::text::Line;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The address of a store without its secrets.
pub type Address = Line<1000>;

/// The state of a record that is moving or has moved.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Relocation {
    /// About to leave for another store. Giving the migration up reverts this.
    Moving {
        /// The store that it goes to.
        to: Address,
        /// The migration's own number.
        migration: Nonce,
    },
    /// Moved to another store, permanently.
    Moved {
        /// The store that it went to.
        to: Address,
        /// The migration's own number.
        migration: Nonce,
    },
    /// Copied from another store, where it is not marked as moved yet.
    Arriving {
        /// The store that it comes from.
        from: Address,
        /// The migration's own number.
        migration: Nonce,
    },
}

impl Relocation {
    /// The word in JSON and output.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Relocation::Moving { .. } => "moving",
            Relocation::Moved { .. } => "moved",
            Relocation::Arriving { .. } => "arriving",
        }
    }

    /// The migration that caused it.
    pub const fn migration(&self) -> Nonce {
        match self {
            Relocation::Moving { migration, .. }
            | Relocation::Moved { migration, .. }
            | Relocation::Arriving { migration, .. } => *migration,
        }
    }

    /// The other store.
    pub const fn address(&self) -> &Address {
        match self {
            Relocation::Moving { to, .. } | Relocation::Moved { to, .. } => to,
            Relocation::Arriving { from, .. } => from,
        }
    }
}

impl fmt::Display for Relocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Relocation::Moving { to, .. } => write!(f, "being moved to `{to}`"),
            Relocation::Moved { to, .. } => write!(f, "moved to `{to}`"),
            Relocation::Arriving { from, .. } => write!(f, "arriving from `{from}`"),
        }
    }
}

/// The error for a record that is moving or has moved. [`crate::migration::elsewhere`] says more.
pub fn elsewhere(what: &str, state: &Relocation) -> Error {
    let under_way = match state {
        Relocation::Moved { to, .. } => {
            let message = format!(
                "{what} has moved to `{to}` and nothing happens here any more; use that store, nothing was changed here"
            );
            return Error::new(Kind::Moved, message);
        }
        Relocation::Moving { to, .. } => format!("{what} is being moved to `{to}`"),
        Relocation::Arriving { from, .. } => format!("{what} is still arriving from `{from}`"),
    };
    let message = format!("{under_way}; nothing was changed. Try again when that migration is over");
    Error::new(Kind::Unavailable, message).with_remedy(Remedy::Examine)
}

/// The error for a holder whose lease or item has left: that step ended its
/// tenure, and giving the migration up does not restore it.
pub fn evicted_error(what: &str, state: &Relocation) -> Error {
    match state {
        Relocation::Moved { .. } => elsewhere(what, state),
        other => Error::new(Kind::Lost, format!("{what} was lost: it is {other}, and nobody holds it meanwhile")),
    }
}

/// One step of a migration, for one record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// In the old store: nothing is granted or changed here any more.
    Leave {
        /// The store that it goes to.
        to: Address,
    },
    /// In the old store: the migration was given up, and everything is as before.
    Stay,
    /// In the old store: the new store has the record.
    Depart,
    /// In the new store: the old store has marked the record as moved, so it may be granted here.
    Settle,
    /// In the new store: the migration was given up, and the record stays in the old store.
    Withdraw,
}

/// The result of a step on a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relocated {
    /// The new state; none means *here*.
    To(Option<Relocation>),
    /// This migration has already made the step.
    AlreadyDone,
    /// The step cannot be made in this state.
    Invalid,
}

/// Decides a step of a migration on a record in this state.
pub fn relocate(state: Option<&Relocation>, step: &Step, migration: Nonce) -> Relocated {
    let is_ours = state.is_some_and(|state| state.migration() == migration);
    match (step, state) {
        (Step::Leave { to }, None) => Relocated::To(Some(Relocation::Moving { to: to.clone(), migration })),
        (Step::Leave { .. }, Some(Relocation::Moving { .. } | Relocation::Moved { .. })) if is_ours => {
            Relocated::AlreadyDone
        }
        (Step::Stay, Some(Relocation::Moving { .. })) if is_ours => Relocated::To(None),
        (Step::Stay | Step::Settle, None) => Relocated::AlreadyDone,
        (Step::Depart, Some(Relocation::Moving { to, .. })) if is_ours => {
            Relocated::To(Some(Relocation::Moved { to: to.clone(), migration }))
        }
        (Step::Depart, Some(Relocation::Moved { .. })) if is_ours => Relocated::AlreadyDone,
        (Step::Settle, Some(Relocation::Arriving { .. })) if is_ours => Relocated::To(None),
        (Step::Withdraw, Some(Relocation::Arriving { from, .. })) if is_ours => {
            Relocated::To(Some(Relocation::Moved { to: from.clone(), migration }))
        }
        (Step::Withdraw, Some(Relocation::Moved { .. })) if is_ours => Relocated::AlreadyDone,
        _ => Relocated::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::lossy(text, "-")
    }

    const OURS: Nonce = Nonce::from_u128(1);
    const OTHER: Nonce = Nonce::from_u128(2);

    fn states(migration: Nonce) -> [Relocation; 3] {
        [
            Relocation::Moving { to: address("b"), migration },
            Relocation::Moved { to: address("b"), migration },
            Relocation::Arriving { from: address("a"), migration },
        ]
    }

    fn steps() -> [Step; 5] {
        [Step::Leave { to: address("b") }, Step::Stay, Step::Depart, Step::Settle, Step::Withdraw]
    }

    #[test]
    fn another_migration_changes_nothing() {
        for state in states(OURS) {
            for step in steps() {
                assert_eq!(relocate(Some(&state), &step, OTHER), Relocated::Invalid, "{state} {step:?}");
            }
        }
    }

    #[test]
    fn what_has_moved_never_comes_back_by_a_step() {
        let [_, moved, _] = states(OURS);
        for step in steps() {
            assert!(!matches!(relocate(Some(&moved), &step, OURS), Relocated::To(_)), "{step:?}");
        }
    }

    #[test]
    fn every_step_may_be_repeated() {
        for step in steps() {
            for state in states(OURS).map(Some).into_iter().chain([None]) {
                if let Relocated::To(next) = relocate(state.as_ref(), &step, OURS) {
                    assert_eq!(relocate(next.as_ref(), &step, OURS), Relocated::AlreadyDone, "{state:?} {step:?}");
                }
            }
        }
    }

    #[test]
    fn a_copy_is_granted_only_after_it_was_settled() {
        let [.., arriving] = states(OURS);
        assert_eq!(relocate(Some(&arriving), &Step::Depart, OURS), Relocated::Invalid);
        assert_eq!(relocate(Some(&arriving), &Step::Stay, OURS), Relocated::Invalid);
        assert_eq!(relocate(Some(&arriving), &Step::Settle, OURS), Relocated::To(None));
    }
}
