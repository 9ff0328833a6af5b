//! A process that plays a part in a test: it takes orders over a pipe, answers in lines, and can be stopped, resumed and
//! killed.
//!
//! Promise: it is gone when the test lets go of it, stopped or not, and with it what it has started. Non-promise: orphans of
//! one that had ended before are the test's to end.

use crate::server::kill_tree;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// One that takes longer to answer is blocked; nothing in the tests needs a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of a test, in a role of its own.
#[derive(Debug)]
pub struct Process {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// This very test binary, with other arguments.
    pub fn of_this_test<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(args);
        command
    }

    /// Starts it, with its input and output as pipes.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Process { orders: child.stdin.take().unwrap(), child, lines }
    }

    /// Gives an order: one line.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// Lets it go on where it waits to be told that its step has failed.
    pub fn go(&mut self) {
        self.tell("go");
    }

    /// Its next line; panics when it is blocked.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| match e {
            RecvTimeoutError::Timeout => panic!("a process was blocked for {PATIENCE:?}"),
            RecvTimeoutError::Disconnected => panic!("a process died"),
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.id().cast_signed()).unwrap()
    }

    /// Stops it, wherever it is.
    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        self.wait_stopped();
    }

    /// Waits until it has been stopped; panics when it ended instead.
    pub fn wait_stopped(&self) {
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "the process ended: {status:?}");
    }

    /// Lets a stopped process run again.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Waits for the end of one that was killed, or failed.
    pub fn wait_killed(&mut self) {
        assert!(!self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process would never see the end of its orders. One that was waited for may have lent its number to
        // another.
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_tree(self.pid());
        }
        let _ = self.child.wait();
    }
}
