//! One lane: claim, run, complete, one item after the other.

use super::bench::{Bench, cannot};
use super::source::{Fate, Grant, Job, Source};
use crate::exit::Exit;
use crate::output;
use crate::supervise::windows::Windows;
use crate::supervise::{Course, Ended, Feed, Finished, Signals, Standby, Task, supervise};
use leasehold::clock::{Clock, SystemClock};
use leasehold::{Keeper, Kind, Result, Tenancy, format_duration};
use leasehold_stores::StoreUrl;
use leasehold_work::queue::Reason;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::time::Duration;
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
    if std::env::var_os(LANE).is_some() {
        end_with_manager(asked.clone());
    }
    let bench = Bench::new()?;
    let (mut left, mut failures, mut lost) = (plan.items, 0, false);
    while *asked.borrow() == 0 && left != Some(0) {
        // What came while the last step kept this thread is heard first.
        tokio::task::yield_now().await;
        let claimed = tokio::select! {
            biased;
            () = drained(&asked) => break,
            claimed = claim(&mut source, &plan) => claimed,
        };
        for error in source.damaged() {
            output::say(&format!("passed over: {error}"));
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
                let pause = RETRY[failures.min(RETRY.len() - 1)];
                failures += 1;
                tokio::select! {
                    () = drained(&asked) => {}
                    () = SystemClock.sleep_until(SystemClock.now() + pause) => {}
                }
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
        left = left.map(|left| left - 1);
        let job = source.job(&tenancy)?;
        signals.forget();
        let standby = stand_by(&plan, &bench, &job);
        let keeper = Keeper::keep(tenancy, None);
        let standby = match standby {
            Ok(standby) => standby,
            Err(error) => {
                let _ = source.give_back(&keeper.stop().await).await;
                return Err(error);
            }
        };
        let task = Task {
            environment: Vec::new(),
            windows: plan.windows,
            evidence: None,
            max_runtime: plan.max_runtime,
            store: plan.store.clone(),
        };
        let finished = supervise(keeper, standby, task, &mut signals).await;
        let ended_by_us = *asked.borrow() > 1;
        match settle(&source, &plan, &bench, &job, finished, ended_by_us).await? {
            Settled::Over => {}
            Settled::Lost => lost = true,
            Settled::CannotRun(exit) => return Ok(exit),
        }
    }
    Ok(if lost && plan.items.is_some() { Exit::LostInRun } else { Exit::Done })
}

async fn claim<S: Source>(source: &mut S, plan: &Plan) -> Result<Option<S::Tenancy>> {
    if plan.until_empty { source.try_next().await } else { source.next().await.map(Some) }
}

async fn drained(asked: &watch::Sender<u32>) {
    let mut asked = asked.subscribe();
    let _ = asked.wait_for(|count| *count > 0).await;
}

const fn passes(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Contended | Kind::Indeterminate | Kind::Lost)
}

/// A lane whose manager is gone, however it went, finishes what it is at.
fn end_with_manager(asked: watch::Sender<u32>) {
    std::thread::spawn(move || {
        let mut line = std::io::stdin().lock();
        let mut buffer = [0; 64];
        while !matches!(line.read(&mut buffer), Ok(0) | Err(_)) {}
        asked.send_modify(|count| *count = (*count).max(1));
    });
}

fn stand_by(plan: &Plan, bench: &Bench, job: &Job) -> Result<Standby> {
    let payload = bench.lay(&job.payload)?;
    let input = File::open(&payload).map_err(|e| cannot(e, &payload))?;
    let command: Vec<OsString> =
        plan.command.iter().map(|word| if word == TEMPLATE { payload.clone().into() } else { word.clone() }).collect();
    let token = &job.token;
    let mut environment: Vec<(&'static str, OsString)> = vec![
        (crate::commands::tokens::QUEUE, plan.queue.clone().into()),
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
    CannotRun(Exit),
}

/// Says what became of the item, and tells the queue.
async fn settle<S: Source>(
    source: &S,
    plan: &Plan,
    bench: &Bench,
    job: &Job,
    finished: Finished<Grant<S>>,
    ended_by_us: bool,
) -> Result<Settled> {
    let Finished { ended, course, lost, survivors, grant, notes, mut dead_man } = finished;
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
    let settled = match (&ended, course) {
        (Ended::NotStarted(kind, message), _) => {
            output::say(&format!("cannot run `{}`: {message}", plan.command[0].to_string_lossy()));
            let _ = source.give_back(&grant).await;
            let code = if *kind == std::io::ErrorKind::NotFound { 127 } else { 126 };
            return Ok(Settled::CannotRun(Exit::Code(code)));
        }
        (Ended::Exited(0), Course::Whole) => {
            match source.complete(&grant, &bench.result(), &bench.follow_ups()).await {
                Ok(()) => Ok(()),
                // What the command left cannot be kept: that attempt has failed.
                Err(error) if error.kind() == Kind::Invalid => {
                    attempt_failed(source, &grant, id, &error.to_string()).await
                }
                Err(error) => Err(error),
            }
        }
        _ if ended_by_us => source.give_back(&grant).await,
        (_, Course::CutOff) => {
            let limit = plan.max_runtime.map(format_duration).unwrap_or_default();
            attempt_failed(source, &grant, id, &format!("it ran for longer than {limit}")).await
        }
        (Ended::Exited(code), _) => attempt_failed(source, &grant, id, &format!("it exited with {code}")).await,
        (Ended::Killed(signal), _) => attempt_failed(source, &grant, id, &format!("signal {signal} ended it")).await,
    };
    let _ = dead_man.wait();
    match settled {
        Ok(()) => Ok(Settled::Over),
        Err(error) if matches!(error.kind(), Kind::Fenced | Kind::Lost | Kind::Moved) => {
            output::say(&error.to_string());
            Ok(Settled::Lost)
        }
        // It expires by itself, and is tried again.
        Err(error) => {
            output::say(&format!("cannot tell what became of `{id}`: {error}"));
            Ok(Settled::Over)
        }
    }
}

async fn attempt_failed<S: Source>(source: &S, grant: &Grant<S>, id: &str, why: &str) -> Result<()> {
    let fate = source.fail(grant, Reason::lossy(why, "it failed")).await?;
    match fate {
        Fate::Again => output::say(&format!("`{id}` failed and is tried again: {why}")),
        Fate::Dead => output::say(&format!("`{id}` failed and is a dead letter now: {why}")),
    }
    Ok(())
}
