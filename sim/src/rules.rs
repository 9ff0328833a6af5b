//! The rules: the crate's own functions, or one of them with a seeded bug.
//!
//! Promise: without a mutant every method is a straight call of the real function; a mutant wraps the real function
//! and spoils its input or its output, so no copy of the protocol exists here that could drift from it.

use crate::mutants::{self, Mutant};
use leasehold_core::guard::{self, HighWater, Policy, Rejection};
use leasehold_core::lease::protocol::{self, Decision, Request};
use leasehold_core::{Ownership, Timestamp, Token};

/// What the world runs by.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    pub mutant: Option<Mutant>,
}

/// What a client makes of a swap without an answer, or with the answer "mismatch".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    /// Nothing: it looks again. This is the coordinator's way.
    LookAgain,
    /// That it was applied.
    Applied,
}

impl Rules {
    pub fn decide(self, record: &Ownership, request: &Request, now: Timestamp) -> Decision {
        match self.mutant {
            None => protocol::decide(record, request, now),
            Some(mutant) => mutants::decide(mutant, record, request, now),
        }
    }

    pub fn seal(self, high: Option<&HighWater>, token: &Token) -> Result<HighWater, Rejection> {
        match self.mutant {
            None => guard::seal(high, token),
            Some(mutant) => mutants::seal(mutant, high, token),
        }
    }

    pub fn admit(self, high: Option<&HighWater>, token: &Token, policy: Policy) -> Result<HighWater, Rejection> {
        match self.mutant {
            None => guard::admit(high, token, policy),
            Some(mutant) => mutants::admit(mutant, high, token, policy),
        }
    }

    /// What every store promises of `swap`.
    pub fn swap_applies(self, expected: u8, found: u8) -> bool {
        expected == found || self.mutant == Some(Mutant::SwapIgnoresRevision)
    }

    pub fn after_no_answer(self, request_is_release: bool) -> Belief {
        match self.mutant {
            Some(Mutant::LostReplyIsGrant) if !request_is_release => Belief::Applied,
            Some(Mutant::LostReplyIsRelease) if request_is_release => Belief::Applied,
            _ => Belief::LookAgain,
        }
    }

    pub fn after_mismatch(self) -> Belief {
        match self.mutant {
            Some(Mutant::MismatchIsGrant) => Belief::Applied,
            _ => Belief::LookAgain,
        }
    }
}
