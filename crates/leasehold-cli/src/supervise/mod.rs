//! Running a command under a lease: the supervisor.
//!
//! The supervisor keeps the lease and tells the [`deadman`] until when it is trusted; the dead-man runs the command and
//! ends it in time. Signals and the terminal are passed on, so that a command behaves as if it had been started
//! directly.
//!
//! Promise: when [`supervise`] returns, no process of the command is left, whatever happened. Non-promise: what the
//! command handed to other services is not undone; that is what guards are for.

pub mod deadman;
mod evidence;
pub mod windows;
mod wire;

pub use evidence::{Evidence, Output};

use deadman::Errand;
use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::{Coordinator, Error, Grant, Keeper, Kind, Loss, ProgressGate, Result, Standing};
use leasehold_system::process::{Signal, adopt_orphans, signal_descendants};
use leasehold_system::terminal::Terminal;
use rustix::process::WaitOptions;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use windows::Windows;
use wire::{Order, Report};

/// Signals that are passed on to the command.
const PASSED_ON: [fn() -> SignalKind; 7] = [
    SignalKind::hangup,
    SignalKind::interrupt,
    SignalKind::quit,
    SignalKind::terminate,
    SignalKind::user_defined1,
    SignalKind::user_defined2,
    SignalKind::window_change,
];

/// What the command is given, and how it is kept.
#[derive(Debug)]
pub struct Task {
    /// Variables to set for it that depend on the grant.
    pub environment: Vec<(&'static str, String)>,
    /// How the end of a trust window is used.
    pub windows: Windows,
    /// Makes renewal depend on progress.
    pub progress: Option<(Duration, Evidence)>,
    /// The longest it may run.
    pub max_runtime: Option<Duration>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It could not be started.
    NotStarted(std::io::ErrorKind, String),
}

/// What became of the command and of the lease.
#[derive(Debug)]
pub struct Finished {
    /// How the command ended.
    pub ended: Ended,
    /// Why the lease was lost, if it was.
    pub lost: Option<String>,
    /// The grant, to be released.
    pub grant: Grant,
    /// Lines for people, in order.
    pub notes: Vec<String>,
    /// The dead-man, which has nothing left to do but to exit; to be waited for once the lease is released.
    pub dead_man: Child,
}

/// Runs the command while keeping the lease.
pub async fn supervise(
    coordinator: &Coordinator,
    grant: Grant,
    standby: Standby,
    task: Task,
    mut signals: Signals,
) -> Result<Finished> {
    // If the dead-man is killed, what was below it falls to us.
    let _ = adopt_orphans();
    let terminal = Terminal::in_front();
    let (evidence, gate) = match task.progress {
        Some((timeout, evidence)) => {
            let gate = ProgressGate { timeout, evidence: evidence.reader() };
            (Some(evidence), Some(gate))
        }
        None => (None, None),
    };
    let Standby { mut child, reports, orders } = standby;
    let mut supervisor =
        Supervisor { windows: task.windows, terminal, group: None, orders, ended: None, lost: None, notes: Vec::new() };
    supervisor.begin(task.environment, grant.trust_until()).await;
    let copying = evidence.map(|evidence| evidence.copy_output(&mut child));
    let keeper = Keeper::start_gated(coordinator.clone(), grant, gate);
    supervisor.attend(reports, &mut signals, &keeper, task.max_runtime).await;
    if let Some(copying) = copying {
        // Everything that could write is dead, so the pipes end by themselves.
        let _ = copying.await;
    }
    if let Some(terminal) = &supervisor.terminal {
        terminal.take_back();
    }
    let grant = keeper.stop().await;
    if supervisor.lost.is_none() && SystemClock.now() >= grant.trust_until() {
        supervisor.lost = Some("its time ran out while the command ran".into());
    }
    Ok(Finished {
        ended: supervisor.ended.unwrap_or(Ended::Killed(9)),
        lost: supervisor.lost,
        grant,
        notes: supervisor.notes,
        dead_man: child,
    })
}

struct Supervisor {
    windows: Windows,
    terminal: Option<Terminal>,
    group: Option<i32>,
    orders: OwnedWriteHalf,
    ended: Option<Ended>,
    lost: Option<String>,
    notes: Vec<String>,
}

impl Supervisor {
    /// Until the dead-man has said how it ended, or is itself gone.
    async fn attend(
        &mut self,
        mut reports: Lines<BufReader<OwnedReadHalf>>,
        signals: &mut Signals,
        keeper: &Keeper,
        max_runtime: Option<Duration>,
    ) {
        let mut standing = keeper.standing();
        let mut trust_until = held_until(&standing.borrow()).unwrap_or_else(|| SystemClock.now());
        let mut run_until = max_runtime.map(|limit| SystemClock.now() + limit);
        while self.ended.is_none() {
            tokio::select! {
                line = reports.next_line() => match line {
                    Ok(Some(line)) => self.heed(&line),
                    _ => return self.take_over(),
                },
                number = signals.next() => self.order(Order::Signal(number)).await,
                Ok(()) = standing.changed() => {
                    let now = standing.borrow_and_update().clone();
                    match now {
                        Standing::Held { trust_until: until } => {
                            trust_until = until;
                            self.order(Order::Trust(until)).await;
                        }
                        Standing::Lost(loss) => trust_until = trust_until.min(self.lose(loss).await),
                    }
                }
                () = sleep_until(run_until) => {
                    run_until = None;
                    self.notes.push("it ran for longer than --max-runtime and was stopped".into());
                    self.order(Order::Stop(self.windows.grace)).await;
                }
                // The dead-man is silent though its last moment has come: it may itself have been stopped.
                () = SystemClock.sleep_until(trust_until - self.windows.margin / 2) => return self.take_over(),
            }
        }
    }

