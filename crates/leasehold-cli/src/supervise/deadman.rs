//! The dead-man: a small process between the supervisor and the command, which ends the command when the supervisor
//! falls silent.
//!
//! It is the command's parent and, where the system can, the parent of every descendant whose own parent has died, so
//! the whole tree hangs below it. The supervisor tells it until when the lease is trusted; if that is not moved on in
//! time, because the store is away, or the supervisor is stopped, or dead, or wedged, the tree is ended before the
//! window ends. It is in a process group of its own, and does not die of the signals that end whole units, so what stops
//! or ends the supervisor does not touch it. It never waits for the supervisor: what cannot be said at once is said later.
//!
//! It may be started before the lease is acquired, because starting a process takes longer than acquiring a lease. It runs
//! nothing before it gets the order to begin; if the supervisor ends without a word, it ends too.
//!
//! Where it can, it puts the command into a control group of its own, which the kernel ends as one. Elsewhere it looks
//! for the processes itself.
//!
//! Promise: every process below it is dead before the last trust window it was told ends. Non-promise: if it and the
//! supervisor are killed in the same instant, nobody is left to do it; and nobody can kill another user's process, or
//! one that waits for a disk that does not answer. The guards still hold.

use super::deadlines::Deadlines;
use super::signals::PASSED_ON;
pub use super::wire::ARGUMENT;
use super::wire::{self, Arguments, Order, Outbox, Report};
use crate::{private_folder, run_context};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_system::process::{Signal, Tree, is_ignored};
use leasehold_work::output::Usage;
use rustix::process::{Pid, WaitOptions};
use std::ffi::OsString;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::signal::unix::{SignalKind, signal};

/// How many times the tree is walked to end it: each pass catches what was forked during the one before.
const MAX_PASSES: u32 = 200;

/// Runs as the dead-man, with the arguments after [`ARGUMENT`].
pub fn main(args: &[OsString]) -> ExitCode {
    let done = Arguments::parse(args).ok_or_else(|| std::io::Error::other("bad arguments")).and_then(|arguments| {
        let channel = leasehold_system::descriptor::inherited(arguments.channel)?;
        let mut tree = Tree::begin()?;
        if let Some(key) = &arguments.cgroup_key {
            // Most machines have none for us: then the tree is walked.
            let _ = tree.enclose(key);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(watch(arguments, tree, StdUnixStream::from(channel)))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::log::install_for(&[]);
            tracing::error!("the dead-man could not start: {error}");
            ExitCode::FAILURE
        }
    }
}

struct DeadMan {
    tree: Rc<Tree>,
    deadlines: Deadlines,
    trust_until: Moment,
    main: Pid,
    /// How the command ended, once it has.
    status: Option<Report>,
    /// Set once the tree is being ended: when the last signal is due.
    ending: Option<Moment>,
    supervisor: Outbox,
}

async fn watch(arguments: Arguments, mut tree: Tree, channel: StdUnixStream) -> std::io::Result<()> {
    channel.set_nonblocking(true)?;
    let (orders, supervisor) = UnixStream::from_std(channel)?.into_split();
    let (mut orders, mut supervisor) = (BufReader::new(orders).lines(), Outbox::new(supervisor));
    let mut children = signal(SignalKind::child())?;
    // A handler, unlike ignoring, does not pass on to the command. What our caller had ignored stays so.
    let _withstood: Vec<_> =
        PASSED_ON.iter().filter(|kind| !is_ignored(kind().as_raw_value())).map(|kind| signal(kind())).collect();
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]).process_group(0);
    // Without the lease there is nothing to run.
    let Some((trust_until, deadlines)) = wait_to_begin(&mut orders, &mut command).await else { return Ok(()) };
    let context = command.get_envs().find(|(name, _)| *name == run_context::VARIABLE).and_then(|(_, path)| path);
    let context = context.map(PathBuf::from);
    if SystemClock.now() >= deadlines.term_at(trust_until) {
        // It would have to be ended at once: the machine slept, or the start took too long.
        supervisor.send(&Report::OutOfTrust);
        supervisor.send(&Report::NotStarted(rustix::io::Errno::TIMEDOUT.raw_os_error()));
        supervisor.send_all().await;
        return Ok(());
    }
    let main = match tree.spawn(&mut command) {
        Ok(pid) => pid,
        Err(error) => {
            supervisor.send(&Report::NotStarted(error.raw_os_error().unwrap_or_default()));
            supervisor.send_all().await;
            return Ok(());
        }
    };
    supervisor.send(&Report::Started(main.as_raw_nonzero().get()));
    let tree = Rc::new(tree);
    let mut this = DeadMan { tree, deadlines, trust_until, main, status: None, ending: None, supervisor };
    let mut supervised = true;
    while !this.reap() {
        let due = this.ending.unwrap_or_else(|| this.deadlines.term_at(this.trust_until));
        tokio::select! {
            order = next_order(&mut orders), if supervised => match order {
                Some(order) => this.handle_order(order),
                None => {
                    // The supervisor is gone, and with it every renewal.
                    supervised = false;
                    this.end_within(this.deadlines.grace);
                }
            },
            _ = children.recv() => {}
            () = this.supervisor.retry_time() => this.supervisor.push(),
            () = SystemClock.sleep_until(due) => this.time_is_up().await,
        }
    }
    if !supervised && let Some(context) = context {
        // Its owner is dead.
        private_folder::remove_with(&context);
    }
    let status = this.status.unwrap_or(Report::Killed(9));
    // Nothing is left to watch over, so now it may take its time.
    if let Some(used) = this.tree.usage() {
        let cpu_ms = u64::try_from(used.cpu.as_millis()).unwrap_or(u64::MAX);
        this.supervisor.send(&Report::Used(Usage { cpu_ms, peak_memory_bytes: used.peak_memory_bytes }));
    }
    this.supervisor.send(&status);
    this.supervisor.send_all().await;
    Ok(())
}

