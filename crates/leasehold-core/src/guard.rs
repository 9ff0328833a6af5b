//! The fence: what a guarded resource remembers, and the one predicate that admits or refuses a token.
//!
//! Promise: once a resource was sealed at epoch N, or has admitted it, [`admit`] refuses every lower epoch, every other
//! lease, and every other grant of N. Non-promise: a writer that bypasses the guard is not stopped. Each guard says in
//! its [`Strength`] whether there is a window between its check and its write.

use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::name::LeaseName;
use crate::nonce::{Lineage, Nonce};
use crate::remedy::{Remedy, StoredLineage};
use crate::resolve::TokenKind;
use crate::text::{Who, Why};
use crate::token::Token;
use async_trait::async_trait;
use std::fmt;

/// The highest token a resource has seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HighWater {
    /// The lease that fences the resource.
    pub lease: LeaseName,
    /// The line that its epochs belong to.
    pub lineage: Lineage,
    /// The highest epoch that the resource has seen.
    pub epoch: Epoch,
    /// The nonce of the grant that had it.
    pub nonce: Nonce,
    /// The sequence number of the last write; 0 if it was only sealed.
    pub seq: u64,
}

impl HighWater {
    /// What a resource remembers after it has seen this token, with `seq` as the number of its last write.
    pub fn of(token: &Token, seq: u64) -> Self {
        let Token { lease, lineage, epoch, nonce, .. } = token.clone();
        HighWater { lease, lineage, epoch, nonce, seq }
    }

    /// The remembered token, with the sequence number of its last write.
    pub fn token(&self) -> Token {
        let HighWater { lease, lineage, epoch, nonce, seq } = self.clone();
        Token { lease, lineage, epoch, nonce, seq }
    }
}

/// Which writes of one tenure a resource admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Any number; the guard numbers them itself.
    Reentrant,
    /// Only a larger sequence number than the last: a delayed retry cannot land after a later write.
    Ordered,
    /// Each epoch may write once.
    OncePerEpoch,
}

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The resource has seen a newer epoch.
    Stale {
        /// The epoch of the token.
        held: Epoch,
        /// The newest epoch that the resource has seen.
        seen: Epoch,
    },
    /// Another lease fences this resource.
    Foreign {
        /// The lease of the token.
        held: LeaseName,
        /// The lease that fences it.
        seen: LeaseName,
    },
    /// Another lease of the same name fences this resource: the token's epochs were counted in another store or
    /// namespace, or in a store that was lost and created again.
    OtherLineage {
        /// The name of both.
        lease: LeaseName,
        /// The lineage of the token.
        held: Lineage,
        /// The lineage that fences it.
        seen: Lineage,
        /// The highest epoch of the lineage that fences it.
        high: Epoch,
    },
    /// The resource has seen another grant of this very epoch: the store issued
    /// it twice, so the store went back in time.
    Regressed {
        /// The lease whose epoch it is.
        lease: LeaseName,
        /// The epoch that was issued twice.
        seen: Epoch,
    },
    /// A write with this sequence number, or a later one, was already applied.
    Replayed {
        /// The sequence number of the token.
        held: u64,
        /// The sequence number of the last write.
        seen: u64,
    },
    /// This epoch was already used for its one write.
    Spent {
        /// The epoch of the token.
        epoch: Epoch,
    },
}

impl Rejection {
    /// The error for the caller, which names the resource.
    pub fn into_error(self, resource: &str) -> Error {
        match self {
            Rejection::Stale { held, seen } => {
                let message = format!("stale epoch refused: resource=`{resource}` held={held} seen={seen}");
                Error::new(Kind::Fenced, message).with_epochs(held, seen)
            }
            Rejection::Foreign { held, seen } => {
                let what = format!(
                    "token of another lease refused: resource=`{resource}` is fenced by lease `{seen}`, the token is of \
                     `{held}`"
                );
                let (next, remedy) = match TokenKind::of(&seen) {
                    TokenKind::Lease => {
                        (format!("write with a token of `{seen}`, or give the resource to `{held}`"), Remedy::GiveAway)
                    }
                    // Each item is a lease of its own, which ends with its work.
                    TokenKind::Item | TokenKind::SpoolFile => {
                        ("what several items write to needs a lease of its own".into(), Remedy::LeaseTheWrite)
                    }
                };
                Error::new(Kind::Invalid, format!("{what}; {next}")).with_remedy(remedy)
            }
            Rejection::OtherLineage { lease, held, seen, high } => {
                let message = format!(
                    "not this lease: resource=`{resource}` is fenced by a lease `{lease}` of lineage {seen} (epoch {high}), \
                     the token is of a lease `{lease}` of lineage {held}, from another store or namespace; nothing was \
                     written. Use the store that the resource belongs to, or give the resource to this lease. If its store \
                     was lost and created again, stop the job first, then take its lineage back"
                );
                let found = StoredLineage::Lineage(held);
                Error::new(Kind::Invalid, message).with_remedy(Remedy::lost(resource, &lease, high, seen, found))
            }
            Rejection::Regressed { lease, seen } => regressed(resource, &lease, seen),
            Rejection::Replayed { held, seen } => Error::new(
                Kind::Fenced,
                format!("replayed write refused: resource=`{resource}` held seq={held} seen seq={seen}"),
            ),
            Rejection::Spent { epoch } => Error::new(
                Kind::Fenced,
                format!("second write refused: resource=`{resource}` admits one write per epoch, {epoch} has had it"),
            ),
        }
    }
}

