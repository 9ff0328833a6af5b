//! Starting a job's command: our own `run`, so that a scheduled run is watched over like any other.
//!
//! Promise: the child is a process of its own: it keeps running, keeps its lease and releases it when the scheduler ends, is
//! killed or reloads. Its output is kept, and passed on with its name before each line. Non-promise: when nobody reads the
//! scheduler's output, what a job prints is kept only.

use crate::config::Settings;
use crate::log;
use crate::supervise::settlement::{Noted, Verdict};
use async_trait::async_trait;
use leasehold_core::{Coordinator, Error, Kind, Result};
use leasehold_system::process::own_program;
use leasehold_work::schedule::{Job, Launcher, Start, slot_text};
use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Starts runs and knows which are still running.
#[derive(Debug)]
pub struct Processes {
    coordinator: Coordinator,
    store: String,
    output: Output,
    /// Between SIGTERM and SIGKILL, for jobs that do not say.
    grace: Option<Duration>,
    running: Mutex<BTreeSet<i32>>,
}

impl Processes {
    pub fn new(coordinator: Coordinator, settings: &Settings, prefix: Prefix) -> Self {
        let (store, grace) = (settings.store.value.portable(), settings.grace.value);
        let output = Output { settings: settings.output_environment(), prefix };
        Processes { coordinator, store, output, grace, running: Mutex::default() }
    }

    /// Asks all that are still running to end.
    pub fn terminate(&self) {
        for pid in self.running.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Some(pid) = Pid::from_raw(*pid) {
                let _ = rustix::process::kill_process(pid, Signal::TERM);
            }
        }
    }
}

/// What becomes of a job's output.
#[derive(Debug)]
pub struct Output {
    /// Where it is kept, for a process that reads no files.
    pub settings: [(&'static str, String); 3],
    pub prefix: Prefix,
}

/// What is passed on of each line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// The job's name, and the line.
    Job,
    /// The line as it is.
    None,
}

/// `run` with what all ways of running a job have in common, up to the command. A job's own environment may say that its
/// output is kept elsewhere, or not at all.
pub fn run(job: &Job, lease: &str, store: &str, output: &Output) -> Result<Command> {
    let program = own_program().map_err(|e| Error::unavailable("cannot start the command", e))?;
    let mut command = Command::new(program);
    command.arg0("leasehold").arg("run").arg(lease).arg("--keep-output").env("LEASEHOLD_STORE", store);
    command.envs(output.settings.iter().map(|(name, value)| (name, value)));
    if output.prefix == Prefix::Job {
        command.arg("--prefix-output");
    }
    if let Some(cwd) = &job.cwd {
        command.current_dir(cwd);
    }
    for (name, value) in &job.env {
        command.env(name, value);
    }
    let mut flag = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            command.arg(format!("{name}={value}"));
        }
    };
    let text = |duration: Option<std::time::Duration>| duration.map(leasehold_core::format_duration);
    flag("--grace", text(job.grace));
    flag("--max-runtime", text(job.timeout));
    flag("--progress-timeout", text(job.progress_timeout));
    if job.retries > 0 {
        flag("--retries", Some(job.retries.to_string()));
        flag("--backoff", text(Some(job.backoff)));
    }
    for guard in &job.guards {
        flag("--guard", Some(guard.clone()));
    }
    Ok(command)
}

/// Ends the flags and gives the job's own words.
pub fn words(command: &mut Command, job: &Job) {
    command.arg("--").args(&job.argv);
}

#[async_trait]
impl Launcher for Processes {
    async fn launch(&self, start: &Start) -> Result<()> {
        let (job, token) = (&start.job, start.grant.token());
        let mut command = run(job, job.name.as_str(), &self.store, &self.output)?;
        log::hand_down(&mut command);
        command.arg("--adopt").arg(format!("--slot-at={}", slot_text(start.slot)));
        if let (None, Some(grace)) = (job.grace, self.grace) {
            command.arg(format!("--grace={}", leasehold_core::format_duration(grace)));
        }
        words(&mut command, job);
        // The token in the environment: arguments are for everybody to see. A group of its own: a key that ends the
        // scheduler drains it.
        command.env("LEASEHOLD_TOKEN", token.wire()).stdin(Stdio::null()).process_group(0);
        let mut child = match tokio::process::Command::from(command).spawn() {
            Ok(child) => child,
            Err(_) if job.cwd.as_ref().is_some_and(|cwd| !cwd.is_dir()) => {
                // It would fail as often as it was tried.
                self.note_refusal(start, None, Verdict::Failed).await;
                let cwd = job.cwd.clone().unwrap_or_default();
                let message = format!("job `{}` failed: its cwd `{}` is not a folder here", job.name, cwd.display());
                return Err(Error::new(Kind::Unsupported, message));
            }
            Err(e) => return Err(Error::unavailable(format!("cannot start job `{}`", job.name), e)),
        };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
        let ended = child.wait().await;
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
        let code = ended.ok().and_then(|status| status.code());
        if let Some(verdict) = code.and_then(Verdict::of_refusal) {
            self.note_refusal(start, code, verdict).await;
        }
        Ok(())
    }
}

impl Processes {
    /// A run that refused its own settings, or could not start, has left the lease as it was; if it has, the slot failed,
    /// or stays open. The command may have had this code too, and then the lease was renewed, and is released already.
    async fn note_refusal(&self, start: &Start, code: Option<i32>, verdict: Verdict) {
        let token = start.grant.token();
        let Ok(seen) = self.coordinator.inspect(&token.lease).await else { return };
        if !seen.record.is_held_by(token.claim()) || seen.record.tenure != start.grant.record().tenure {
            return;
        }
        if self.coordinator.release_by_token(token, verdict.row().0).await.is_ok() {
            let (slot, exit) = (Some(start.slot), code.and_then(|code| u8::try_from(code).ok()));
            let epoch = token.epoch;
            let noted = Noted { slot, epoch, exit, ran_for_ms: 0, tries: 1, usage: None, output: None };
            verdict.note(&self.coordinator, &token.lease, noted).await;
        }
    }
}
