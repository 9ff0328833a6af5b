//! The process tree, as `/proc` shows it.

use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::HashMap;

pub(crate) const ADOPTS_ORPHANS: bool = true;

/// Makes this process the parent of every descendant whose own parent has died, so that a grandchild that left its
/// group and session is still found below us.
pub(crate) fn adopt_orphans() -> std::io::Result<()> {
    // Any non-zero value switches it on.
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// One line of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    parent: i32,
    /// Clock ticks after boot: tells a process from a later one that was given the same number.
    started: u64,
}

/// Signals every descendant of this process, and says how many there were. Zombies do not count.
pub(crate) fn signal_descendants(signal: Signal) -> std::io::Result<usize> {
    let table = table()?;
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let mut found = 0;
    for (&pid, entry) in &table {
        if descends(&table, pid, me) && signal_exactly(pid, *entry, signal) {
            found += 1;
        }
    }
    Ok(found)
}

/// Signals the process that had this number *and* started then: the number may have been given to another since.
fn signal_exactly(pid: i32, seen: Entry, signal: Signal) -> bool {
    let Some(number) = Pid::from_raw(pid) else { return false };
    let Ok(handle) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { return false };
    // The handle is to whoever has the number now; only if that is still the one we saw may it be signalled.
    match entry(pid) {
        Some(now) if now.started == seen.started => rustix::process::pidfd_send_signal(handle, signal).is_ok(),
        _ => false,
    }
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
    let (state, parent, started) = (*fields.first()?, fields.get(1)?, fields.get(19)?);
    if matches!(state, "Z" | "X") {
        return None;
    }
    Some(Entry { parent: parent.parse().ok()?, started: started.parse().ok()? })
}
