//! The proof that travels from a grant to a guarded resource.
//!
//! Promise: a token carries what a guard needs to refuse every stale or foreign writer. Non-promise: it is not a secret
//! key; anyone who has it may write in the holder's name.

use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::lease::record::Tenure;
use crate::name::LeaseName;
use crate::nonce::{Lineage, Nonce};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Lease name, lineage, epoch, the grant's nonce and a sequence number.
///
/// Displayed short for people, `daily-publish:42`; [`Token::wire`] is the complete form.
///
/// ```
/// use leasehold_core::Token;
/// let token: Token = "daily-publish:42:00000000000000000000000000000001:0123456789abcdef0123456789abcdef:0".parse()?;
/// assert_eq!(token.to_string(), "daily-publish:42");
/// assert!(token.wire().starts_with("daily-publish:42:00000000"));
/// // The short form proves nothing, and is not taken for a token.
/// assert!("daily-publish:42".parse::<Token>().is_err());
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    /// The lease that it proves.
    pub lease: LeaseName,
    /// The line that its epoch belongs to.
    pub lineage: Lineage,
    /// The fencing number, which guards compare.
    pub epoch: Epoch,
    /// The grant's nonce: tells two grants of one epoch apart when a store was rolled back.
    pub nonce: Nonce,
    /// Orders the writes of one tenure, for guards that apply ordered writes.
    pub seq: u64,
}

impl Token {
    /// The complete token as text: `daily-publish:42:<lineage>:<nonce>:<seq>`.
    pub fn wire(&self) -> String {
        format!("{}:{}:{}:{}:{}", self.lease, self.epoch, self.lineage, self.nonce, self.seq)
    }

    /// The part of the token that identifies a tenure in requests.
    pub fn claim(&self) -> Claim {
        Claim { epoch: self.epoch, nonce: self.nonce }
    }
}

/// Guards accept anything that carries a token.
impl AsRef<Token> for Token {
    fn as_ref(&self) -> &Token {
        self
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.lease, self.epoch)
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let refuse = |what: &str| {
            // The nonce does not belong in a log.
            let hide = |part: &'_ str| if is_like_a_nonce(part) { "…".to_owned() } else { part.to_owned() };
            let shown = s.split(':').map(hide).collect::<Vec<_>>().join(":");
            Error::invalid(
                "token",
                shown,
                format!("{what}; use LEASE:EPOCH:LINEAGE:NONCE:SEQ as `acquire` and `queue claim` print it"),
            )
        };
        let parts: Vec<&str> = s.split(':').collect();
        let [lease, epoch, lineage, nonce, seq] = parts[..] else {
            return Err(refuse(&format!("it has {} of 5 parts", parts.len())));
        };
        let digits = !seq.is_empty() && seq.bytes().all(|b| b.is_ascii_digit());
        let token = Token {
            lease: lease.parse().map_err(|_| refuse("the lease name is not one"))?,
            epoch: epoch.parse().map_err(|_| refuse("the epoch is not a whole number"))?,
            lineage: lineage.parse().map_err(|_| refuse("the lineage is not 32 hexadecimal digits"))?,
            nonce: nonce.parse().map_err(|_| refuse("the nonce is not 32 hexadecimal digits"))?,
            seq: seq.parse().ok().filter(|_| digits).ok_or_else(|| refuse("the sequence is not a whole number"))?,
        };
        if token.epoch == Epoch::ZERO {
            return Err(refuse("no grant has epoch 0"));
        }
        Ok(token)
    }
}

fn is_like_a_nonce(part: &str) -> bool {
    const LEAST: usize = 16;
    part.len() >= LEAST && part.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Epoch and nonce: both must match the record, or the request is not the holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The epoch that was granted.
    pub epoch: Epoch,
    /// The nonce it was granted to.
    pub nonce: Nonce,
}

impl Claim {
    /// Whether this is the tenure of a record of this epoch, expired or not.
    pub fn holds(self, epoch: Epoch, tenure: Option<&Tenure>) -> bool {
        self.epoch == epoch && tenure.is_some_and(|tenure| tenure.holder.nonce == self.nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_wire_and_is_shown_short() {
        let token = Token {
            lease: "team/daily".parse().unwrap(),
            epoch: Epoch::new(42).unwrap(),
            lineage: Lineage::from_u128(5),
            nonce: Nonce::from_u128(7),
            seq: 3,
        };
        assert_eq!(token.wire(), "team/daily:42:00000000000000000000000000000005:00000000000000000000000000000007:3");
        assert_eq!(token.wire().parse::<Token>().unwrap(), token);
        assert_eq!(token.to_string(), "team/daily:42");
    }

    #[test]
    fn wrong_tokens_are_refused() {
        let nonce = "00000000000000000000000000000007";
        for bad in [
            "",
            "x",
            "x:1",
            &format!("x:1:{nonce}"),
            &format!("x:1:{nonce}:0"),
            &format!("x:0:{nonce}:{nonce}:0"),
            &format!("x:1:{nonce}:{nonce}:-1"),
            &format!("x:1:{nonce}:{nonce}:+1"),
            &format!("x:+1:{nonce}:{nonce}:0"),
            &format!("x:1:{nonce}:{}:0", &nonce[1..]),
            &format!("x:1:{}:{nonce}:0", &nonce[1..]),
            &format!("x y:1:{nonce}:{nonce}:0"),
            &format!("x:9007199254740992:{nonce}:{nonce}:0"),
            &format!("x:1:{nonce}:{nonce}:0:0"),
        ] {
            assert!(bad.parse::<Token>().is_err(), "{bad} parsed");
        }
    }
}
