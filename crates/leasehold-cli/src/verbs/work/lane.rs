//! One lane: claim, run, complete, one item after the other.
//!
//! Promise: what goes wrong with one item fails that item's attempt, and the lane goes on with the next; what goes wrong on
//! this machine or with the store is tried again after a pause. It ends when it is told to, or when no item can ever be run:
//! the command cannot be started, the store refuses us, the queue has moved.

use super::bench::{Bench, cannot};
use super::source::{Content, Fate, Grant, Job, Source};
use crate::exit::Exit;
use crate::output;
use crate::supervise::telling::{self, Telling, Untold};
use crate::supervise::windows::Windows;
use crate::supervise::{Course, Ended, Feed, Finished, Signals, Standby, Task, supervise};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Error, Keeper, Kind, Result, Tenancy, format_duration};
use leasehold_stores::StoreUrl;
use leasehold_system::undo::{Mend, undone};
use leasehold_work::queue::Reason;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;

/// The variable by which a lane knows that its standard input is its manager's line.
pub const LANE: &str = "LEASEHOLD_LANE";
/// How long a store that does not answer is given before it is asked for work again.
const RETRY: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5)];
/// What stands for the payload's path among the command's arguments.
const TEMPLATE: &str = "{}";

pub struct Plan {
    pub windows: Windows,
    pub max_runtime: Option<Duration>,
    pub store: StoreUrl,
    pub queue: String,
    pub until_empty: bool,
    pub items: Option<u64>,
    pub command: Vec<OsString>,
}

pub async fn run<S: Source>(mut source: S, plan: Plan) -> Result<Exit> {
    let (mut signals, asked) = Signals::listen()?.draining();
    if is_managed() {
        end_with_manager(asked.clone())?;
    }
    let mut bench = Bench::new()?;
    let (mut left, mut failures, mut pauses, mut exit) = (plan.items, 0, 0, Exit::Done);
    while *asked.borrow() == 0 && left != Some(0) {
        // What came while the last step kept this thread is heard first.
        tokio::task::yield_now().await;
        let claimed = tokio::select! {
            biased;
            () = drained(&asked) => break,
            claimed = claim(&mut source, &plan) => claimed,
        };
        for error in source.damaged() {
            output::say(&error.to_string());
        }
        if failures > 0 && !matches!(&claimed, Err(error) if passes(error.kind())) {
            output::say("claiming works again");
            failures = 0;
        }
        let tenancy = match claimed {
            Ok(Some(tenancy)) => tenancy,
            Ok(None) => break,
            Err(error) if passes(error.kind()) => {
                if failures == 0 {
                    output::say(&format!("cannot claim, trying again until it works: {error}"));
                }
                rest(&asked, &mut failures).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        tokio::task::yield_now().await;
        if *asked.borrow() > 0 {
            // Asked to end while it was claiming: nothing new is begun.
            let _ = source.give_back(&tenancy.into_grant()).await;
            break;
        }
        signals.forget();
        let (job, standby) = match prepare(&source, &plan, &mut bench, &tenancy) {
            Ok(ready) => ready,
            Err(unready) => {
                if let Unready::Item(..) = unready {
                    left = left.map(|left| left - 1);
                }
                if not_begun(&source, &tenancy.into_grant(), unready, pauses == 0).await? {
                    rest(&asked, &mut pauses).await;
                }
                continue;
            }
        };
        left = left.map(|left| left - 1);
        let keeper = Keeper::keep(tenancy, None);
        let task = Task {
            environment: Vec::new(),
            windows: plan.windows,
            evidence: None,
            max_runtime: plan.max_runtime,
            store: plan.store.clone(),
        };
        let finished = supervise(keeper, standby, task, &mut signals).await;
        match settle(&source, &plan, &bench, &job, finished, &asked).await? {
            Settled::Over => pauses = 0,
            Settled::Lost => exit = Exit::LostInRun,
            Settled::Unrecorded if exit == Exit::Done => exit = Exit::Untold,
            Settled::Unrecorded => {}
            Settled::NotNow => rest(&asked, &mut pauses).await,
            Settled::CannotRun(exit) => return Ok(exit),
        }
    }
    Ok(if plan.items.is_some() { exit } else { Exit::Done })
}

async fn claim<S: Source>(source: &mut S, plan: &Plan) -> Result<Option<S::Tenancy>> {
    if plan.until_empty { source.try_next().await } else { source.next().await.map(Some) }
}

async fn drained(asked: &watch::Sender<u32>) {
    let mut asked = asked.subscribe();
    let _ = asked.wait_for(|count| *count > 0).await;
}

/// A pause that grows with each failure in a row, and ends when the lane is told to.
async fn rest(asked: &watch::Sender<u32>, failures: &mut usize) {
    let pause = RETRY[(*failures).min(RETRY.len() - 1)];
    *failures += 1;
    tokio::select! {
        () = drained(asked) => {}
        () = SystemClock.sleep_until(SystemClock.now() + pause) => {}
    }
}

const fn passes(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Contended | Kind::Indeterminate | Kind::Lost)
}

/// Whether this is a lane of several. A worker that a lane's command starts is not: it finds the variable empty.
pub fn is_managed() -> bool {
    std::env::var_os(LANE).is_some_and(|word| !word.is_empty())
}

/// A lane whose manager is gone, however it went, finishes what it is at.
fn end_with_manager(asked: watch::Sender<u32>) -> Result<()> {
    let line = std::io::stdin().as_fd().try_clone_to_owned().and_then(Receiver::from_owned_fd);
    let mut line = line.map_err(|e| Error::unavailable("cannot listen to the manager of the lanes", e))?;
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        while !matches!(line.read(&mut buffer).await, Ok(0) | Err(_)) {}
        asked.send_modify(|count| *count = (*count).max(1));
    });
    Ok(())
}

