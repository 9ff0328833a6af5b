//! Real writer processes: the test binary starts itself again and gives orders over pipes.
#![allow(dead_code, clippy::unwrap_used)]

pub mod artifact;
pub mod control;
pub mod dice;
pub mod worker;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A writer that takes longer is blocked; nothing here needs a thousandth of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// What writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The file guard.
    File,
    /// The folder guard.
    Folder,
    /// Only the seal of the file guard.
    Seal,
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
    /// The place in [`leasehold_guards::Step::ALL`] at which the fault strikes, the first time it is reached.
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
pub struct Worker {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    pub fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Worker { orders: child.stdin.take().unwrap(), child, lines }
    }

    pub fn send(&mut self, order: &Order) {
        let Order { how, path, epoch, rival, fault, step } = order;
        writeln!(self.orders, "{how:?} {epoch} {rival} {fault:?} {step} {}", path.display()).unwrap();
    }

    /// Lets a writer go on that waits to be told that its step has failed.
    pub fn go(&mut self) {
        writeln!(self.orders, "go").unwrap();
    }

    /// The next reply; panics when the writer is blocked.
    pub fn reply(&mut self) -> Reply {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) if line == "at" => Reply::At,
            Ok(line) if line == "written" => Reply::Written,
            Ok(line) => {
                let (kind, message) = line.split_once(' ').unwrap_or((&line, ""));
                Reply::Refused { kind: kind.into(), message: message.into() }
            }
            Err(RecvTimeoutError::Timeout) => panic!("a writer was blocked for {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("a writer died"),
        }
    }

    pub fn run(&mut self, order: &Order) -> Reply {
        self.send(order);
        self.reply()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).unwrap()
    }

    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        self.wait_stopped();
    }

    pub fn wait_stopped(&self) {
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "the writer ended: {status:?}");
    }

    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub fn wait_killed(mut self) {
        let status = self.child.wait().unwrap();
        assert!(!status.success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A stopped process would never see the end of its orders.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