impl DeadMan {
    fn handle_order(&mut self, order: Order) {
        match order {
            Order::Trust(until) => self.trust_until = until,
            Order::Signal(number) => {
                // Not after the command was reaped: its number may be somebody else's by then.
                if let Some(signal) = Signal::from_named_raw(number).filter(|_| self.status.is_none()) {
                    let _ = rustix::process::kill_process_group(self.main, signal);
                    // A stopped process cannot act on it until it is continued.
                    if [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal) {
                        let _ = rustix::process::kill_process_group(self.main, Signal::CONT);
                    }
                }
            }
            Order::Stop(within) => self.end_within(within),
            // It has begun.
            Order::Set(..) | Order::Begin(..) => {}
        }
    }

    /// Asks the tree to end, and sets when it is made to.
    fn end_within(&mut self, grace: Duration) {
        let kill_at = (SystemClock.now() + grace).min(self.deadlines.kill_at(self.trust_until));
        let kill_at = self.ending.map_or(kill_at, |earlier| earlier.min(kill_at));
        self.ending = Some(kill_at);
        if SystemClock.now() < kill_at {
            self.signal_all(Signal::TERM);
            // A stopped process cannot act on the first signal until it is continued.
            self.signal_all(Signal::CONT);
        }
    }

    async fn time_is_up(&mut self) {
        if self.ending.is_none() {
            self.end_within(self.deadlines.grace);
            self.supervisor.send(&Report::OutOfTrust);
            return;
        }
        for _ in 0..MAX_PASSES {
            if self.status.is_none() {
                let _ = rustix::process::kill_process_group(self.main, Signal::KILL);
            }
            let tree = Rc::clone(&self.tree);
            if tree.kill(|| self.reap()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Something cannot be killed now: keep at it, without spinning.
        self.ending = Some(SystemClock.now() + Duration::from_millis(100));
    }

    /// The group first and as a whole, so that no member sees another die before it is itself signalled: a pipeline's
    /// last part must not take its first part's death for the end of its input. Then who has left the group.
    fn signal_all(&self, signal: Signal) {
        let group = self.status.is_none().then(|| self.main.as_raw_nonzero().get());
        if group.is_some() {
            let _ = rustix::process::kill_process_group(self.main, signal);
        }
        let _ = self.tree.signal_outside(group, signal);
    }

    /// Collects the dead. True when the command and everything below us is gone.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.main => {
                    if let Some(signal) = status.stopping_signal() {
                        self.supervisor.send(&Report::Suspended(signal));
                    } else if let Some(code) = status.exit_status() {
                        self.status = Some(Report::Exited(code));
                    } else if let Some(signal) = status.terminating_signal() {
                        self.status = Some(Report::Killed(signal));
                    }
                }
                Ok(Some(_)) => {}
                // Living descendants remain.
                Ok(None) => break,
                // ECHILD: nothing is below us, for every orphan would have been ours.
                Err(rustix::io::Errno::CHILD) => return self.status.is_some(),
                Err(_) => break,
            }
        }
        if self.status.is_some() && self.ending.is_none() {
            let left = self.tree.pids().map_or(1, |pids| pids.len());
            self.end_within(self.deadlines.grace);
            self.supervisor.send(&Report::LeftBehind(left));
        }
        false
    }
}

/// Waits for the lease, and for what the command is to find in its environment. Gives the first trust window and how its
/// end is used; none if the supervisor goes without having got the lease.
async fn wait_to_begin(
    orders: &mut Lines<BufReader<OwnedReadHalf>>,
    command: &mut Command,
) -> Option<(Moment, Deadlines)> {
    loop {
        match next_order(orders).await? {
            Order::Set(name, value) => {
                command.env(name, value);
            }
            Order::Begin(trust_until, deadlines) => return Some((trust_until, deadlines)),
            Order::Trust(_) | Order::Signal(_) | Order::Stop(_) => {}
        }
    }
}

async fn next_order(lines: &mut Lines<BufReader<OwnedReadHalf>>) -> Option<Order> {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(order) = wire::parse(&line) {
            return Some(order);
        }
    }
    None
}
