//! Running a command under a lease: the supervisor.
//!
//! The supervisor keeps the lease and tells the [`deadman`] until when it is trusted; the dead-man runs the command and
//! ends it in time. Signals and the terminal are passed on, so that a command behaves as if it had been started
//! directly. Neither ever waits for the other: what cannot be said at once is said a little later, and each can do without.
//!
//! Promise: when [`supervise`] returns, no process of the command is left, or it says which could not be ended.
//! Non-promise: what the command handed to other services is not undone; that is what guards are for.

mod capture;
pub mod deadlines;
pub mod deadman;
mod errand;
mod evidence;
mod finished;
mod lines;
pub mod overdue;
pub mod settlement;
mod signals;
mod standby;
pub mod tail;
pub mod trial;
mod wire;

pub use capture::{Capture, Copying, Gathered, Sink};
pub use errand::Errand;
pub use evidence::{Evidence, Output};
pub use finished::{Asked, Ended, Finished, RunLimit, TimeLimit, Trouble, told_limit};
pub use signals::Signals;
pub use standby::{CGROUP, Feed, Piping, Standby, check, unwatchable};
pub use tail::Tail;

use crate::log;
use crate::run_context::ContextFile;
use deadlines::Deadlines;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Keeper, KeeperState, Loss, Tenancy};
use leasehold_stores::StoreUrl;
use leasehold_system::process::{Signal, Tree};
use leasehold_system::terminal::Terminal;
use leasehold_work::output::Usage;
use overdue::{Renewal, Rescue};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};
use std::time::Duration;
use tokio::io::{BufReader, Lines};
use tokio::net::unix::OwnedReadHalf;
use tokio::signal::unix::{SignalKind, signal};
use wire::{Order, Outbox, Report};

