//! The fencing number.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The fencing number of a lease: rises by at least one on every transfer, never goes down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Epoch(u64);

impl Epoch {
    /// Before the first grant.
    pub const ZERO: Epoch = Epoch(0);
    /// The largest epoch. Every JSON reader can represent it exactly.
    pub const MAX: Epoch = Epoch((1 << 53) - 1);
    /// The highest epoch that an operator may advance a lease to. It leaves
    /// 2^40 epochs: a thousand transfers a second for 34 years.
    pub const HIGHEST_ADVANCE: Epoch = Epoch(Epoch::MAX.0 - (1 << 40) - 1);

    /// An epoch of this number, at most [`Epoch::MAX`].
    pub fn new(number: u64) -> Result<Self> {
        if number > Epoch::MAX.0 {
            return Err(Error::invalid("epoch", number, format!("use a whole number up to {}", Epoch::MAX)));
        }
        Ok(Epoch(number))
    }

    /// Whether it is [`Epoch::ZERO`].
    pub(crate) fn is_zero(&self) -> bool {
        *self == Epoch::ZERO
    }

    /// The number, at most 2^53 - 1.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next epoch; none after [`Epoch::MAX`].
    pub fn next(self) -> Option<Epoch> {
        (self < Epoch::MAX).then_some(Epoch(self.0 + 1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Epoch {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        match s.parse::<u64>() {
            Ok(number) if digits => Epoch::new(number),
            _ => Err(Error::invalid("epoch", s, format!("use a whole number up to {}", Epoch::MAX))),
        }
    }
}

impl TryFrom<u64> for Epoch {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self> {
        Epoch::new(number)
    }
}
