//! The controlling terminal, which belongs to one process group at a time.

use rustix::process::Pid;
use std::cell::Cell;
use std::fs::File;
use std::io::IsTerminal;

/// The controlling terminal of this session.
#[derive(Debug)]
pub struct Terminal {
    tty: File,
    ours: Pid,
    lent: Cell<Option<Pid>>,
}

impl Terminal {
    /// The terminal, if this session has one.
    pub fn of_session() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, ours: rustix::process::getpgrp(), lent: Cell::new(None) })
    }

    /// Whether a person uses it: both input and output are terminals.
    pub fn is_interactive(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Puts another process group of this session in front, if ours is in front, and returns whether the other group is
    /// in front now. A job in the background has no terminal to lend.
    pub fn lend_to(&self, group: i32) -> bool {
        let Some(group) = Pid::from_raw(group) else { return false };
        if self.in_front() == Some(self.ours) {
            self.put_in_front(group);
            self.lent.set(Some(group));
        }
        self.in_front() == Some(group)
    }

    /// The same for a group that was stopped because it used the terminal. Our own group uses it too, so the system
    /// stops us until a shell puts us in front. Checking first and then stopping ourselves would miss a shell that does
    /// so in between. False if no shell ever will.
    pub fn lend_when_continued(&self, group: i32) -> bool {
        let Some(group) = Pid::from_raw(group) else { return false };
        let lent = self.in_front() == Some(group) || rustix::termios::tcsetpgrp(&self.tty, group).is_ok();
        if lent {
            self.lent.set(Some(group));
        }
        lent
    }

    /// Puts our own group in front again, if the group that it was lent to is still in front.
    pub fn take_back(&self) {
        if let Some(group) = self.lent.take()
            && self.in_front() == Some(group)
        {
            self.put_in_front(self.ours);
        }
    }

    /// Whether our own group is in front.
    pub fn is_ours(&self) -> bool {
        self.in_front() == Some(self.ours)
    }

    fn in_front(&self) -> Option<Pid> {
        rustix::termios::tcgetpgrp(&self.tty).ok()
    }

    fn put_in_front(&self, group: Pid) {
        // A group that is not in front is stopped by SIGTTOU for this call, unless it blocks the signal.
        let mut ttou = nix::sys::signal::SigSet::empty();
        ttou.add(nix::sys::signal::Signal::SIGTTOU);
        if ttou.thread_block().is_ok() {
            let _ = rustix::termios::tcsetpgrp(&self.tty, group);
            let _ = ttou.thread_unblock();
        }
    }
}