/// What the command is given, and how it is kept.
#[derive(Debug)]
pub struct Task {
    /// Variables to set for it that depend on the grant.
    pub environment: Vec<(&'static str, String)>,
    /// How the end of a trust window is used.
    pub deadlines: Deadlines,
    /// What becomes of its output; none if that was not piped to us.
    pub capture: Option<Capture>,
    /// The longest it may run.
    pub run_limit: Option<RunLimit>,
    /// Whether a scheduler or a worker runs it, and nobody else sends it signals.
    pub managed: bool,
    /// Where its lease is.
    pub store: StoreUrl,
    /// The file in which it finds its lease, if it could be made.
    pub context: Option<ContextFile>,
}

/// Runs the command while the lease is renewed.
pub async fn supervise<T: Tenancy>(
    keeper: Keeper<T>,
    standby: Standby,
    task: Task,
    signals: &mut Signals,
) -> Finished<T::Grant> {
    let Standby { tree, cgroup_key, mut child, reports, orders } = standby;
    let mut supervisor = Supervisor {
        tree,
        cgroup_key,
        dead_man: Pid::from_child(&child),
        deadlines: task.deadlines,
        terminal: Terminal::of_session(),
        group: None,
        orders: Outbox::new(orders),
        ended: None,
        time_limit: TimeLimit::Kept,
        asked: Asked::No,
        lost: None,
        blocked: None,
        survivors: Vec::new(),
        notes: Vec::new(),
        cut: None,
        usage: None,
        context: task.context,
        managed: task.managed,
    };
    let mut copying = task.capture.map(|capture| capture.copy_output(&mut child));
    let begun = SystemClock.now();
    supervisor.begin(task.environment, &keeper);
    supervisor.attend(reports, signals, &keeper, task.run_limit, task.store).await;
    let ended_at = SystemClock.now();
    let ran_for = ended_at.saturating_since(begun);
    // As it was when the command had ended: what its output takes to arrive is not its own time.
    let trust_until = held_until(&keeper.state().borrow());
    if supervisor.lost.is_none() && trust_until.is_none_or(|end| SystemClock.now() >= end) {
        supervisor.lost = Some("its time ran out while the command ran".into());
    }
    if let Some(copying) = &mut copying {
        tokio::select! {
            biased;
            () = copying.arrive() => {}
            // The end is recorded in time, and the rest of the output arrives after that.
            _ = keeper.lost() => {}
            number = signals.next_ending() => supervisor.cut = Some(number),
        }
    }
    if let Some(terminal) = &supervisor.terminal {
        terminal.take_back();
    }
    let trust_until = held_until(&keeper.state().borrow()).or(trust_until);
    let (renewals, grant) = (keeper.renewals(), keeper.stop().await);
    Finished {
        ended: supervisor.ended.unwrap_or(Ended::Killed(9)),
        time_limit: supervisor.time_limit,
        run_limit: task.run_limit,
        asked: supervisor.asked,
        lost: supervisor.lost,
        survivors: supervisor.survivors,
        grant,
        trust_until: trust_until.unwrap_or_else(|| SystemClock.now()),
        renewals,
        ran_for,
        ended_at,
        notes: supervisor.notes,
        output: copying.filter(|copying| supervisor.cut.is_none() && !copying.has_arrived()),
        cut: supervisor.cut,
        usage: supervisor.usage,
        dead_man: child,
    }
}

struct Supervisor {
    tree: Tree,
    cgroup_key: Option<String>,
    dead_man: Pid,
    deadlines: Deadlines,
    terminal: Option<Terminal>,
    group: Option<i32>,
    orders: Outbox,
    ended: Option<Ended>,
    time_limit: TimeLimit,
    asked: Asked,
    lost: Option<String>,
    /// Who keeps everybody from writing to the store, and what to do about it.
    blocked: Option<String>,
    survivors: Vec<i32>,
    notes: Vec<String>,
    cut: Option<i32>,
    usage: Option<Usage>,
    /// The file is removed when this is dropped.
    context: Option<ContextFile>,
    managed: bool,
}

impl Supervisor {
    /// Until the dead-man has said how it ended, or is itself gone.
    async fn attend(
        &mut self,
        mut reports: Lines<BufReader<OwnedReadHalf>>,
        signals: &mut Signals,
        keeper: &Keeper<impl Tenancy>,
        run_limit: Option<RunLimit>,
        store: StoreUrl,
    ) {
        let mut children = signal(SignalKind::child()).ok();
        let (mut state, mut asked) = (keeper.state(), keeper.asked());
        asked.mark_changed();
        // The moment by which the dead-man must have spoken.
        let mut due = held_until(&state.borrow()).unwrap_or_else(|| SystemClock.now());
        // Until it has, its silence is not made good by a renewal: it may not have heard that it is to begin.
        let begin_by = due;
        let mut rescue = Rescue::new(store, self.deadlines, due);
        let mut renewal = Renewal::new(self.deadlines, due);
        let mut was_asked = false;
        let mut run_until = run_limit.map(|limit| SystemClock.now() + limit.longest);
        while self.ended.is_none() {
            let silent_until = if self.group.is_some() { due } else { due.min(begin_by) };
            tokio::select! {
                line = reports.next_line() => match line {
                    Ok(Some(line)) => self.handle_report(&line, keeper),
                    _ => return self.take_over(),
                },
                number = signals.next() => self.pass_on(number),
                Ok(()) = state.changed() => {
                    let now = state.borrow_and_update().clone();
                    match now {
                        KeeperState::Held { trust_until } => {
                            due = trust_until;
                            rescue.trusted(trust_until);
                            renewal.renewed(trust_until);
                            self.blocked = None;
                            self.trust(trust_until);
                            self.order(Order::Trust(trust_until));
                        }
                        KeeperState::Lost(loss) => due = due.min(self.lose(&loss)),
                    }
                }
                // The lease is still renewed: the command has the time of the request, and is killed only if the lease is taken.
                Ok(()) = asked.changed() => if let Some(drain) = &*asked.borrow_and_update() {
                    // Once: for many programs a second one means to drop everything.
                    let is_first = !std::mem::replace(&mut was_asked, true);
                    self.asked = Asked::ToFinish;
                    let done = if is_first { "the command was sent SIGTERM" } else { "the command was asked before" };
                    crate::output::say(&format!("{drain}; {done}"));
                    signals.tell_to_end();
                    if is_first {
                        self.order(Order::Signal(Signal::TERM.as_raw()));
                    }
                },
                () = child_changed(&mut children) => self.wake_dead_man(),
                () = self.orders.retry_time() => self.orders.push(),
                () = sleep_until(renewal.warn_at()) => renewal.warn(keeper.trouble().or_else(|| self.blocked.clone())),
                () = sleep_until(rescue.look_at()) => {
                    if let Some(ended) = rescue.look() {
                        crate::output::say(&ended);
                    }
                    self.blocked = rescue.blocked();
                }
                () = sleep_until(run_until) => {
                    run_until = None;
                    self.time_limit = TimeLimit::Exceeded;
                    let (what, limit) = (log::subject(), told_limit(run_limit));
                    self.notes.push(format!("{what} ran for longer than {limit} and was stopped"));
                    self.order(Order::Stop(self.deadlines.grace));
                }
                // The dead-man is silent though its last moment has come.
                () = SystemClock.sleep_until(silent_until - self.deadlines.margin / 2) => return self.take_over(),
            }
        }
    }

