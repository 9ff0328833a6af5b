//! The Durable Object worker, compiled as users deploy it, in the runtime behind Cloudflare's Workers.

use crate::programs::output_of;
use crate::{Server, Spec, free_port, node_module, program};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

const CONFIG: &str = r#"using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [ (name = "main", worker = .main), (name = "disk", disk = (writable = true)) ],
  sockets = [ (name = "http", SOCKET, service = "main") ]
);
const main :Workerd.Worker = (
  modules = [ (name = "leasehold.js", esModule = embed "leasehold.js") ],
  compatibilityDate = "2026-01-01",
  bindings = [
    (name = "NAMESPACES", durableObjectNamespace = "LeaseholdNamespace"),
    TOKEN
  ],
  durableObjectNamespaces = [ (className = "LeaseholdNamespace", uniqueKey = "leasehold", enableSql = true) ],
  durableObjectStorage = (localDisk = "disk"),
);
"#;

/// The worker with this token, over plain HTTP, or over TLS with a certificate for 127.0.0.1 whose authority is in
/// `ca.pem` of its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// As in tests and in development.
    Plain,
    /// As in production.
    Tls,
}

/// Starts the worker with this token; without one it must refuse everything.
pub fn durable_worker(token: Option<&str>, transport: Transport) -> Server {
    let (port, folder) = (free_port(), Server::temporary_folder());
    std::fs::write(folder.path().join("leasehold.js"), compiled()).unwrap();
    std::fs::create_dir(folder.path().join("disk")).unwrap();
    if transport == Transport::Tls {
        make_certificates(folder.path());
    }
    set_durable_token(folder.path(), token, transport);
    let at = folder.path().display();
    let spec = Spec::new(node_module("workerd/bin/workerd"), port).args([
        "serve".to_owned(),
        format!("{at}/config.capnp"),
        format!("--socket-addr=http=127.0.0.1:{port}"),
        format!("--directory-path=disk={at}/disk"),
    ]);
    Server::start(spec, folder)
}

/// Gives the worker in this folder another token; it takes effect when the server is started again.
pub fn set_durable_token(folder: &Path, token: Option<&str>, transport: Transport) {
    let socket = match transport {
        Transport::Plain => "http = ()",
        Transport::Tls => {
            "https = (tlsOptions = (keypair = (privateKey = embed \"key.pem\", certificateChain = embed \"cert.pem\")))"
        }
    };
    let token = token.map(|token| format!("(name = \"LEASEHOLD_TOKEN\", text = \"{token}\"),")).unwrap_or_default();
    let config = CONFIG.replace("SOCKET", socket).replace("TOKEN\n", &format!("{token}\n"));
    std::fs::write(folder.join("config.capnp"), config).unwrap();
}

/// The worker as JavaScript. Its types are checked on the way.
fn compiled() -> &'static str {
    static COMPILED: OnceLock<String> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workers/durable-object");
        let folder = TempDir::new().unwrap();
        output_of(Command::new(program("node")).arg(node_module("typescript/bin/tsc")).args([
            Path::new("-p"),
            &project,
            Path::new("--outDir"),
            folder.path(),
        ]));
        std::fs::read_to_string(folder.path().join("leasehold.js")).unwrap()
    })
}

/// An authority of the day, and a certificate of its for 127.0.0.1.
fn make_certificates(folder: &Path) {
    let openssl = |args: &str| {
        let words = args.split_whitespace().map(|word| word.replace("@", &folder.display().to_string()));
        output_of(Command::new(program("openssl")).args(words));
    };
    let file: PathBuf = folder.join("san");
    std::fs::write(file, "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")
        .unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout @/ca.key -out @/ca.pem -days 2 -subj /CN=leasehold-test-authority"));
    openssl(&format!("req {key} -keyout @/key.pem -out @/request.pem -subj /CN=127.0.0.1"));
    openssl("x509 -req -in @/request.pem -CA @/ca.pem -CAkey @/ca.key -days 2 -extfile @/san -out @/cert.pem");
}
