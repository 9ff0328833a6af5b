//! The details of an [`Error`](crate::Error) beyond its kind, and how a program puts the remedy into words of its own.

pub use leasehold_core::{Reason, Remedy, StoredLineage, Words, put_into_words};
