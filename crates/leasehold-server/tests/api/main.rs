//! The public API, over real HTTP to a real server.

#![allow(clippy::unwrap_used)]

mod blocks;
mod events;
mod examples;
mod fences;
mod forms;
mod full;
mod hang_up;
mod jobs;
mod keys;
mod leases;
mod operators;
mod queues;
mod reused;
mod rig;
mod table;