/// The error for a guard that knows a newer epoch than the store, with the remedy.
pub fn regressed(resource: &str, lease: &LeaseName, seen: Epoch) -> Error {
    let message = format!(
        "store regressed: resource=`{resource}` has seen epoch {seen} of lease `{lease}`, which the store does not know: it \
         was restored from an old copy, or it is not the store that this token is of. If it was restored, stop the job first, \
         then move it past that epoch"
    );
    Error::new(Kind::Regressed, message).with_remedy(Remedy::restored(lease, seen))
}

/// What the resource should remember once this token has sealed it. Sealing again under the same grant changes nothing.
pub fn seal(high: Option<&HighWater>, token: &Token) -> Result<HighWater, Rejection> {
    match compare(high, token)? {
        Comparison::Newer => Ok(HighWater::of(token, 0)),
        Comparison::Same(high) => Ok(high.clone()),
    }
}

/// What the resource should remember once this token's write was applied.
///
/// The caller applies the write and stores the returned value in one atomic step; otherwise a newer epoch could come in
/// between. Ordered writes begin at sequence number 1, because 0 is a seal.
///
/// ```
/// use leasehold_core::{Kind, Token, guard::{Policy, admit}};
/// let old: Token = "daily:41:0000000000000000000000000000000a:00000000000000000000000000000001:0".parse()?;
/// let new: Token = "daily:42:0000000000000000000000000000000a:00000000000000000000000000000002:0".parse()?;
/// let high = admit(None, &new, Policy::Reentrant).map_err(|r| r.into_error("file:out.json"))?;
/// let error = admit(Some(&high), &old, Policy::Reentrant).unwrap_err().into_error("file:out.json");
/// assert_eq!(error.kind(), Kind::Fenced);
/// assert_eq!(error.to_string(), "stale epoch refused: resource=`file:out.json` held=41 seen=42");
/// # Ok::<(), leasehold_core::Error>(())
/// ```
pub fn admit(high: Option<&HighWater>, token: &Token, policy: Policy) -> Result<HighWater, Rejection> {
    let last = match compare(high, token)? {
        Comparison::Newer => 0,
        Comparison::Same(high) => high.seq,
    };
    let seq = match policy {
        Policy::Reentrant => last.saturating_add(1),
        Policy::Ordered if token.seq > last => token.seq,
        Policy::Ordered => return Err(Rejection::Replayed { held: token.seq, seen: last }),
        Policy::OncePerEpoch if last == 0 => 1,
        Policy::OncePerEpoch => return Err(Rejection::Spent { epoch: token.epoch }),
    };
    Ok(HighWater::of(token, seq))
}

enum Comparison<'a> {
    Newer,
    Same(&'a HighWater),
}

fn compare<'a>(high: Option<&'a HighWater>, token: &Token) -> Result<Comparison<'a>, Rejection> {
    let Some(high) = high else { return Ok(Comparison::Newer) };
    if high.lease != token.lease {
        return Err(Rejection::Foreign { held: token.lease.clone(), seen: high.lease.clone() });
    }
    if high.lineage != token.lineage {
        let (held, seen) = (token.lineage, high.lineage);
        return Err(Rejection::OtherLineage { lease: token.lease.clone(), held, seen, high: high.epoch });
    }
    if token.epoch < high.epoch {
        return Err(Rejection::Stale { held: token.epoch, seen: high.epoch });
    }
    if token.epoch > high.epoch {
        return Ok(Comparison::Newer);
    }
    if token.nonce != high.nonce {
        return Err(Rejection::Regressed { lease: token.lease.clone(), seen: high.epoch });
    }
    Ok(Comparison::Same(high))
}

/// Whether a stale writer can slip between a guard's check and its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strength {
    /// None: the check and the write are one step.
    Atomic,
    /// There is a window.
    CheckThenAct {
        /// What may happen in between.
        window: &'static str,
    },
}

impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strength::Atomic => f.write_str("atomic"),
            Strength::CheckThenAct { window } => write!(f, "check-then-act ({window})"),
        }
    }
}

