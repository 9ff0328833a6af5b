//! The process tree, as `ps` shows it. Darwin has no subreaper: a descendant that left its session *and* whose
//! ancestors have all died belongs to launchd and is not found. docs/guarantees.md says so.

use rustix::process::{Pid, Signal};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

/// The unit of a process's memory, in bytes.
pub(crate) const RSS_UNIT: u64 = 1;
pub(crate) const ADOPTS_ORPHANS: bool = false;

/// `ps` asks the kernel, so the table is always this process's own.
pub(crate) fn check_table() -> std::io::Result<()> {
    Ok(())
}

pub(crate) fn adopt_orphans() -> std::io::Result<()> {
    Ok(())
}

/// This program's file.
pub(crate) fn own_program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

/// Darwin has no safe call for it, so it is assumed that no signal is ignored.
pub(crate) fn is_ignored(_signal: i32) -> bool {
    false
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    parent: i32,
    pub(crate) group: i32,
}

pub(crate) fn signal_exactly(pid: i32, _seen: Entry, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|number| rustix::process::kill_process(number, signal).is_ok())
}

/// The living descendants of this process, except `strangers` and their descendants.
pub(crate) fn descendants(strangers: &HashMap<i32, Entry>) -> std::io::Result<HashMap<i32, Entry>> {
    let mut table = table()?;
    table.retain(|pid, _| !strangers.contains_key(pid));
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let below = |mut pid: i32| {
        for _ in 0..table.len() {
            match table.get(&pid) {
                Some(entry) if entry.parent == me => return true,
                Some(entry) => pid = entry.parent,
                None => return false,
            }
        }
        false
    };
    Ok(table.iter().filter(|(pid, _)| below(**pid)).map(|(pid, entry)| (*pid, *entry)).collect())
}

pub(crate) fn children_now() -> HashMap<i32, Entry> {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    table().unwrap_or_default().into_iter().filter(|(_, entry)| entry.parent == me).collect()
}

/// Darwin does not list a process's own children apart from the whole table.
#[derive(Debug)]
pub(crate) struct Children;

impl Children {
    pub(crate) fn open() -> Self {
        Children
    }

    pub(crate) fn list(&self) -> Option<Vec<i32>> {
        None
    }
}

pub(crate) fn is_among(strangers: &HashMap<i32, Entry>, pid: i32) -> bool {
    strangers.contains_key(&pid)
}

pub(crate) fn kill_child(_pid: i32) {}

/// Never called: there is no list of children here.
pub(crate) fn is_dead(_pid: i32) -> bool {
    false
}

fn table() -> std::io::Result<HashMap<i32, Entry>> {
    let output = Command::new("/bin/ps").args(["-axo", "pid=,ppid=,pgid=,state="]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut table = HashMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [pid, parent, group, state, ..] = fields[..]
            && let (Ok(pid), Ok(parent), Ok(group)) = (pid.parse(), parent.parse(), group.parse())
            && !state.starts_with('Z')
        {
            table.insert(pid, Entry { parent, group });
        }
    }
    Ok(table)
}