/// Why a command cannot be begun.
enum Unready {
    /// It is this item's own trouble, which uses up an attempt.
    Item(String, Error),
    /// It is this machine's, and the item goes back untried.
    Machine(Error),
}

/// Fails the attempt, or gives the item back if it is not to blame; gives whether to pause then. An error ends the lane.
async fn not_begun<S: Source>(source: &S, grant: &Grant<S>, unready: Unready, is_first: bool) -> Result<bool> {
    match unready {
        Unready::Item(_, error) if undone(Mend::UnreadyItemEndsTheLane) => Err(error),
        Unready::Item(id, error) => {
            let failed = attempt_failed(source, grant, &id, &format!("not begun: {error}")).await;
            // It expires by itself, and is tried again.
            failed.unwrap_or_else(|error| output::say(&format!("cannot tell what became of `{id}`: {error}")));
            Ok(false)
        }
        Unready::Machine(error) => {
            let _ = source.give_back(grant).await;
            if !passes(error.kind()) {
                return Err(error);
            }
            if is_first {
                output::say(&format!("cannot begin, trying again until it works: {error}"));
            }
            Ok(true)
        }
    }
}

fn prepare<S: Source>(
    source: &S,
    plan: &Plan,
    bench: &mut Bench,
    tenancy: &S::Tenancy,
) -> std::result::Result<(Job, Standby), Unready> {
    let job = source.job(tenancy).map_err(|error| Unready::Item(source.id(tenancy), error))?;
    let payload = bench.lay(&job.payload).map_err(Unready::Machine)?;
    let input = File::open(&payload).map_err(|e| match &job.payload {
        Content::File(_) if !undone(Mend::UnreadableFileLeftUntried) => {
            Unready::Item(job.id.clone(), Error::unavailable("its payload cannot be read", e))
        }
        _ => Unready::Machine(cannot(e, &payload)),
    })?;
    let standby = stand_by(plan, bench, &job, payload, input).map_err(Unready::Machine)?;
    Ok((job, standby))
}

fn stand_by(plan: &Plan, bench: &Bench, job: &Job, payload: PathBuf, input: File) -> Result<Standby> {
    let command: Vec<OsString> =
        plan.command.iter().map(|word| if word == TEMPLATE { payload.clone().into() } else { word.clone() }).collect();
    let token = &job.token;
    let mut environment: Vec<(&'static str, OsString)> = vec![
        (crate::verbs::tokens::QUEUE, plan.queue.clone().into()),
        ("LEASEHOLD_NAME", token.lease.to_string().into()),
        ("LEASEHOLD_ITEM", job.id.clone().into()),
        ("LEASEHOLD_EPOCH", token.epoch.to_string().into()),
        ("LEASEHOLD_TOKEN", token.wire().into()),
        // The same for every attempt: what was done for this item need not be done again.
        ("LEASEHOLD_IDEMPOTENCY_KEY", token.lease.to_string().into()),
        ("LEASEHOLD_ATTEMPT", job.attempt.to_string().into()),
        ("LEASEHOLD_PAYLOAD", payload.into()),
        ("LEASEHOLD_RESULT", bench.result().into()),
        ("LEASEHOLD_FOLLOW_UPS", bench.follow_ups().into()),
        (LANE, OsString::new()),
    ];
    let checkpoint = job.checkpoint.clone().filter(|text| !text.contains('\0')).unwrap_or_default();
    environment.push(("LEASEHOLD_CHECKPOINT", checkpoint.into()));
    Standby::start_with(command, &plan.store.portable(), None, Feed { input: Some(input), environment })
}

