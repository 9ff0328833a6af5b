//! Servers of objects: moto and SeaweedFS speak S3, Azurite speaks Azure's protocol. Each has one bucket, [`BUCKET`].

use crate::server::answer_to;
use crate::{Server, Spec, free_port, node_module, program, python_program, wait_until};
use std::path::Path;

/// The bucket that every server here has.
pub const BUCKET: &str = "leases";
/// Lets anybody make containers in an Azurite: signed with the key that every one of them has.
const AZURITE_PERMIT: &str = "sv=2018-11-09&ss=b&srt=c&sp=cw&se=2099-01-01T00:00:00Z&\
                              sig=DSuq2AQgq4x2gnHNfXN%2FOj%2BFElTof2ivN1hKWUifAZk%3D";

/// moto's own server answers in threads that look first and write later: under load it creates one object twice, which
/// our proof notices, and loses races for an item. Here it answers one request at a time.
const MOTO: &str = r"
import ssl, sys, threading
from moto.moto_server.threaded_moto_server import MotoRequestHandler
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_at_a_time(environ, start_response):
    with turn:
        return list(app(environ, start_response))
context = None
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
run_simple('127.0.0.1', int(sys.argv[1]), one_at_a_time, threaded=True, request_handler=MotoRequestHandler,
    ssl_context=context)
";

/// S3 and DynamoDB as moto does them, in memory: it takes any credentials, and forgets everything when it is killed.
pub fn moto() -> Server {
    let server = start_moto(&[]);
    make_bucket(server.port(), &format!("/{BUCKET}"));
    server
}

/// The same over TLS, with the certificate and key in these files. It has no bucket.
pub fn moto_tls(certificate: &Path, key: &Path) -> Server {
    start_moto(&[certificate, key])
}

fn start_moto(certificate: &[&Path]) -> Server {
    let port = free_port();
    let spec = Spec::new(python_program("python"), port)
        .args(["-c", MOTO, &port.to_string()])
        .env("MOTO_PORT", port.to_string())
        .args(certificate.iter().map(|file| file.display().to_string()));
    Server::start(spec, Server::temporary_folder())
}

/// S3 as SeaweedFS does it, on disk: what it answered is there after it was killed.
pub fn seaweed() -> Server {
    let folder = Server::temporary_folder();
    let port = free_port();
    let mut args = vec!["server".to_owned(), "-ip=127.0.0.1".into(), "-s3".into(), "-volume.max=8".into()];
    args.push(format!("-dir={}", folder.path().display()));
    args.push(format!("-s3.port={port}"));
    for part in ["filer", "s3"] {
        args.push(format!("-{part}.localSocket={}", folder.path().join(part).display()));
    }
    let mut sockets = Vec::new();
    for part in ["master", "volume", "filer", "s3"] {
        if part != "s3" {
            args.push(format!("-{part}.port={}", free_port()));
        }
        let grpc = free_port();
        args.push(format!("-{part}.port.grpc={grpc}"));
        sockets.push(format!("/tmp/seaweedfs-{part}-grpc-{grpc}.sock"));
    }
    let spec = Spec::new(python_program("weed"), port).args(args).sockets(&sockets);
    let server = Server::start(spec, folder);
    make_bucket(port, &format!("/{BUCKET}"));
    server
}

/// Azure's blobs as Azurite does them, in memory, with the account and key that every one of them has.
pub fn azurite() -> Server {
    let port = free_port();
    let script = node_module("azurite/dist/src/blob/main.js").display().to_string();
    let spec = Spec::new(program("node"), port)
        .args([script.as_str(), "--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
        .args(["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]);
    let server = Server::start(spec, Server::temporary_folder());
    make_bucket(port, &format!("/devstoreaccount1/{BUCKET}?restype=container&{AZURITE_PERMIT}"));
    server
}

/// Some servers listen before they can make anything.
fn make_bucket(port: u16, target: &str) {
    wait_until("a bucket is made", || matches!(put(port, target), Some(200 | 201)));
}

/// The status of a bare PUT.
fn put(port: u16, target: &str) -> Option<u16> {
    let request =
        format!("PUT {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    answer_to(port, &request)?.split_whitespace().nth(1)?.parse().ok()
}
