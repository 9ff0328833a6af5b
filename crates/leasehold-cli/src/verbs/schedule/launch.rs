//! Starting a job's command: our own `run`, so that a scheduled run is watched over like any other.
//!
//! Promise: the child is a process of its own: it keeps running, keeps its lease and releases it when the scheduler ends, is
//! killed or reloads. Its output is kept, and passed on with its name before each line. Non-promise: when nobody reads the
//! scheduler's output, what a job prints is kept only.

use crate::config::{METRICS, Settings};
use crate::exit::Exit;
use crate::log;
use crate::notify::Notifier;
use crate::supervise::settlement::{Noted, Verdict};
use async_trait::async_trait;
use leasehold_core::{Coordinator, Distribution, Error, Kind, Result};
use leasehold_system::process::own_program;
use leasehold_work::backlog::read_bounded;
use leasehold_work::notify::Detail;
use leasehold_work::schedule::{Job, Launcher, Origin, Start, env_file, slot_text};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most that the variables of one file may have: more does not fit into a process's environment.
const MAX_ENV_FILE: usize = 128 * 1024;

/// Starts runs and knows which are still running.
#[derive(Debug)]
pub struct Processes {
    coordinator: Coordinator,
    store: String,
    /// For the runs that begin from now on.
    output: Mutex<Output>,
    /// Between SIGTERM and SIGKILL, for jobs that do not say.
    grace: Option<Duration>,
    running: Mutex<BTreeSet<i32>>,
    /// The rules for messages about runs, which our child processes have not read.
    notifier: Mutex<Option<Notifier>>,
}

impl Processes {
    pub fn new(coordinator: Coordinator, settings: &Settings, prefix: Prefix) -> Self {
        let (store, grace) = (settings.store.value.portable(), settings.grace.value);
        let output = Mutex::new(Output { settings: settings.output_environment(), prefix });
        Processes { coordinator, store, output, grace, running: Mutex::default(), notifier: Mutex::default() }
    }

    /// Tells of runs by these rules from now on.
    pub fn notify(&self, notifier: Option<Notifier>) {
        *self.notifier.lock().unwrap_or_else(PoisonError::into_inner) = notifier;
    }

    /// Keeps the output of runs as these settings say from now on.
    pub fn keep_output(&self, settings: &Settings) {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).settings = settings.output_environment();
    }

    /// Tells how a run ended, after its seat is free for the next.
    fn tell(&self, start: &Start, code: Option<i32>, why: Option<String>) {
        let notifier = self.notifier.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(notifier) = notifier else { return };
        let token = start.grant.token();
        let exit_code = code.and_then(|code| u8::try_from(code).ok());
        let (lease, detail) = (token.lease.clone(), Detail { epoch: token.epoch, exit_code, why, ..Detail::default() });
        tokio::spawn(async move { notifier.run_ended(&lease, Some(detail)).await });
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

/// Where a job's output goes.
#[derive(Debug, Clone)]
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
    // The address is this process's own.
    command.env_remove(METRICS).env_remove(crate::ping::VARIABLE);
    command.envs(output.settings.iter().map(|(name, value)| (name, value)));
    if output.prefix == Prefix::Job {
        command.arg("--prefix-output");
    }
    if let Some(cwd) = folder(job)? {
        command.current_dir(cwd);
    }
    set_environment(&mut command, job)?;
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

/// A job's own variables: those of its files, and over them those of its table. What only this process is to know is left
/// out.
fn set_environment(command: &mut Command, job: &Job) -> Result<()> {
    for name in crate::service::VARIABLES {
        command.env_remove(name);
    }
    command.envs(file_variables(job)?).envs(&job.env);
    Ok(())
}

/// Refuses a job that cannot be begun on this machine as it is.
pub fn check_here(job: &Job) -> Result<()> {
    folder(job)?;
    file_variables(job).map(drop)
}

/// Where it runs, if it says so.
fn folder(job: &Job) -> Result<Option<&Path>> {
    match job.cwd.as_deref() {
        Some(cwd) if !cwd.is_dir() => {
            let message = format!("job `{}`: its cwd `{}` is not a folder here", job.name, cwd.display());
            Err(Error::new(Kind::Unsupported, message))
        }
        cwd => Ok(cwd),
    }
}

/// What a job's `env_file` says now. Nothing of it is ever part of a message.
fn file_variables(job: &Job) -> Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for path in &job.env_file {
        let blamed = format!("job `{}`: env_file `{}`", job.name, path.display());
        let refuse = |what: &str| Error::new(Kind::Unsupported, format!("{blamed} {what}"));
        // A pipe would be waited for, and every other job with it.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = std::fs::File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|e| refuse("cannot be read").with_source(e))?;
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(refuse("is not a plain file"));
        }
        let bytes =
            read_bounded(file, MAX_ENV_FILE, "the file").map_err(|e| refuse("cannot be read").with_source(e))?;
        let text = String::from_utf8(bytes).map_err(|_| refuse("is not text"))?;
        if text.len() > MAX_ENV_FILE {
            return Err(refuse(&format!("has more than {MAX_ENV_FILE} bytes")));
        }
        let wrong = |(line, what): env_file::Wrong| refuse(&format!("is wrong in line {line}: {what}"));
        variables.extend(env_file::parse(&text).map_err(wrong)?);
    }
    Ok(variables)
}

