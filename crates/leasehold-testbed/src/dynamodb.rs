//! Servers that speak DynamoDB: dynalite, which keeps its tables, and moto, which can check signatures.

use crate::{Server, Spec, free_port, node_module, program, python_program};
use std::path::{Path, PathBuf};

/// A dynalite whose tables take this long to be made, and survive a restart.
pub fn dynalite(create_table_ms: u64) -> Server {
    let (port, folder) = (free_port(), Server::folder_for("root"));
    let spec = Spec::new(program("node"), port).args([
        node_module("dynalite/cli.js").display().to_string(),
        format!("--port={port}"),
        "--host=127.0.0.1".into(),
        format!("--createTableMs={create_table_ms}"),
        format!("--path={}/tables", folder.path().display()),
    ]);
    Server::start(spec, folder)
}

/// A moto, which has S3 and DynamoDB and forgets everything when it ends.
pub fn moto() -> Server {
    let port = free_port();
    let spec = Spec::new(python_program("moto_server"), port).args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    Server::start(spec, Server::folder_for("root"))
}

/// A file like `~/.aws/credentials` in the folder.
pub fn aws_credentials(folder: &Path, id: &str, secret: &str) -> PathBuf {
    let path = folder.join("credentials");
    let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
    std::fs::write(&path, text).unwrap();
    path
}
