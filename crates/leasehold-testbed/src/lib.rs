//! Real servers on free ports and temporary folders, and a proxy that counts, cuts and freezes.
//!
//! Promise: a server that a test starts is gone when the test process is, however it ended; a program that is missing
//! fails the test with the command that installs it. Non-promise: nothing here is for users of leases.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test bed that cannot be set up fails the test")]

mod buckets;
mod dynamodb;
mod etcd;
mod fake_time;
mod firestore;
mod git;
mod loopback;
mod mariadb;
mod nats;
mod oidc;
mod postgres;
mod process;
mod programs;
mod proxy;
mod receiver;
mod redis;
mod server;
mod small_disk;
mod stand_in;
pub mod suite;
mod sync_trace;
mod unreliable;
mod workerd;

pub use buckets::{BUCKET, azurite, moto, moto_tls, seaweed};
pub use dynamodb::{aws_credentials, dynalite};
pub use etcd::{etcd, etcd_cluster, etcd_is_healthy, etcd_with};
pub use fake_time::FakeTime;
pub use firestore::{firestore_stand_in, new_service_account, serve_firestore_if_asked, service_account};
pub use git::{GitServer, git_http, git_jgit, git_ssh};
pub use mariadb::{mariadb, mariadb_run, mariadb_with};
pub use nats::{nats, nats_cluster, nats_with};
pub use oidc::{Issuer, OldKeys};
pub use postgres::{Postgres, pgbouncer, postgres};
pub use process::Process;
pub use programs::{jar, node_module, program, python_environment, python_program};
pub use proxy::{Fault, Proxy};
pub use receiver::{Heard, Receiver, Service};
pub use redis::{redis, redis_cli, redis_cluster, redis_replica, redis_sentinel, redis_tls, redis_with};
pub use server::{Server, Spec, free_port, wait_until};
pub use small_disk::SmallDisk;
pub use stand_in::{Flaw, StandIn};
pub use suite::{Opener, namespaces_are_apart};
pub use sync_trace::{Disk, Entry, SyncTrace};
pub use unreliable::{Fate, Odds, UnreliableProxy};
pub use workerd::{Transport, durable_worker, set_durable_token};
