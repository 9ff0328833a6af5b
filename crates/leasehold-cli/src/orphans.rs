//! The dead that fall to the first process of a container.
//!
//! A process whose parent has died becomes the child of process 1 of its PID namespace. If that is us, and we collect only
//! what we started, orphans fill the process table until no process can be started.
//!
//! Promise: as process 1, orphans are collected soon after they died. Our own children are left to the code that waits for
//! them. Non-promise: orphans that live are left alone; they end with the container.

use leasehold_core::clock::{Clock, SystemClock};
use leasehold_system::process::dead_children;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::collections::BTreeSet;
use std::time::Duration;

/// The pause between two looks: long enough for the code that waits for a child to collect it first.
const LOOK: Duration = Duration::from_secs(2);

/// Collects orphans from now on, if we are process 1.
pub fn reap_as_init() {
    if rustix::process::getpid() != Pid::INIT {
        return;
    }
    tokio::spawn(async {
        let mut seen = BTreeSet::new();
        loop {
            SystemClock.sleep_until(SystemClock.now() + LOOK).await;
            let dead = dead_children();
            for pid in dead.intersection(&seen).filter_map(|pid| Pid::from_raw(*pid)) {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            seen = dead;
        }
    });
}
