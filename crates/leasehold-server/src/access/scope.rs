//! The scope of a key: a namespace, names in it, and verbs.

use super::verb::VerbSet;
use leasehold_core::{Error, NamePattern, Result};
use leasehold_stores::Namespace;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most patterns that a key may have.
const MAX_PATTERNS: usize = 32;

/// The namespaces that a key is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    /// A single namespace.
    One(Namespace),
    /// Every namespace but the servers' own.
    All,
}

impl Namespaces {
    /// Whether they include a namespace. They never include the servers' own.
    pub fn has(&self, namespace: &Namespace) -> bool {
        !namespace.is_server()
            && match self {
                Namespaces::One(own) => own == namespace,
                Namespaces::All => true,
            }
    }
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Namespaces::One(namespace) => namespace.fmt(f),
            Namespaces::All => f.write_str("*"),
        }
    }
}

impl FromStr for Namespaces {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "*" {
            return Ok(Namespaces::All);
        }
        Namespace::new(text)?.to_use().map(Namespaces::One)
    }
}

/// What a key may be used for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct Scope {
    /// The namespaces that it includes.
    pub namespaces: Namespaces,
    /// The patterns of names of leases, jobs and queues.
    pub names: Vec<NamePattern>,
    /// The verbs that it allows.
    pub verbs: VerbSet,
}

impl Scope {
    /// A scope; an error if it allows nothing.
    pub fn new(namespaces: Namespaces, names: Vec<NamePattern>, verbs: VerbSet) -> Result<Self> {
        if verbs.is_empty() {
            return Err(Error::invalid(
                "verbs",
                verbs,
                "a key allows at least one of read, hold, work, operate, admin",
            ));
        }
        check_patterns(&names)?;
        Ok(Scope { namespaces, names, verbs })
    }

    /// Every verb on every name in every namespace.
    pub fn everything() -> Result<Self> {
        Scope::new(Namespaces::All, vec!["*".parse()?], VerbSet::ALL)
    }

    /// Whether it includes every namespace and every name of the other.
    pub fn reaches(&self, other: &Scope) -> bool {
        let has_namespaces = match &other.namespaces {
            Namespaces::One(namespace) => self.namespaces.has(namespace),
            Namespaces::All => self.namespaces == Namespaces::All,
        };
        let has_name = |name: &NamePattern| self.names.iter().any(|own| own.covers(name));
        has_namespaces && other.names.iter().all(has_name)
    }

    /// Whether it includes all of the other.
    pub fn includes(&self, other: &Scope) -> bool {
        self.reaches(other) && other.verbs.iter().all(|verb| self.verbs.has(verb))
    }

    /// Whether it includes this name; none stands for what concerns all names.
    pub fn covers(&self, name: Option<&str>) -> bool {
        self.names.iter().any(|pattern| match name {
            Some(name) => pattern.matches(name),
            None => pattern.to_string().chars().all(|c| c == '*'),
        })
    }
}

/// Refuses an empty list of name patterns, and too long a one.
pub fn check_patterns(names: &[NamePattern]) -> Result<()> {
    if names.is_empty() || names.len() > MAX_PATTERNS {
        let form = format!("a key has 1 to {MAX_PATTERNS} name patterns; `*` stands for all names");
        return Err(Error::invalid("number of name patterns", names.len(), form));
    }
    Ok(())
}

impl fmt::Display for Scope {
    /// Such as `read,hold on deploy/* in ci`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        write!(f, "{} on {names} in {}", self.verbs, self.namespaces)
    }
}

/// A scope as it is stored.
#[derive(Clone, Serialize, Deserialize)]
struct Text {
    namespace: String,
    names: Vec<String>,
    verbs: VerbSet,
}

impl TryFrom<Text> for Scope {
    type Error = Error;

    fn try_from(text: Text) -> Result<Self> {
        let names = text.names.iter().map(|name| name.parse()).collect::<Result<_>>()?;
        Scope::new(text.namespace.parse()?, names, text.verbs)
    }
}

impl From<Scope> for Text {
    fn from(scope: Scope) -> Self {
        let names = scope.names.iter().map(ToString::to_string).collect();
        Text { namespace: scope.namespaces.to_string(), names, verbs: scope.verbs }
    }
}
