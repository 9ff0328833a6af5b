//! Real etcd members.

use crate::server::answer_to;
use crate::{Server, Spec, free_port, program, wait_until};

/// One member, a cluster by itself, that serves.
pub fn etcd() -> Server {
    let server = etcd_with(&[]);
    wait_until("etcd serves", || etcd_is_healthy(server.port()));
    server
}

/// One member with further arguments. It listens, and may not serve yet.
pub fn etcd_with(args: &[&str]) -> Server {
    let is_tls = args.iter().any(|arg| arg.starts_with("--cert-file"));
    let peer = format!("http://127.0.0.1:{}", free_port());
    member("default", &format!("default={peer}"), &peer, if is_tls { "https" } else { "http" }, args)
}

/// A cluster of so many members that serves.
pub fn etcd_cluster(count: usize) -> Vec<Server> {
    let peers: Vec<String> = (0..count).map(|_| format!("http://127.0.0.1:{}", free_port())).collect();
    let names: Vec<String> = (0..count).map(|at| format!("m{at}")).collect();
    let cluster: Vec<String> = names.iter().zip(&peers).map(|(name, peer)| format!("{name}={peer}")).collect();
    let cluster = cluster.join(",");
    let servers: Vec<Server> =
        names.iter().zip(&peers).map(|(name, peer)| member(name, &cluster, peer, "http", &[])).collect();
    for server in &servers {
        wait_until("all of etcd's members serve", || etcd_is_healthy(server.port()));
    }
    servers
}

fn member(name: &str, cluster: &str, peer: &str, scheme: &str, args: &[&str]) -> Server {
    let folder = Server::temporary_folder();
    let port = free_port();
    let client = format!("{scheme}://127.0.0.1:{port}");
    let data = folder.path().join("data").display().to_string();
    let spec = Spec::new(program("etcd"), port)
        .args(["--name", name, "--data-dir", &data, "--logger", "zap", "--log-outputs", "stderr"])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster])
        .args(args.iter().copied());
    Server::start(spec, folder)
}

/// Whether the member at this port knows a leader and can write. Without TLS.
pub fn etcd_is_healthy(port: u16) -> bool {
    let answer = answer_to(port, "GET /health HTTP/1.0\r\n\r\n");
    answer.is_some_and(|answer| answer.contains("\"health\":\"true\""))
}
