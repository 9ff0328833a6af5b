//! The tests under watch: what they leave behind is named, removed, and makes the run red.
//!
//! Promise: when the tests are over, by themselves, by a panic or by a signal to this process, nothing that they started
//! runs on, and their folder for temporary files is gone. Non-promise: where the system cannot adopt orphans (macOS), only
//! the folder is looked at; after `kill -9` of this process the next run clears up; and what is new outside of the folder
//! and bears no process's number may be another run's, so that it is only mentioned.

use crate::with_signals;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The verb that runs the tests themselves, below the process that watches. Not for people.
pub(crate) const INNER: &str = "__tests";
/// The names of the run's folders begin so. Short: sockets below it have at most 108 bytes for their path.
const PREFIX: &str = "lh-";
const TEMPORARY: &str = "/tmp";
/// Where programs put things without asking `TMPDIR`.
const SHARED: [&str; 3] = [TEMPORARY, "/var/tmp", "/dev/shm"];
/// What is in the names of things there that only our tests make.
const OURS: [&str; 5] = ["leasehold", "faketime", "PostgreSQL.", "seaweedfs", "pgbouncer"];

/// Runs the tests that this word names, in a process below this one.
pub(crate) fn tests(word: &str) -> Result<(), String> {
    let myself = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let myself = myself.to_str().ok_or("this program's path is not valid UTF-8")?;
    // Building the tests may have put a new program in the place of this one, which Linux then calls so.
    let mut command = with_signals(myself.strip_suffix(" (deleted)").unwrap_or(myself));
    command.args([INNER, word]);
    run(command)
}

/// Runs a command under watch.
pub(crate) fn run(mut command: Command) -> Result<(), String> {
    clear_after_the_killed();
    let before = shared();
    let folder = folder()?;
    processes::adopt_orphans()?;
    let (ended, seen) = processes::run_to_end(command.env("TMPDIR", &folder));
    let mut left = if matches!(ended, Ok(Ended::ByItself(_))) { processes::wait_for_the_last() } else { Vec::new() };
    processes::kill_all();
    run_once_more(&folder);
    // What was broken off has had no chance to clear up.
    let leftovers = clear(&folder)?;
    if !matches!(ended, Ok(Ended::Told(_))) {
        left.extend(leftovers);
        let after = shared();
        for (what, maker) in after.difference(&before).filter(|(what, _)| !processes::is_in_use(what)) {
            match maker {
                Some(maker) if seen.contains(maker) => left.push(what.clone()),
                Some(_) => {}
                None => println!("xtask: {what} is new; unless another run made it, a test has left it behind"),
            }
        }
    }
    for one in &left {
        eprintln!("xtask: left behind: {one}");
    }
    match ended? {
        Ended::Told(signal) => Err(format!("ended by signal {signal}; all that ran was ended, and its files removed")),
        Ended::ByItself(status) if !status.success() => Err("see above".into()),
        Ended::ByItself(_) if left.is_empty() => Ok(()),
        Ended::ByItself(_) => {
            let count = left.len();
            Err(format!("{count} things were left behind; the processes, and the files in TMPDIR, were removed"))
        }
    }
}

/// Tests kill a run with all that is below it. What that leaves goes with the next run, and the last one has none after it.
fn run_once_more(folder: &Path) {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
    let home = folder.join("once-more");
    if fs::create_dir(&home).is_ok() {
        let mut next = Command::new(target.join("debug/leasehold"));
        next.args(["run", "once-more", "--store"])
            .arg(format!("sqlite:{}/leases.db", home.display()))
            .args(["--", "true"]);
        // Not built where no test needed it: then it has left nothing either.
        let _ = next.env("HOME", &home).env("TMPDIR", folder).current_dir(&home).status();
        let _ = fs::remove_dir_all(&home);
    }
}

/// How the tests ended.
enum Ended {
    ByItself(ExitStatus),
    /// This process got that signal meanwhile.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "signals are heard on Linux"))]
    Told(usize),
}

/// A new folder that stands in for the one for temporary files, so everybody may use it: servers run as users of their own.
fn folder() -> Result<PathBuf, String> {
    let path = Path::new(TEMPORARY).join(format!("{PREFIX}{}", std::process::id()));
    fs::create_dir(&path)
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)))
        .map_err(|e| format!("cannot make {}: {e}", path.display()))?;
    Ok(path)
}

