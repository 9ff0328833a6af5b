//! The tree of processes below this one.
//!
//! Promise: [`signal_descendants`] reaches children that left their group or session too, and never a process that was
//! merely given the number of one. Non-promise: work handed to another service (`at`, `systemd-run`, a container
//! engine) is not below us.

use crate::native;
pub use rustix::process::Signal;

/// Whether [`adopt_orphans`] works here: then a process without children has no descendants at all.
pub const ADOPTS_ORPHANS: bool = native::process::ADOPTS_ORPHANS;

/// Makes descendants whose parents died ours, where the system can.
pub fn adopt_orphans() -> std::io::Result<()> {
    native::process::adopt_orphans()
}

/// Signals every living descendant and says how many there were.
pub fn signal_descendants(signal: Signal) -> std::io::Result<usize> {
    native::process::signal_descendants(signal)
}
