//! A namespace: one team's part of a store that several share.
//!
//! Promise: equal names in different namespaces are different records. Non-promise: it keeps nobody out; whoever can
//! open the store can open every namespace of it.

use leasehold_core::{Error, Result, Shelf};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The namespace if none is named.
const DEFAULT: &str = "default";
/// The longest namespace, in bytes.
const MAX_BYTES: usize = 40;

/// The name of a namespace: lower-case letters, digits and `-`, as every store can spell it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Cow<'static, str>);

impl Namespace {
    /// Parses a namespace.
    pub fn new(text: &str) -> Result<Self> {
        let refuse = |what: &str| {
            let form = "1 to 40 lower-case letters, digits and `-`, beginning with a letter or a digit";
            Err(Error::invalid("namespace", text, format!("{what}; allowed are {form}")))
        };
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > MAX_BYTES {
            return refuse(&format!("it has {} bytes", text.len()));
        }
        if let Some(c) = text.chars().find(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-')) {
            return refuse(&format!("it has the character `{}`", c.escape_debug()));
        }
        if text.starts_with('-') {
            return refuse("it begins with `-`");
        }
        Ok(Namespace(Cow::Owned(text.to_owned())))
    }

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the default one.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }

    /// The name of a shelf of this namespace, in stores that do not separate namespaces otherwise: `lease`, or `lease@team`.
    pub fn shelf(&self, shelf: Shelf) -> Cow<'static, str> {
        if self.is_default() {
            return Cow::Borrowed(shelf.as_str());
        }
        Cow::Owned(format!("{}@{self}", shelf.as_str()))
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Namespace(Cow::Borrowed(DEFAULT))
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Namespace::new(text)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_namespaces_say_what_is_wrong() {
        for (text, says) in [
            ("", "it is empty"),
            ("Team", "the character `T`"),
            ("a/b", "the character `/`"),
            ("a@b", "the character `@`"),
            ("..", "the character `.`"),
            ("-a", "begins with `-`"),
            ("a\nb", "the character `\\n`"),
            (&"x".repeat(41), "41 bytes"),
        ] {
            let error = Namespace::new(text).unwrap_err().to_string();
            assert!(error.contains(says) && error.starts_with("invalid namespace `"), "{text:?} gave {error}");
        }
    }

    #[test]
    fn each_namespace_has_shelves_of_its_own() {
        assert_eq!(Namespace::default().shelf(Shelf::Lease), "lease");
        assert_eq!(Namespace::new("default").unwrap(), Namespace::default());
        assert_eq!(Namespace::new("team-7").unwrap().shelf(Shelf::Lease), "lease@team-7");
    }
}