    /// Passes a signal on. A command that a scheduler or a worker must end is killed if it ignores the signal.
    fn pass_on(&mut self, number: i32) {
        self.order(Order::Signal(number));
        if self.managed && Signals::is_ending(number) {
            self.asked = Asked::ToFinish;
            self.order(Order::Stop(self.deadlines.grace));
        }
    }

    /// Nothing runs before this is heard.
    fn begin(&mut self, environment: Vec<(&'static str, String)>, keeper: &Keeper<impl Tenancy>) {
        environment.into_iter().for_each(|(name, value)| self.order(Order::Set(name.into(), value)));
        let trust_until = held_until(&keeper.state().borrow()).unwrap_or_else(|| SystemClock.now());
        self.trust(trust_until);
        self.order(Order::Begin(trust_until, self.deadlines));
    }

    /// Those within the command may trust the lease until then.
    fn trust(&mut self, until: Moment) {
        if let Some(Err(error)) = self.context.as_mut().map(|context| context.trust(until)) {
            tracing::debug!("the context of the run cannot be written: {error}");
        }
    }

    /// A dead-man that does not listen is stopped, or gone: then its silence tells.
    fn order(&mut self, order: Order) {
        self.orders.send(&order);
    }

    /// Has the command ended; gives the moment by which the dead-man must have done it.
    fn lose(&mut self, loss: &Loss) -> Moment {
        // A lease that has moved may be held by another this very moment: there is no time to be polite. One that is
        // only stalled is still ours for a while.
        let grace = if let Loss::Stalled { .. } = loss { self.deadlines.grace } else { Duration::ZERO };
        self.lost = Some(loss.to_string());
        self.order(Order::Stop(grace));
        SystemClock.now() + grace + self.deadlines.margin
    }

    fn handle_report(&mut self, line: &str, keeper: &Keeper<impl Tenancy>) {
        match wire::parse(line) {
            Some(Report::Started(group)) => {
                self.group = Some(group);
                if self.terminal.as_ref().is_some_and(Terminal::is_interactive) {
                    self.lend_terminal();
                }
            }
            Some(Report::NotStarted(errno)) => self.ended = Some(Ended::NotStarted(Trouble(errno))),
            Some(Report::Suspended(signal)) => self.suspend(signal),
            Some(Report::OutOfTrust) => {
                let blocked = self.blocked.take();
                self.lost.get_or_insert_with(|| match keeper.trouble().or(blocked) {
                    Some(trouble) => format!("it could not be renewed in time: {trouble}"),
                    None => "it could not be renewed in time".into(),
                });
            }
            Some(Report::LeftBehind(count)) => {
                let of = log::subject();
                let what = match count {
                    // They came and went too fast to be counted.
                    0 => format!("background processes of {of} were"),
                    1 => format!("1 background process of {of} was"),
                    count => format!("{count} background processes of {of} were"),
                };
                self.notes.push(format!("{what} still there when the command ended; stopped"));
            }
            Some(Report::Used(usage)) => self.usage = Some(usage),
            Some(Report::Exited(code)) => self.ended = Some(Ended::Exited(code)),
            Some(Report::Killed(signal)) => self.ended = Some(Ended::Killed(signal)),
            None => {}
        }
    }

    /// Puts the command in front, if we are, and says whether it is now.
    fn lend_terminal(&self) -> bool {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else { return false };
        let lent = terminal.lend_to(group);
        if lent {
            // It may have been stopped for reading before the terminal was its own.
            signal_group(group, Signal::CONT);
        }
        lent
    }

    /// The command was stopped. If it reached for the terminal, it gets it, in its turn. Otherwise stop with it, as one
    /// job, and continue with it. Meanwhile nobody renews; the dead-man ends the command if that lasts too long.
    fn suspend(&self, signal: i32) {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else { return };
        let reached = [Signal::TTIN, Signal::TTOU].iter().any(|s| s.as_raw() == signal);
        if signal == Signal::STOP.as_raw() {
            // Not from the terminal: the process that stopped it will continue it.
            return;
        }
        if reached {
            if !crate::stopping::reach(|| terminal.lend_when_continued(group)) {
                // Nobody is left to bring it to the foreground, so it gets the signal that the kernel sends to such a group.
                signal_group(group, Signal::HUP);
            }
        } else {
            terminal.take_back();
            // The whole group, as the terminal would have done it: a script that we were started from is part of the
            // job.
            crate::stopping::stop_group();
            terminal.lend_to(group);
        }
        signal_group(group, Signal::CONT);
    }

    /// A dead-man that somebody stopped could not report, and could not act: it is continued at once.
    fn wake_dead_man(&self) {
        let stopped =
            rustix::process::waitid(WaitId::Pid(self.dead_man), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        if let Ok(Some(_)) = stopped {
            let _ = rustix::process::kill_process(self.dead_man, Signal::CONT);
        }
    }

    /// The dead-man has failed; what was below it is below us now. End everything ourselves.
    fn take_over(&mut self) {
        let silent = match self.group {
            Some(_) => "the dead-man process was stopped or killed",
            None => "the dead-man process was stopped or killed, or did not start the command in time",
        };
        self.lost.get_or_insert_with(|| silent.into());
        self.ended = Some(Ended::Killed(9));
        if !self.end_all() {
            self.survivors = self.tree.pids().unwrap_or_default();
        }
        // It may have been made by a dead-man that was just about to die. It is removed with the tree.
        self.take_over_cgroup();
    }

    fn take_over_cgroup(&mut self) {
        if let Some(key) = &self.cgroup_key {
            self.tree.take_over(self.dead_man, key);
        }
    }

    /// Kills everything below us. False if something could not be ended.
    fn end_all(&mut self) -> bool {
        const MAX_PASSES: u32 = 1_000;
        const EMPTY_WALKS: u32 = 5;
        let mut empty_walks = 0;
        for _ in 0..MAX_PASSES {
            self.take_over_cgroup();
            let childless = self.tree.kill(reap_all);
            if self.tree.childless_is_empty() {
                // Every orphan is our child, so without children there is nothing below us, and only then: what a walk of
                // the process table finds proves nothing, for a process may move below us while it is being read.
                if childless {
                    return true;
                }
            } else {
                // Orphans go elsewhere, or we have children that are not ours to end: repeated looks have to do.
                let is_empty = self.tree.pids().is_ok_and(|pids| pids.is_empty()) && self.tree.has_only_strangers();
                empty_walks = if is_empty { empty_walks + 1 } else { 0 };
                if empty_walks >= EMPTY_WALKS {
                    return true;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// Collects the dead among our children, and says whether we have none left.
fn reap_all() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

fn signal_group(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

fn held_until(state: &KeeperState) -> Option<Moment> {
    match state {
        KeeperState::Held { trust_until } => Some(*trust_until),
        KeeperState::Lost(_) => None,
    }
}

async fn child_changed(children: &mut Option<tokio::signal::unix::Signal>) {
    match children {
        Some(children) => {
            children.recv().await;
        }
        None => std::future::pending().await,
    }
}

async fn sleep_until(until: Option<Moment>) {
    match until {
        Some(until) => SystemClock.sleep_until(until).await,
        None => std::future::pending().await,
    }
}
