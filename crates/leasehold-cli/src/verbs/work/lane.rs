//! One lane: claim, run, complete, one item after the other.
//!
//! Promise: what goes wrong with one item fails that item's attempt, and the lane continues with the next; what goes wrong on
//! this machine or with the store is retried after a pause. It ends when it is told to, or when no item can ever be run:
//! the command cannot be started, the store refuses us, the queue has moved.

use super::folder::{WorkFolder, cannot};
use crate::exit::Exit;
use crate::kept::{self, Keep, Keeping, RunFacts, Uploads};
use crate::output;
use crate::supervise::settlement::{Settlement, Verdict, passes as may_pass, settle};
use crate::supervise::windows::Windows;
use crate::supervise::{Capture, Ended, Feed, Finished, Piping, Signals, Standby, Task, TimeLimit, supervise};
use crate::verbs::queue::follow_ups;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Error, Keeper, Kind, Result, format_duration};
use leasehold_stores::StoreUrl;
use leasehold_system::undo::{Mend, undone};
use leasehold_work::Backlog;
use leasehold_work::backlog::{Attempt, Content, Wait, read_bounded};
use leasehold_work::queue::{ItemId, Payload, Reason};
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
    /// Whether the queue and the item stand before each line of output.
    pub prefixes: bool,
    pub keeping: Option<Keeping>,
    /// The queue's store; none for a spool.
    pub coordinator: Option<Coordinator>,
    pub command: Vec<OsString>,
}

pub async fn run<B: Backlog>(backlog: B, mut claimer: B::Claimer, plan: Plan) -> Result<Exit> {
    let (mut signals, asked) = Signals::listen()?.draining();
    if is_managed() {
        end_with_manager(asked.clone())?;
    }
    let mut folder = WorkFolder::new()?;
    let wait = if plan.until_empty { Wait::Not } else { Wait::Forever };
    let (mut left, mut failures, mut pauses, mut exit) = (plan.items, 0, 0, Exit::Done);
    let mut uploads = Uploads::default();
    while *asked.borrow() == 0 && left != Some(0) {
        // What came while the last step kept this thread is heard first.
        tokio::task::yield_now().await;
        let claimed = tokio::select! {
            biased;
            () = drained(&asked) => break,
            claimed = B::claim(&mut claimer, wait) => claimed,
        };
        if failures > 0 && !matches!(&claimed, Err(error) if passes(error.kind())) {
            output::say("claiming works again");
            failures = 0;
        }
        let grant = match claimed {
            Ok(Some(grant)) => grant,
            Ok(None) => break,
            Err(error) if passes(error.kind()) => {
                if failures == 0 {
                    output::say(&format!("cannot claim; retrying until it works: {error}"));
                }
                rest(&asked, &mut failures).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        tokio::task::yield_now().await;
        if *asked.borrow() > 0 {
            // Asked to end while it was claiming: nothing new is begun.
            let _ = backlog.give_back(&grant).await;
            break;
        }
        signals.forget();
        let attempt = backlog.attempt(&grant);
        let standby = match prepare(&plan, &mut folder, &attempt) {
            Ok(ready) => ready,
            Err(unready) => {
                if let Unready::Item(_) = unready {
                    left = left.map(|left| left - 1);
                }
                if not_begun(&backlog, &grant, &attempt, unready, pauses == 0).await? {
                    rest(&asked, &mut pauses).await;
                }
                continue;
            }
        };
        left = left.map(|left| left - 1);
        let lane = Lane { backlog: &backlog, plan: &plan, folder: &folder, asked: &asked };
        let settled = lane.run(grant, &attempt, standby, &mut signals, &mut uploads).await;
        match (settled.verdict, settled.ended) {
            (Verdict::NotStarted, _) => rest(&asked, &mut pauses).await,
            (Verdict::Failed, Ended::NotStarted(_)) => return Ok(settled.exit),
            (Verdict::Lost | Verdict::LostUnstarted, _) => exit = Exit::LostInRun,
            _ if settled.is_recorded => pauses = 0,
            _ if exit == Exit::Done => exit = Exit::Unreported,
            _ => {}
        }
    }
    uploads.finish().await;
    Ok(if plan.items.is_some() { exit } else { Exit::Done })
}

/// What every attempt of a lane has in common.
struct Lane<'a, B> {
    backlog: &'a B,
    plan: &'a Plan,
    folder: &'a WorkFolder,
    asked: &'a watch::Sender<u32>,
}

impl<B: Backlog> Lane<'_, B> {
    /// Runs the command for an item, tells the queue what came of it, and keeps what it printed.
    async fn run(
        &self,
        grant: B::Grant,
        attempt: &Attempt,
        standby: Standby,
        signals: &mut Signals,
        uploads: &mut Uploads,
    ) -> Settlement {
        let Lane { backlog, plan, folder, asked } = self;
        let keeper = Keeper::keep(backlog.tenancy(grant), None);
        let keep = plan.keeping.as_ref().map(|keeping| keeping.begin(&attempt.token));
        let task = Task {
            environment: Vec::new(),
            windows: plan.windows,
            capture: capture(plan, attempt, keep.as_ref()),
            max_runtime: plan.max_runtime,
            store: plan.store.clone(),
        };
        let mut finished = supervise(keeper, standby, task, signals).await;
        let copying = finished.output.take();
        let settled = end(*backlog, plan, folder, attempt, finished, asked).await;
        if let Some(mut copying) = copying {
            tokio::select! {
                () = copying.arrive() => {}
                () = asked_again(asked) => {}
            }
        }
        if let Some(keep) = keep {
            let facts = RunFacts { slot: None, exit: Some(settled.exit.code()), usage: settled.usage };
            keep.end(plan.coordinator.as_ref().filter(|_| settled.is_recorded), facts).await;
            uploads.begin(&keep);
        }
        settled
    }
}

