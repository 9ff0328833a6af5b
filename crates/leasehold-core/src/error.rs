//! One opaque error whose kind says what the caller should do next.
//!
//! Promise: a message is one lower-case line that names the thing, its value and the allowed form, but no command. What
//! programs decide by is data: the kind, the epochs, the holder, the reason, the cause. Non-promise: it is not an error
//! that somebody else holds a lease; that is an outcome (see [`crate::Acquired`]).

use crate::epoch::Epoch;
use crate::holder::HolderId;
use crate::lease::transfer::Reason;
use crate::remedy::{Remedy, words};
use crate::secret::redacted;
use std::error::Error as StdError;
use std::fmt;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

leasehold_system::words! {
    /// What the caller should do about an [`Error`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Kind {
        /// The caller no longer holds the lease. Stop.
        Lost = "lost",
        /// The guarded resource has seen a newer epoch. Stop; nothing was written.
        Fenced = "fenced",
        /// Too many others wrote at the same time. Try again later.
        Contended = "contended",
        /// The store or resource could not be reached or written, and nothing was applied. Try again later.
        Unavailable = "unavailable",
        /// No answer came: it may or may not have been applied. Read back before anything else.
        Indeterminate = "indeterminate",
        /// The lease or the queue has moved to another store, which the message names. Use that one.
        Moved = "moved",
        /// The input is wrong. Fix it.
        Invalid = "invalid",
        /// This setup cannot do it. Change the setup.
        Unsupported = "unsupported",
        /// What was read back is damaged. Call a person.
        Corrupt = "corrupt",
        /// A guard knows a newer epoch than the store that granted ours: the store went back in time. Call a person; the
        /// [remedy](Error::remedy) says what repairs it.
        Regressed = "regressed",
    }
}

impl Kind {
    /// The kind of this word.
    pub fn named(word: &str) -> Option<Self> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// The error of every fallible call.
///
/// Its text is one line with every cause in it. [`source`](StdError::source) returns the cause itself, to be inspected or
/// downcast; a caller that prints the whole chain of causes prints it twice.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    details: Option<Box<Details>>,
    origin: Option<String>,
}

/// What an error is about, as far as known.
#[derive(Debug, Default)]
struct Details {
    epochs: Option<(Epoch, Epoch)>,
    holder: Option<HolderId>,
    reason: Option<Reason>,
    remedy: Option<Remedy>,
    store: Option<String>,
}

impl Error {
    /// An error of this kind with a one-line message.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None, details: None, origin: None }
    }

    /// Shorthand for [`Kind::Invalid`]: ``invalid FIELD `VALUE`: ALLOWED``.
    pub fn invalid(field: &str, value: impl fmt::Display, allowed: impl fmt::Display) -> Self {
        Error::new(Kind::Invalid, format!("invalid {field} `{}`: {allowed}", printable(&value.to_string())))
    }

    /// Shorthand for [`Kind::Unavailable`] around a driver's error.
    pub fn unavailable(what: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::new(Kind::Unavailable, what).with_source(source)
    }

    /// Attaches the cause; it is printed after the message.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Attaches what would help.
    #[must_use]
    pub fn with_remedy(mut self, remedy: Remedy) -> Self {
        self.details().remedy = Some(remedy);
        self
    }

    /// Attaches the epoch of the token, and the one that was seen instead.
    #[must_use]
    pub fn with_epochs(mut self, held: Epoch, seen: Epoch) -> Self {
        self.details().epochs = Some((held, seen));
        self
    }

    /// Attaches the current holder, if there is one.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<HolderId>) -> Self {
        self.details().holder = holder;
        self
    }

    /// Attaches why the epoch moved on, if that is known.
    #[must_use]
    pub fn with_reason(mut self, reason: Option<Reason>) -> Self {
        self.details().reason = reason;
        self
    }

    /// Names the store to which the remedy applies.
    #[must_use]
    pub fn in_store(mut self, address: &str) -> Self {
        self.fill_in(address);
        self
    }

    fn fill_in(&mut self, address: &str) {
        if let Some(details) = &mut self.details
            && details.remedy.as_ref().is_some_and(|remedy| remedy.is_for(address))
        {
            details.store = Some(redacted(address));
        }
        if let Some(cause) = self.source.as_mut().and_then(|source| source.downcast_mut::<Error>()) {
            cause.fill_in(address);
        }
    }

    fn details(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// A detail of this error, or else of its cause.
    fn detail<'a, T>(&'a self, of: fn(&'a Details) -> Option<T>) -> Option<T> {
        let own = self.details.as_deref().and_then(of);
        own.or_else(|| self.source.as_ref()?.downcast_ref::<Error>()?.detail(of))
    }

    /// The epoch that was held and the one that was seen instead, if the error is about two epochs.
    pub fn epochs(&self) -> Option<(Epoch, Epoch)> {
        self.detail(|details| details.epochs)
    }

    /// The current holder, if the error is about a lease or an item that somebody holds.
    pub fn holder(&self) -> Option<&HolderId> {
        self.detail(|details| details.holder.as_ref())
    }

    /// Why the epoch moved on, if the error is about that and the record says why.
    pub fn reason(&self) -> Option<Reason> {
        self.detail(|details| details.reason)
    }

    /// What would help, if known.
    pub fn remedy(&self) -> Option<&Remedy> {
        self.detail(|details| details.remedy.as_ref())
    }

    /// Names where a wrong value came from, such as `--tz`; it is printed last. An error that already has an origin
    /// keeps it, because the first one is closest to the value.
    #[must_use]
    pub fn with_origin(mut self, origin: impl Into<String>) -> Self {
        self.origin.get_or_insert_with(|| origin.into());
        self
    }

    /// What the caller should do.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// True when the same call may succeed later without any change.
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, Kind::Contended | Kind::Unavailable)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.message.clone();
        if let Some(details) = &self.details
            && let Some(remedy) = &details.remedy
        {
            text.push_str(&words(remedy, details.store.as_deref()));
        }
        let mut source = self.source();
        while let Some(cause) = source {
            // Many drivers' errors print their own causes. They must not be printed again.
            let cause_text = cause.to_string();
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            // Our own errors print their causes too.
            source = if cause.is::<Error>() { None } else { cause.source() };
        }
        f.write_str(&text)?;
        self.origin.as_ref().map_or(Ok(()), |origin| write!(f, " ({origin})"))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

