//! Real servers on free ports and temporary folders, and a proxy that counts, cuts and freezes.
//!
//! Promise: a server that a test starts is gone when the test process is, however it ended; a program that is missing
//! fails the test with the command that installs it. Non-promise: nothing here is for users of leases.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test bed that cannot be set up fails the test")]

mod dynamodb;
mod firestore;
mod programs;
mod proxy;
mod server;
pub mod suite;
mod workerd;

pub use dynamodb::{aws_credentials, dynalite, moto_in_turn};
pub use firestore::{firestore_stand_in, serve_firestore_if_asked, service_account};
pub use programs::{node_module, program, python_program};
pub use proxy::{Fault, Proxy};
pub use server::{Server, Spec, free_port, wait_until};
pub use suite::{Opener, namespaces_are_apart};
pub use workerd::{Transport, durable_worker, set_durable_token};
