//! Puts without an answer: what they were, and whether somebody else has put the object since.
//!
//! Promise: tags are compared only as far as both are known. Non-promise: whether such a put was applied is for a new read to
//! tell.

use leasehold_core::Nonce;
use leasehold_core::guard::HighWater;
use object_store::UpdateVersion;

/// Puts that were not answered.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    pub(super) writes: Vec<Nonce>,
    pub(super) high: Option<HighWater>,
    /// The tag under which the last one may still be applied.
    at: Option<UpdateVersion>,
}

impl Unanswered {
    pub(super) fn add(&mut self, write: Nonce, high: HighWater, at: UpdateVersion) {
        self.writes.push(write);
        (self.high, self.at) = (Some(high), Some(at));
    }

    /// Whether the object has another tag now, because somebody else has put it.
    pub(super) fn is_overtaken_at(&self, version: &UpdateVersion) -> bool {
        self.at.as_ref().is_some_and(|expected| !is_same(expected, version))
    }
}

/// Whether two tags are of one write; a put's answer may tell less than a look.
fn is_same(one: &UpdateVersion, other: &UpdateVersion) -> bool {
    let agree = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
    let has_none = |tag: &UpdateVersion| tag.e_tag.is_none() && tag.version.is_none();
    has_none(one) == has_none(other) && agree(&one.e_tag, &other.e_tag) && agree(&one.version, &other.version)
}