/// What every guard can do. Writing is each guard's own method, because what is written differs.
///
/// # Contract
/// - `seal` and the guard's own write refuse by [`admit`]'s rules, and a refusal leaves the resource unchanged.
/// - A seal is durable when it returns: it survives a crash of this machine.
/// - A stopped or dead holder of a lower epoch never delays a seal.
#[async_trait]
pub trait Guard: fmt::Debug + Send + Sync {
    /// The resource, as messages name it: `file:out.json`.
    fn resource(&self) -> String;

    /// Whether a stale writer can slip between its check and its write.
    fn strength(&self) -> Strength;

    /// Refuses every lower epoch from now on, without writing.
    async fn seal(&self, token: &Token) -> Result<HighWater>;

    /// The highest token that the resource has seen, if any.
    async fn high_water(&self) -> Result<Option<HighWater>>;
}

/// A guard whose resource an operator can give to another lease.
///
/// # Contract
/// - Refused as [`Kind::Contended`] when the fence is no longer what the operator saw (`from`). Then nothing changes.
/// - When it returns, the resource is sealed at `token`, durably. From then on no write of the former lease is applied,
///   however long its writer was suspended. A crash in the middle leaves one fence or the other, never none.
/// - Who did it and why is recorded with the fence, where there is room for text.
#[async_trait]
pub trait Adopt: Guard {
    /// Gives the resource to the lease of `token`.
    async fn adopt(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(epoch: u64, nonce: u128, seq: u64) -> Token {
        Token {
            lease: "x".parse().unwrap(),
            lineage: Lineage::from_u128(1),
            epoch: Epoch::new(epoch).unwrap(),
            nonce: Nonce::from_u128(nonce),
            seq,
        }
    }

    #[test]
    fn a_lower_epoch_is_stale_whatever_the_policy() {
        let high = seal(None, &token(5, 1, 0)).unwrap();
        for policy in [Policy::Reentrant, Policy::Ordered, Policy::OncePerEpoch] {
            assert!(matches!(admit(Some(&high), &token(4, 9, 99), policy), Err(Rejection::Stale { .. })));
        }
    }

    #[test]
    fn another_grant_of_the_same_epoch_means_the_store_regressed() {
        let high = seal(None, &token(5, 1, 0)).unwrap();
        let error = admit(Some(&high), &token(5, 2, 0), Policy::Reentrant).unwrap_err().into_error("file:out");
        assert_eq!(error.kind(), Kind::Regressed);
        let lease = "x".parse().unwrap();
        let past = Epoch::new(5).unwrap();
        assert_eq!(error.remedy(), Some(&Remedy::Advance { lease, past, back_to: None }));
    }

    #[test]
    fn another_lease_is_foreign_even_with_a_larger_epoch() {
        let high = seal(None, &token(5, 1, 0)).unwrap();
        let other = Token { lease: "y".parse().unwrap(), ..token(99, 1, 0) };
        assert!(matches!(admit(Some(&high), &other, Policy::Reentrant), Err(Rejection::Foreign { .. })));
    }

    #[test]
    fn another_lineage_is_not_this_lease_whatever_its_number() {
        let high = seal(None, &token(5, 1, 0)).unwrap();
        for epoch in [1, 5, 99] {
            let other = Token { lineage: Lineage::from_u128(2), ..token(epoch, 1, 9) };
            let error = admit(Some(&high), &other, Policy::Reentrant).unwrap_err().into_error("file:out");
            assert_eq!(error.kind(), Kind::Invalid);
            let text = error.to_string();
            assert!(text.starts_with("not this lease: ") && text.contains(&high.lineage.to_string()), "{text}");
            assert!(text.contains(&other.lineage.to_string()), "{text}");
            assert!(seal(Some(&high), &other).is_err());
        }
    }

    #[test]
    fn policies_differ_only_within_one_tenure() {
        let sealed = seal(None, &token(5, 1, 0)).unwrap();
        let once = admit(Some(&sealed), &token(5, 1, 0), Policy::OncePerEpoch).unwrap();
        assert_eq!(
            admit(Some(&once), &token(5, 1, 0), Policy::OncePerEpoch),
            Err(Rejection::Spent { epoch: Epoch::new(5).unwrap() })
        );
        assert!(admit(Some(&once), &token(5, 1, 0), Policy::Reentrant).is_ok());
        let second = admit(Some(&sealed), &token(5, 1, 2), Policy::Ordered).unwrap();
        assert!(matches!(
            admit(Some(&second), &token(5, 1, 2), Policy::Ordered),
            Err(Rejection::Replayed { held: 2, seen: 2 })
        ));
        assert!(admit(Some(&second), &token(6, 7, 1), Policy::Ordered).is_ok());
    }

    #[test]
    fn sealing_again_keeps_the_sequence() {
        let wrote = admit(None, &token(5, 1, 0), Policy::Reentrant).unwrap();
        assert_eq!(seal(Some(&wrote), &token(5, 1, 0)).unwrap(), wrote);
    }
}
