//! The 128-bit random number that tells two grants apart. This is the only file that draws randomness.

use crate::codec;
use crate::error::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A 128-bit random number, new for every request that may advance an epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(u128);

impl Nonce {
    /// A fresh nonce from the operating system.
    ///
    /// # Panics
    /// If the operating system cannot provide randomness; nothing can be done safely then.
    #[allow(clippy::disallowed_methods)]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        Nonce(u128::from_ne_bytes(bytes))
    }

    /// A chosen nonce, for tests and models.
    pub const fn from_u128(value: u128) -> Self {
        Nonce(value)
    }

    /// The nonce for the `index`th of several names in one request: each name has its own.
    pub(crate) const fn nth(self, index: usize) -> Self {
        Nonce(self.0.wrapping_add(index as u128))
    }

    /// The nonce as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

// Written without an intermediate copy, because a full record has thirty of them.
impl Serialize for Nonce {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By hand: formatting a number of this width is slow, and a full record has thirty of them.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Nonce {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        // By hand, because a full record has thirty of them.
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 16];
        let pairs = s.as_bytes().chunks_exact(2);
        let whole = s.len() == 32
            && bytes.iter_mut().zip(pairs).all(|(byte, pair)| match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            });
        if !whole {
            return Err(Error::invalid("nonce", s, "use 32 lower-case hexadecimal digits"));
        }
        Ok(Nonce(u128::from_be_bytes(bytes)))
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        codec::parsed(deserializer)
    }
}

/// The identity of one line of epochs: 128 random bits, created with a record's first write.
///
/// Two leases of one name, in two stores or in one that was lost and created again, both count from 1, so their epochs
/// cannot be compared. A guard tells them apart by their lineage. Copies of a store and migrated records keep it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lineage(Nonce);

impl Lineage {
    /// A new lineage, used if a request writes a record's first version.
    pub fn random() -> Self {
        Lineage(Nonce::random())
    }

    /// A chosen lineage, for tests and models.
    pub const fn from_u128(value: u128) -> Self {
        Lineage(Nonce::from_u128(value))
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for Lineage {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let parsed = s.parse::<Nonce>();
        parsed.map(Lineage).map_err(|_| Error::invalid("lineage", s, "use 32 lower-case hexadecimal digits"))
    }
}

/// A cheap sequence of pseudo-random numbers for jitter. Never used for identity.
#[derive(Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// One sequence for each seed.
    pub fn new(seed: Nonce) -> Self {
        Jitter((seed.0 as u64) | 1)
    }

    /// A number below `bound` (which must not be zero).
    pub fn below(&mut self, bound: u64) -> u64 {
        // xorshift64: enough to spread contenders.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