/// Input made safe to print: control characters escaped, length bounded, secrets in URLs removed.
pub fn printable(value: &str) -> String {
    const SHOWN: usize = 80;
    let value = redacted(value);
    let escape = |c: char| if matches!(c, '\'' | '"') { c.to_string() } else { c.escape_debug().to_string() };
    let mut shown: String = value.chars().take(SHOWN).map(escape).collect();
    if value.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown_back() {
        let shown = |url: &str| Error::invalid("guard", url, "x").to_string();
        assert_eq!(shown("foo://u:hunter2@h/x?y"), "invalid guard `foo://u:***@h/x?y`: x");
        assert_eq!(shown("http://u:hun@ter:2@h"), "invalid guard `http://u:***@h`: x");
        assert_eq!(shown("ssh://u@h/a:b@c"), "invalid guard `ssh://u@h/a:b@c`: x");
        assert_eq!(shown("a \"b\" 'c'\n"), "invalid guard `a \"b\" 'c'\\n`: x");
    }

    #[test]
    fn the_origin_of_a_wrong_value_is_printed_last_and_once() {
        let error = Error::invalid("ttl", "x", "use 90s").with_source("no digit").with_origin("from --ttl");
        assert_eq!(error.to_string(), "invalid ttl `x`: use 90s: no digit (from --ttl)");
        assert!(error.source().is_some() && error.kind() == Kind::Invalid);
        assert_eq!(error.with_origin("from a file").to_string(), "invalid ttl `x`: use 90s: no digit (from --ttl)");
    }

    #[test]
    fn what_programs_decide_by_is_found_through_every_cause() {
        let (held, seen) = (Epoch::new(1).unwrap(), Epoch::new(2).unwrap());
        let holder = HolderId::new(None);
        let lost = Error::new(Kind::Lost, "gone").with_epochs(held, seen).with_holder(Some(holder.clone()));
        let error = Error::new(Kind::Unavailable, "cannot go on").with_source(lost.with_reason(Some(Reason::Revoked)));
        assert_eq!(error.to_string(), "cannot go on: gone");
        assert_eq!((error.epochs(), error.reason()), (Some((held, seen)), Some(Reason::Revoked)));
        assert_eq!((error.holder(), error.remedy()), (Some(&holder), None));
        let cause = error.source().and_then(|cause| cause.downcast_ref::<Error>());
        assert_eq!(cause.map(Error::kind), Some(Kind::Lost));
    }

    #[test]
    fn a_cause_that_was_printed_with_another_is_not_printed_again() {
        let inner = Error::new(Kind::Unavailable, "connection refused");
        let outer = Error::unavailable("cannot reach the server", "driver: connection refused");
        assert_eq!(outer.with_source(inner).to_string(), "cannot reach the server: connection refused");
        let inner = Error::unavailable("cannot reach it", "refused");
        let outer = Error::new(Kind::Unsupported, "it speaks no TLS").with_source(inner);
        assert_eq!(outer.to_string(), "it speaks no TLS: cannot reach it: refused");
        let io = std::io::Error::other(std::io::Error::other("refused"));
        assert_eq!(Error::unavailable("cannot reach it", io).to_string(), "cannot reach it: refused");
    }
}