fn capture(plan: &Plan, attempt: &Attempt, keep: Option<&Keep>) -> Capture {
    let prefix = plan.prefixes.then(|| kept::prefix(&attempt.token.lease));
    Capture { evidence: None, prefix, gathered: keep.map(|keep| keep.gathered.clone()) }
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
    may_pass(kind) || matches!(kind, Kind::Lost)
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
    Item(Error),
    /// It is this machine's, and the item goes back untried.
    Machine(Error),
}

/// Fails the attempt, or gives the item back if it is not to blame; gives whether to pause then. An error ends the lane.
async fn not_begun<B: Backlog>(
    backlog: &B,
    grant: &B::Grant,
    attempt: &Attempt,
    unready: Unready,
    is_first: bool,
) -> Result<bool> {
    match unready {
        Unready::Item(error) if undone(Mend::UnreadyItemEndsTheLane) => Err(error),
        Unready::Item(error) => {
            let id = &attempt.id;
            let failed = attempt_failed(backlog, grant, id, &format!("not begun: {error}")).await;
            // It expires by itself, and is tried again.
            failed.unwrap_or_else(|error| output::say(&format!("cannot tell what became of `{id}`: {error}")));
            Ok(false)
        }
        Unready::Machine(error) => {
            let _ = backlog.give_back(grant).await;
            if !passes(error.kind()) {
                return Err(error);
            }
            if is_first {
                output::say(&format!("cannot start; retrying until it works: {error}"));
            }
            Ok(true)
        }
    }
}

fn prepare(plan: &Plan, folder: &mut WorkFolder, attempt: &Attempt) -> std::result::Result<Standby, Unready> {
    let payload = folder.prepare(&attempt.payload).map_err(Unready::Machine)?;
    let input = File::open(&payload).map_err(|e| match &attempt.payload {
        Content::File(_) if !undone(Mend::UnreadableFileLeftUntried) => {
            Unready::Item(Error::unavailable("its payload cannot be read", e))
        }
        _ => Unready::Machine(cannot(e, &payload)),
    })?;
    stand_by(plan, folder, attempt, payload, input).map_err(Unready::Machine)
}

