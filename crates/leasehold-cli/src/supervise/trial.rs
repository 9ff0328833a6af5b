//! Whether commands can have a control group of their own on this machine, tried out by a process of its own.
//!
//! A process of its own, because only one with a single thread starts others in a group, as the dead-man does.

use super::reap_all;
use super::standby::{CGROUP, wants_cgroup};
use leasehold_core::Nonce;
use leasehold_system::process::{Tree, own_program};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// The first argument that makes this binary try it. Not for people.
pub const ARGUMENT: &str = "__try-cgroup";
/// How often the process of the trial is looked for, a millisecond apart.
const MAX_PASSES: u32 = 1_000;

/// How commands are ended here.
#[derive(Debug)]
pub enum Ending {
    /// In a control group of their own below this one.
    Cgroup(PathBuf),
    /// By walking the process table, and why there is no control group.
    Walk(String),
}

/// Finds out how commands are ended on this machine.
pub fn ending() -> leasehold_core::Result<Ending> {
    if !wants_cgroup()? {
        return Ok(Ending::Walk(format!("{CGROUP} is `off`")));
    }
    let tried = own_program()
        .and_then(|program| Command::new(program).arg0("leasehold").arg(ARGUMENT).stderr(Stdio::null()).output());
    let said = tried.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    Ok(match said {
        Ok(line) => match line.split_once(' ') {
            Some(("below", path)) => Ending::Cgroup(path.into()),
            Some(("none", why)) => Ending::Walk(why.into()),
            _ => Ending::Walk("it could not be tried".into()),
        },
        Err(error) => Ending::Walk(format!("it could not be tried: {error}")),
    })
}

/// Runs as the trial, and says how it went.
pub fn main() -> ExitCode {
    let line = match enclosed() {
        Ok(path) => format!("below {}", path.display()),
        Err(error) => format!("none {error}"),
    };
    let _ = crate::output::line(&line);
    ExitCode::SUCCESS
}

fn enclosed() -> io::Result<PathBuf> {
    let mut tree = Tree::begin()?;
    let path = tree.enclose(&Nonce::random().to_string())?.to_owned();
    let mut command = Command::new(own_program()?);
    tree.spawn(command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()))?;
    for _ in 0..MAX_PASSES {
        if tree.kill(reap_all) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if !tree.is_enclosed() {
        return Err(io::Error::other("no process may be started in one"));
    }
    Ok(path.parent().unwrap_or(&path).to_owned())
}
