//! Whoever makes a request, as its key says, and the one function that decides what it may.

use super::record::{KeyRecord, Origin, State};
use super::scope::Scope;
use super::secret::KeyId;
use super::verb::Verb;
use leasehold_core::{HolderId, Label, Nonce, Timestamp};
use leasehold_stores::Namespace;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whoever makes a request. Its key was known and counted when the request came.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The key's id.
    pub key: KeyId,
    /// What people call the key.
    pub label: Label,
    /// From when on it counts no more, by the store's clock.
    pub expires: Option<Timestamp>,
    scope: Scope,
    account: Account,
}

/// Whose requests are counted together: those of one key, or of all keys that one subject was given for its tokens. Otherwise
/// whoever may exchange tokens would have as many requests as it exchanges.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Account {
    /// The bearer of this key.
    Key(KeyId),
    /// Whoever has the tokens.
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
    /// What the host of a holder over the API begins with: the id of its key follows.
    pub(crate) const HOST: &str = "key-";

    /// The bearer of a key at this time of the store's clock, if the key still counts.
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

    /// With whose its requests are counted.
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// What the key is for.
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whoever is to hold something for this caller. Its machine is not known here: the key stands for it.
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

    /// The one function that decides. `name` is the lease, job or queue that the request is about. None is what concerns all
    /// names: then one of the key's patterns must be `*`. An answer that is filtered by name asks [`Caller::sees`] instead.
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

    /// Whether the key may do anything about keys. Each key is then compared with it.
    pub(crate) fn administers(&self) -> Result<(), Denied> {
        if self.scope.verbs.has(Verb::Admin) { Ok(()) } else { Err(self.lacks(Lack::Verb(Verb::Admin))) }
    }

    /// Whether the key may make one for this: it may do all of it itself.
    pub(crate) fn may_make(&self, scope: &Scope) -> Result<(), Denied> {
        self.administers()?;
        if self.scope.includes(scope) { Ok(()) } else { Err(self.lacks(Lack::Scope(Box::new(scope.clone())))) }
    }

    /// Whether the key may see and end one for this: it is for the same names, or for more.
    pub(crate) fn may_end(&self, scope: &Scope) -> Result<(), Denied> {
        self.administers()?;
        if self.scope.reaches(scope) { Ok(()) } else { Err(self.lacks(Lack::Scope(Box::new(scope.clone())))) }
    }

    /// Whether the key may make one that lasts so long from now on. One that says nothing ends with it.
    pub(crate) fn may_last(&self, lasts: Option<Duration>, now: Timestamp) -> Result<(), Denied> {
        match (self.expires, lasts) {
            (Some(end), Some(lasts)) if now.plus(lasts) > end => Err(self.lacks(Lack::Time)),
            _ => Ok(()),
        }
    }

    /// Whether a name of a listing is shown.
    pub fn sees(&self, namespace: &Namespace, name: &str) -> bool {
        self.may(Verb::Read, namespace, Some(name)).is_ok()
    }

    /// The refusal of somebody who has none of the verbs of which one is enough to look.
    pub(crate) fn may_not_look(&self, verbs: &'static [Verb]) -> Denied {
        self.lacks(Lack::Verbs(verbs))
    }

    fn lacks(&self, lack: Lack) -> Denied {
        Denied::NotAllowed { key: self.key.clone(), lack, scope: Box::new(self.scope.clone()) }
    }
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// The request has no key.
    Missing,
    /// What it has is no key.
    Malformed(&'static str),
    /// Nobody made this key, or its record was lost.
    Unknown,
    /// The key counts no more.
    Expired {
        /// Its id.
        key: KeyId,
    },
    /// Somebody ended the key.
    Revoked {
        /// Its id.
        key: KeyId,
    },
    /// The key counts, and is not for this.
    NotAllowed {
        /// Its id.
        key: KeyId,
        /// What it lacks.
        lack: Lack,
        /// What it is for.
        scope: Box<Scope>,
    },
}

/// What a key is not for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// This namespace.
    Namespace(Namespace),
    /// This verb.
    Verb(Verb),
    /// The first of these, nor one of the others, of which one is enough to look.
    Verbs(&'static [Verb]),
    /// This name; none is all names.
    Name(Option<String>),
    /// All that another key is for, or is to be for.
    Scope(Box<Scope>),
    /// So long a time.
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

    /// Whether another key is needed before anything can be said about what is allowed.
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
