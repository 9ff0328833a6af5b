//! The engines there are.

use super::{Engine, etcd, mysql, nats, postgres, redis};
use anyhow::Result;

type Start = fn() -> Result<Box<dyn Engine>>;

/// Each by name, started when its turn comes.
pub const ALL: &[(&str, Start)] = &[
    ("redis", redis::start),
    ("postgres", postgres::start),
    ("mysql", mysql::start),
    ("etcd", etcd::start),
    ("nats", nats::start),
];
