//! The situations of docs/agents.md with the real binary, real processes and git remotes: each script of the page, the skill,
//! a task that is reassigned between two agents, and three weeks of two sandboxes.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod field;
mod scripts;
mod skill;
mod supervisor;

use common::{Done, Home, PATIENCE, Running};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A path of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap()
}

/// Settings for git that say who commits, and leave out what costs time and proves nothing here.
fn git_settings(home: &Home) {
    let settings = "[user]\nname = a\nemail = a@localhost\n[gc]\nauto = 0\n[maintenance]\nauto = false\n\
                    [receive]\nautogc = false\n[core]\nfsync = none\n[init]\ndefaultBranch = main\n";
    std::fs::write(home.path(".gitconfig"), settings).unwrap();
}

/// A program other than ours, in this home and its environment.
fn program(home: &Home, name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    let leasehold = home.leasehold(&[]);
    command.env_clear().envs(leasehold.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("GIT_CONFIG_NOSYSTEM", "1").current_dir(home.folder.path()).stdin(Stdio::null());
    command
}

/// Runs a shell script to its end, within a time that is only for failing: one that waits for what never comes is ended.
#[track_caller]
fn shell(home: &Home, script: &str) -> Done {
    let mut command = program(home, "timeout");
    command.args(["--kill-after=5", &(PATIENCE.as_secs() * 2).to_string(), "sh", "-c", script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    Running::from(child).end()
}

fn git(home: &Home, folder: &str, words: &[&str]) -> String {
    let output = program(home, "git").args(words).current_dir(home.path(folder)).output().unwrap();
    Done::from(output).expect(0).stdout.trim().to_owned()
}

/// The subjects of the main branch, the newest first.
fn subjects(home: &Home, remote: &str) -> Vec<String> {
    git(home, remote, &["log", "--format=%s", "main"]).lines().map(ToOwned::to_owned).collect()
}

/// How many runs of a job were skipped, by its own count: another run held the lease, or the slot was run already.
fn skips(home: &Home, job: &str) -> u64 {
    home.count(job, "skipped_overlap") + home.count(job, "already_run")
}
