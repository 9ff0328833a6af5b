//! `schedule run`: the scheduler of this machine.
//!
//! Promise: it ends when asked to, after its last run; a file that is wrong leaves the old jobs in force and says so.
//! Non-promise: it is not needed for anything that it started; those runs end by themselves.

use super::launch::{Prefix, Processes, check_here};
use super::public::Public;
use super::table::Jobs;
use crate::args::ScheduleRun;
use crate::config::Settings;
use crate::context::Context;
use crate::exit::Exit;
use crate::metrics::{Monitor, Probed, STUCK};
use crate::service::ServiceManager;
use crate::verbs::run::{ahead_line, log_dropped, passed_line};
use crate::{log, orphans, output};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Error, Kind, Outcome, Result, migration};
use leasehold_work::presence::{Announced, Presence, Role};
use leasehold_work::schedule::{Decided, Fate, Job, Scheduler, Steering, Watcher, slot_text};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How many jobs run at once at most, unless it is said.
const MAX_RUNNING: u32 = 64;
pub const LABELS: &str = "LEASEHOLD_ON";

/// Logs what is decided.
#[derive(Debug, Default)]
struct Reporter {
    /// A job was found to have moved to another store; perhaps all have.
    moved: AtomicBool,
}

impl Watcher for Reporter {
    fn decided(&self, job: &Job, decided: Decided) {
        let name = &job.name;
        let job = name.as_str();
        match decided {
            Decided::Due(_) => {}
            Decided::Trouble(error) => {
                self.moved.fetch_or(error.kind() == Kind::Moved, Ordering::Relaxed);
                let text = error.to_string();
                tracing::warn!(job, error = text, "problem with job `{name}`: {text}");
            }
            Decided::Ahead { until, now } => tracing::warn!(job, "{}", ahead_line(name, until, now)),
            Decided::Started(slot, epoch) => {
                let slot = slot_text(slot);
                tracing::info!(
                    target: log::RUNS, job, slot, epoch = epoch.get(),
                    "started `{name}` for slot {slot} under epoch {epoch}"
                );
            }
            Decided::Requested(request, epoch) => {
                let (by, why) = (request.by.as_str(), request.why.as_str());
                tracing::info!(
                    target: log::RUNS, job, epoch = epoch.get(), by, why,
                    "started `{name}` under epoch {epoch}, as {by} asked: {why}"
                );
            }
            Decided::Interrupted(slot, epoch, ended) => {
                let slot = slot_text(slot);
                // One that could give its lease back has told its outcome, and so has one that an operator evicted.
                let has_told = matches!(ended, Outcome::Lost | Outcome::Evicted);
                let outcome = (!has_told).then(|| Fate::Lost.as_str());
                tracing::warn!(
                    target: log::RUNS, job, slot, epoch = epoch.get(), outcome,
                    "`{name}` for slot {slot} was interrupted under epoch {epoch}; it is run again"
                );
            }
            Decided::Skipped(slot, fate) => {
                let (line, slot, outcome) = (passed_line(name, slot, fate), slot_text(slot), fate.as_str());
                match fate {
                    Fate::SkippedOverlap | Fate::Paused => {
                        tracing::info!(target: log::RUNS, job, slot, outcome, "{line}");
                    }
                    _ => tracing::warn!(target: log::RUNS, job, slot, outcome, "{line}"),
                }
            }
            Decided::Dropped(dropped) => log_dropped(name, &dropped),
        }
    }

    fn store_away(&self, error: &Error) {
        let error = error.to_string();
        tracing::warn!(error, "no job can begin, the store is away; retrying until it is back: {error}");
    }

    fn store_back(&self, away_for: Duration) {
        tracing::info!("the store is back after {}; jobs begin again", output::rough(away_for));
    }
}

