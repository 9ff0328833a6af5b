//! `schedule run`: the scheduler of this machine.
//!
//! Promise: it ends when told to, after its last run; a file that is wrong leaves the old jobs in force and says so.
//! Non-promise: it is not needed for anything that it started; those runs end by themselves.

use super::launch::{Prefix, Processes};
use super::table::Jobs;
use crate::args::ScheduleRun;
use crate::config::Settings;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use crate::verbs::run::{ahead_line, dropped_line, passed_line};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Error, Kind, Label, Result, migration};
use leasehold_work::schedule::{Decided, Job, Scheduler, Steering, Watcher, slot_text};
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

/// Says what is decided.
#[derive(Debug)]
struct Printer {
    quiet: bool,
    /// A job was found to have moved to another store; perhaps all have.
    moved: AtomicBool,
}

impl Watcher for Printer {
    fn decided(&self, job: &Job, decided: Decided) {
        let name = &job.name;
        match decided {
            Decided::Due(_) => {}
            Decided::Trouble(error) => {
                self.moved.fetch_or(error.kind() == Kind::Moved, Ordering::Relaxed);
                output::say(&format!("problem with job `{name}`: {error}"));
            }
            Decided::Ahead { until, now } => output::say(&ahead_line(name, until, now)),
            _ if self.quiet => {}
            Decided::Started(slot, epoch) => {
                output::say(&format!("started `{name}` for slot {} under epoch {epoch}", slot_text(slot)));
            }
            Decided::PassedOver(slot, fate) => {
                output::say(&passed_line(name, slot, fate));
            }
            Decided::Dropped(dropped) => output::say(&dropped_line(name, &dropped)),
        }
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

pub async fn run(context: &Context, jobs: Jobs, args: ScheduleRun) -> Result<Exit> {
    let labels = labels(args.on)?;
    let prefix = if args.no_prefix { Prefix::None } else { Prefix::Job };
    // Every run would refuse, and use up its slot.
    crate::supervise::check()?;
    let (settings, coordinator) = (context.settings()?, context.coordinator().await?);
    let processes = Arc::new(Processes::new(coordinator.clone(), settings, prefix));
    let label: Option<Label> = settings.label.value.clone();
    let ours = leasehold_work::schedule::Settings {
        ttl: settings.ttl.value,
        label,
        max_running: args.max_running.unwrap_or(MAX_RUNNING) as usize,
    };
    announce(&jobs, &labels);
    let printer = Arc::new(Printer { quiet: args.quiet, moved: AtomicBool::new(false) });
    let (scheduler, steering) =
        Scheduler::new(coordinator.clone(), jobs.for_machine(&labels), processes.clone(), printer.clone(), ours);
    let cannot = |e| Error::new(Kind::Unsupported, "cannot listen to signals").with_source(e);
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut running = tokio::spawn(scheduler.run());
    let (mut seen, mut told, mut moved) = (file_stamp(&jobs.path), 0, None);
    loop {
        let asked_to_end = tokio::select! {
            ended = &mut running => {
                let fell = |e| Error::unavailable("the scheduler crashed", e);
                ended.map_err(fell)??;
                return moved.map_or(Ok(Exit::Done), Err);
            }
            _ = hangup.recv() => {
                seen = file_stamp(&jobs.path);
                reload(context, settings, &jobs.path, &labels, &steering);
                false
            }
            () = SystemClock.sleep_until(SystemClock.now() + LOOK) => {
                let before = std::mem::replace(&mut seen, file_stamp(&jobs.path));
                match &seen {
                    Some(_) if seen != before => reload(context, settings, &jobs.path, &labels, &steering),
                    None if before.is_some() => {
                        output::say(&format!("keeping the old jobs: `{}` is gone", jobs.path.display()));
                    }
                    _ => {}
                }
                // Nothing here can ever run again: a scheduler that was forgotten must not keep running in silence.
                if moved.is_none() && printer.moved.swap(false, Ordering::Relaxed) {
                    moved = has_left(coordinator).await;
                }
                moved.is_some() && told == 0
            }
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
        };
        if asked_to_end {
            told += 1;
            steering.drain();
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

fn announce(jobs: &Jobs, labels: &[String]) {
    let (all, ours) = (jobs.all.len(), jobs.for_machine(labels).len());
    let others = if all > ours { format!(", {} more are for other machines", all - ours) } else { String::new() };
    let jobs_word = if ours == 1 { "job" } else { "jobs" };
    output::say(&format!("scheduling {ours} {jobs_word} from `{}`{others}", jobs.path.display()));
}

/// The new jobs, or the old ones if the new are wrong.
fn reload(context: &Context, in_force: &Settings, path: &Path, labels: &[String], steering: &Steering) {
    let read = context.read_settings().and_then(|changed| {
        // Checked with what they are run under.
        let jobs = Jobs::read(path, in_force)?;
        Ok((jobs, changed))
    });
    match read {
        Ok((jobs, changed)) => {
            kept(in_force, &changed).iter().for_each(|line| output::say(line));
            announce(&jobs, labels);
            steering.replace(jobs.for_machine(labels));
        }
        Err(error) => output::say(&format!("keeping the old jobs: {error}")),
    }
}

/// What was changed in the file and is not taken up: runs that are still running are under it.
fn kept(in_force: &Settings, changed: &Settings) -> Vec<String> {
    let is_same_store = in_force.store.value.portable() == changed.store.value.portable();
    let both = in_force.rows().into_iter().zip(changed.rows());
    both.filter(|((name, old, _), (_, new, _))| match *name {
        // What is hidden from people may have changed too.
        "store" => !is_same_store,
        "ttl" | "label" | "grace" => old != new,
        _ => false,
    })
    .map(|((name, old, _), (_, new, _))| {
        let [old, new] = [old, new].map(|value| value.unwrap_or_else(|| "unset".into()));
        format!("setting `{name}` is now `{new}` in the file, and stays `{old}` until a restart")
    })
    .collect()
}
