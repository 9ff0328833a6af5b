//! `run`: a command under a lease.

use super::coordinator;
use crate::args::{Common, Run as Args};
use crate::config::{Flags, Settings};
use crate::exit::Exit;
use crate::supervise::windows::Windows;
use crate::supervise::{Ended, Evidence, Finished, Output, Signals, Standby, Task, supervise};
use crate::{output, view};
use leasehold::clock::{Clock, SystemClock};
use leasehold::guard::{self, Guard, Policy};
use leasehold::protocol::Refusal;
use leasehold::{
    Acquired, Ask, Coordinator, Error, Event, Grant, HolderId, Kind, LeaseName, Outcome, Released, Result, Timestamp,
    Token, parse_duration,
};
use leasehold_guards::FileGuard;
use rustix::fs::FlockOperation;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the bookkeeping after the command may take when the store does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to do when the lease is held.
#[derive(Debug, Clone, Copy)]
enum Busy {
    Skip,
    Wait(Duration),
    RetryAfter(Duration),
}

/// The validated arguments.
struct Plan {
    leases: Vec<LeaseName>,
    seats: Seats,
    busy: Busy,
    windows: Windows,
    progress: Option<(Duration, Evidence)>,
    max_runtime: Option<Duration>,
    guards: Vec<FileGuard>,
    flock: Option<PathBuf>,
    adopt: Option<Token>,
    settings: Settings,
    quiet: bool,
    command: Vec<OsString>,
}

/// Whether the names are seats of one lease, so that a pause of the first holds for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seats {
    OfOneLease,
    Apart,
}

impl Plan {
    fn new(common: &Common, args: Args) -> Result<Self> {
        let settings = Settings::gather_with(
            common,
            Flags {
                ttl: args.ttl.as_deref(),
                label: args.label.as_deref(),
                grace: args.grace.as_deref(),
                held_exit_code: args.held_exit_code.as_deref(),
            },
        )?;
        let name = LeaseName::new(&args.name)?;
        let mut leases = vec![name.clone()];
        for other in &args.or {
            leases.push(LeaseName::new(other)?);
        }
        for seat in 2..=args.limit.unwrap_or(1) {
            leases.push(name.seat(seat)?);
        }
        let duration = |text: &Option<String>| text.as_deref().map(parse_duration).transpose();
        let busy = match (duration(&args.wait)?, duration(&args.retry_after)?) {
            (Some(limit), _) => Busy::Wait(limit),
            (None, Some(pause)) => Busy::RetryAfter(pause),
            (None, None) => Busy::Skip,
        };
        let output = if args.progress_output { Output::Counts } else { Output::Ignored };
        let evidence = Evidence::new(output, args.progress_file);
        let adopt = args.token.as_deref().map(str::parse::<Token>).transpose()?;
        if let Some(token) = adopt.as_ref().filter(|token| token.lease != name) {
            return Err(Error::invalid("token", token, format!("it is of another lease than `{name}`")));
        }
        if !args.guard.is_empty() && leases.len() > 1 {
            let message = "--guard and --or do not go together: a guarded resource admits one lease only";
            return Err(Error::new(Kind::Invalid, message));
        }
        Ok(Plan {
            leases,
            seats: if args.limit.is_some() { Seats::OfOneLease } else { Seats::Apart },
            busy,
            windows: Windows::new(settings.ttl.value, settings.grace.value)?,
            progress: duration(&args.progress_timeout)?.map(|timeout| (timeout, evidence)),
            max_runtime: duration(&args.max_runtime)?,
            guards: args.guard.iter().map(|text| parse_guard(text)).collect::<Result<_>>()?,
            flock: args.also_flock,
            adopt,
            settings,
            quiet: args.quiet,
            command: args.command,
        })
    }

    /// Whether the dead-man may be started before the lease is had. Not if it may be a long wait, and not if the command
    /// is to inherit a flock that is taken after the lease.
    fn stands_by_early(&self) -> bool {
        self.flock.is_none() && matches!(self.busy, Busy::Skip)
    }

    fn stand_by(&self) -> Result<Standby> {
        let evidence = self.progress.as_ref().map(|(_, evidence)| evidence);
        Standby::start(self.command.clone(), &self.settings.store.value.portable(), self.windows, evidence)
    }
}

fn parse_guard(text: &str) -> Result<FileGuard> {
    match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => FileGuard::new(Path::new(path), Policy::Reentrant),
        _ => Err(Error::invalid("guard", text, "use file:PATH")),
    }
}

