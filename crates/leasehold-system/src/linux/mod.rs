//! Linux.

pub(crate) mod cgroup;
pub(crate) mod locks;
pub(crate) mod process;
pub(crate) mod volume;
pub(crate) mod watch;

use crate::clock::{self, Moment};
use crate::scratch::Scratch;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// The system's name in output and messages.
pub const NAME: &str = "linux";

/// `CLOCK_MONOTONIC` stops while a laptop sleeps; a lease does not.
pub(crate) const SUSPEND_COUNTING_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;

pub(crate) async fn sleep_until(until: Moment) {
    // The runtime's own timer counts only waking time: after a resume it would fire late by as long as the machine
    // slept. A timerfd on the boot clock fires at the resume.
    match boot_timer(until) {
        Ok(timer) => {
            let _ = timer.readable().await;
        }
        Err(_) => {
            while clock::now() < until {
                let left = until.saturating_since(clock::now());
                tokio::time::sleep(left.min(std::time::Duration::from_millis(200))).await;
            }
        }
    }
}

fn boot_timer(until: Moment) -> std::io::Result<AsyncFd<OwnedFd>> {
    let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    // An all-zero value would disarm the timer instead of firing it.
    let nanos = until.as_nanos().max(1);
    rustix::time::timerfd_settime(
        &timer,
        TimerfdTimerFlags::ABSTIME,
        &Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 },
        },
    )?;
    crate::descriptor::watched(timer)
}

/// A file without a name, which has a path while we have it open.
pub(crate) fn scratch() -> std::io::Result<Scratch> {
    let file = rustix::fs::memfd_create("leasehold", rustix::fs::MemfdFlags::CLOEXEC)?;
    let path = std::path::PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    // Without `/proc` the path does not exist.
    path.metadata()?;
    Ok(Scratch { file: file.into(), path, is_on_disk: false })
}

pub(crate) fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}
