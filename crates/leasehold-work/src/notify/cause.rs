//! The kinds of events that people can be notified of.

use leasehold_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

leasehold_system::words! {
    /// Why somebody is notified.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Cause {
        /// A run failed, including all its retries.
        Failed = "failed",
        /// A run lost its lease, or its machine died.
        Lost = "lost",
        /// A guard refused a stale write.
        Fenced = "fenced",
        /// A slot was not run in its time.
        Missed = "missed",
        /// A slot is due and was not started for too long.
        Late = "late",
        /// An item has used up its attempts.
        DeadLetter = "dead_letter",
        /// What was down is up again.
        Recovered = "recovered",
    }
}

impl Cause {
    /// Whether a message about this one already covers the other: a job that
    /// nobody runs is first late, and then has missed slots.
    pub(super) const fn covers(self, other: Cause) -> bool {
        let is_unrun = matches!(self, Cause::Missed | Cause::Late) && matches!(other, Cause::Missed | Cause::Late);
        is_unrun || self as u8 == other as u8
    }

    /// Whether it must happen several times in a row before anybody is notified: see [`super::Rule::after`].
    pub(super) const fn is_counted(self) -> bool {
        matches!(self, Cause::Failed | Cause::Lost)
    }
}

impl FromStr for Cause {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Cause::ALL.map(Cause::as_str).join(", ");
        let found = Cause::ALL.into_iter().find(|cause| cause.as_str() == text);
        found.ok_or_else(|| Error::invalid("event", text, format!("use one of {known}")))
    }
}

/// A set of causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Causes(u8);

impl Causes {
    /// Whether the set contains it.
    pub const fn has(self, cause: Cause) -> bool {
        self.0 & (1 << cause as u8) != 0
    }
}

impl FromIterator<Cause> for Causes {
    fn from_iter<I: IntoIterator<Item = Cause>>(causes: I) -> Self {
        Causes(causes.into_iter().fold(0, |set, cause| set | 1 << cause as u8))
    }
}