/// Removes the folders of runs that were killed. The number in the name is that of their process.
fn clear_after_the_killed() {
    let is_dead = |name: &str| {
        let number = name.strip_prefix(PREFIX).filter(|number| number.parse::<u32>().is_ok());
        number.is_some_and(|number| number == std::process::id().to_string() || !processes::is_alive(number))
    };
    for path in list(Path::new(TEMPORARY)) {
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_dead) {
            println!("xtask: removed {}, which an earlier run left", path.display());
            let _ = clear(&path);
        }
    }
}

/// Removes a folder, and names what was in it.
fn clear(folder: &Path) -> Result<Vec<String>, String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let below = |path: &&str| Path::new(path).starts_with(folder);
    let mounts: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(below).collect();
    for path in &mounts {
        let _ = Command::new("umount").args(["-l", path]).status();
    }
    let mut left: Vec<String> = mounts.iter().map(|path| format!("the mount {path}")).collect();
    left.extend(list(folder).map(|path| shown(&path)));
    fs::remove_dir_all(folder).map_err(|e| format!("cannot remove {}: {e}", folder.display()))?;
    Ok(left)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// What is there of ours outside of the run's own folder, and the process that made it, where that is known.
fn shared() -> BTreeSet<(String, Option<i32>)> {
    let files = SHARED.iter().flat_map(|folder| list(Path::new(folder))).filter_map(|path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let number = name.rsplit('_').next().and_then(|number| number.parse().ok());
        OURS.iter().any(|ours| name.contains(ours)).then(|| (shown(&path), number))
    });
    files.chain(segments()).collect()
}

/// The segments of System V's shared memory that nobody is attached to.
fn segments() -> Vec<(String, Option<i32>)> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let left = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (id, maker, attached) = (fields.get(1)?, fields.get(4)?, fields.get(6)?);
        (*attached == "0").then(|| (format!("shared memory, to be removed with: ipcrm -m {id}"), maker.parse().ok()))
    });
    left.collect()
}

fn list(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(target_os = "linux")]
mod processes {
    //! Every process that the tests started is below this one, for it adopts their orphans.

    use super::Ended;
    use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    use signal_hook::flag;
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::thread::sleep;
    use std::time::Duration;

    /// How long the last processes may take to end, once the tests have: servers are killed when their test is gone.
    const GRACE: Duration = Duration::from_secs(10);
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    /// Between two looks for signals, and for new processes.
    const LISTEN_EVERY: Duration = Duration::from_millis(200);
    /// How many looks those have that were asked to end.
    const POLITE_LOOKS: u32 = 100;

    pub(super) fn adopt_orphans() -> Result<(), String> {
        set_child_subreaper(Some(getpid())).map_err(|e| format!("cannot adopt orphans: {e}"))
    }

    pub(super) fn is_alive(pid: &str) -> bool {
        fs::exists(format!("/proc/{pid}")).unwrap_or(true)
    }

    /// Whether a process has it open, mapped, or among its words.
    pub(super) fn is_in_use(what: &str) -> bool {
        let has = |text: &str| text.contains(what);
        super::list("/proc".as_ref()).filter(|process| process.join("stat").exists()).any(|process| {
            let reads = |name: &str| fs::read(process.join(name)).unwrap_or_default();
            let descriptors = process.join("fd");
            let mut opened = super::list(&descriptors).filter_map(|link| fs::read_link(link).ok());
            ["maps", "cmdline"].iter().any(|name| has(&String::from_utf8_lossy(&reads(name))))
                || opened.any(|target| has(&target.to_string_lossy()))
        })
    }

    /// The numbers of processes.
    pub(super) type Numbers = BTreeSet<i32>;

    /// Runs it to its end, or until a signal tells us to end. Gives the numbers of the processes that were seen below us, too:
    /// all but the shortest-lived.
    pub(super) fn run_to_end(command: &mut Command) -> (Result<Ended, String>, Numbers) {
        let seen = Arc::new(Mutex::new(Numbers::new()));
        let ended = run(command, seen.clone());
        let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        (ended, seen)
    }