/// This machine's labels: its name, what the flags say, and what the environment says.
fn labels(flags: Vec<String>) -> Result<Vec<String>> {
    let mut labels = vec![leasehold_system::host::name()];
    for label in flags {
        // No job can ask for such a one.
        if label.trim().is_empty() || label.contains(',') {
            return Err(Error::invalid("label", label, "it is not empty and has no comma; give --on once for each"));
        }
        labels.push(label);
    }
    let variable = std::env::var(LABELS).unwrap_or_default();
    labels.extend(variable.split(',').map(str::trim).filter(|label| !label.is_empty()).map(String::from));
    Ok(labels)
}

/// What of a file tells that it was written to.
fn file_stamp(path: &Path) -> Option<(std::time::SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

fn ours(settings: &Settings, max_running: Option<u32>) -> leasehold_work::schedule::Settings {
    leasehold_work::schedule::Settings {
        ttl: settings.ttl.value,
        label: settings.label.value.clone(),
        max_running: max_running.unwrap_or(MAX_RUNNING) as usize,
    }
}

pub async fn run(context: &Context, jobs: Jobs, args: ScheduleRun) -> Result<Exit> {
    let (labels, prefix) = (labels(args.on)?, if args.no_prefix { Prefix::None } else { Prefix::Job });
    // Every run would refuse, and use up its slot.
    crate::supervise::check()?;
    orphans::reap_as_init();
    let (settings, coordinator) = (context.settings()?, context.coordinator().await?);
    let processes = Arc::new(Processes::new(coordinator.clone(), settings, prefix));
    let (reporter, ours) = (Arc::new(Reporter::default()), ours(settings, args.max_running));
    let (scheduler, steering) = Scheduler::new(
        coordinator.clone().for_others(),
        jobs.for_machine(&labels),
        processes.clone(),
        reporter.clone(),
        ours,
    );
    let (pulse, mut manager) = (scheduler.pulse(), ServiceManager::from_environment());
    // Before anything runs: an address that is taken is a mistake.
    let monitor = Monitor::start(context, Probed::Scheduler(coordinator.clone(), pulse.clone())).await?;
    monitor.iter().for_each(|monitor| monitor.schedule(&jobs.all));
    announce(&jobs, &labels);
    let mut public = Public::new(coordinator.clone(), processes.clone(), crate::notify::location(settings));
    public.take_up(&jobs, Some(settings.notify.read_or_say()));
    let cannot = |e| Error::new(Kind::Unsupported, "cannot listen to signals").with_source(e);
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let look = manager.interval().map_or(LOOK, |interval| interval.min(LOOK));
    let mut running = tokio::spawn(scheduler.run());
    let announced = Announced::start(coordinator.store().clone(), Presence::own(Role::Scheduler, None));
    let (mut seen, mut told, mut moved, mut is_ready) = (file_stamp(&jobs.path), 0, None, false);
    loop {
        manager.tick(|| pulse.age(&SystemClock).is_none_or(|age| age < STUCK));
        let asked_to_end = tokio::select! {
            () = pulse.started(), if !is_ready => {
                is_ready = true;
                manager.ready(&status(&jobs, &labels));
                false
            }
            ended = &mut running => {
                announced.end().await;
                ended.map_err(|e| Error::unavailable("the scheduler crashed", e))??;
                public.end().await;
                return moved.map_or(Ok(Exit::Done), Err);
            }
            _ = hangup.recv() => {
                seen = file_stamp(&jobs.path);
                reload(context, settings, &jobs.path, &labels, &steering, &mut Informed { manager: &manager, monitor: monitor.as_deref(), public: &mut public, processes: &processes });
                false
            }
            () = SystemClock.sleep_until(SystemClock.now() + look) => {
                let before = std::mem::replace(&mut seen, file_stamp(&jobs.path));
                match &seen {
                    Some(_) if seen != before => reload(context, settings, &jobs.path, &labels, &steering, &mut Informed { manager: &manager, monitor: monitor.as_deref(), public: &mut public, processes: &processes }),
                    None if before.is_some() => {
                        output::warn(&format!("keeping the old jobs: `{}` is gone", jobs.path.display()));
                    }
                    _ => {}
                }
                // Nothing here can ever run again: a scheduler that was forgotten must not keep running in silence.
                if moved.is_none() && reporter.moved.swap(false, Ordering::Relaxed) {
                    moved = has_left(coordinator).await;
                }
                moved.is_some() && told == 0
            }
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
        };
        if asked_to_end {
            told += 1;
            monitor.iter().for_each(|monitor| monitor.drain());
            steering.drain();
            manager.stopping("waiting for the current runs to finish");
            if told > 1 {
                processes.terminate();
            } else {
                output::say("stopping once the current runs finish; signal again to stop them now");
            }
        }
    }
}

/// The error if the whole namespace has moved to another store.
async fn has_left(coordinator: &Coordinator) -> Option<Error> {
    let seen = migration::look(coordinator.store().as_ref()).await.ok()?;
    seen.check("the store of these jobs").err().filter(|error| error.kind() == Kind::Moved)
}

/// What the jobs are, in a line.
fn status(jobs: &Jobs, labels: &[String]) -> String {
    let (all, ours) = (jobs.all.len(), jobs.for_machine(labels).len());
    let others = if all > ours { format!(", {} more are for other machines", all - ours) } else { String::new() };
    let jobs_word = if ours == 1 { "job" } else { "jobs" };
    format!("scheduling {ours} {jobs_word} from `{}`{others}", jobs.path.display())
}

fn announce(jobs: &Jobs, labels: &[String]) {
    output::say(&status(jobs, labels));
    // The others run all the same.
    for job in jobs.for_machine(labels) {
        if let Err(error) = check_here(&job) {
            let (name, error) = (format!("job `{}`", job.name), error.to_string());
            let why = error.strip_prefix(&format!("{name}: ")).unwrap_or(&error);
            output::warn(&format!("runs of {name} will fail here: {why}"));
        }
    }
}

/// Who is informed about new jobs.
struct Informed<'a> {
    manager: &'a ServiceManager,
    monitor: Option<&'a Monitor>,
    public: &'a mut Public,
    processes: &'a Processes,
}

