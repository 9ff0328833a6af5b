//! Real writer processes: the test binary starts itself again and gives orders over pipes.
#![allow(dead_code, clippy::unwrap_used)]

pub mod artifact;
pub mod control;
pub mod dice;
pub mod worker;

use leasehold_testbed::Process;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

/// What writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The file guard.
    File,
    /// The folder guard.
    Folder,
    /// Only the seal of the file guard.
    Seal,
    /// The file guard, under another lease.
    Theirs,
    /// The file guard's adoption by that other lease.
    Adopt,
    /// The control: read the fence file, compare, write, rename.
    Naive,
}

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Dawdles at every step, as long as the number in place of the step decides.
    Dawdle,
    Stop,
    Kill,
    Eio,
    Enospc,
}

/// One write to be tried.
#[derive(Debug, Clone)]
pub struct Order {
    pub how: How,
    pub path: PathBuf,
    pub epoch: u64,
    pub rival: u64,
    pub fault: Fault,
    /// The place in [`FileStep::ALL`] at which the fault strikes, the first time it is reached.
    pub step: usize,
}

impl Order {
    pub fn new(how: How, path: &Path, epoch: u64) -> Self {
        Order { how, path: path.to_path_buf(), epoch, rival: 0, fault: Fault::None, step: 0 }
    }

    pub fn with(mut self, fault: Fault, step: usize) -> Self {
        (self.fault, self.step) = (fault, step);
        self
    }

    pub fn rival(mut self, rival: u64) -> Self {
        self.rival = rival;
        self
    }
}

/// What a writer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is at the step where the fault strikes.
    At,
    Written,
    Refused {
        kind: String,
        message: String,
    },
}

impl Reply {
    pub fn is(&self, expected: &str) -> bool {
        matches!(self, Reply::Refused { kind, .. } if kind == expected)
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A writer process.
pub struct Worker(Process);

impl Deref for Worker {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for Worker {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}

impl Worker {
    pub fn start() -> Self {
        Worker(Process::start(&mut Process::of_this_test(["worker"])))
    }

    pub fn send(&mut self, order: &Order) {
        let Order { how, path, epoch, rival, fault, step } = order;
        self.tell(&format!("{how:?} {epoch} {rival} {fault:?} {step} {}", path.display()));
    }

    /// The next reply; panics when the writer is blocked.
    pub fn reply(&mut self) -> Reply {
        match self.line() {
            line if line == "at" => Reply::At,
            line if line == "written" => Reply::Written,
            line => {
                let (kind, message) = line.split_once(' ').unwrap_or((&line, ""));
                Reply::Refused { kind: kind.into(), message: message.into() }
            }
        }
    }

    pub fn run(&mut self, order: &Order) -> Reply {
        self.send(order);
        self.reply()
    }
}