fn stand_by(plan: &Plan, folder: &WorkFolder, attempt: &Attempt, payload: PathBuf, input: File) -> Result<Standby> {
    let command: Vec<OsString> =
        plan.command.iter().map(|word| if word == TEMPLATE { payload.clone().into() } else { word.clone() }).collect();
    let token = &attempt.token;
    let mut environment: Vec<(&'static str, OsString)> = vec![
        (crate::context::QUEUE, plan.queue.clone().into()),
        ("LEASEHOLD_NAME", token.lease.to_string().into()),
        ("LEASEHOLD_ITEM", attempt.id.to_string().into()),
        ("LEASEHOLD_EPOCH", token.epoch.to_string().into()),
        ("LEASEHOLD_TOKEN", token.wire().into()),
        // The same for every attempt: what was done for this item need not be done again.
        ("LEASEHOLD_IDEMPOTENCY_KEY", token.lease.to_string().into()),
        ("LEASEHOLD_ATTEMPT", attempt.number.to_string().into()),
        ("LEASEHOLD_PAYLOAD", payload.into()),
        ("LEASEHOLD_RESULT", folder.result().into()),
        ("LEASEHOLD_FOLLOW_UPS", folder.follow_ups().into()),
        (LANE, OsString::new()),
    ];
    let checkpoint = attempt.checkpoint.clone().filter(|text| !text.contains('\0')).unwrap_or_default();
    environment.push(("LEASEHOLD_CHECKPOINT", checkpoint.into()));
    let is_piped = plan.keeping.is_some() || plan.prefixes;
    let output = if is_piped { Piping::Piped } else { Piping::Inherited };
    Standby::start(command, &plan.store.portable(), Feed { input: Some(input), environment, output })
}

/// Says what became of the item, and tells the queue.
async fn end<B: Backlog>(
    backlog: &B,
    plan: &Plan,
    folder: &WorkFolder,
    attempt: &Attempt,
    finished: Finished<B::Grant>,
    asked: &watch::Sender<u32>,
) -> Settlement {
    let Attempt { id, token, .. } = attempt;
    let (is_ended_by_us, is_started) = (*asked.borrow() > 1, !matches!(finished.ended, Ended::NotStarted(_)));
    let why = match (&finished.ended, finished.time_limit) {
        (_, TimeLimit::Exceeded) => {
            format!("it ran for longer than {}", plan.max_runtime.map(format_duration).unwrap_or_default())
        }
        (Ended::Killed(signal), _) => format!("killed by signal {signal}"),
        (ended, _) => ended.to_string(),
    };
    let name = format!("`{id}`, epoch {}", token.epoch);
    settle(finished, &name, &plan.command[0], asked_again(asked), async |grant, verdict| {
        let told = match verdict {
            Verdict::Lost | Verdict::LostUnstarted => Ok(()),
            Verdict::Succeeded => match complete(backlog, grant, folder).await {
                // What the command left cannot be kept: that attempt has failed.
                Err(error) if error.kind() == Kind::Invalid => {
                    attempt_failed(backlog, grant, id, &error.to_string()).await
                }
                completed => completed,
            },
            Verdict::Failed | Verdict::NotStarted if !is_started => {
                // If that fails, it expires by itself.
                let _ = backlog.give_back(grant).await;
                Ok(())
            }
            Verdict::Failed | Verdict::NotStarted if is_ended_by_us => backlog.give_back(grant).await,
            Verdict::Failed | Verdict::NotStarted => attempt_failed(backlog, grant, id, &why).await,
        };
        match told {
            Err(error) if matches!(error.kind(), Kind::Fenced | Kind::Lost | Kind::Moved) => {
                Ok(Some(error.to_string()))
            }
            told => told.map(|()| None),
        }
    })
    .await
}

/// Waits until this worker is asked to end once more than it has been.
async fn asked_again(asked: &watch::Sender<u32>) {
    let before = *asked.borrow();
    let _ = asked.subscribe().wait_for(|count| *count > before).await;
}

/// Completes it with what the command left.
async fn complete<B: Backlog>(backlog: &B, grant: &B::Grant, folder: &WorkFolder) -> Result<()> {
    let result = match File::open(folder.result()) {
        Ok(file) => read_bounded(file, Payload::MAX_RESULT_BYTES, "the result")?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(Error::new(Kind::Invalid, "the result cannot be read").with_source(e)),
    };
    let result = if result.is_empty() { None } else { Some(Payload::result(result)?) };
    backlog.complete(grant, result, follow_ups(&folder.follow_ups())?).await.map(|_| ())
}

async fn attempt_failed<B: Backlog>(backlog: &B, grant: &B::Grant, id: &ItemId, why: &str) -> Result<()> {
    let seen = backlog.fail(grant, Reason::lossy(why, "it failed"), None, false).await?;
    let fate = if seen.is_dead() { "is a dead letter now" } else { "will be retried" };
    output::say(&format!("`{id}` failed and {fate}: {why}"));
    Ok(())
}
