//! Licences and sources of all that we depend on, by cargo-deny.
//!
//! Promise: without cargo-deny there is no green run: it is installed where the servers are, once, and nowhere else on the
//! machine. Non-promise: the advisory database is on a host that not every machine can reach, so `cargo deny check` with
//! advisories is left to those that can.

use crate::{run, servers};
use std::path::Path;
use std::process::Command;

const VERSION: &str = "0.20.2";

/// Installs cargo-deny if need be, and asks it.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let folder = servers::folder(root).join("cargo");
    let program = folder.join("bin/cargo-deny");
    if !program.is_file() {
        install(&folder)?;
    }
    // Those of other systems too, which no build has fetched.
    let mut fetch = Command::new(env!("CARGO"));
    fetch.args(["fetch", "--locked", "--quiet"]);
    run("every dependency is here", fetch)?;
    let mut deny = Command::new(program);
    deny.args(["--offline", "check", "licenses", "bans", "sources"]);
    run("licences and sources are allowed", deny)
}

/// Unoptimised: it takes a third of the time to build, and three seconds to do its work.
fn install(folder: &Path) -> Result<(), String> {
    let target = folder.join("target");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["install", "--quiet", "--debug", "--locked", &format!("cargo-deny@{VERSION}"), "--root"]).arg(folder);
    for (name, value) in [("DEBUG", "0"), ("OPT_LEVEL", "0"), ("INCREMENTAL", "false")] {
        cargo.env(format!("CARGO_PROFILE_DEV_{name}"), value);
    }
    cargo.env("CARGO_TARGET_DIR", &target);
    let installed = run("cargo-deny is installed (this takes a few minutes, once)", cargo);
    let _ = std::fs::remove_dir_all(&target);
    installed
}