/// Has the run tell the job's monitoring service. In the environment: arguments are for everybody to see.
pub fn ping(command: &mut Command, job: &Job) {
    command.envs(job.ping.as_ref().map(|url| (crate::ping::VARIABLE, url.expose())));
}

/// Ends the flags and gives the job's own words.
pub fn words(command: &mut Command, job: &Job) {
    command.arg("--").args(&job.argv);
}

#[async_trait]
impl Launcher for Processes {
    async fn launch(&self, start: &Start) -> Result<()> {
        let (job, token) = (&start.job, start.grant.token());
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut command = match run(job, job.name.as_str(), &self.store, &output) {
            Ok(command) => command,
            // Its folder or its file of variables: it would fail as often as it was tried.
            Err(error) if error.kind() == Kind::Unsupported => {
                let why = error.to_string();
                if !self.note_refusal(start, None, Verdict::Failed, &why).await {
                    return Err(error);
                }
                self.tell(start, None, Some(why));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        log::hand_down(&mut command);
        let slot = slot_text(start.slot);
        command.arg("--adopt").arg(match start.origin {
            Origin::Slot => format!("--slot-at={slot}"),
            Origin::Request => format!("--as-slot={slot}"),
        });
        if let (None, Some(grace)) = (job.grace, self.grace) {
            command.arg(format!("--grace={}", leasehold_core::format_duration(grace)));
        }
        ping(&mut command, job);
        words(&mut command, job);
        // The token in the environment: arguments are for everybody to see. A group of its own: a key that ends the
        // scheduler drains it.
        command.env("LEASEHOLD_TOKEN", token.wire()).stdin(Stdio::null()).process_group(0);
        let mut child = match tokio::process::Command::from(command).spawn() {
            Ok(child) => child,
            Err(e) => {
                let what = format!("cannot start job `{}` for slot {}", job.name, slot_text(start.slot));
                return Err(Error::unavailable(what, e));
            }
        };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
        let ended = child.wait().await;
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
        if let Some(signal) = ended.as_ref().ok().and_then(ExitStatusExt::signal) {
            let (job, slot, epoch) = (job.name.as_str(), slot_text(start.slot), token.epoch);
            tracing::warn!(
                target: log::RUNS, job, slot, epoch = epoch.get(),
                "the supervisor of `{job}` for slot {slot} was killed by signal {signal}; its command is stopped, and {}",
                match start.origin {
                    Origin::Slot => "the slot is run again once the lease has expired",
                    Origin::Request => "whoever asked for this run may ask again",
                }
            );
        }
        let code = ended.ok().and_then(|status| status.code());
        let mut why = None;
        if let Some((code, verdict)) = code.and_then(|code| Some((code, Verdict::of_refusal(code)?))) {
            let refused = refused(code);
            let is_noted = self.note_refusal(start, Some(code), verdict, &refused).await;
            why = Some(refused).filter(|_| is_noted);
        }
        self.tell(start, code, why);
        Ok(())
    }
}

impl Processes {
    /// A run that refused its own settings, or could not start, has left the lease as it was; if it has, the slot failed,
    /// or stays open. The command may have had this code too, and then the lease was renewed, and is released already. Gives
    /// whether it was told.
    async fn note_refusal(&self, start: &Start, code: Option<i32>, verdict: Verdict, why: &str) -> bool {
        let token = start.grant.token();
        let Ok(seen) = self.coordinator.inspect(&token.lease).await else { return false };
        if !seen.record.is_held_by(token.claim()) || seen.record.tenure != start.grant.record().tenure {
            return false;
        }
        let released = self.coordinator.release_by_token(token, verdict.row().0).await.is_ok();
        if released {
            let (slot, exit) = (Some(start.slot), code.and_then(|code| u8::try_from(code).ok()));
            let (job, at, outcome) = (token.lease.as_str(), slot_text(start.slot), verdict.row().1.as_str());
            let fate = match (verdict, start.origin) {
                (Verdict::Failed, _) => ", and counts as failed",
                (_, Origin::Slot) => "; it will be tried again",
                (_, Origin::Request) => "; it is not tried again",
            };
            // The run itself has said more, right before.
            let own = Some(why).filter(|_| exit.is_none());
            tracing::warn!(
                target: log::RUNS, job, slot = at, epoch = token.epoch.get(), outcome, exit_code = exit, error = own,
                "`{job}` for slot {at} could not be started{}{fate}{}",
                exit.map(|code| format!(" (exit code {code})")).unwrap_or_default(),
                own.map(|why| format!(": {why}")).unwrap_or_default()
            );
            let (epoch, renewals) = (token.epoch, Distribution::default());
            let (usage, output, why) = (None, None, Some(why.to_owned()));
            let noted = Noted { slot, epoch, exit, ran_for_ms: 0, tries: 1, renewals, usage, output, why };
            verdict.note(&self.coordinator, &token.lease, noted).await;
        }
        released
    }
}

/// Why our own `run` did not take its lease up, as far as its exit code tells. Its message is in the log.
fn refused(code: i32) -> String {
    let is = |exit: Exit| i32::from(exit.code()) == code;
    let what = match code {
        _ if is(Exit::Unavailable) => "could not reach what it needs, such as the store or a guard",
        _ if is(Exit::Misconfigured) => "cannot do this on this machine or with this store",
        _ => "refused what it was told, such as a guard or a setting",
    };
    format!("`run` {what}; the scheduler's log says more")
}
