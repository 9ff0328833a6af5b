//! Chores: `cargo xtask test [--quick]`, `cargo xtask torture`, `cargo xtask servers`, `cargo xtask tidy`, `cargo xtask features`,
//! `cargo xtask lines`.
//!
//! Promise: `test` runs every check that CI runs, in one command. It stops at the first check that fails, but of the tests
//! it shows every one that does.

mod features;
mod lanes;
mod licences;
mod lines;
mod nfs;
mod servers;
mod tidy;
mod torture;
mod watch;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage:
  cargo xtask test           format, lints, docs, tidy, every test, the model
  cargo xtask test --quick   the inner loop: format, tidy, unit tests, the disaster; under 2 minutes warm
  cargo xtask torture [--minutes N] [--seed N] [--undo FIX|all] [--served]
                             schedulers, workers and spools under every fault at once (10 minutes); `test` has one minute
                             of it. --undo turns one fix off, or each in turn, and is red if the run does not notice
  cargo xtask nfs            the directory store and the file guard on a real NFS server; `test` does so too
  cargo xtask servers        install the servers that the tests start; `test` does so too
  cargo xtask tidy           layers, sizes, checklists
  cargo xtask features       the library with each feature alone, and with the oldest compiler that it names; minutes
  cargo xtask lines          how many lines of code each crate has
  cargo xtask watch COMMAND  run a command as `test` runs the tests: red if it leaves processes or files behind";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["test"] => test(),
        ["test", "--quick"] => quick(),
        ["torture", ref args @ ..] => torture::run(args),
        ["nfs"] => watch::tests("nfs"),
        [watch::INNER, "all"] => all_tests(),
        [watch::INNER, "quick"] => quick_tests(),
        [watch::INNER, "nfs"] => nfs::test(&root()),
        ["servers"] => servers::install(&root()),
        ["tidy"] => tidied(),
        ["features"] => features::check(&root()),
        ["lines"] => lines::print(&root()),
        ["watch", program, ref args @ ..] => {
            let mut command = with_signals(program);
            command.args(args);
            watch::run(command)
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("xtask: failed: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

fn test() -> Result<(), String> {
    tidied()?;
    cargo("the format is rustfmt's", &["fmt", "--all", "--check"])?;
    cargo(
        "clippy has nothing to say",
        &["clippy", "--workspace", "--all-features", "--all-targets", "--", "-D", "warnings"],
    )?;
    for (what, features) in [("lean", ""), ("with the proxy alone", "http"), ("with the server alone", "server")] {
        let what = format!("the command builds without warnings, {what}");
        cargo(&what, &["clippy", "--package", "leasehold-cli", "--features", features, "--", "-D", "warnings"])?;
    }
    documented()?;
    licences::check(&root())?;
    servers::install(&root())?;
    cargo("every test builds", &["test", "--no-run", "--workspace", "--all-features"])?;
    watch::tests("all")
}

/// What runs under watch.
fn all_tests() -> Result<(), String> {
    lanes::test(&root())?;
    cargo("every example in the documentation passes", &["test", "--doc", "--workspace", "--all-features"])
}

fn quick() -> Result<(), String> {
    tidied()?;
    cargo("the format is rustfmt's", &["fmt", "--all", "--check"])?;
    cargo("the tests build", &["test", "--no-run", "--workspace", "--lib", "--bins"])?;
    watch::tests("quick")
}

fn quick_tests() -> Result<(), String> {
    cargo("unit tests pass", &["test", "--workspace", "--lib", "--bins"])?;
    cargo("the disaster is harmless", &["test", "--package", "leasehold-cli", "--test", "disaster", "--test", "run"])
}

fn tidied() -> Result<(), String> {
    let complaints = tidy::complaints(&root());
    for complaint in &complaints {
        eprintln!("tidy: {complaint}");
    }
    if complaints.is_empty() { Ok(()) } else { Err(format!("tidy has {} complaints", complaints.len())) }
}

fn documented() -> Result<(), String> {
    let mut command = with_signals(env!("CARGO"));
    command
        .args(["doc", "--workspace", "--all-features", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings");
    run("the documentation builds without warnings", command)
}

fn cargo(what: &str, args: &[&str]) -> Result<(), String> {
    let mut command = with_signals(env!("CARGO"));
    command.args(args);
    run(what, command)
}

/// A command to which no signal is deaf: `nohup` and a shell's `&` leave some ignored, which programs inherit, and tests
/// send those.
fn with_signals(program: &str) -> Command {
    let mut command = if cfg!(target_os = "linux") {
        let mut env = Command::new("env");
        env.args(["--default-signal=HUP,INT,QUIT,TERM,USR1,USR2,PIPE", program]);
        env
    } else {
        Command::new(program)
    };
    // Build scripts look at some of these: with them a run after `cargo test` would build nearly everything again.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    // A clean checkout is built once: what would make a second build faster takes gigabytes of its disk.
    if std::env::var_os("CI").is_some() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

fn run(what: &str, mut command: Command) -> Result<(), String> {
    println!("xtask: {what}");
    match command.current_dir(root()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{what} (run it again with: {command:?})")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}
