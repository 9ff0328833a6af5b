//! What is stored of a key.

use super::scope::Scope;
use super::secret::{Hash, KeyId};
use leasehold_core::{Label, Timestamp, Who, Why};
use serde::{Deserialize, Serialize};

/// The record of a key: all but its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub label: Label,
    pub(crate) hash: Hash,
    /// What it is for.
    pub scope: Scope,
    /// Who made it, and when.
    pub created: Made,
    /// From when on it counts no more, by the store's clock; none is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Who ended it, if anybody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revoked>,
    /// The key that it takes the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_from: Option<KeyId>,
    /// The key that takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_to: Option<KeyId>,
    /// Whose token it was exchanged for; none if somebody made it by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// Whose token a key was exchanged for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The issuer of the token.
    pub issuer: String,
    /// Whom it was about.
    pub subject: String,
}

/// Who made a key, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// An operator, or a server.
    pub by: Who,
    /// By the store's clock.
    pub at: Timestamp,
}

/// Who ended a key, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// An operator.
    pub by: Who,
    /// The operator's reason.
    pub why: Why,
    /// By the store's clock.
    pub at: Timestamp,
}

/// Whether a key counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The key may be used.
    Active,
    /// The key could be used until this time.
    Expired(Timestamp),
    /// Somebody ended it.
    Revoked(Timestamp),
}

impl State {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Expired(_) => "expired",
            State::Revoked(_) => "revoked",
        }
    }
}

impl KeyRecord {
    /// Whether it counts at this time of the store's clock.
    pub fn state(&self, now: Timestamp) -> State {
        match (&self.revoked, self.expires) {
            (Some(revoked), _) => State::Revoked(revoked.at),
            (None, Some(expires)) if now >= expires => State::Expired(expires),
            _ => State::Active,
        }
    }
}

/// When a key was last used, to the minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Use {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}
