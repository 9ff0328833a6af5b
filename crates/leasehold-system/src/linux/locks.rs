//! Record locks, as `/proc/locks` shows them.

use crate::locks::{Owner, State};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::fs::Metadata;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) fn owner(file: &Path, bytes: &[RangeInclusive<u64>]) -> Option<Owner> {
    // Process ids of another PID namespace mean nothing here.
    let me = std::fs::read_link("/proc/self").ok()?;
    if me.to_str()?.parse() != Ok(std::process::id()) {
        return None;
    }
    let file = std::fs::metadata(file).ok()?;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let locks = table.lines().filter_map(Lock::parse);
    let wanted = locks.filter(|lock| lock.inode == file.ino() && bytes.iter().any(|range| lock.covers(range)));
    let of_file = |lock: &Lock| lock.device == device(&file) || has_open(lock.pid, &file);
    wanted.into_iter().find(of_file).and_then(|lock| look(lock.pid)).map(|process| process.owner)
}

/// A line of the table: a write lock of one process.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    pid: i32,
    /// As printed in the table. Some file systems (overlay, btrfs) report another device in a file's metadata.
    device: (u64, u64),
    inode: u64,
    bytes: RangeInclusive<u64>,
}

impl Lock {
    /// `1: POSIX  ADVISORY  WRITE 4242 fe:00:5507314 120 120`; a lock that is
    /// only waited for has `->` after its number.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next()? != "POSIX" || words.nth(1)? != "WRITE" {
            return None;
        }
        let pid = words.next()?.parse().ok()?;
        let mut fields = words.next()?.split(':');
        let mut hex = || u64::from_str_radix(fields.next()?, 16).ok();
        let device = (hex()?, hex()?);
        let inode = fields.next()?.parse().ok()?;
        let start = words.next()?.parse().ok()?;
        let end = words.next().map(|end| if end == "EOF" { Ok(u64::MAX) } else { end.parse() })?.ok()?;
        Some(Lock { pid, device, inode, bytes: start..=end })
    }

    fn covers(&self, range: &RangeInclusive<u64>) -> bool {
        self.bytes.start() <= range.end() && range.start() <= self.bytes.end()
    }
}

fn device(file: &Metadata) -> (u64, u64) {
    (rustix::fs::major(file.dev()).into(), rustix::fs::minor(file.dev()).into())
}

fn has_open(pid: i32, file: &Metadata) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::metadata(entry.path()).ok())
        .any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
}

struct Process {
    owner: Owner,
    /// Real, effective, saved and file system user.
    users: Vec<u32>,
}

fn look(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may itself contain spaces and parentheses.
    let started = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(19)?.parse().ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_traced = field("TracerPid:")? != "0";
    let state = match field("State:")?.chars().next()? {
        't' => State::Traced,
        'T' if is_traced => State::Traced,
        'T' => State::Stopped,
        _ => State::Running,
    };
    let users = field("Uid:")?.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let name = field("Name:")?.chars().filter(|c| !c.is_control()).collect();
    Some(Process { owner: Owner { pid, name, state, started }, users })
}

pub(crate) fn end_if_stopped(seen: &Owner, still_owns: impl FnOnce() -> bool) -> bool {
    let Some(number) = Pid::from_raw(seen.pid) else { return false };
    // Opened first: what is read about the id from here on is about this process, or the process is gone.
    let Ok(handle) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { return false };
    let Some(now) = look(seen.pid) else { return false };
    let us = rustix::process::geteuid().as_raw();
    now.owner == *seen
        && now.users.len() == 4
        && now.users.iter().all(|user| *user == us)
        && runs_our_program(seen.pid)
        && still_owns()
        && rustix::process::pidfd_send_signal(handle, Signal::KILL).is_ok()
}

fn runs_our_program(pid: i32) -> bool {
    let program = |path: String| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let theirs = program(format!("/proc/{pid}/exe"));
    theirs.is_some() && theirs == program("/proc/self/exe".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table_are_read() {
        let held = Lock::parse("12: POSIX  ADVISORY  WRITE 4242 fe:00:5507314 120 120").unwrap();
        assert_eq!(held, Lock { pid: 4242, device: (0xfe, 0), inode: 5_507_314, bytes: 120..=120 });
        assert!(held.covers(&(120..=122)) && !held.covers(&(121..=128)));
        assert_eq!(Lock::parse("1: POSIX  ADVISORY  WRITE 1 00:1b:7 0 EOF").unwrap().bytes, 0..=u64::MAX);
        for other in
            ["2: -> POSIX  ADVISORY  WRITE 1 fe:00:7 0 0", "3: FLOCK  ADVISORY  WRITE 1 fe:00:7 0 EOF", "", "4:"]
        {
            assert_eq!(Lock::parse(other), None);
        }
        assert_eq!(Lock::parse("5: POSIX  ADVISORY  READ 1 fe:00:7 0 0"), None);
    }

    #[test]
    fn only_our_own_stopped_program_is_ended() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = other.id().cast_signed();
        let number = Pid::from_child(&other);
        let running = look(pid).unwrap().owner;
        assert!(!running.end_if_stopped(|| true));
        rustix::process::kill_process(number, Signal::STOP).unwrap();
        while look(pid).unwrap().owner.state != State::Stopped {
            std::thread::yield_now();
        }
        let stopped = look(pid).unwrap().owner;
        assert!(!stopped.end_if_stopped(|| panic!("another program")));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();

        // This test program, waiting for input from a pipe.
        let start = || {
            let mut own = std::process::Command::new(std::env::current_exe().unwrap());
            own.args(["--exact", "linux::locks::tests::waits_to_be_ended", "--nocapture"]).env(WAITS, "1");
            own.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap()
        };
        let mut own = start();
        rustix::process::kill_process(Pid::from_child(&own), Signal::STOP).unwrap();
        let pid = own.id().cast_signed();
        while look(pid).unwrap().owner.state != State::Stopped || !runs_our_program(pid) {
            std::thread::yield_now();
        }
        let stopped = look(pid).unwrap().owner;
        assert!(!stopped.end_if_stopped(|| false));
        let earlier = Owner { started: stopped.started - 1, ..stopped.clone() };
        assert!(!earlier.end_if_stopped(|| true));
        assert!(own.try_wait().unwrap().is_none());
        assert!(stopped.end_if_stopped(|| true));
        assert!(!own.wait().unwrap().success());
    }

    const WAITS: &str = "LEASEHOLD_TEST_WAITS";

    /// Does nothing unless started by the test above.
    #[test]
    fn waits_to_be_ended() {
        if std::env::var_os(WAITS).is_some() {
            let _ = std::io::stdin().read_line(&mut String::new());
        }
    }
}
