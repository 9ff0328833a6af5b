//! MariaDB.

use crate::programs::{output_of, program};
use crate::server::{Server, Spec, free_port};
use std::process::Command;

const USER: &str = "mysql";

/// A MariaDB server whose user `root` has no password, with an empty database `leases`.
pub fn mariadb() -> Server {
    mariadb_with(&[], &[])
}

/// The same, with more arguments and variables of its environment.
pub fn mariadb_with(args: &[&str], env: &[(&str, &str)]) -> Server {
    let folder = Server::folder_for(USER);
    let (port, here) = (free_port(), folder.path().display().to_string());
    // A small log: it is written out in full when the server starts. Its own folder for temporary files: a server that
    // starts removes what others left, or are just using, in the common one.
    let folders = [format!("--datadir={here}/data"), format!("--tmpdir={here}")];
    let common = [&["--no-defaults".to_owned()], &folders[..], &["--innodb-log-file-size=8M".to_owned()]].concat();
    let root = rustix::process::geteuid().is_root();
    Spec::new(program("mariadb-install-db"), port)
        .args(common.clone())
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .args(root.then(|| format!("--user={USER}")))
        .run_to_end();
    let mut spec = Spec::new(program("mariadbd"), port)
        .user(USER)
        .args(common)
        .args([format!("--port={port}"), "--bind-address=127.0.0.1".to_owned()])
        .args([format!("--socket={here}/socket"), format!("--pid-file={here}/pid")])
        .args(args.iter().copied());
    for (name, value) in env {
        spec = spec.env(*name, *value);
    }
    let server = Server::start(spec, folder);
    mariadb_run(&server, "CREATE DATABASE leases");
    server
}

/// Runs statements as `root` and gives what they print.
///
/// # Panics
/// If one fails; the message has what the server said.
pub fn mariadb_run(server: &Server, sql: &str) -> String {
    output_of(
        Command::new(program("mariadb"))
            .args(["--no-defaults", "--user=root", "--batch", "--skip-column-names"])
            .arg(format!("--socket={}/socket", server.folder().display()))
            .args(["--execute", sql]),
    )
}
