//! The directory store and the file guard across two mounts of a real NFS server, inside user-mode Linux.
//!
//! Promise: the very test programs that `cargo test` runs, on a kernel of its own; no root trick on this machine.
//! Non-promise: other NFS servers and versions than this kernel's are not tried.

use crate::with_signals;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the kernel prints when the script was successful.
const SUCCESS: &str = "NFS ENDED WITH 0";
/// The kernel's memory. The export is in it.
const MEMORY: &str = "mem=768M";
/// Far more than it takes.
const LIMIT_S: &str = "900";

/// Builds the test programs and runs them there.
pub fn test(root: &Path) -> Result<(), String> {
    println!("xtask: the directory store and the file guard hold on NFS");
    let conformance = built(root, "leasehold-stores", "conformance")?;
    let races = built(root, "leasehold-guards", "races")?;
    let script = root.join("target/nfs-test.sh");
    let text = format!(
        "set -eu\nexport RUST_BACKTRACE=1 HOME=/mnt/tmp TMPDIR=/mnt/tmp LEASEHOLD_TEST_MOUNTS=/mnt/a:/mnt/b\n\
         mountpoint -q /mnt/a && mountpoint -q /mnt/b\n\
         '{}' --exact dir_keeps_every_promise\n\
         LEASEHOLD_TEST_MOUNTS=/mnt/a:/mnt/b:/mnt/exp '{}'\n",
        conformance.display(),
        races.display()
    );
    std::fs::create_dir_all(root.join("target")).map_err(|e| format!("cannot make a folder for the script: {e}"))?;
    std::fs::write(&script, text).map_err(|e| format!("cannot write {}: {e}", script.display()))?;
    let output = Command::new("timeout")
        .env("LD_PRELOAD", wide(root)?)
        .args([LIMIT_S, "linux.uml", MEMORY, "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"])
        .args(["con=null", "con0=fd:0,fd:1", &format!("init={}", root.join("xtask/nfs/init.sh").display())])
        .arg(format!("LHTEST={}", script.display()))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot start linux.uml: {e}; install it with: cargo xtask servers"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains(SUCCESS) {
        let told = text.lines().filter(|line| line.starts_with("test ") || line.contains("mounts"));
        told.for_each(|line| println!("{}", line.trim_end()));
        return Ok(());
    }
    Err(format!("on NFS a promise was broken:\n{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// What lets that kernel run on processors with large registers, compiled.
fn wide(root: &Path) -> Result<PathBuf, String> {
    let library = root.join("target/nfs-wide.so");
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .arg(root.join("xtask/nfs/wide.c"))
        .status()
        .map_err(|e| format!("cannot start cc: {e}; install gcc"))?;
    if status.success() { Ok(library) } else { Err(format!("cc ended with {status}")) }
}

/// The path of a test program, as cargo tells it.
fn built(root: &Path, package: &str, test: &str) -> Result<PathBuf, String> {
    let output = with_signals(env!("CARGO"))
        .args(["test", "--no-run", "--workspace", "--all-features", "--message-format=json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot build {package}'s tests: {e}"))?;
    let mark = format!("\"name\":\"{test}\"");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains(&mark) && line.contains(&format!("/{package}#")))
        .find_map(|line| line.split("\"executable\":\"").nth(1)?.split('"').next().map(PathBuf::from))
        .ok_or_else(|| format!("cargo built no test `{test}` of {package}"))
}
