//! Redis: one server, a replica, a cluster, sentinels.

use crate::{Server, Spec, free_port, program, wait_until};
use std::process::Command;

/// Keeps what it answered: every write is synced to its file first.
const DURABLE: [&str; 6] = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// A server that keeps what it answered.
pub fn redis() -> Server {
    redis_with(&[])
}

/// A server with further settings.
pub fn redis_with(settings: &[&str]) -> Server {
    redis_on(free_port(), settings)
}

/// A replica of the server on this port, once it has caught up.
pub fn redis_replica(of: u16, settings: &[&str]) -> Server {
    let replica = redis_with(&[&["--replicaof", "127.0.0.1", &of.to_string()], settings].concat());
    wait_until("the replica has caught up", || {
        redis_cli(replica.port(), &["info", "replication"]).contains("master_link_status:up")
    });
    replica
}

/// A cluster of three primaries that share all slots.
pub fn redis_cluster() -> Vec<Server> {
    let ports: Vec<(u16, String)> = (0..3).map(|_| (free_port(), free_port().to_string())).collect();
    let nodes: Vec<Server> = ports
        .iter()
        .map(|(port, bus)| {
            redis_on(*port, &["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", bus])
        })
        .collect();
    let names: Vec<String> = ports.iter().map(|(port, bus)| format!("127.0.0.1:{port}@{bus}")).collect();
    let mut words = vec!["--cluster", "create"];
    words.extend(names.iter().map(String::as_str));
    words.push("--cluster-yes");
    redis_cli(nodes[0].port(), &words);
    wait_until("the cluster is whole", || {
        let is_whole = |node: &Server| redis_cli(node.port(), &["cluster", "info"]).contains("cluster_state:ok");
        nodes.iter().all(is_whole)
    });
    nodes
}

/// A sentinel that looks after the primary on this port and calls it `mymaster`.
pub fn redis_sentinel(primary: u16) -> Server {
    let port = free_port();
    let folder = Server::temporary_folder();
    let file = folder.path().join("sentinel.conf");
    let settings = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {primary} 1\n\
         sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
    );
    std::fs::write(&file, settings).unwrap();
    let spec = Spec::new(program("redis-server"), port).args([file.display().to_string(), "--sentinel".into()]);
    Server::start(spec, folder)
}

/// Asks a server as `redis-cli` does, and gives what it printed.
///
/// # Panics
/// If the program cannot be run.
pub fn redis_cli(port: u16, words: &[&str]) -> String {
    let output = Command::new(program("redis-cli"))
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "--no-auth-warning"])
        .args(words)
        .env_remove("REDISCLI_AUTH")
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// A server that speaks TLS only, on this port; the settings name its certificate.
pub fn redis_tls(port: u16, settings: &[&str]) -> Server {
    let number = port.to_string();
    // The later `--port` counts.
    redis_on(port, &[&["--port", "0", "--tls-port", &number], settings].concat())
}

fn redis_on(port: u16, settings: &[&str]) -> Server {
    let folder = Server::temporary_folder();
    let (number, at) = (port.to_string(), folder.path().display().to_string());
    let spec = Spec::new(program("redis-server"), port)
        .args(["--port", &number, "--bind", "127.0.0.1", "--dir", &at])
        .args(DURABLE)
        .args(settings.iter().copied());
    Server::start(spec, folder)
}
