//! The controlling terminal, which belongs to one process group at a time.

use rustix::process::Pid;
use std::cell::Cell;
use std::io::{IsTerminal, stdin};

/// The terminal on standard input.
#[derive(Debug)]
pub struct Terminal {
    ours: Pid,
    lent: Cell<Option<Pid>>,
}

impl Terminal {
    /// The terminal, if there is one.
    pub fn of_stdin() -> Option<Self> {
        (stdin().is_terminal() && in_front().is_some())
            .then(|| Terminal { ours: rustix::process::getpgrp(), lent: Cell::new(None) })
    }

    /// Puts another process group of this session in front, if ours is, and says whether that other is now. A job in
    /// the background has no terminal to lend.
    pub fn lend_to(&self, group: i32) -> bool {
        let Some(group) = Pid::from_raw(group) else { return false };
        if in_front() == Some(self.ours) {
            put_in_front(group);
            self.lent.set(Some(group));
        }
        in_front() == Some(group)
    }

    /// Puts our own group in front again, if the one that it was lent to still is.
    pub fn take_back(&self) {
        if let Some(group) = self.lent.take()
            && in_front() == Some(group)
        {
            put_in_front(self.ours);
        }
    }
}

fn in_front() -> Option<Pid> {
    rustix::termios::tcgetpgrp(stdin()).ok()
}

fn put_in_front(group: Pid) {
    // A group that is not in front is stopped by SIGTTOU for this very call, unless it blocks the signal.
    let mut ttou = nix::sys::signal::SigSet::empty();
    ttou.add(nix::sys::signal::Signal::SIGTTOU);
    if ttou.thread_block().is_ok() {
        let _ = rustix::termios::tcsetpgrp(stdin(), group);
        let _ = ttou.thread_unblock();
    }
}
