//! A server that speaks DynamoDB and keeps its tables: dynalite.

use crate::{Server, Spec, free_port, node_module, program};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A dynalite whose tables take this long to be made, and survive a restart.
pub fn dynalite(create_table_ms: u64) -> Server {
    let (port, folder) = (free_port(), Server::temporary_folder());
    let spec = Spec::new(program("node"), port).args([
        node_module("dynalite/cli.js").display().to_string(),
        format!("--port={port}"),
        "--host=127.0.0.1".into(),
        format!("--createTableMs={create_table_ms}"),
        format!("--path={}/tables", folder.path().display()),
    ]);
    Server::start(spec, folder)
}

/// A file like `~/.aws/credentials` in the folder.
pub fn aws_credentials(folder: &Path, id: &str, secret: &str) -> PathBuf {
    let path = folder.join("credentials");
    let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
    // Renamed into place: nobody reads half of it.
    let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.persist(&path).unwrap();
    path
}
