//! What an [`Error`](crate::Error) is about, beyond its kind, and how a program with commands of its own words what would help.

pub use leasehold_core::{Reason, Remedy, StoredLineage, Words, put_into_words};
