//! What of a folder would survive a crash, worked out from the calls that a process made.
//!
//! Promise: the strictest reading. An entry is durable when its folder was synced after it was made; what was waiting for
//! a sync that failed is lost for good, because a second `fsync` proves nothing after EIO. Non-promise: what is in a file
//! is not looked at, only whether its name is there.

use crate::programs::program;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

const CALLS: &str = "trace=fsync,fdatasync,mkdir,mkdirat,link,linkat,rmdir,unlink,unlinkat,write";

/// What a process did to its files.
#[derive(Debug)]
pub struct SyncTrace {
    /// How it ended.
    pub status: ExitStatus,
    /// Its calls, as `strace` wrote them down.
    pub calls: String,
}

impl SyncTrace {
    /// Runs a program to its end. The n-th `fsync` of each of its threads fails with EIO.
    ///
    /// # Panics
    /// If `strace` is not there, or cannot trace.
    pub fn of(program_and_args: &[&OsStr], environment: &[(&str, &str)], failing_sync: usize) -> Self {
        let trace = tempfile::NamedTempFile::new().unwrap();
        let status = Command::new(program("strace"))
            .args(["-f", "-y", "-qq", "-e", CALLS, "-e"])
            .arg(format!("inject=fsync:error=EIO:when={failing_sync}"))
            .arg("-o")
            .arg(trace.path())
            .args(program_and_args)
            .envs(environment.iter().copied())
            .status()
            .unwrap();
        SyncTrace { status, calls: std::fs::read_to_string(trace.path()).unwrap() }
    }

    /// Whether a sync failed on purpose.
    pub fn has_failed_sync(&self) -> bool {
        self.calls.contains("(INJECTED)")
    }

    /// The calls in the order in which they ended. One during which another thread made a call is in two lines of the trace.
    fn completed(&self) -> Vec<String> {
        let mut begun = BTreeMap::new();
        let mut calls = Vec::new();
        for line in self.calls.lines() {
            let call = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
            let thread = &line[..line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len()];
            if let Some(beginning) = call.strip_suffix(" <unfinished ...>") {
                begun.insert(thread, beginning);
            } else if let Some((_, end)) = call.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
                calls.push(format!("{}{end}", begun.remove(thread).expect("it was begun")));
            } else {
                calls.push(call.to_owned());
            }
        }
        calls
    }

    /// Goes through the calls, and calls `told` for each piece of output that begins with `mark`, with what follows it.
    ///
    /// # Panics
    /// If a line of the trace is not understood.
    pub fn replay(&self, disk: &mut Disk, mark: &str, mut told: impl FnMut(&Disk, &str)) {
        for call in self.completed() {
            let call = call.as_str();
            let quoted: Vec<&str> = call.split('"').skip(1).step_by(2).collect();
            let is_done = call.ends_with(" = 0");
            match call.split('(').next().unwrap_or_default() {
                "mkdir" | "mkdirat" if is_done => disk.add(quoted[0]),
                "link" | "linkat" if is_done => disk.add(quoted[1]),
                "rmdir" | "unlink" | "unlinkat" if is_done => drop(disk.entries.remove(Path::new(quoted[0]))),
                "fsync" | "fdatasync" => {
                    let path = call.split(['<', '>']).nth(1).unwrap();
                    disk.syncs += 1;
                    disk.sync(Path::new(path), if is_done { Entry::Durable } else { Entry::Lost });
                }
                "write" => {
                    let text = quoted.first().copied().unwrap_or_default().replace("\\n", "\n");
                    text.trim().strip_prefix(mark).into_iter().for_each(|rest| told(disk, rest.trim()));
                }
                _ => {}
            }
        }
    }
}

/// Which entries of folders are durable.
#[derive(Debug, Default)]
pub struct Disk {
    entries: BTreeMap<PathBuf, Entry>,
    /// How many syncs there were, failed ones too.
    pub syncs: usize,
}

/// What became of an entry in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Made, and the folder was not synced since.
    Waiting,
    /// It survives a crash.
    Durable,
    /// It was waiting for a sync that failed.
    Lost,
}

impl Disk {
    /// Everything that is below `base` now was made by somebody else, and synced by nobody.
    ///
    /// # Panics
    /// If it cannot be listed.
    pub fn found(base: &Path) -> Self {
        let mut disk = Disk::default();
        let mut folders = vec![base.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                disk.entries.insert(path, Entry::Waiting);
            }
        }
        disk
    }

    fn add(&mut self, path: &str) {
        self.entries.insert(path.into(), Entry::Waiting);
    }

    fn sync(&mut self, folder: &Path, becomes: Entry) {
        for (path, entry) in &mut self.entries {
            if path.parent() == Some(folder) && *entry == Entry::Waiting {
                *entry = becomes;
            }
        }
    }

    /// The last entry of a folder, in the order of names, and every folder on the way to it below `base`. None if the
    /// folder is empty, or not there.
    pub fn way_to_last(&self, base: &Path, folder: &Path) -> Option<Vec<(PathBuf, Entry)>> {
        let (last, _) = self.entries.range(folder.to_path_buf()..).rfind(|(path, _)| path.parent() == Some(folder))?;
        let way = last.ancestors().take_while(|path| *path != base);
        Some(way.map(|path| (path.to_path_buf(), self.entries[path])).collect())
    }
}