enum Settled {
    Over,
    Lost,
    /// It was worked on, and the queue could not be told.
    Unrecorded,
    /// The command could not be started, and may be later.
    NotNow,
    CannotRun(Exit),
}

/// Says what became of the item, and tells the queue, as long as it takes while the item is trusted.
async fn settle<S: Source>(
    source: &S,
    plan: &Plan,
    bench: &Bench,
    job: &Job,
    finished: Finished<Grant<S>>,
    asked: &watch::Sender<u32>,
) -> Result<Settled> {
    let Finished { ended, course, lost, survivors, grant, trust_until, notes, mut dead_man, .. } = finished;
    notes.iter().for_each(|note| output::say(note));
    let id = &job.id;
    if !survivors.is_empty() {
        output::say(&format!("these processes of `{id}` could not be ended: {survivors:?}; it expires by itself"));
        return Ok(Settled::Lost);
    }
    if let Some(lost) = lost {
        output::say(&format!("lost `{id}`, epoch {}, the command was stopped: {lost}", job.token.epoch));
        let _ = dead_man.wait();
        return Ok(Settled::Lost);
    }
    let ended_by_us = *asked.borrow() > 1;
    let failure = match (&ended, course) {
        (Ended::NotStarted(trouble), _) => {
            output::say(&format!("cannot run `{}`: {trouble}", plan.command[0].to_string_lossy()));
            let _ = source.give_back(&grant).await;
            if trouble.passes() {
                return Ok(Settled::NotNow);
            }
            return Ok(Settled::CannotRun(Exit::Code(trouble.code())));
        }
        (Ended::Exited(0), Course::Whole) => None,
        (_, Course::CutOff) => {
            let limit = plan.max_runtime.map(format_duration).unwrap_or_default();
            Some(format!("it ran for longer than {limit}"))
        }
        (Ended::Exited(code), _) => Some(format!("exit code {code}")),
        (Ended::Killed(signal), _) => Some(format!("killed by signal {signal}")),
    };
    let telling = Telling { what: format!("the end of `{id}`"), trust_until };
    let told = telling::tell(&telling, asked_again(asked), async || match &failure {
        None => match source.complete(&grant, &bench.result(), &bench.follow_ups()).await {
            // What the command left cannot be kept: that attempt has failed.
            Err(error) if error.kind() == Kind::Invalid => attempt_failed(source, &grant, id, &error.to_string()).await,
            completed => completed,
        },
        Some(_) if ended_by_us => source.give_back(&grant).await,
        Some(why) => attempt_failed(source, &grant, id, why).await,
    });
    let told = told.await;
    let _ = dead_man.wait();
    match told {
        Ok(()) => Ok(Settled::Over),
        Err(Untold::Refused(error)) if matches!(error.kind(), Kind::Fenced | Kind::Lost | Kind::Moved) => {
            output::say(&error.to_string());
            Ok(Settled::Lost)
        }
        // It expires by itself, and is tried again.
        Err(untold) => {
            let why = match untold {
                Untold::Refused(error) => error.to_string(),
                Untold::Unrecorded(why) => why,
            };
            let how = failure.map_or_else(|| "is done".to_owned(), |why| format!("failed ({why})"));
            output::say(&format!(
                "not recorded: `{id}`, epoch {}, {how}, but the queue could not be told; it is tried again when its time is up: {why}",
                job.token.epoch
            ));
            Ok(Settled::Unrecorded)
        }
    }
}

/// Waits until this worker is asked to end once more than it has been.
async fn asked_again(asked: &watch::Sender<u32>) {
    let before = *asked.borrow();
    let _ = asked.subscribe().wait_for(|count| *count > before).await;
}

async fn attempt_failed<S: Source>(source: &S, grant: &Grant<S>, id: &str, why: &str) -> Result<()> {
    let fate = source.fail(grant, Reason::lossy(why, "it failed")).await?;
    match fate {
        Fate::Again => output::say(&format!("`{id}` failed and is tried again: {why}")),
        Fate::Dead => output::say(&format!("`{id}` failed and is a dead letter now: {why}")),
    }
    Ok(())
}
