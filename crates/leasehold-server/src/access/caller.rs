//! The caller of a request, as its key says, and the one function that decides what it may do.

use super::record::{KeyRecord, Origin, State};
use super::scope::Scope;
use super::secret::KeyId;
use super::verb::Verb;
use leasehold_core::{HolderId, Label, Nonce, Timestamp};
use leasehold_stores::Namespace;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The bearer of a key who makes a request. The key was known and in force when the request came.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The key's id.
    pub key: KeyId,
    /// What people call the key.
    pub label: Label,
    /// When it expires, by the store's clock.
    pub expires: Option<Timestamp>,
    scope: Scope,
    account: Account,
}

/// The unit of rate limits: one key, or all keys that one subject got for its tokens. Otherwise a subject could raise its rate by
/// exchanging more tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Account {
    /// The bearer of this key.
    Key(KeyId),
    /// The subject of the tokens, by its issuer.
    Origin(Arc<Origin>),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::Key(key) => write!(f, "key {key}"),
            Account::Origin(origin) => write!(f, "`{}` with all its keys", origin.subject),
        }
    }
}

impl Caller {
    /// The prefix of the host of a holder over the API; the id of its key follows.
    pub(crate) const HOST: &str = "key-";

    /// The bearer of a key, if the key is in force at this time of the store's clock.
    pub(crate) fn of(record: &KeyRecord, now: Timestamp) -> Result<Self, Denied> {
        match record.state(now) {
            State::Revoked(_) => Err(Denied::Revoked { key: record.id.clone() }),
            State::Expired(_) => Err(Denied::Expired { key: record.id.clone() }),
            State::Active => Ok(Caller {
                key: record.id.clone(),
                label: record.label.clone(),
                expires: record.expires,
                scope: record.scope.clone(),
                account: match &record.origin {
                    Some(origin) => Account::Origin(Arc::new(origin.clone())),
                    None => Account::Key(record.id.clone()),
                },
            }),
        }
    }

    /// The account by which its requests are counted.
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// The scope of its key.
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The holder id for a grant to this caller. Its machine is not known here, so the key stands for it.
    pub(crate) fn holder(&self, label: Option<Label>, nonce: Nonce) -> HolderId {
        let label = label.unwrap_or_else(|| self.label.clone());
        HolderId::of(format!("{}{}", Self::HOST, self.key), 0, nonce, label)
    }

    /// Whether the key is for this namespace at all.
    pub fn enters(&self, namespace: &Namespace) -> Result<(), Denied> {
        if self.scope.namespaces.has(namespace) {
            return Ok(());
        }
        Err(self.lacks(Lack::Namespace(namespace.clone())))
    }

    /// The one function that decides. `name` is the lease, job or queue that the request is about. None stands for what concerns
    /// all names: then one of the key's patterns must be `*`. An answer that is filtered by name uses [`Caller::sees`] instead.
    pub fn may(&self, verb: Verb, namespace: &Namespace, name: Option<&str>) -> Result<(), Denied> {
        self.enters(namespace)?;
        if !self.scope.verbs.has(verb) {
            return Err(self.lacks(Lack::Verb(verb)));
        }
        if !self.scope.covers(name) {
            return Err(self.lacks(Lack::Name(name.map(str::to_owned))));
        }
        Ok(())
    }

    /// Whether the key may manage keys at all. Each key is then compared with it.
    pub(crate) fn administers(&self) -> Result<(), Denied> {
        if self.scope.verbs.has(Verb::Admin) { Ok(()) } else { Err(self.lacks(Lack::Verb(Verb::Admin))) }
    }

    /// Whether the key may make a key with this scope: only if it has all of that scope itself.
    pub(crate) fn may_make(&self, scope: &Scope) -> Result<(), Denied> {
        self.administers()?;
        if self.scope.includes(scope) { Ok(()) } else { Err(self.lacks(Lack::Scope(Box::new(scope.clone())))) }
    }

    /// Whether the key may see and end a key with this scope: only if it is for the same names, or for more.
    pub(crate) fn may_end(&self, scope: &Scope) -> Result<(), Denied> {
        self.administers()?;
        if self.scope.reaches(scope) { Ok(()) } else { Err(self.lacks(Lack::Scope(Box::new(scope.clone())))) }
    }

