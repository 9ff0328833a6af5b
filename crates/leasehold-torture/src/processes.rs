//! The processes of a run, found by the program that they run: a copy of its own, in the run's folder.

use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

/// What a process is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Scheduler,
    /// A worker that has lanes.
    Manager,
    Lane,
    /// The supervisor of a slot's command.
    Run,
    DeadMan,
    /// What a job or item runs.
    Command,
    /// A verb that ends by itself.
    Verb,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: i32,
    pub parent: i32,
    pub role: Role,
    /// When, in ticks since boot.
    pub started: u64,
    /// Of schedulers the place of their jobs, of workers their queue.
    pub owner: String,
}

/// All that run a program from this folder, the oldest first.
pub(crate) fn of(bin: &Path) -> Vec<Process> {
    let mut found: Vec<Process> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| one(bin, pid))
        .collect();
    found.sort_by_key(|process| (process.started, process.pid));
    found
}

fn one(bin: &Path, pid: i32) -> Option<Process> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if !exe.starts_with(bin) {
        return None;
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<String> = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into()).collect();
    let has = |word: &str| words.iter().take_while(|other| *other != "--").any(|other| other == word);
    let role = match words.get(1).map(String::as_str) {
        Some(crate::COMMAND) => Role::Command,
        Some("__dead-man") => Role::DeadMan,
        Some("run") => Role::Run,
        Some("schedule") => Role::Scheduler,
        Some("work") if has("-j") => Role::Manager,
        Some("work") => Role::Lane,
        _ => Role::Verb,
    };
    let stem = |word: &String| Some(Path::new(word).file_stem()?.to_string_lossy().into_owned());
    let owner = match role {
        Role::Scheduler => words.iter().find(|word| word.ends_with(".toml")).and_then(stem),
        Role::Manager | Role::Lane => words.get(2).and_then(stem),
        _ => None,
    };
    let started = stat(pid, 19)?;
    Some(Process { pid, parent: parent(pid)?, role, started, owner: owner.unwrap_or_default() })
}

/// Whose child this process is.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    stat(pid, 1)
}

/// What the system says of a process, by its place after the name.
fn stat<T: std::str::FromStr>(pid: i32, index: usize) -> Option<T> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(index)?.parse().ok()
}

/// Sends a signal to one that is ours.
pub(crate) fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}
