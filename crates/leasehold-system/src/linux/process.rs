//! The process tree, as `/proc` shows it.

use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::OnceLock;

pub(crate) const ADOPTS_ORPHANS: bool = true;

/// Makes this process the parent of every descendant whose own parent has died, so that a grandchild that left its
/// group and session is still found below us.
pub(crate) fn adopt_orphans() -> std::io::Result<()> {
    // Any non-zero value switches it on.
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// This very program, even after its file was replaced by an upgrade.
pub(crate) fn own_program() -> std::io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Whether this process was started with a signal ignored, as `nohup` does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // Asked once for all signals: the table is long, and a start-up asks for each of them.
    static IGNORED: OnceLock<u64> = OnceLock::new();
    let mask = *IGNORED.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
    });
    (1..=64).contains(&signal) && mask & (1 << (signal - 1)) != 0
}

/// One line of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    parent: i32,
    pub(crate) group: i32,
    /// Clock ticks after boot: tells a process from a later one that was given the same number.
    started: u64,
}

/// Signals the process that had this number *and* started then: the number may have been given to another since.
pub(crate) fn signal_exactly(pid: i32, seen: Entry, signal: Signal) -> bool {
    let Some(number) = Pid::from_raw(pid) else { return false };
    let Ok(handle) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { return false };
    // The handle is to whoever has the number now; only if that is still the one we saw may it be signalled.
    match entry(pid) {
        Some(now) if now.started == seen.started => rustix::process::pidfd_send_signal(handle, signal).is_ok(),
        _ => false,
    }
}

/// The living descendants of this process, except `strangers` and what is below them.
pub(crate) fn descendants(strangers: &HashMap<i32, Entry>) -> std::io::Result<HashMap<i32, Entry>> {
    let mut table = table()?;
    for (pid, stranger) in strangers {
        if table.get(pid).is_some_and(|entry| entry.started == stranger.started) {
            table.remove(pid);
        }
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    Ok(table.iter().filter(|(pid, _)| descends(&table, **pid, me)).map(|(pid, entry)| (*pid, *entry)).collect())
}

fn descends(table: &HashMap<i32, Entry>, mut pid: i32, ancestor: i32) -> bool {
    // The table is not a snapshot, so a loop is conceivable; no tree is deeper than the table is long.
    for _ in 0..table.len() {
        match table.get(&pid) {
            Some(entry) if entry.parent == ancestor => return true,
            Some(entry) => pid = entry.parent,
            None => return false,
        }
    }
    false
}

fn table() -> std::io::Result<HashMap<i32, Entry>> {
    let mut table = HashMap::new();
    for dir in std::fs::read_dir("/proc")? {
        if let Some(pid) = dir?.file_name().to_str().and_then(|name| name.parse().ok())
            && let Some(entry) = entry(pid)
        {
            table.insert(pid, entry);
        }
    }
    Ok(table)
}

/// The entry of a living process; none for a zombie or a number that nobody has.
fn entry(pid: i32) -> Option<Entry> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may itself contain spaces and parentheses.
    let rest = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let (state, parent, group, started) = (*fields.first()?, fields.get(1)?, fields.get(2)?, fields.get(19)?);
    if matches!(state, "Z" | "X") {
        return None;
    }
    Some(Entry { parent: parent.parse().ok()?, group: group.parse().ok()?, started: started.parse().ok()? })
}

/// The children that a process has before it starts any: those of the shell that became it by `exec`. The kernel
/// lists them in one small file; the whole table need not be read for it.
pub(crate) fn children_now() -> HashMap<i32, Entry> {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let listed = std::fs::read_to_string(format!("/proc/self/task/{me}/children")).unwrap_or_default();
    let pids = listed.split_ascii_whitespace().filter_map(|word| word.parse().ok());
    pids.filter_map(|pid| Some((pid, entry(pid)?))).collect()
}
