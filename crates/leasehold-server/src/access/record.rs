//! What is stored about a key.

use super::scope::Scope;
use super::secret::{Hash, KeyId};
use leasehold_core::{Label, Timestamp, Who, Why};
use serde::{Deserialize, Serialize};

/// The record of a key, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// The public id, which is in the key's text too.
    pub id: KeyId,
    /// Its label, for people.
    pub label: Label,
    pub(crate) hash: Hash,
    /// Its scope.
    pub scope: Scope,
    /// Who made it, and when.
    pub created: Made,
    /// When it expires, by the store's clock; none means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Who revoked it, if anybody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revoked>,
    /// The key that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_from: Option<KeyId>,
    /// The key that replaces it.
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
    /// The subject of the token.
    pub subject: String,
}

/// Who made a key, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// An operator, or a server.
    pub by: Who,
    /// When, by the store's clock.
    pub at: Timestamp,
}

/// Who revoked a key, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The operator who revoked it.
    pub by: Who,
    /// The operator's reason, for listings.
    pub why: Why,
    /// When, by the store's clock.
    pub at: Timestamp,
}

/// Whether a key is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The key may be used.
    Active,
    /// The key could be used until this time.
    Expired(Timestamp),
    /// It was revoked at this time.
    Revoked(Timestamp),
}

impl State {
    /// The word for it in listings and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Expired(_) => "expired",
            State::Revoked(_) => "revoked",
        }
    }
}

impl KeyRecord {
    /// Whether it is in force at this time of the store's clock.
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