pub async fn run(common: &Common, args: Args) -> Result<Exit> {
    let mut plan = Plan::new(common, args)?;
    // Opening goes on beside it.
    let (coordinator, early) = tokio::join!(coordinator(&plan.settings), async {
        plan.stands_by_early().then(|| plan.stand_by()).transpose()
    });
    let (coordinator, early) = (coordinator?, early?);
    let mut signals = Signals::listen()?;
    let ask = Ask::new(HolderId::new(plan.settings.label.value.clone()), plan.settings.ttl.value);
    let taken = tokio::select! {
        taken = take(&coordinator, &plan, &ask) => taken?,
        number = signals.next_ending() => {
            // The request may have been on its way: give back what it may have been granted.
            let _ = tokio::time::timeout(PATIENCE, coordinator.withdraw(&plan.leases, &ask)).await;
            return Ok(Exit::Code(128_u8.saturating_add(u8::try_from(number).unwrap_or(0))));
        }
    };
    let (grant, _flock) = match taken {
        Taken::Granted(grant, flock) => (grant, flock),
        Taken::Refused(lease, refusal, now) => {
            if !plan.quiet {
                output::say(&format!("skipped: {}", view::refusal_line(&lease, &refusal, now)));
            }
            let _ = coordinator.count(&plan.leases[0], skip_event(&refusal)).await;
            return Ok(Exit::Code(plan.settings.held_exit_code.value));
        }
        Taken::FlockHeld(path) => {
            if !plan.quiet {
                output::say(&format!("skipped: `{}` is flocked by another process", path.display()));
            }
            let _ = coordinator.count(&plan.leases[0], Event::SkippedOverlap).await;
            return Ok(Exit::Code(plan.settings.held_exit_code.value));
        }
    };
    if let Err(error) = seal(&plan.guards, grant.token()).await {
        let _ = coordinator.release(&grant, Outcome::Failed).await;
        let _ = coordinator.count(&plan.leases[0], Event::Failed).await;
        return Err(error);
    }
    let standby = match early {
        Some(standby) => standby,
        None => plan.stand_by()?,
    };
    let task = Task {
        environment: environment(grant.token()),
        windows: plan.windows,
        progress: plan.progress.take(),
        max_runtime: plan.max_runtime,
    };
    let program = plan.command[0].to_string_lossy().into_owned();
    // The count is written while the command runs, not before.
    let counting = tokio::spawn({
        let (coordinator, lease) = (coordinator.clone(), plan.leases[0].clone());
        async move { coordinator.count(&lease, Event::Granted).await }
    });
    let finished = supervise(&coordinator, *grant, standby, task, signals).await?;
    let exit = settle(&coordinator, &plan.leases[0], finished, &program).await;
    let _ = tokio::time::timeout(PATIENCE, counting).await;
    Ok(exit)
}

enum Taken {
    Granted(Box<Grant>, Option<File>),
    Refused(LeaseName, Box<Refusal>, Timestamp),
    FlockHeld(PathBuf),
}

/// Takes the lease, and the flock if one is asked for, as the busy policy says.
async fn take(coordinator: &Coordinator, plan: &Plan, ask: &Ask) -> Result<Taken> {
    if let Some(token) = &plan.adopt {
        return Ok(Taken::Granted(Box::new(coordinator.adopt(token).await?), None));
    }
    let started = SystemClock.now();
    let mut retried = false;
    loop {
        if plan.seats == Seats::OfOneLease {
            let first = coordinator.inspect(&plan.leases[0]).await?;
            if let Some(mark) = first.record.paused {
                return Ok(Taken::Refused(first.lease, Box::new(Refusal::Paused(mark)), first.now));
            }
        }
        let acquired = match plan.busy {
            Busy::Wait(limit) => {
                let left = limit.saturating_sub(SystemClock.now().saturating_since(started));
                coordinator.acquire_within(&plan.leases, ask, left).await?
            }
            Busy::Skip | Busy::RetryAfter(_) => coordinator.acquire_any(&plan.leases, ask).await?,
        };
        let busy = match acquired {
            Acquired::Granted(grant) => match flock(plan.flock.as_deref()) {
                Ok(Some(file)) => return Ok(Taken::Granted(grant, file)),
                Ok(None) => {
                    coordinator.release(&grant, Outcome::Lost).await?;
                    Taken::FlockHeld(plan.flock.clone().unwrap_or_default())
                }
                Err(error) => {
                    coordinator.release(&grant, Outcome::Failed).await?;
                    return Err(error);
                }
            },
            Acquired::Refused { lease, refusal, now } => Taken::Refused(lease, refusal, now),
        };
        let pause = match plan.busy {
            Busy::RetryAfter(pause) if !retried => pause,
            // Only a flock is waited for here: the lease has been waited for above.
            Busy::Wait(limit) if matches!(busy, Taken::FlockHeld(_)) => {
                let left = limit.saturating_sub(SystemClock.now().saturating_since(started));
                if left.is_zero() {
                    return Ok(busy);
                }
                left.min(Duration::from_secs(1))
            }
            _ => return Ok(busy),
        };
        retried = true;
        SystemClock.sleep_until(SystemClock.now() + pause).await;
        // A nonce that was granted and given back serves no second tenure.
        if matches!(busy, Taken::FlockHeld(_)) {
            let ask = Ask { holder: HolderId::new(plan.settings.label.value.clone()), ..ask.clone() };
            return Box::pin(take(coordinator, plan, &ask)).await;
        }
    }
}

