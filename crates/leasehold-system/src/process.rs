//! The tree of processes below this one.
//!
//! Promise: [`Tree::signal`] reaches children that left their group or session too, and never a process that was
//! merely given the number of one. Non-promise: work handed to another service (`at`, `systemd-run`, a container
//! engine) is not below us.

use crate::native::process as native;
pub use rustix::process::Signal;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

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

/// The processes below this one, apart from those that were there before.
#[derive(Debug)]
pub struct Tree {
    strangers: HashMap<i32, native::Entry>,
}

impl Tree {
    /// Adopts orphans from now on, where the system can. What is below us already is not ours to signal: a shell may
    /// have started it before it became us by `exec`.
    pub fn begin() -> io::Result<Self> {
        native::adopt_orphans()?;
        Ok(Tree { strangers: native::children_now() })
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

    /// The living descendants.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        Ok(native::descendants(&self.strangers)?.into_keys().collect())
    }
}
