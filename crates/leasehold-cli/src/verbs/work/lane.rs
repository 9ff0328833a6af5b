//! One lane: claim, run, complete, one item after the other.
//!
//! Promise: what goes wrong with one item fails that item's attempt, and the lane continues with the next; what goes wrong on
//! this machine or with the store is retried after a pause. It ends when it is asked to, or when no item can ever be run:
//! the command cannot be started, the store refuses us, the queue has moved.

use super::end::{asked_again, attempt_failed, end};
use super::folder::WorkFolder;
use super::obituaries::Obituaries;
use super::store_news::Teller;
use crate::config::METRICS;
use crate::exit::Exit;
use crate::log;
use crate::metrics::Monitor;
use crate::private_folder::cannot;
use crate::run_context::{ContextFile, RunContext};
use crate::run_output::{self, Keep, Keeping, RunFacts, Uploads};
use crate::supervise::deadlines::Deadlines;
use crate::supervise::settlement::{Settlement, Verdict, is_temporary};
use crate::supervise::{Capture, Ended, Feed, Piping, RunLimit, Signals, Standby, Task, supervise};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Error, Keeper, Kind, Result};
use leasehold_stores::StoreUrl;
use leasehold_system::undo::{Fix, is_disabled};
use leasehold_work::Backlog;
use leasehold_work::backlog::{Attempt, Content, Wait};
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The variable by which a lane knows that its standard input is its manager's line.
pub const LANE: &str = "LEASEHOLD_LANE";
/// How long a store that does not answer is given before it is asked for work again.
const RETRY: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5)];
/// In the command's arguments, this is replaced by the payload's path.
const TEMPLATE: &str = "{}";

/// How long an idle lane waits for an item before it looks whether everything is finished.
const LOOK: Duration = Duration::from_secs(1);

/// When a lane ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When it is asked to.
    Told,
    /// When there is nothing to claim now.
    Idle,
    /// When no item is left, not even one that another worker has.
    Done,
}

pub struct Plan {
    pub deadlines: Deadlines,
    pub run_limit: Option<RunLimit>,
    pub store: StoreUrl,
    pub queue: String,
    pub until: Until,
    pub items: Option<u64>,
    /// Whether the queue and the item stand before each line of output.
    pub prefixes: bool,
    pub keeping: Option<Keeping>,
    /// The queue's store; none for a spool.
    pub coordinator: Option<Coordinator>,
    pub command: Vec<OsString>,
    /// Told of dead letters.
    pub obituaries: Arc<Obituaries>,
}

