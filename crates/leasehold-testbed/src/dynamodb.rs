//! A server that speaks DynamoDB and keeps its tables: dynalite.

use crate::{Server, Spec, free_port, node_module, program, python_program};
use std::io::Write;
use std::path::{Path, PathBuf};

const MOTO: &str = "
import sys, threading
from moto.moto_server.threaded_moto_server import MotoRequestHandler
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
application, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()
def in_turn(environ, start):
    with turn:
        return list(application(environ, start))
run_simple('127.0.0.1', int(sys.argv[1]), in_turn, threaded=True, request_handler=MotoRequestHandler)
";

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

/// A moto, one request at a time: by itself it checks a condition and writes in two steps, and loses races. It forgets
/// everything when it ends.
pub fn moto_in_turn() -> Server {
    let port = free_port();
    let program = python_program("python3");
    let spec = Spec::new(program, port).args(["-c", MOTO, &port.to_string()]).env("MOTO_PORT", port.to_string());
    Server::start(spec, Server::folder_for("root"))
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
