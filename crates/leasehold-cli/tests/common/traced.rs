//! The real binary under `strace`, which does something at a system call: no test waits for the right moment.

use super::{Home, Running, eventually, signal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The same command, traced with these options. What happens is written to a log.
pub fn traced(command: &Command, log: &Path, options: &[&str]) -> Command {
    let mut traced = Command::new("strace");
    // The tracer is neither its parent nor in its group, so both are as they would be without one.
    traced.args(["-DDD", "-f", "-o", log.to_str().unwrap()]).args(options).arg("--");
    traced.arg(command.get_program()).args(command.get_args());
    traced.current_dir(command.get_current_dir().unwrap()).env_clear();
    traced.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    // A group of its own, and not an orphaned one: only such a group is stopped from the terminal.
    traced.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    traced
}

/// Starts the command so.
pub fn start(home: &Home, args: &[&str], log: &str, options: &[&str]) -> Running {
    Running::from(traced(&home.leasehold(args), &home.path(log), options).spawn().unwrap())
}

pub fn status(pid: i32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().trim().to_owned()
}

/// Takes the tracer away from a process that it has stopped, which stays so.
pub fn untrace(stopped: &Running) {
    let tracer: i32 = status(stopped.pid(), "TracerPid:").parse().unwrap();
    signal(tracer, "KILL");
    eventually("the tracer is gone", || status(stopped.pid(), "State:").starts_with('T'));
}