/// The new jobs, or the old ones if the new are wrong.
fn reload(
    context: &Context,
    in_force: &Settings,
    path: &Path,
    labels: &[String],
    steering: &Steering,
    informed: &mut Informed<'_>,
) {
    let read = context.read_settings().and_then(|changed| {
        // Checked with what they are run under.
        let jobs = Jobs::read(path, in_force)?;
        Ok((jobs, changed))
    });
    match read {
        Ok((jobs, changed)) => {
            // Of no rule is anything lost because a new one is wrong.
            let rules = changed.notify.read();
            if let Err(error) = &rules {
                output::warn(&format!("keeping the old notifications: {error}"));
            }
            log::follow(&changed);
            settings_needing_restart(in_force, &changed).iter().for_each(|line| output::warn(line));
            informed.processes.keep_output(&changed);
            announce(&jobs, labels);
            informed.manager.status(&status(&jobs, labels));
            informed.public.take_up(&jobs, rules.ok());
            steering.replace(jobs.for_machine(labels));
            informed.monitor.iter().for_each(|monitor| monitor.schedule(&jobs.all));
        }
        Err(error) => output::warn(&format!("keeping the old jobs: {error}")),
    }
}

/// What was changed in the file and is not taken up: runs that are still running are under it.
fn settings_needing_restart(in_force: &Settings, changed: &Settings) -> Vec<String> {
    let is_same_store = in_force.store.value.portable() == changed.store.value.portable();
    let both = in_force.rows().into_iter().zip(changed.rows());
    both.filter(|((name, old, _), (_, new, _))| match *name {
        // What is hidden from people may have changed too.
        "store" => !is_same_store,
        "ttl" | "label" | "grace" | "metrics" | "metrics_leases" | "history_transfers" | "history_age" => old != new,
        _ => false,
    })
    .map(|((name, old, _), (_, new, _))| {
        let [old, new] = [old, new].map(|value| value.unwrap_or_else(|| "unset".into()));
        format!("setting `{name}` is now `{new}` in the file, and stays `{old}` until a restart")
    })
    .collect()
}
