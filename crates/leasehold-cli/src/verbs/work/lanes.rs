//! Several lanes: this program again, once for each, and nothing between them.
//!
//! Promise: a lane that ends unexpectedly, however it does, is replaced after a pause, so the pool is as large as it was asked to
//! be. That the store is away, and that it is back, is told once, and not by each lane. The pool ends when it is told to, when
//! its lanes have (`--until-idle`, `--until-done`), or when they found that no item can ever be run. Non-promise: what a lane
//! that was killed was at is claimed again only when its TTL is over.

use super::lane::LANE;
use super::store_news::{Manager, News};
use crate::args::Work as Args;
use crate::config::{METRICS, Settings};
use crate::context::Target;
use crate::exit::Exit;
use crate::log;
use crate::metrics::Monitor;
use crate::supervise::Signals;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Error, Result, format_duration};
use leasehold_system::process::own_program;
use leasehold_system::undo::{Fix, is_disabled};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The pauses before lanes that ended unexpectedly are replaced.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];
/// A lane that lived for so long had begun well: its end is not one more failure in a row.
const STEADY: Duration = Duration::from_secs(30);

/// Exit codes of a lane after which another one would end in the same way: wrong input, a damaged store, a store that refuses us
/// or has moved, a command that cannot be started.
const HOPELESS: [i32; 5] = [64, 65, 78, 126, 127];

struct Pool<'a> {
    settings: &'a Settings,
    target: &'a Target,
    args: &'a Args,
    ended: mpsc::UnboundedSender<(u32, ExitStatus)>,
    news: News,
    lanes: HashMap<u32, (Manager, Moment)>,
    /// How many are to be replaced, when, and how many ended so in a row.
    missing: u32,
    next: Moment,
    failures: usize,
}

pub async fn run(settings: &Settings, target: &Target, args: &Args, monitor: Option<Arc<Monitor>>) -> Result<Exit> {
    let mut signals = Signals::listen()?;
    let (ended, mut endings) = mpsc::unbounded_channel();
    let (lanes, next) = (HashMap::new(), SystemClock.now());
    let news = News::of_queue(target.portable());
    let mut pool = Pool { settings, target, args, ended, news, lanes, missing: 0, next, failures: 0 };
    for _ in 0..args.jobs {
        pool.start()?;
    }
    let (mut draining, mut exit) = (false, Exit::Done);
    while !pool.lanes.is_empty() || pool.missing > 0 {
        tokio::select! {
            number = signals.next_ending() => {
                (draining, pool.missing) = (true, 0);
                monitor.iter().for_each(|monitor| monitor.drain());
                for pid in pool.lanes.keys().filter_map(|pid| Pid::from_raw(*pid as i32)) {
                    // Each lane is asked; a second time ends what it is at.
                    let _ = kill_process(pid, Signal::from_named_raw(number).unwrap_or(Signal::TERM));
                }
            }
            Some((pid, status)) = endings.recv() => {
                let lived = pool.lanes.remove(&pid).map(|(_, began)| SystemClock.now().saturating_since(began));
                let status: ExitStatus = status;
                match status.code() {
                    Some(0) => {}
                    Some(code) if draining || HOPELESS.contains(&code) => exit = Exit::Code(u8::try_from(code).unwrap_or(1)),
                    None if draining => exit = Exit::Code(1),
                    _ if is_disabled(Fix::LanesNotReplaced) => exit = Exit::Code(1),
                    _ => pool.replace(status, lived.unwrap_or_default()),
                }
            }
            () = SystemClock.sleep_until(pool.next), if pool.missing > 0 => pool.fill(),
        }
    }
    Ok(exit)
}

impl Pool<'_> {
    /// Has a lane that ended unexpectedly replaced after a pause.
    fn replace(&mut self, status: ExitStatus, lived: Duration) {
        if lived >= STEADY {
            self.failures = 0;
        }
        let how = match (status.code(), status.signal()) {
            (_, Some(signal)) => format!("by signal {signal}"),
            (code, None) => format!("with exit code {}", code.unwrap_or(1)),
        };
        self.missing += 1;
        let pause = self.pause();
        let queue = self.target.portable();
        tracing::warn!(queue, "a lane of `{queue}` ended {how}; starting another in {pause}");
    }

    /// Puts the next start off, the further the more lanes have ended since one lived for long.
    fn pause(&mut self) -> String {
        let pause = PAUSES[self.failures.min(PAUSES.len() - 1)];
        // Lanes that end together count once.
        if self.next <= SystemClock.now() {
            self.next = SystemClock.now() + pause;
            self.failures += 1;
        }
        format_duration(pause)
    }

    /// Starts what is missing; what cannot be started is tried again later.
    fn fill(&mut self) {
        while self.missing > 0 {
            if let Err(error) = self.start() {
                let pause = self.pause();
                let queue = self.target.portable();
                tracing::warn!(queue, "no lane of `{queue}` was started: {error}; retrying in {pause}");
                return;
            }
            self.missing -= 1;
        }
    }

    fn start(&mut self) -> Result<()> {
        let Pool { settings, target, args, .. } = *self;
        let cannot = |e: std::io::Error| Error::unavailable("cannot start a lane", e);
        let mut command = Command::new(own_program().map_err(cannot)?);
        command.arg0("leasehold").arg("work").arg(target.portable());
        command.arg("--ttl").arg(settings.ttl.value.to_string());
        for (flag, value) in [("--label", &args.label), ("--grace", &args.grace), ("--max-runtime", &args.max_runtime)]
        {
            if let Some(value) = value {
                command.arg(format!("{flag}={value}"));
            }
        }
        let switches =
            [("--until-idle", args.until_idle), ("--until-done", args.until_done), ("--no-prefix", args.no_prefix)];
        for (flag, is_given) in switches {
            command.args(is_given.then_some(flag));
        }
        log::hand_down(&mut command);
        command.arg("--").args(args.command.iter().map(OsString::from));
        // In the environment, because it may hold a password; in a group of its own, so that a key reaches it once.
        command.env("LEASEHOLD_STORE", settings.store.value.portable()).env(LANE, "1").env_remove(METRICS);
        let (line, theirs) = self.news.line().map_err(cannot)?;
        command.stdin(Stdio::from(theirs)).process_group(0);
        let mut child = tokio::process::Command::from(command).spawn().map_err(cannot)?;
        let (pid, ended) = (child.id().unwrap_or_default(), self.ended.clone());
        // Closed when this process ends, however it does: then the lane ends too.
        self.lanes.insert(pid, (line, SystemClock.now()));
        tokio::spawn(async move {
            if let Ok(status) = child.wait().await {
                let _ = ended.send((pid, status));
            }
        });
        Ok(())
    }
}
