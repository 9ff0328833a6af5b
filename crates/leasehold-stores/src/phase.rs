//! What a call to a store's server was doing when it failed. That decides whether it may have been applied.
//!
//! Promise: an unanswered write is *unknown*, and nothing else is. Non-promise: each store decides what an answer means.

use leasehold_core::Kind;

/// What a call was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Connecting, or opening a file: nothing was sent yet.
    Connecting,
    Reading,
    /// Writing a record.
    Writing,
    /// Creating the table or the bucket, which has no record yet, so it may be repeated.
    Preparing,
}

impl Phase {
    /// The kind of the error when no answer came.
    pub(crate) const fn unanswered(self) -> Kind {
        match self {
            Phase::Writing => Kind::Indeterminate,
            Phase::Connecting | Phase::Reading | Phase::Preparing => Kind::Unavailable,
        }
    }
}
