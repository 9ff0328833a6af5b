//! Git remotes behind real servers: sshd, lighttpd with git's own CGI program, and JGit's daemon.

use crate::programs::output_of;
use crate::{Server, Spec, free_port, jar, program};
use std::path::Path;
use std::process::Command;

/// A server that serves every repository of this machine by its whole path.
#[derive(Debug)]
pub struct GitServer {
    server: Server,
    base: String,
    /// What the pusher's environment needs.
    pub env: Vec<(&'static str, String)>,
}

impl GitServer {
    /// The URL of the repository at this path.
    pub fn url(&self, path: &Path) -> String {
        format!("{}{}", self.base, path.display())
    }

    /// The server itself.
    pub const fn server(&self) -> &Server {
        &self.server
    }
}

/// sshd with a key of its own, for the user who runs the tests.
pub fn git_ssh() -> GitServer {
    let folder = Server::temporary_folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for key in ["host", "key"] {
        Spec::new(program("ssh-keygen"), 0).args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).run_to_end();
    }
    // Demanded by sshd where it drops its privileges; it is not there until the service has run once.
    let _ = std::fs::create_dir_all("/run/sshd");
    let port = free_port();
    let path = std::env::var("PATH").unwrap_or_default();
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\nSetEnv PATH={path}\n",
        at("host"),
        at("key.pub")
    );
    std::fs::write(at("config"), config).unwrap();
    let user = output_of(Command::new("id").arg("-un"));
    let command = format!(
        "ssh -F /dev/null -i {} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o LogLevel=ERROR -o KexAlgorithms=curve25519-sha256 -o GSSAPIAuthentication=no",
        at("key")
    );
    let spec = Spec::new(program("sshd"), port).args(["-D", "-e", "-f", &at("config")]);
    let base = format!("ssh://{}@127.0.0.1:{port}", user.trim());
    GitServer { server: Server::start(spec, folder), base, env: vec![("GIT_SSH_COMMAND", command)] }
}

/// lighttpd with `git http-backend`; anybody may push.
pub fn git_http() -> GitServer {
    let folder = Server::temporary_folder();
    let backend = format!("{}/git-http-backend", output_of(Command::new("git").arg("--exec-path")).trim());
    assert!(Path::new(&backend).is_file(), "{backend} is missing: it is a part of git");
    let port = free_port();
    let path = std::env::var("PATH").unwrap_or_default();
    let config = format!(
        r#"server.port = {port}
server.bind = "127.0.0.1"
server.document-root = "{folder}"
server.upload-dirs = ("{folder}")
server.modules = ("mod_alias", "mod_cgi", "mod_setenv")
alias.url = ("/git/" => "{backend}/")
cgi.assign = ("git-http-backend" => "")
setenv.set-environment = ("GIT_PROJECT_ROOT" => "/", "GIT_HTTP_EXPORT_ALL" => "1", "REMOTE_USER" => "anybody", "PATH" => "{path}", "HOME" => "{folder}")
"#,
        folder = folder.path().display(),
    );
    let file = folder.path().join("config");
    std::fs::write(&file, config).unwrap();
    let spec = Spec::new(program("lighttpd"), port).args(["-D".into(), "-f".into(), file.display().to_string()]);
    let base = format!("http://127.0.0.1:{port}/git");
    GitServer { server: Server::start(spec, folder), base, env: Vec::new() }
}

/// What JGit's daemon needs. The launcher of the package misses one of them.
const JARS: [&str; 7] = [
    "org.eclipse.jgit.pgm",
    "org.eclipse.jgit",
    "org.eclipse.jgit.lfs",
    "org.eclipse.jgit.http.apache",
    "args4j",
    "slf4j-api",
    "slf4j-simple",
];

/// JGit's daemon, the engine of Gerrit; anybody may push.
///
/// # Panics
/// If one of its jars is missing; the message says how to install it.
pub fn git_jgit() -> GitServer {
    let folder = Server::temporary_folder();
    let jars = JARS.map(|name| jar(name).display().to_string()).join(":");
    let port = free_port();
    let spec = Spec::new(program("java"), port)
        // Its figures would stay in /tmp.
        .args(["-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-Xmx256m"])
        .args(["-cp", &jars, "org.eclipse.jgit.pgm.Main", "daemon"])
        .args(["--listen", "127.0.0.1", "--port", &port.to_string()])
        .args(["--export-all", "--enable=receive-pack", "/"])
        .env("HOME", folder.path().display().to_string());
    let base = format!("git://127.0.0.1:{port}");
    GitServer { server: Server::start(spec, folder), base, env: Vec::new() }
}