    async fn begin(&mut self, environment: Vec<(&'static str, String)>, trust_until: Moment) {
        let mut orders = String::new();
        for (name, value) in environment {
            orders.push_str(&Order::Set(name.into(), value).to_string());
        }
        orders.push_str(&Order::Begin(trust_until).to_string());
        let _ = self.orders.write_all(orders.as_bytes()).await;
    }

    async fn order(&mut self, order: Order) {
        // If the dead-man is gone, the next read says so.
        let _ = self.orders.write_all(order.to_string().as_bytes()).await;
    }

    /// Has the command ended; gives the moment by which the dead-man must have done it.
    async fn lose(&mut self, loss: Loss) -> Moment {
        // A lease that has moved may be held by another this very moment: there is no time to be polite. One that is
        // only stalled is still ours for a while.
        let grace = if let Loss::Stalled { .. } = loss { self.windows.grace } else { Duration::ZERO };
        self.lost = Some(loss.to_string());
        self.order(Order::Stop(grace)).await;
        SystemClock.now() + grace + self.windows.margin
    }

    fn heed(&mut self, line: &str) {
        match Report::parse(line) {
            Some(Report::Started(group)) => {
                self.group = Some(group);
                self.give_terminal();
            }
            Some(Report::NotStarted(errno)) => {
                let error = std::io::Error::from_raw_os_error(errno);
                self.ended = Some(Ended::NotStarted(error.kind(), error.to_string()));
            }
            Some(Report::Suspended) => self.suspend(),
            Some(Report::OutOfTrust) => {
                self.lost.get_or_insert_with(|| "it could not be renewed in time".into());
            }
            Some(Report::LeftBehind(count)) => {
                let what = if count == 1 { "process was" } else { "processes were" };
                self.notes.push(format!("{count} background {what} still there when the command ended; stopped"));
            }
            Some(Report::Exited(code)) => self.ended = Some(Ended::Exited(code)),
            Some(Report::Killed(signal)) => self.ended = Some(Ended::Killed(signal)),
            None => {}
        }
    }

    fn give_terminal(&self) {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            terminal.give_to(group);
            // It may have been stopped for reading before the terminal was its own.
            signal_group(group, Signal::CONT);
        }
    }

