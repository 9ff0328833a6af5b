//! macOS. Written against the documented interfaces; docs/guarantees.md says what was never run.

pub(crate) mod cgroup;
pub(crate) mod locks;
pub(crate) mod process;
pub(crate) mod volume;
pub(crate) mod watch;

use crate::clock::{self, Moment};
use crate::scratch::Scratch;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

/// The system's name in output and messages.
pub const NAME: &str = "macos";

/// On Darwin `CLOCK_MONOTONIC` is the continuous clock: it also counts while the machine sleeps.
pub(crate) const SUSPEND_COUNTING_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// How late a wake-up after a system sleep may be noticed: Darwin has no waitable timer on the continuous clock.
const RESUME_SLICE: Duration = Duration::from_millis(200);

pub(crate) async fn sleep_until(until: Moment) {
    loop {
        let left = until.saturating_since(clock::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(RESUME_SLICE)).await;
    }
}

/// A file with an unused name.
pub(crate) fn scratch() -> std::io::Result<Scratch> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name =
        format!("leasehold-{}-{}-{}", std::process::id(), clock::wall_ms(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).append(true).create_new(true).mode(0o600).open(&path)?;
    Ok(Scratch { file, path, is_on_disk: true })
}

pub(crate) fn boot_id() -> Option<String> {
    let asked = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "kern.bootsessionuuid"]).output().ok()?;
    String::from_utf8(asked.stdout).ok()
}
