//! The tree of processes below this one.
//!
//! Promise: [`Tree::signal`] also reaches children that left their group or session, or whose
//! first thread has exited, and never another process that got the id of one. Non-promise: work
//! handed to another service (`at`, `systemd-run`, a container engine) is not below us. Without a
//! control group, a program that forks faster than we look may escape [`Tree::kill`] for a while.

use crate::clock;
use crate::native::cgroup::Cgroup;
use crate::native::process as native;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::process::Pid;
pub use rustix::process::Signal;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long one call of [`Tree::kill`] looks at our own children without a pause.
const LONGEST_CHASE: Duration = Duration::from_millis(5);
/// The chase is over when no new child was seen for this long: a process takes about this long to die.
const QUIET: Duration = Duration::from_micros(500);

/// Whether orphans below us become our children here. If so, a process without children has no descendants at all.
pub const ADOPTS_ORPHANS: bool = native::ADOPTS_ORPHANS;

/// The file of this program, to start it again.
pub fn own_program() -> io::Result<PathBuf> {
    native::own_program()
}

/// Whether this process was started with a signal ignored, as `nohup` does.
pub fn is_ignored(signal: i32) -> bool {
    native::is_ignored(signal)
}

/// Fails with [`io::ErrorKind::Unsupported`] where the visible process table is not that of this process, as in a PID
/// namespace with the outer `/proc`. No process can be supervised there.
pub fn check_table() -> io::Result<()> {
    native::check_table()
}

/// The ids of our children that have died and were not reaped yet.
pub fn dead_children() -> BTreeSet<i32> {
    let children = native::Children::open().list().unwrap_or_default().into_iter();
    children.filter(|pid| native::is_dead(*pid)).collect()
}

/// What processes have used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Time in user and kernel mode, on all processors.
    pub cpu: Duration,
    /// The peak memory: of the whole control group if there is one that counts it, otherwise of the largest process.
    pub peak_memory_bytes: u64,
}

/// The processes below this one, except those that existed before.
#[derive(Debug)]
pub struct Tree {
    strangers: HashMap<i32, native::Entry>,
    cgroup: Option<Cgroup>,
}

impl Tree {
    /// Adopts orphans from now on, where the system can. Processes that are below us already are not ours to signal: a
    /// shell may have started them before it became us by `exec`.
    ///
    /// # Errors
    /// The same as [`check_table`].
    pub fn begin() -> io::Result<Self> {
        native::check_table()?;
        native::adopt_orphans()?;
        Ok(Tree { strangers: native::children_now(), cgroup: None })
    }

    /// Creates a control group for what [`Tree::spawn`] starts. It is removed
    /// with the tree. The key must be random: it tells our group from all others.
    ///
    /// # Errors
    /// If none can be created, with the reason. Everything else works without it.
    pub fn enclose(&mut self, key: &str) -> io::Result<&Path> {
        Ok(self.cgroup.insert(Cgroup::make(key)?).path())
    }

    /// Takes over the control group that our child `maker` created with this key, if it exists.
    pub fn take_over(&mut self, maker: Pid, key: &str) {
        if self.cgroup.is_none() {
            self.cgroup = Cgroup::find(maker, key);
        }
    }

    /// Starts a command, inside our control group from its first instruction on if there is one.
    pub fn spawn(&mut self, command: &mut Command) -> io::Result<Pid> {
        if let Some(cgroup) = &self.cgroup {
            if let Ok(started) = cgroup.spawn(command) {
                return started;
            }
            self.cgroup = None;
        }
        Ok(Pid::from_child(&command.spawn()?))
    }

    /// Whether what [`Tree::spawn`] starts is in a control group.
    pub fn is_enclosed(&self) -> bool {
        self.cgroup.is_some()
    }

    /// Whether having no children proves that no descendant is left.
    pub fn childless_is_empty(&self) -> bool {
        ADOPTS_ORPHANS && self.strangers.is_empty()
    }

    /// Signals every living descendant.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.signal_outside(None, signal)
    }

    /// Signals every living descendant that is not in the process group `group`, which was signalled as a whole.
    pub fn signal_outside(&self, group: Option<i32>, signal: Signal) -> io::Result<()> {
        for (pid, entry) in native::descendants(&self.strangers)? {
            if Some(entry.group) != group {
                native::signal_exactly(pid, entry, signal);
            }
        }
        Ok(())
    }

    /// Kills everything that it can find below us: the control group at once, then our own children for as long as new
    /// ones appear, within a bound, then all that a walk of the process table finds. `reap` reaps the dead and says
    /// whether nothing is left, which ends this; that is also the result. Call it again until it is true.
    pub fn kill(&self, mut reap: impl FnMut() -> bool) -> bool {
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
        }
        if self.chase(&mut reap) {
            return true;
        }
        let _ = self.signal(Signal::KILL);
        reap()
    }

    /// A program may fork and exit faster than the table can be walked. Each generation of it becomes our own child as
    /// soon as the one before is dead, and listing our own children takes microseconds.
    fn chase(&self, reap: &mut impl FnMut() -> bool) -> bool {
        let children = native::Children::open();
        let start = clock::now();
        let (mut known, mut last_new) = (HashSet::new(), start);
        loop {
            if reap() {
                return true;
            }
            let Some(pids) = children.list() else { return false };
            let now = clock::now();
            for pid in pids.into_iter().filter(|pid| !native::is_among(&self.strangers, *pid)) {
                native::kill_child(pid);
                if known.insert(pid) {
                    last_new = now;
                }
            }
            if now > last_new + QUIET || now > start + LONGEST_CHASE {
                return false;
            }
        }
    }

    /// What everything that was started here has used so far, according to the control group, or else to those that
    /// were reaped. None where the system does not report it.
    pub fn usage(&self) -> Option<Usage> {
        let reaped = getrusage(UsageWho::RUSAGE_CHILDREN).ok().map(|usage| {
            let micros =
                [usage.user_time(), usage.system_time()].iter().map(|time| time.num_microseconds()).sum::<i64>();
            let peak = u64::try_from(usage.max_rss()).unwrap_or(0).saturating_mul(native::RSS_UNIT);
            Usage { cpu: Duration::from_micros(u64::try_from(micros).unwrap_or(0)), peak_memory_bytes: peak }
        })?;
        let (cpu, peak) = self.cgroup.as_ref().map_or((None, None), Cgroup::usage);
        Some(Usage {
            cpu: cpu.unwrap_or(reaped.cpu).max(reaped.cpu),
            peak_memory_bytes: peak.unwrap_or(reaped.peak_memory_bytes),
        })
    }

    /// The ids of the living descendants.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        Ok(native::descendants(&self.strangers)?.into_keys().collect())
    }

    /// Whether our only children, as far as the system lists them, are those that existed before.
    pub fn has_only_strangers(&self) -> bool {
        let children = native::Children::open().list().unwrap_or_default();
        children.into_iter().all(|pid| native::is_among(&self.strangers, pid))
    }
}
