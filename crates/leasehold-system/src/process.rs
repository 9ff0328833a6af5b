//! The tree of processes below this one.
//!
//! Promise: [`Tree::signal`] also reaches children that left their group or session, or whose first thread has exited, and never
//! another process that was given the number of one. Non-promise: work handed to another service (`at`, `systemd-run`, a
//! container engine) is not below us; and without a control group a program that forks faster than we look may escape
//! [`Tree::kill`] for a while.

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

/// How long our own children are looked at without a pause in one call of [`Tree::kill`].
const LONGEST_CHASE: Duration = Duration::from_millis(5);
/// The chase is over when no new child has come for so long: a process takes about this long to die.
const QUIET: Duration = Duration::from_micros(500);

/// Whether orphans below us become our children here: then a process without children has no descendants at all.
pub const ADOPTS_ORPHANS: bool = native::ADOPTS_ORPHANS;

/// This very program, to be started again.
pub fn own_program() -> io::Result<PathBuf> {
    native::own_program()
}

/// Whether this process was started with a signal ignored, as `nohup` does.
pub fn is_ignored(signal: i32) -> bool {
    native::is_ignored(signal)
}

/// Fails with [`io::ErrorKind::Unsupported`] where the visible process table is not that of this process, as in a PID namespace
/// with the outer `/proc`. No process can be supervised there.
pub fn check_table() -> io::Result<()> {
    native::check_table()
}

/// Our children that have died and that nobody has collected yet.
pub fn dead_children() -> BTreeSet<i32> {
    let children = native::Children::open().list().unwrap_or_default().into_iter();
    children.filter(|pid| native::is_dead(*pid)).collect()
}

/// What processes have used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// In user and kernel mode, on all processors.
    pub cpu: Duration,
    /// The most memory at one time: of all together in a control group that counts it, else of the largest one.
    pub peak_memory_bytes: u64,
}

/// The processes below this one, apart from those that were there before.
#[derive(Debug)]
pub struct Tree {
    strangers: HashMap<i32, native::Entry>,
    cgroup: Option<Cgroup>,
}

impl Tree {
    /// Adopts orphans from now on, where the system can. Processes that are below us already are not ours to signal: a shell may
    /// have started them before it became us by `exec`.
    ///
    /// # Errors
    /// As [`check_table`].
    pub fn begin() -> io::Result<Self> {
        native::check_table()?;
        native::adopt_orphans()?;
        Ok(Tree { strangers: native::children_now(), cgroup: None })
    }

    /// Makes a control group for what [`Tree::spawn`] starts. It goes with the tree. The key must be random: it tells our
    /// group from all others.
    ///
    /// # Errors
    /// If none can be made, and why. Everything else works without.
    pub fn enclose(&mut self, key: &str) -> io::Result<&Path> {
        Ok(self.cgroup.insert(Cgroup::make(key)?).path())
    }

    /// Takes over the control group that a child of ours made with this key, if it exists by now.
    pub fn take_over(&mut self, maker: Pid, key: &str) {
        if self.cgroup.is_none() {
            self.cgroup = Cgroup::find(maker, key);
        }
    }

    /// Starts a command: in our control group, if there is one, from its first instruction on.
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

    /// Whether having no children proves that nothing is left.
    pub fn childless_is_empty(&self) -> bool {
        ADOPTS_ORPHANS && self.strangers.is_empty()
    }

    /// Signals every living descendant.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.signal_outside(None, signal)
    }

    /// Signals every living descendant that is not a member of `group`, which was signalled as a whole.
    pub fn signal_outside(&self, group: Option<i32>, signal: Signal) -> io::Result<()> {
        for (pid, entry) in native::descendants(&self.strangers)? {
            if Some(entry.group) != group {
                native::signal_exactly(pid, entry, signal);
            }
        }
        Ok(())
    }

    /// Kills what it can of everything below us: the control group at once, then our own children for as long as new ones
    /// come, within a bound, then whatever a walk of the process table finds. `reap` collects the dead and says whether
    /// nothing is left, which ends it; that is also the answer. Call it again until it is true.
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

    /// A program may fork and exit faster than the table can be walked. Each generation of it is our own child as soon as
    /// the one before is dead, and our own children are listed in microseconds.
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

    /// What everything that was started here has used so far: by the account of the control group, or else of those that were
    /// reaped. None where the system does not say.
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

    /// The living descendants.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        Ok(native::descendants(&self.strangers)?.into_keys().collect())
    }

    /// Whether we have no children but those that were there before, as far as the system lists them.
    pub fn has_only_strangers(&self) -> bool {
        let children = native::Children::open().list().unwrap_or_default();
        children.into_iter().all(|pid| native::is_among(&self.strangers, pid))
    }
}
