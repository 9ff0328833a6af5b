//! How far a call to a store's server had come when it failed: what decides whether it may have been done.
//!
//! Promise: an unanswered write is *unknown*, and nothing else is. Non-promise: what an answer means is the store's to say.

use leasehold_core::Kind;

/// What a call was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Making a connection, or opening a file: nothing was asked yet.
    Connecting,
    Reading,
    /// Writing a record.
    Writing,
    /// Making the table or the bucket, which holds no record yet and may be made any number of times.
    Preparing,
}

impl Phase {
    /// The kind of an error after which the server may have done what was asked.
    pub(crate) const fn unanswered(self) -> Kind {
        match self {
            Phase::Writing => Kind::Indeterminate,
            Phase::Connecting | Phase::Reading | Phase::Preparing => Kind::Unavailable,
        }
    }
}