    /// Whether the key may make one that lasts this long from now on. Without a duration, the new one ends with this key.
    pub(crate) fn may_last(&self, lasts: Option<Duration>, now: Timestamp) -> Result<(), Denied> {
        match (self.expires, lasts) {
            (Some(end), Some(lasts)) if now.plus(lasts) > end => Err(self.lacks(Lack::Time)),
            _ => Ok(()),
        }
    }

    /// Whether a listing shows this name.
    pub fn sees(&self, namespace: &Namespace, name: &str) -> bool {
        self.may(Verb::Read, namespace, Some(name)).is_ok()
    }

    /// The refusal of a caller that has none of the verbs any one of which would be enough to look.
    pub(crate) fn may_not_look(&self, verbs: &'static [Verb]) -> Denied {
        self.lacks(Lack::Verbs(verbs))
    }

    fn lacks(&self, lack: Lack) -> Denied {
        Denied::NotAllowed { key: self.key.clone(), lack, scope: Box::new(self.scope.clone()) }
    }
}

/// Why a request is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// The request has no key.
    Missing,
    /// The text that it has is not a key; what is wrong with it.
    Malformed(&'static str),
    /// Nobody made this key, or its record was lost.
    Unknown,
    /// The key has expired.
    Expired {
        /// The key's id.
        key: KeyId,
    },
    /// An operator revoked the key.
    Revoked {
        /// The key's id.
        key: KeyId,
    },
    /// The key is in force, but its scope does not include this.
    NotAllowed {
        /// The key's id.
        key: KeyId,
        /// What its scope lacks.
        lack: Lack,
        /// Its scope.
        scope: Box<Scope>,
    },
}

/// What the scope of a key lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// The key is not for this namespace.
    Namespace(Namespace),
    /// The key does not allow this verb.
    Verb(Verb),
    /// The key allows none of these verbs, any one of which would be enough to look.
    Verbs(&'static [Verb]),
    /// The key is not for this name; none stands for all names.
    Name(Option<String>),
    /// The key's scope does not include all of this scope, which another key has or is to have.
    Scope(Box<Scope>),
    /// The key ends too soon to make one that lasts this long.
    Time,
}

impl Denied {
    /// The word for it in answers and logs.
    pub const fn kind(&self) -> &'static str {
        match self {
            Denied::Missing => "key_missing",
            Denied::Malformed(_) => "key_malformed",
            Denied::Unknown => "key_unknown",
            Denied::Expired { .. } => "key_expired",
            Denied::Revoked { .. } => "key_revoked",
            Denied::NotAllowed { .. } => "not_allowed",
        }
    }

    /// Whether the request needs another key: this one identifies nobody.
    pub const fn is_about_the_key(&self) -> bool {
        !matches!(self, Denied::NotAllowed { .. })
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denied::Missing => f.write_str("the request has no key; send the header `Authorization: Bearer lh_...`"),
            Denied::Malformed(what) => write!(f, "not a valid key: {what}"),
            Denied::Unknown => f.write_str("unknown key; does it belong to another server?"),
            Denied::Expired { key } => write!(f, "key {key} has expired; ask for a new one"),
            Denied::Revoked { key } => write!(f, "key {key} was revoked; ask for a new one"),
            Denied::NotAllowed { key, lack, scope } => {
                match lack {
                    Lack::Namespace(namespace) => write!(f, "key {key} is not for the namespace `{namespace}`")?,
                    Lack::Verb(verb) => write!(f, "key {key} does not allow `{verb}`")?,
                    Lack::Verbs(verbs) => {
                        let quoted: Vec<String> = verbs.iter().skip(1).map(|verb| format!("`{verb}`")).collect();
                        let first = verbs.first().map_or("", |verb| verb.as_str());
                        write!(f, "key {key} does not allow `{first}` (to look, {} is enough)", quoted.join(" or "))?;
                    }
                    Lack::Name(Some(name)) => write!(f, "key {key} is not for the name `{name}`")?,
                    Lack::Name(None) => write!(f, "key {key} is not for all names")?,
                    Lack::Scope(other) => write!(f, "key {key} does not cover {other}")?,
                    Lack::Time => write!(f, "key {key} ends before that")?,
                }
                write!(f, "; it allows {scope}")
            }
        }
    }
}
