//! NATS servers: one alone, one with a configuration file, and a cluster.

use crate::{Server, Spec, free_port, python_program};

/// A server with JetStream that lets everybody in.
pub fn nats() -> Server {
    let (folder, port) = (Server::temporary_folder(), free_port());
    let disk = folder.path().display().to_string();
    let port_text = port.to_string();
    let args = ["-js", "-a", "127.0.0.1", "-p", port_text.as_str(), "-sd", disk.as_str()];
    Server::start(Spec::new(python_program("nats-server"), port).args(args), folder)
}

/// A server with these lines in its configuration file, `nats.conf` in its folder. Every `$FOLDER` there is its folder;
/// `files` are put there first.
pub fn nats_with(config: &str, files: &[(&str, &str)]) -> Server {
    let (folder, port) = (Server::temporary_folder(), free_port());
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let disk = folder.path().display().to_string();
    let file = folder.path().join("nats.conf");
    std::fs::write(&file, config.replace("$FOLDER", &disk)).unwrap();
    let (port_text, file) = (port.to_string(), file.display().to_string());
    let args = ["-c", file.as_str(), "-a", "127.0.0.1", "-p", port_text.as_str(), "-sd", disk.as_str()];
    Server::start(Spec::new(python_program("nats-server"), port).args(args), folder)
}

/// Three servers with JetStream that know each other.
pub fn nats_cluster() -> Vec<Server> {
    let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let known: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
    let known = known.join(",");
    let start = |(at, route): (usize, &u16)| {
        let (folder, port) = (Server::temporary_folder(), free_port());
        let disk = folder.path().display().to_string();
        let (port_text, route) = (port.to_string(), format!("nats://127.0.0.1:{route}"));
        let name = format!("node-{at}");
        let args = ["-js", "-a", "127.0.0.1", "-p", &port_text, "-sd", &disk, "-n", &name];
        let cluster = ["--cluster_name", "leasehold", "--cluster", &route, "--routes", &known];
        Server::start(Spec::new(python_program("nats-server"), port).args(args).args(cluster), folder)
    };
    routes.iter().enumerate().map(start).collect()
}
