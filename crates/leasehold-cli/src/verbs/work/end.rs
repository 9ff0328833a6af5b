//! The end of an attempt: what became of the item, for the queue, the log and notifications.

use super::folder::WorkFolder;
use super::lane::Plan;
use super::obituaries::Obituaries;
use crate::log;
use crate::output::rough;
use crate::supervise::settlement::{Settlement, Verdict, log_end, settle};
use crate::supervise::{Ended, Finished, TimeLimit, told_limit};
use crate::verbs::queue::follow_ups;
use leasehold_core::{Error, Kind, Result};
use leasehold_work::Backlog;
use leasehold_work::backlog::{Attempt, read_bounded};
use leasehold_work::queue::{Payload, Reason};
use std::fs::File;
use std::time::Duration;
use tokio::sync::watch;

/// Says what became of the item, and tells the queue.
pub async fn end<B: Backlog>(
    backlog: &B,
    plan: &Plan,
    folder: &WorkFolder,
    attempt: &Attempt,
    finished: Finished<B::Grant>,
    tail: Option<String>,
    asked: &watch::Sender<u32>,
) -> Settlement {
    let Attempt { id, token, .. } = attempt;
    let (is_ended_by_us, is_started) = (*asked.borrow() > 1, !matches!(finished.ended, Ended::NotStarted(_)));
    let exit_code = match &finished.ended {
        Ended::Exited(code) => u8::try_from(*code).ok(),
        Ended::Killed(_) | Ended::NotStarted(_) => None,
    };
    let ran = Ran { exit_code, duration_ms: finished.ran_for.as_millis() as u64, tail };
    let why = match (&finished.ended, finished.time_limit) {
        (_, TimeLimit::Exceeded) => format!("it ran for longer than {}", told_limit(plan.run_limit)),
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
                    attempt_failed(backlog, grant, Some(&ran), &error.to_string(), &plan.obituaries).await
                }
                Ok(()) => {
                    log_end(Verdict::Succeeded, ran.exit_code, ran.duration_ms, 1);
                    Ok(())
                }
                failed => failed,
            },
            Verdict::Failed | Verdict::NotStarted | Verdict::Drained if !is_started => {
                // If that fails, it expires by itself.
                let _ = backlog.give_back(grant).await;
                Ok(())
            }
            Verdict::Drained => give_back(backlog, grant).await,
            Verdict::Failed | Verdict::NotStarted if is_ended_by_us || B::asked_to_finish(grant).is_some() => {
                give_back(backlog, grant).await
            }
            Verdict::Failed | Verdict::NotStarted => {
                attempt_failed(backlog, grant, Some(&ran), &why, &plan.obituaries).await
            }
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

/// Gives it back untried, because somebody asked for the end of its attempt.
async fn give_back<B: Backlog>(backlog: &B, grant: &B::Grant) -> Result<()> {
    backlog.give_back(grant).await?;
    let what = log::subject();
    let why = B::asked_to_finish(grant).map_or_else(|| "this worker ends".into(), ToString::to_string);
    tracing::info!(target: log::RUNS, outcome = "returned", "{what} was given back untried: {why}");
    Ok(())
}

/// Waits until this worker is asked to end once more than it has been.
pub async fn asked_again(asked: &watch::Sender<u32>) {
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

/// How an attempt went that was begun.
pub struct Ran {
    exit_code: Option<u8>,
    duration_ms: u64,
    /// The last lines of its output.
    tail: Option<String>,
}

pub async fn attempt_failed<B: Backlog>(
    backlog: &B,
    grant: &B::Grant,
    ran: Option<&Ran>,
    why: &str,
    obituaries: &Obituaries,
) -> Result<()> {
    let seen = backlog.fail(grant, Reason::lossy(why, "it failed"), None, false).await?;
    obituaries.note(&seen, ran.and_then(|ran| ran.tail.clone()));
    let (fate, outcome) =
        if seen.is_dead() { ("is a dead letter now", "dead_letter") } else { ("will be retried", "failed") };
    let (duration_ms, exit_code) = (ran.map(|ran| ran.duration_ms), ran.and_then(|ran| ran.exit_code));
    let after = duration_ms.map(|ms| format!(" after {}", rough(Duration::from_millis(ms)))).unwrap_or_default();
    let what = log::subject();
    tracing::warn!(target: log::RUNS, outcome, duration_ms, exit_code, error = why, "{what} failed{after} and {fate}: {why}");
    Ok(())
}