    fn run(command: &mut Command, seen: Arc<Mutex<Numbers>>) -> Result<Ended, String> {
        let told = Arc::new(AtomicUsize::new(0));
        for signal in heard() {
            let number = usize::try_from(signal).unwrap_or_default();
            flag::register_usize(signal, told.clone(), number).map_err(|e| format!("cannot hear signals: {e}"))?;
        }
        let child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
        let ear = told.clone();
        std::thread::spawn(move || {
            while ear.load(Ordering::SeqCst) == 0 {
                let below = below().into_iter().map(|process| process.pid);
                seen.lock().unwrap_or_else(PoisonError::into_inner).extend(below);
                sleep(LISTEN_EVERY);
            }
            end_all();
        });
        // Not by the handle: then orphans would stay in the table until the end, where tests look for them.
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == child.id().cast_signed() => {
                    return Ok(match told.load(Ordering::SeqCst) {
                        0 => Ended::ByItself(ExitStatus::from_raw(status.as_raw())),
                        signal => Ended::Told(signal),
                    });
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(format!("cannot wait for the tests: {e}")),
            }
        }
    }

    /// The signals that end us: not those that our caller made us ignore, as `nohup` does.
    fn heard() -> impl Iterator<Item = i32> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
        let ignored = mask.unwrap_or(0);
        [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
    }

    /// Asks everything to end, then makes it.
    fn end_all() {
        for look in 0.. {
            let below = below();
            if below.is_empty() {
                return;
            }
            let signal = if look < POLITE_LOOKS { Signal::TERM } else { Signal::KILL };
            send(&below, signal);
            send(&below, Signal::CONT);
            sleep(LOOK_EVERY);
        }
    }

    /// Gives those that run on all the same, for people.
    pub(super) fn wait_for_the_last() -> Vec<String> {
        for _ in 0..GRACE.as_millis() / LOOK_EVERY.as_millis() {
            bury();
            if below().is_empty() {
                return Vec::new();
            }
            sleep(LOOK_EVERY);
        }
        below().iter().map(|process| process.shown()).collect()
    }

    /// One that waits for a disk cannot be ended, and is not waited for.
    pub(super) fn kill_all() {
        for _ in 0..GRACE.as_millis() / LOOK_EVERY.as_millis() {
            let below = below();
            bury();
            if below.is_empty() {
                return;
            }
            send(&below, Signal::KILL);
            sleep(LOOK_EVERY);
        }
    }

    fn bury() {
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
    }

    struct Process {
        pid: i32,
        parent: i32,
        state: char,
    }

    impl Process {
        fn shown(&self) -> String {
            let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            format!("process {} (state {}): {}", self.pid, self.state, line.trim_end())
        }
    }

    fn send(processes: &[Process], signal: Signal) {
        for pid in processes.iter().filter_map(|process| Pid::from_raw(process.pid)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// All below this process, as they are now.
    fn below() -> Vec<Process> {
        let mut rest: Vec<Process> = super::list("/proc".as_ref()).filter_map(|path| read(&path)).collect();
        let mut found: Vec<Process> = Vec::new();
        let mut parents = vec![std::process::id().cast_signed()];
        while let Some(parent) = parents.pop() {
            let (children, others) = rest.into_iter().partition(|process: &Process| process.parent == parent);
            rest = others;
            parents.extend(children.iter().map(|process: &Process| process.pid));
            found.extend(children);
        }
        // What is dead is still an ancestor, but nothing more.
        found.retain(|process| process.state != 'Z');
        found
    }

    fn read(path: &std::path::Path) -> Option<Process> {
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // The program's name is in brackets and may hold anything.
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
        Some(Process { pid, parent, state })
    }
}

#[cfg(not(target_os = "linux"))]
mod processes {
    //! Without orphans that can be adopted.

    use super::{BTreeSet, Ended};
    use std::process::Command;

    pub(super) fn adopt_orphans() -> Result<(), String> {
        Ok(())
    }

    pub(super) fn is_alive(pid: &str) -> bool {
        Command::new("ps").args(["-p", pid]).output().is_ok_and(|output| output.status.success())
    }

    pub(super) fn is_in_use(_: &str) -> bool {
        false
    }

    pub(super) fn run_to_end(command: &mut Command) -> (Result<Ended, String>, BTreeSet<i32>) {
        let ended = command.status().map(Ended::ByItself).map_err(|e| format!("{command:?}: {e}"));
        (ended, BTreeSet::new())
    }

    pub(super) fn wait_for_the_last() -> Vec<String> {
        Vec::new()
    }

    pub(super) fn kill_all() {}
}
