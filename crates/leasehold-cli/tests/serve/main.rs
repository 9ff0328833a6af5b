//! `leasehold serve` and `leasehold key`: the real binary, real connections, real certificates.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod examples;
mod exchange;
mod first_day;
mod hostile;
mod keys;
mod limits;
mod listening;
mod rig;
mod secrets;
mod tls;
mod trigger;
mod zombies;
