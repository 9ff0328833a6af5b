//! The controlling terminal, which belongs to one process group at a time.

use rustix::process::Pid;
use std::io::{IsTerminal, stdin};

/// The terminal on standard input, if our group is the one in front of it.
#[derive(Debug)]
pub struct Terminal {
    ours: Pid,
}

impl Terminal {
    /// The terminal, if there is one and it is ours to pass on.
    pub fn in_front() -> Option<Self> {
        let ours = rustix::process::getpgrp();
        (stdin().is_terminal() && rustix::termios::tcgetpgrp(stdin()).ok() == Some(ours)).then_some(Terminal { ours })
    }

    /// Puts another process group of this session in front.
    pub fn give_to(&self, group: i32) {
        if let Some(group) = Pid::from_raw(group) {
            put_in_front(group);
        }
    }

    /// Puts our own group in front again.
    pub fn take_back(&self) {
        put_in_front(self.ours);
    }
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
