//! A process of this test binary that takes orders over a pipe and can be stopped, resumed and killed.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// One that takes longer to answer is blocked; nothing here needs a tenth of it.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Process {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    pub fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Process { orders: child.stdin.take().unwrap(), child, lines }
    }

    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// Lets a writer go on that waits to be told that its step has failed.
    pub fn go(&mut self) {
        self.tell("go");
    }

    /// The next line; panics when the writer is blocked.
    pub fn line(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| match e {
            RecvTimeoutError::Timeout => panic!("a writer was blocked for {PATIENCE:?}"),
            RecvTimeoutError::Disconnected => panic!("a writer died"),
        })
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

    pub fn wait_killed(&mut self) {
        assert!(!self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process would never see the end of its orders.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
