//! The verbs that a key can allow.

use leasehold_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

leasehold_system::words! {
    /// A kind of request. None includes another: a key that may hold and look has both.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Verb {
        /// Look at leases, queues, jobs, their history and events.
        Read = "read",
        /// Acquire, renew and release leases, report progress, and use fences.
        Hold = "hold",
        /// Add items to queues, claim, complete and fail them.
        Work = "work",
        /// Revoke, hand off, pause, resume, drain, retry and cancel: what an operator does to others.
        Operate = "operate",
        /// Create, rotate and revoke keys.
        Admin = "admin",
    }
}

impl FromStr for Verb {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Verb::ALL.into_iter().find(|verb| verb.as_str() == text);
        found.ok_or_else(|| Error::invalid("verb", text, "use read, hold, work, operate or admin"))
    }
}

/// A set of verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VerbSet(u8);

impl VerbSet {
    /// The set of every verb.
    pub const ALL: VerbSet = VerbSet((1 << Verb::ALL.len()) - 1);

    /// The set of these verbs.
    pub fn of(verbs: impl IntoIterator<Item = Verb>) -> Self {
        VerbSet(verbs.into_iter().fold(0, |set, verb| set | 1 << verb as u8))
    }

    /// Whether a verb is among them.
    pub const fn has(self, verb: Verb) -> bool {
        self.0 & 1 << verb as u8 != 0
    }

    /// The verbs, from the least to the most.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.has(*verb))
    }

    /// Whether it has no verb.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The letter after `lh_` in the text of a key, by the strongest verb that it allows, so that people see what it is for.
    pub fn letter(self) -> char {
        match self.iter().last() {
            Some(Verb::Admin) => 'a',
            Some(Verb::Operate) => 'o',
            Some(Verb::Hold | Verb::Work) => 'w',
            Some(Verb::Read) | None => 'r',
        }
    }
}

impl fmt::Display for VerbSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Verb::as_str).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for VerbSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(VerbSet::of(text.split(',').map(|verb| verb.trim().parse()).collect::<Result<Vec<Verb>>>()?))
    }
}

impl TryFrom<String> for VerbSet {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<VerbSet> for String {
    fn from(verbs: VerbSet) -> String {
        verbs.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_was_made_of_and_reads_back() {
        for bits in 1..1u8 << Verb::ALL.len() {
            let verbs: Vec<Verb> = Verb::ALL.into_iter().filter(|verb| bits & 1 << *verb as u8 != 0).collect();
            let set = VerbSet::of(verbs.iter().copied());
            assert_eq!(set.iter().collect::<Vec<_>>(), verbs);
            assert_eq!(set.to_string().parse::<VerbSet>().unwrap(), set);
        }
        assert_eq!(VerbSet::of(Verb::ALL), VerbSet::ALL);
        assert_eq!("read, hold".parse::<VerbSet>().unwrap(), VerbSet::of([Verb::Hold, Verb::Read]));
        let error = "read,write".parse::<VerbSet>().unwrap_err().to_string();
        assert!(error.contains("use read, hold, work, operate or admin"), "{error}");
        assert!("".parse::<VerbSet>().is_err());
    }

    #[test]
    fn the_letter_tells_the_most_that_a_key_allows() {
        let letter = |text: &str| text.parse::<VerbSet>().unwrap().letter();
        assert_eq!(["read", "read,hold", "work", "read,operate", "hold,admin"].map(letter), ['r', 'w', 'w', 'o', 'a']);
    }
}