/// `Ok(None)` when somebody else has it; `Ok(Some(None))` when none is asked for. The command inherits it, so that it
/// is held for as long as any process of the command lives.
#[allow(clippy::option_option)]
fn flock(path: Option<&Path>) -> Result<Option<Option<File>>> {
    let Some(path) = path else { return Ok(Some(None)) };
    let cannot =
        |e: std::io::Error| Error::new(Kind::Unsupported, format!("cannot flock `{}`", path.display())).with_source(e);
    let file = File::options().create(true).append(true).open(path).map_err(cannot)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(|e| cannot(e.into()))?;
            Ok(Some(Some(file)))
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(cannot(error.into())),
    }
}

/// Shuts older holders out of the guarded resources. The store has just granted this token, so a guard that knows a
/// newer epoch means that the store went back in time.
async fn seal(guards: &[FileGuard], token: &Token) -> Result<()> {
    for guard in guards {
        if let Err(error) = guard.seal(token).await {
            return Err(match (error.kind(), guard.high_water().await) {
                (Kind::Fenced, Ok(Some(high))) => guard::regressed(&guard.resource(), &token.lease, high.epoch),
                _ => error,
            });
        }
    }
    Ok(())
}

/// What the command finds in its environment beside the store, so that `leasehold write` inside it needs no flags.
fn environment(token: &Token) -> Vec<(&'static str, String)> {
    vec![
        ("LEASEHOLD_NAME", token.lease.to_string()),
        ("LEASEHOLD_EPOCH", token.epoch.to_string()),
        ("LEASEHOLD_TOKEN", token.wire()),
        ("LEASEHOLD_IDEMPOTENCY_KEY", format!("{}@{}", token.lease, token.epoch)),
    ]
}

/// Gives the lease back, counts, and says what people should know.
async fn settle(coordinator: &Coordinator, counted: &LeaseName, finished: Finished, program: &str) -> Exit {
    let Finished { ended, mut lost, grant, notes, mut dead_man } = finished;
    for note in notes {
        output::say(&note);
    }
    let outcome = match (&lost, &ended) {
        (Some(_), _) => Outcome::Lost,
        (None, Ended::Exited(0)) => Outcome::Succeeded,
        (None, _) => Outcome::Failed,
    };
    match tokio::time::timeout(PATIENCE, coordinator.release(&grant, outcome)).await {
        Ok(Ok(Released::Lost(_))) => {
            lost.get_or_insert_with(|| "it was taken away while the command ran".into());
        }
        Ok(Ok(_)) => {}
        Ok(Err(error)) if lost.is_none() => {
            output::say(&format!("could not release `{}`, it expires by itself: {error}", grant.token()));
        }
        Err(_) if lost.is_none() => {
            output::say(&format!("could not release `{}`, it expires by itself: no answer", grant.token()));
        }
        Ok(Err(_)) | Err(_) => {}
    }
    let _ = dead_man.wait();
    let (exit, event) = if let Some(lost) = lost {
        output::say(&format!("lost `{}`, the command was stopped: {lost}", grant.token()));
        (Exit::LostInRun, Some(Event::Lost))
    } else {
        let exit = match ended {
            Ended::Exited(code) => Exit::Code(u8::try_from(code & 0xff).unwrap_or(1)),
            Ended::Killed(signal) => Exit::Code(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))),
            Ended::NotStarted(kind, message) => {
                output::say(&format!("cannot run `{program}`: {message}"));
                Exit::Code(if kind == std::io::ErrorKind::NotFound { 127 } else { 126 })
            }
        };
        (exit, (exit.code() != 0).then_some(Event::Failed))
    };
    if let Some(event) = event {
        let _ = tokio::time::timeout(PATIENCE, coordinator.count(counted, event)).await;
    }
    exit
}

/// The counter for a refusal.
pub fn skip_event(refusal: &Refusal) -> Event {
    match refusal {
        Refusal::Paused(_) => Event::Paused,
        Refusal::AlreadyRun(_) => Event::AlreadyRun,
        _ => Event::SkippedOverlap,
    }
}
