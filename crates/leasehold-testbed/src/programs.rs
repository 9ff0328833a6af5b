//! Where the servers' programs are: Debian's packages, and a folder with those from PyPI and npm.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder into which `cargo xtask servers` puts what does not come from Debian's packages.
fn folder() -> PathBuf {
    match std::env::var_os("LEASEHOLD_SERVERS") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers"),
    }
}

fn missing(name: &str) -> ! {
    panic!("the server program `{name}` is not here; install all of them with: cargo xtask servers")
}

/// A program of a Debian package.
///
/// # Panics
/// If it is not installed; the message says how to install it.
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()).unwrap_or_else(|| missing(name))
}

/// A program of a package from PyPI.
///
/// # Panics
/// If it is not installed; the message says how to install it.
pub fn python_program(name: &str) -> PathBuf {
    let path = python_environment("python").join("bin").join(name);
    if path.is_file() { path } else { missing(name) }
}

/// A virtual environment of packages from PyPI; those that do not get along have one each.
///
/// # Panics
/// If it is not installed; the message says how to install it.
pub fn python_environment(name: &str) -> PathBuf {
    let path = folder().join(name);
    if path.join("bin/python").exists() { path } else { missing(name) }
}

/// A file of a package from npm.
///
/// # Panics
/// If it is not installed; the message says how to install it.
pub fn node_module(file: &str) -> PathBuf {
    let path = folder().join("node/node_modules").join(file);
    if path.is_file() { path } else { missing(file) }
}

/// A library of a Debian package for Java.
///
/// # Panics
/// If it is not installed; the message says how to install it.
pub fn jar(name: &str) -> PathBuf {
    let path = Path::new("/usr/share/java").join(format!("{name}.jar"));
    if path.is_file() { path } else { missing(name) }
}

/// Runs a command to its end; gives what it printed.
///
/// # Panics
/// If it fails; the message has its output.
pub(crate) fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [printed, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?} failed: {printed}{errors}");
    printed
}
