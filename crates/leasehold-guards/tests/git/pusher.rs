//! A real process that pushes: stopped, killed and resumed with everything below it but the remote's own git.

use crate::field::Field;
use leasehold_testbed::Process;
use rustix::process::{Pid, Signal, kill_process};
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// One push to be tried.
#[derive(Debug, Clone)]
pub struct Order {
    /// `push`, `seal`, or a control.
    pub how: &'static str,
    pub epoch: u64,
    /// Not 0 for another grant of the same epoch.
    pub rival: u64,
    /// What the pushed commit says, if not the rival.
    pub mark: Option<u64>,
    /// What happens at the step, and which it is.
    pub fault: Option<(&'static str, usize)>,
}

impl Order {
    pub fn push(epoch: u64) -> Self {
        Order { how: "push", epoch, rival: 0, mark: None, fault: None }
    }

    pub fn seal(epoch: u64) -> Self {
        Order { how: "seal", ..Order::push(epoch) }
    }

    pub fn with(mut self, fault: &'static str, step: usize) -> Self {
        self.fault = Some((fault, step));
        self
    }

    pub fn rival(mut self, rival: u64) -> Self {
        self.rival = rival;
        self
    }

    pub fn mark(mut self, mark: u64) -> Self {
        self.mark = Some(mark);
        self
    }

    pub fn how(mut self, how: &'static str) -> Self {
        self.how = how;
        self
    }
}

pub struct Pusher(Process);

impl Deref for Pusher {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for Pusher {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}

impl Pusher {
    pub fn start(field: &Field, repository: &Path, order: &Order) -> Self {
        let commit = field.commit(repository, order.epoch, order.mark.unwrap_or(order.rival));
        let (fault, step) = order.fault.unwrap_or(("none", 0));
        let (epoch, rival, step) = (order.epoch.to_string(), order.rival.to_string(), step.to_string());
        let mut command = Process::of_this_test(["worker", order.how, &epoch, &rival, &commit, fault, &step]);
        Pusher(Process::start(command.current_dir(repository).envs(field.env.clone())))
    }

    /// Pushes, and gives the answer: `pushed`, or the kind and the message.
    pub fn run(field: &Field, repository: &Path, order: &Order) -> String {
        Pusher::start(field, repository, order).line()
    }

    /// Stops it and what it has started, wherever they are. The remote's git is the remote, even when it is our child.
    pub fn stop(&self) {
        self.stop_all();
    }

    fn stop_all(&self) -> Vec<u32> {
        let mut stopped = Vec::new();
        // Again and again, for one that was not stopped yet may have started another.
        while let Some(pid) = self.below(|pid| !is_remote(pid)).into_iter().find(|pid| !stopped.contains(pid)) {
            send(pid, Signal::STOP);
            stopped.push(pid);
        }
        stopped
    }

    /// One that was stopped on its way to becoming the remote's git has to be resumed too.
    pub fn resume(&self) {
        // Listed before the first goes on, and perhaps ends: its children would be nobody's.
        self.below(|_| true).into_iter().for_each(|pid| send(pid, Signal::CONT));
    }

    /// Kills it and what it has started.
    pub fn kill(mut self) {
        self.stop_all().into_iter().for_each(|pid| send(pid, Signal::KILL));
        self.wait_killed();
    }

    /// It, and those below it that are wanted, without what is below others.
    fn below(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut found = vec![self.id()];
        let mut at = 0;
        while at < found.len() {
            let threads = std::fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten().flatten();
            for thread in threads {
                let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
                let children = children.split_whitespace().filter_map(|word| word.parse().ok());
                found.extend(children.filter(|child| is_wanted(*child)));
            }
            at += 1;
        }
        found
    }
}

fn send(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

fn is_remote(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).into_owned();
    line.contains("receive-pack") || line.contains("upload-pack")
}
