//! The real binary on the servers that fleets run, each started by the test that needs it.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod clocks;
mod crowds;
mod doctor;
mod endings;
mod namespaces;
mod runs;
mod secrets;
mod urls;
mod work;

use common::Home;
use leasehold_testbed::{Postgres, Server, etcd, mariadb, mariadb_run, nats, postgres, program, redis, redis_cli};
use std::process::Command;

/// A home whose leases are in this store.
fn at(store: impl Into<String>) -> Home {
    Home::at(store.into())
}

/// A server that runs.
enum Engine {
    Redis(Server),
    Postgres(Postgres),
    Nats(Server),
    Etcd(Server),
    Mysql(Server),
}

impl Engine {
    fn redis() -> Self {
        Engine::Redis(redis())
    }

    fn postgres() -> Self {
        Engine::Postgres(postgres())
    }

    fn nats() -> Self {
        Engine::Nats(nats())
    }

    fn etcd() -> Self {
        Engine::Etcd(etcd())
    }

    fn mysql() -> Self {
        Engine::Mysql(mariadb())
    }

    fn port(&self) -> u16 {
        match self {
            Engine::Postgres(server) => server.port(),
            Engine::Redis(server) | Engine::Nats(server) | Engine::Etcd(server) | Engine::Mysql(server) => {
                server.port()
            }
        }
    }

    /// A store URL through this port.
    fn url_at(&self, port: u16) -> String {
        match self {
            Engine::Redis(_) => format!("redis://127.0.0.1:{port}"),
            Engine::Postgres(_) => Postgres::url(port),
            Engine::Nats(_) => format!("nats://127.0.0.1:{port}"),
            Engine::Etcd(_) => format!("etcd://127.0.0.1:{port}"),
            Engine::Mysql(_) => format!("mysql://root@127.0.0.1:{port}/leases"),
        }
    }

    fn url(&self) -> String {
        self.url_at(self.port())
    }

    /// A home in a namespace of its own, through this port.
    fn in_namespace(&self, namespace: &str, port: u16) -> Home {
        at(format!("{}?namespace={namespace}", self.url_at(port)))
    }

    fn home(&self) -> Home {
        at(self.url())
    }

    /// Everything that is in it, as its own tools see it; NATS has none here, so its files are counted.
    fn contents(&self) -> String {
        match self {
            Engine::Redis(server) => {
                let mut keys: Vec<String> =
                    redis_cli(server.port(), &["keys", "*"]).split_whitespace().map(String::from).collect();
                keys.sort();
                let dumped = keys.iter().map(|key| format!("{key} {}", redis_cli(server.port(), &["dump", key])));
                dumped.collect()
            }
            Engine::Postgres(server) => {
                let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
                if server.sql(tables) == "0" {
                    return String::new();
                }
                server.sql("SELECT r::text FROM leasehold_record r ORDER BY 1")
            }
            Engine::Nats(server) => {
                let mut found = Vec::new();
                let mut folders = vec![server.folder().join("jetstream")];
                while let Some(folder) = folders.pop() {
                    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                        found.push(entry.path().display().to_string());
                        folders.push(entry.path());
                    }
                }
                found.join("\n")
            }
            Engine::Etcd(server) => {
                let output = Command::new(program("etcdctl"))
                    .args(["--endpoints", &format!("127.0.0.1:{}", server.port()), "get", "--prefix", ""])
                    .env("ETCDCTL_API", "3")
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{output:?}");
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            Engine::Mysql(server) => {
                if mariadb_run(server, "SHOW TABLES IN leases").is_empty() {
                    return String::new();
                }
                mariadb_run(server, "SELECT * FROM leases.leasehold_record ORDER BY 1, 2, 3")
            }
        }
    }
}
