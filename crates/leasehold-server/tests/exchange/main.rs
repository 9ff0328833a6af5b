//! Tokens of a real OIDC server, exchanged for keys over real HTTP.

#![allow(clippy::unwrap_used)]

#[path = "../api/blocks.rs"]
mod blocks;
mod issuers;
mod keys;
#[path = "../api/rig.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod rig;
mod scene;
mod tokens;
