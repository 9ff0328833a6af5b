//! The remote, held still at a point of its own: a hook that waits until it is told to go on.

use crate::field::Field;
use leasehold_testbed::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A point in the remote's life of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// All was sent, nothing is applied.
    Sent,
    /// All is applied, nothing was answered.
    Applied,
}

const HOOK: &str = r#"#!/bin/sh
name=$(basename "$0")
[ "$name" = reference-transaction ] && name=$1
mv "trap-$name" sprung 2>/dev/null || exit 0
echo $PPID >at.new && mv at.new at
read -r _ <go
"#;

pub struct Trap<'a> {
    field: &'a Field,
}

impl<'a> Trap<'a> {
    /// Springs for the next push that comes to this point.
    pub fn set(field: &'a Field, point: Point) -> Self {
        for hook in ["pre-receive", "reference-transaction"] {
            let path = field.bare.join("hooks").join(hook);
            fs::write(&path, HOOK).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let go = field.bare.join("go");
        if !go.exists() {
            assert!(Command::new("mkfifo").arg(&go).status().unwrap().success());
        }
        let _ = fs::remove_file(field.bare.join("at"));
        let name = match point {
            Point::Sent => "trap-pre-receive",
            Point::Applied => "trap-committed",
        };
        fs::write(field.bare.join(name), "").unwrap();
        Trap { field }
    }

    /// Waits until it has sprung; gives the process of the remote's git.
    pub fn sprung(&self) -> Pid {
        let at = self.field.bare.join("at");
        wait_until("the remote is at its point", || at.exists());
        Pid::from_raw(fs::read_to_string(at).unwrap().trim().parse().unwrap()).unwrap()
    }

    /// Lets the remote go on.
    pub fn open(&self) {
        fs::write(self.field.bare.join("go"), "go\n").unwrap();
    }

    /// Kills the remote's git where it is: the pusher gets no answer.
    pub fn kill(&self, remote: Pid) {
        kill_process(remote, Signal::KILL).unwrap();
        self.wait_gone(remote);
        // The hook is an orphan now.
        self.open();
    }

    pub fn wait_gone(&self, remote: Pid) {
        let pid = remote.as_raw_nonzero().get();
        wait_until("the remote's git is gone", || state_of(pid).is_none_or(|state| state == 'Z'));
    }
}

fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}
