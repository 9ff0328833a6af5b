//! The documents that clients of a server write whole: what they must look like, and whose they are.
//!
//! Promise: what passes [`check`] can be read as its shelf's kind of document. Non-promise: it does not check that the
//! contents are true. No document decides who holds what.

use crate::notify::board;
use crate::output;
use crate::schedule::{definition, journal};
use leasehold_core::{Counters, Error, Key, Kind, LeaseName, Result, Shelf};

/// Refuses a document that nobody could read on its shelf. Returns the lease
/// that it is about, if its name does not say so.
pub fn check(key: &Key, bytes: &[u8]) -> Result<Option<LeaseName>> {
    let name = key.name.as_str();
    match key.shelf {
        Shelf::Counters => Counters::decode(bytes, name).map(|_| None),
        Shelf::Runs => journal::check(bytes, name).map(|()| None),
        Shelf::Job => definition::check(bytes, name).map(|()| None),
        Shelf::Watch => board::check(bytes, name).map(|()| None),
        Shelf::Output => output::subject(bytes, name),
        _ => Err(Error::new(Kind::Unsupported, format!("`{key}` is no document that a client may write"))),
    }
}
