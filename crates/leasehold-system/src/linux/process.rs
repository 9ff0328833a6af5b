//! The process tree, as `/proc` shows it.

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The unit of a process's memory, in bytes: here KiB.
pub(crate) const RSS_UNIT: u64 = 1024;
pub(crate) const ADOPTS_ORPHANS: bool = true;

/// Makes this process the parent of every descendant whose own parent has died, so that a grandchild that left its
/// group and session is still found below us.
pub(crate) fn adopt_orphans() -> std::io::Result<()> {
    // Any non-zero value switches it on.
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// This program, even after an upgrade replaced its file.
pub(crate) fn own_program() -> std::io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

/// What the kernel reports about this process that does not change while it
/// runs. Read once, because a start-up needs it in many places.
struct Status {
    /// The signals that our caller had ignored, one bit each.
    ignored: u64,
    /// Our id in the PID namespace of `/proc`, and in each one below it down to our own.
    numbers: Vec<i32>,
}

fn status() -> Option<&'static Status> {
    static STATUS: OnceLock<Option<Status>> = OnceLock::new();
    let read = || Some(parse_status(&read("/proc/self/status")?));
    STATUS.get_or_init(read).as_ref()
}

/// A file of `/proc`. It may contain a process's name, which may be any bytes.
fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned())
}

fn parse_status(text: &str) -> Status {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let ignored = field("SigIgn:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // A kernel without PID namespaces has no such line.
    let numbers = field("NSpid:").or_else(|| field("Pid:")).unwrap_or_default();
    Status { ignored, numbers: numbers.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect() }
}

/// Whether this process was started with a signal ignored, as `nohup` does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mask = status().map_or(0, |status| status.ignored);
    (1..=64).contains(&signal) && mask & (1 << (signal - 1)) != 0
}

/// Fails unless `/proc` shows our own PID namespace: in another one, our ids belong to other processes.
pub(crate) fn check_table() -> std::io::Result<()> {
    let me = own_number();
    let message = match status().map(|status| status.numbers.as_slice()) {
        Some([number]) if *number == me => return Ok(()),
        Some([number, ..]) => format!(
            "/proc shows the processes of another PID namespace, where this one has the number {number} instead of {me}; \
             mount this namespace's own (`unshare --pid --fork --mount-proc`, or `mount -t proc proc /proc`)"
        ),
        _ => "this process is not in /proc: mount it (`mount -t proc proc /proc`)".into(),
    };
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, message))
}

fn own_number() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// One process of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    parent: i32,
    pub(crate) group: i32,
    /// Clock ticks after boot. Tells a process from a later one that got the same id.
    started: u64,
    first_thread: FirstThread,
}

/// The state of the first thread, which `/proc/PID/stat` describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstThread {
    Lives,
    /// It has exited. The process has this many threads, the first one included; the others may still work.
    Exited {
        threads: u32,
    },
}

impl Entry {
    /// Whether any of its threads is alive.
    fn is_alive(self, pid: i32) -> bool {
        match self.first_thread {
            FirstThread::Lives => true,
            FirstThread::Exited { threads } => threads > 1 && has_living_thread(pid),
        }
    }
}

fn has_living_thread(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| read(thread.path().join("stat")));
    stats.filter_map(|stat| parse(&stat)).any(|thread| thread.first_thread == FirstThread::Lives)
}

/// Signals the process that had this id *and* started then: another process may have got the id since.
pub(crate) fn signal_exactly(pid: i32, seen: Entry, signal: Signal) -> bool {
    let Some(number) = Pid::from_raw(pid) else { return false };
    let Ok(handle) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { return false };
    // The handle is to the process that has the id now. Signal it only if that is still the one we saw.
    match entry(pid) {
        Some(now) if now.started == seen.started => rustix::process::pidfd_send_signal(handle, signal).is_ok(),
        _ => false,
    }
}

/// The living descendants of this process, except `strangers` and their descendants. Dead processes are part of the
/// tree: a process whose first thread has exited may have children.
pub(crate) fn descendants(strangers: &HashMap<i32, Entry>) -> std::io::Result<HashMap<i32, Entry>> {
    let mut table = table()?;
    for (pid, stranger) in strangers {
        if table.get(pid).is_some_and(|entry| entry.started == stranger.started) {
            table.remove(pid);
        }
    }
    let me = own_number();
    let below = table.iter().filter(|(pid, entry)| descends(&table, **pid, me) && entry.is_alive(**pid));
    Ok(below.map(|(pid, entry)| (*pid, *entry)).collect())
}

