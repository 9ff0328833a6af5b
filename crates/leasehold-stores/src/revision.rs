//! Revisions of the stores that keep records in tables.
//!
//! Promise: no two writes ever have the same one, on any server, before or after a failover. A count would not do: a server that
//! lost its last writes would count the same numbers again. Then a forgotten holder would find its own revision on its
//! successor's record, and renew over it.

use leasehold_core::Nonce;
use leasehold_core::store::Revision;
use std::str::FromStr;

/// A fresh one: 62 random bits, never negative.
pub(crate) fn fresh() -> i64 {
    (Nonce::random().as_u128() >> 66) as i64
}

/// The number of a revision; none for one that these stores never gave.
pub(crate) fn number<N: FromStr>(revision: &Revision) -> Option<N> {
    revision.0.parse().ok()
}