    /// The command was stopped from the terminal: stop with it, as one job, and go on with it. Meanwhile nobody renews;
    /// the dead-man ends the command if that lasts too long.
    fn suspend(&self) {
        let Some(terminal) = &self.terminal else { return };
        terminal.take_back();
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.give_terminal();
    }

    /// The dead-man has failed; what was below it is below us now. End everything ourselves.
    fn take_over(&mut self) {
        self.lost.get_or_insert_with(|| "the dead-man process was stopped or killed".into());
        const MAX_PASSES: u32 = 2_000;
        for _ in 0..MAX_PASSES {
            let found = signal_descendants(Signal::KILL);
            loop {
                match rustix::process::wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // Every orphan is our child, so without children there is nothing below us. What one walk of the
                    // process table finds is no proof: a process may move below us while it is being read.
                    Err(_) => {
                        if leasehold_system::process::ADOPTS_ORPHANS || matches!(found, Ok(0)) {
                            self.ended = Some(Ended::Killed(9));
                            return;
                        }
                        break;
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.ended = Some(Ended::Killed(9));
    }
}

fn signal_group(group: i32, signal: Signal) {
    if let Some(group) = rustix::process::Pid::from_raw(group) {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

fn held_until(standing: &Standing) -> Option<Moment> {
    match standing {
        Standing::Held { trust_until } => Some(*trust_until),
        Standing::Lost(_) => None,
    }
}

async fn sleep_until(until: Option<Moment>) {
    match until {
        Some(until) => SystemClock.sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// A dead-man that was started and runs nothing yet. Dropped, it ends by itself.
#[derive(Debug)]
pub struct Standby {
    child: Child,
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl Standby {
    /// Starts the dead-man with its end of the channel.
    pub fn start(command: Vec<OsString>, store: &str, windows: Windows, evidence: Option<&Evidence>) -> Result<Self> {
        let cannot = |error: std::io::Error| Error::unavailable("cannot start the command", error);
        let (ours, theirs) = StdUnixStream::pair().map_err(cannot)?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(|e| cannot(e.into()))?;
        let errand = Errand { channel: theirs.as_raw_fd(), windows, command };
        let program = std::env::current_exe().map_err(cannot)?;
        let mut command = Command::new(program);
        // Here and not over the channel, because a path may have any character.
        command.args(errand.to_args()).env("LEASEHOLD_STORE", store).process_group(0);
        if evidence.is_some_and(Evidence::wants_output) {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let child = command.spawn().map_err(cannot)?;
        drop(theirs);
        ours.set_nonblocking(true).map_err(cannot)?;
        let (reports, orders) = UnixStream::from_std(ours).map_err(cannot)?.into_split();
        Ok(Standby { child, reports: BufReader::new(reports).lines(), orders })
    }
}

/// The signals that end or concern the command.
#[derive(Debug)]
pub struct Signals(mpsc::Receiver<i32>);

impl Signals {
    /// Collects them from now on, instead of ending this process.
    pub fn listen() -> Result<Self> {
        let (sender, receiver) = mpsc::channel(16);
        for kind in PASSED_ON {
            let number = kind().as_raw_value();
            let mut stream =
                signal(kind()).map_err(|e| Error::new(Kind::Unsupported, "cannot listen to signals").with_source(e))?;
            let sender = sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(number).await.is_ok() {} });
        }
        Ok(Signals(receiver))
    }

    /// The next one.
    pub async fn next(&mut self) -> i32 {
        match self.0.recv().await {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }

    /// The next one that is meant to end a process, for when there is no command yet.
    pub async fn next_ending(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()]
                .iter()
                .any(|kind| kind.as_raw_value() == number)
            {
                return number;
            }
        }
    }
}