fn descends(table: &HashMap<i32, Entry>, mut pid: i32, ancestor: i32) -> bool {
    // The table is not a snapshot, so a loop is possible; no tree is deeper than the table is long.
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

/// The entry of a process, dead or alive; none if no process has this id.
fn entry(pid: i32) -> Option<Entry> {
    parse(&read(format!("/proc/{pid}/stat"))?)
}

fn parse(stat: &str) -> Option<Entry> {
    // The name in parentheses may itself contain spaces and parentheses.
    let rest = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let first_thread = match *fields.first()? {
        "Z" | "X" => FirstThread::Exited { threads: fields.get(17)?.parse().ok()? },
        _ => FirstThread::Lives,
    };
    let (parent, group, started) = (fields.get(1)?, fields.get(2)?, fields.get(19)?);
    Some(Entry {
        parent: parent.parse().ok()?,
        group: group.parse().ok()?,
        started: started.parse().ok()?,
        first_thread,
    })
}

/// The children that a process has before it starts any: those of the shell that became it by `exec`. The kernel lists
/// them in one small file, so the whole table need not be read.
pub(crate) fn children_now() -> HashMap<i32, Entry> {
    let pids = Children::open().list().unwrap_or_default().into_iter();
    pids.filter_map(|pid| Some((pid, entry(pid).filter(|entry| entry.is_alive(pid))?))).collect()
}

/// Our own children, as the kernel lists them. Reading the list takes microseconds, and a walk of the table many
/// milliseconds. A list that changes while it is read may miss some.
#[derive(Debug)]
pub(crate) struct Children(Vec<File>);

impl Children {
    /// The children of all threads that this process has now.
    pub(crate) fn open() -> Self {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        Children(threads.filter_map(|thread| File::open(thread.path().join("children")).ok()).collect())
    }

    /// The ids of all children that were not reaped, dead or alive; none if this kernel has no such list.
    pub(crate) fn list(&self) -> Option<Vec<i32>> {
        let mut text = Vec::new();
        for file in &self.0 {
            let mut at = 0;
            let mut part = [0; 4096];
            // The file of a thread that has ended cannot be read.
            while let Ok(length @ 1..) = file.read_at(&mut part, at) {
                text.extend_from_slice(&part[..length]);
                at += length as u64;
            }
            text.push(b' ');
        }
        let words = text.split(u8::is_ascii_whitespace).filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok());
        (!self.0.is_empty()).then(|| words.collect())
    }
}

/// Whether this child of ours is one of the strangers.
pub(crate) fn is_among(strangers: &HashMap<i32, Entry>, pid: i32) -> bool {
    strangers.get(&pid).is_some_and(|stranger| entry(pid).is_some_and(|now| now.started == stranger.started))
}

/// Whether all of its threads have exited. An id that no process has is not dead.
pub(crate) fn is_dead(pid: i32) -> bool {
    entry(pid).is_some_and(|entry| !entry.is_alive(pid))
}

/// Kills a process if it is a child of ours: no other process can get its id until we have reaped it.
pub(crate) fn kill_child(pid: i32) {
    let Some(number) = Pid::from_raw(pid) else { return };
    let Ok(handle) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { return };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if rustix::process::waitid(WaitId::PidFd(handle.as_fd()), look).is_ok() {
        let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_thread_that_has_exited_is_distinguished_from_a_dead_process() {
        let line = |state: &str, threads: u32| {
            format!("7 (a ) b) {state} 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0 0 18446744073709551615")
        };
        let lives = parse(&line("S", 2)).unwrap();
        assert_eq!((lives.parent, lives.group, lives.started), (3, 4, 99));
        assert_eq!(lives.first_thread, FirstThread::Lives);
        assert_eq!(parse(&line("Z", 3)).unwrap().first_thread, FirstThread::Exited { threads: 3 });
        assert!(!parse(&line("Z", 1)).unwrap().is_alive(0));
        assert!(parse("7 (a) S 3").is_none());
    }

    #[test]
    fn numbers_of_each_namespace_are_read() {
        let status = parse_status("Name:\tx\nPid:\t42\nNSpid:\t42\t7\nSigIgn:\t0000000000000001\n");
        assert_eq!((status.numbers, status.ignored), (vec![42, 7], 1));
        assert_eq!(parse_status("Pid:\t42\n").numbers, [42]);
        check_table().unwrap();
    }
}
