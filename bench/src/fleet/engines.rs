//! The engines there are.

use super::{Engine, etcd, mysql, nats, postgres, redis, served};
use anyhow::Result;
use std::path::Path;

type Start = fn(&Path) -> Result<Box<dyn Engine>>;

/// Only if it is asked for.
pub const SERVER: &str = "server";

/// Each by name, started when its turn comes.
pub const ALL: &[(&str, Start)] = &[
    ("redis", |_| redis::start()),
    ("postgres", |_| postgres::start()),
    ("mysql", |_| mysql::start()),
    ("etcd", |_| etcd::start()),
    ("nats", |_| nats::start()),
    (SERVER, served::start),
];