pub async fn run<B: Backlog>(
    backlog: B,
    mut claimer: B::Claimer,
    plan: &Plan,
    monitor: Option<Arc<Monitor>>,
) -> Result<Exit> {
    let (mut signals, asked) = Signals::listen()?.draining();
    if let Some(monitor) = monitor {
        monitor.drain_when(asked.subscribe());
    }
    let teller = teller_of(plan, &asked)?;
    let mut folder = WorkFolder::new()?;
    let wait = plan.until.wait();
    let (mut left, mut failures, mut pauses, mut exit) = (plan.items, 0, 0, Exit::Done);
    let mut uploads = Uploads::default();
    while *asked.borrow() == 0 && left != Some(0) {
        // What came while the last step kept this thread is heard first.
        tokio::task::yield_now().await;
        let claimed = tokio::select! {
            biased;
            () = drained(&asked) => break,
            // After a failure the store is polled, so that its return is logged as soon as it is seen.
            claimed = claim_or_end::<B>(&backlog, &mut claimer, wait, failures > 0) => claimed,
        };
        let was_away = failures > 0;
        if was_away && !matches!(&claimed, Err(error) if is_temporary_for_claims(error.kind())) {
            teller.back();
            failures = 0;
        }
        let grant = match claimed {
            Ok(Next::Item(grant)) => grant,
            Ok(Next::NotYet) => continue,
            Ok(Next::End) => break,
            Err(error) if is_temporary_for_claims(error.kind()) => {
                if failures == 0 {
                    teller.away(&error.to_string());
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
        let _about = About::item(plan, &attempt);
        let standby = match prepare(plan, &mut folder, &attempt) {
            Ok(ready) => ready,
            Err(unready) => {
                if let Unready::Item(_) = unready {
                    left = left.map(|left| left - 1);
                }
                if not_begun(&backlog, &grant, &attempt, unready, pauses == 0, &plan.obituaries).await? {
                    rest(&asked, &mut pauses).await;
                }
                continue;
            }
        };
        left = left.map(|left| left - 1);
        let lane = Lane { backlog: &backlog, plan, folder: &folder, asked: &asked };
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

/// What a lane does next.
enum Next<G> {
    Item(G),
    /// Something is left, and it may yet come here.
    NotYet,
    End,
}

/// Claims an item, or finds out whether to end.
async fn claim_or_end<B: Backlog>(
    backlog: &B,
    claimer: &mut B::Claimer,
    wait: Wait,
    was_away: bool,
) -> Result<Next<B::Grant>> {
    Ok(match B::claim(claimer, if was_away { Wait::Not } else { wait }).await? {
        Some(grant) => Next::Item(grant),
        None if was_away && !matches!(wait, Wait::Not) => Next::NotYet,
        None if matches!(wait, Wait::For(_)) && !backlog.is_finished().await? => Next::NotYet,
        None => Next::End,
    })
}

impl Until {
    const fn wait(self) -> Wait {
        match self {
            Until::Told => Wait::Forever,
            Until::Idle => Wait::Not,
            Until::Done => Wait::For(LOOK),
        }
    }
}

fn tell_start(attempt: &Attempt) {
    let (what, epoch, number) = (log::subject(), attempt.token.epoch, attempt.number);
    tracing::info!(target: log::RUNS, "started {what}, attempt {number}, epoch {epoch}");
}

/// What every attempt of a lane has in common.
struct Lane<'a, B> {
    backlog: &'a B,
    plan: &'a Plan,
    folder: &'a WorkFolder,
    asked: &'a watch::Sender<u32>,
}

impl<B: Backlog> Lane<'_, B> {
    /// Runs the command for an item, records the result in the queue, and keeps the output.
    async fn run(
        &self,
        grant: B::Grant,
        attempt: &Attempt,
        standby: Standby,
        signals: &mut Signals,
        uploads: &mut Uploads,
    ) -> Settlement {
        let Lane { backlog, plan, folder, asked } = self;
        tell_start(attempt);
        let keeper = Keeper::keep(backlog.tenancy(grant), None);
        let keep = plan.keeping.as_ref().map(|keeping| keeping.begin(&attempt.token));
        let context = folder.context(RunContext::of_item(&plan.store, &plan.queue, &attempt.token));
        let task = Task {
            environment: vec![ContextFile::variable(Some(&context))],
            deadlines: plan.deadlines,
            capture: capture(plan, attempt, keep.as_ref()),
            run_limit: plan.run_limit,
            managed: true,
            store: plan.store.clone(),
            context: Some(context),
        };
        let mut finished = supervise(keeper, standby, task, signals).await;
        let copying = finished.output.take();
        let tail = keep.as_ref().map(|keep| keep.gathered.tail().text);
        let settled = end(*backlog, plan, folder, attempt, finished, tail, asked).await;
        if let Some(mut copying) = copying {
            tokio::select! {
                () = copying.arrive() => {}
                () = asked_again(asked) => {}
            }
        }
        if let Some(keep) = keep {
            let facts = RunFacts { slot: None, exit: Some(settled.exit.code()), why: None, usage: settled.usage };
            keep.end(plan.coordinator.as_ref().filter(|_| settled.is_recorded), facts).await;
            uploads.begin(&keep);
        }
        settled
    }
}

/// What becomes of the output of an attempt; none if it does not pass through us.
fn capture(plan: &Plan, attempt: &Attempt, keep: Option<&Keep>) -> Option<Capture> {
    pipes_output(plan).then(|| {
        let prefix = plan.prefixes.then(|| run_output::prefix(&attempt.token.lease));
        Capture { evidence: None, prefix, gathered: keep.map(|keep| keep.gathered.clone()) }
    })
}

/// Whether the command's output passes through us.
const fn pipes_output(plan: &Plan) -> bool {
    plan.keeping.is_some() || plan.prefixes
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

const fn is_temporary_for_claims(kind: Kind) -> bool {
    is_temporary(kind) || matches!(kind, Kind::Lost)
}

/// Whether this is a lane of several. A worker that a lane's command starts is not: it finds the variable empty.
pub fn is_managed() -> bool {
    std::env::var_os(LANE).is_some_and(|word| !word.is_empty())
}

/// Whom this lane tells that the store is away.
fn teller_of(plan: &Plan, asked: &watch::Sender<u32>) -> Result<Teller> {
    match is_managed() {
        true => Teller::of_lane(plan.queue.clone(), asked.clone()),
        false => Ok(Teller::alone(plan.queue.clone())),
    }
}

/// While it is there, lines are about an item.
struct About(String);

impl About {
    fn item(plan: &Plan, attempt: &Attempt) -> Self {
        let (item, epoch) = (Some(attempt.id.to_string()), Some(attempt.token.epoch.get()));
        log::about(Some(log::Subject { item, epoch, ..super::of_queue(plan.queue.clone()) }));
        About(plan.queue.clone())
    }
}

impl Drop for About {
    fn drop(&mut self) {
        log::about(Some(super::of_queue(std::mem::take(&mut self.0))));
    }
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
    obituaries: &Obituaries,
) -> Result<bool> {
    match unready {
        Unready::Item(error) if is_disabled(Fix::UnreadyItemEndsTheLane) => Err(error),
        Unready::Item(error) => {
            let id = &attempt.id;
            let failed = attempt_failed(backlog, grant, None, &format!("not begun: {error}"), obituaries).await;
            // It expires by itself, and is tried again.
            failed.unwrap_or_else(|error| tracing::warn!("cannot tell what became of `{id}`: {error}"));
            Ok(false)
        }
        Unready::Machine(error) => {
            let _ = backlog.give_back(grant).await;
            if !is_temporary_for_claims(error.kind()) {
                return Err(error);
            }
            if is_first {
                let what = log::subject();
                tracing::warn!("cannot start {what}; retrying until it works: {error}");
            }
            Ok(true)
        }
    }
}

fn prepare(plan: &Plan, folder: &mut WorkFolder, attempt: &Attempt) -> std::result::Result<Standby, Unready> {
    let payload = folder.prepare(&attempt.payload).map_err(Unready::Machine)?;
    let input = File::open(&payload).map_err(|e| match &attempt.payload {
        Content::File(_) if !is_disabled(Fix::UnreadableFileLeftUntried) => {
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
        // The address is this worker's own.
        (METRICS, OsString::new()),
    ];
    let checkpoint = attempt.checkpoint.clone().filter(|text| !text.contains('\0')).unwrap_or_default();
    environment.push(("LEASEHOLD_CHECKPOINT", checkpoint.into()));
    let output = if pipes_output(plan) { Piping::Piped } else { Piping::Inherited };
    Standby::start(command, &plan.store.portable(), Feed { input: Some(input), environment, output })
}
