//! The one protocol against a sequential specification that was written apart from it, and its rules one by one.
//!
//! Random histories must get the same answers from both; the properties then look at what the specification leaves out, and
//! the examples say each rule once, in words that a person can check.

#![allow(clippy::unwrap_used)]

mod examples;
mod histories;
mod properties;
mod spec;
#[path = "../support/mod.rs"]
mod support;
