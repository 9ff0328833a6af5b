//! Requests for runs of jobs. Only the machines that have a job's file know what it runs, so a server starts none: it stores a
//! request, and a scheduler that has the job carries it out.
//!
//! Promise: whether a request may be made is decided by the rule that decides on the run itself, on the lease as it is now, and the
//! run is granted only if the lease is then still at the epoch that was seen. Non-promise: that somebody carries it out. One that
//! nobody took up in its time is `expired`, and nothing was run for it.

use super::asked::{Asked, key_reused};
use super::leases::operate::Decided;
use super::problems::{conflict, refused};
use super::reading::read;
use super::values::Time;
use crate::access::Verb;
use crate::serve::{Json, Problem, Site};
use axum::body::Bytes;
use axum::http::StatusCode;
use leasehold_core::lease::protocol::{Decision, Refusal, Request, RunRequest, decide};
use leasehold_core::{Coordinator, HolderId, Inspection, Lineage, Outcome, Ownership, Timestamp, Ttl, migration};
use leasehold_stores::Namespace;
use leasehold_work::schedule::Definitions;
use leasehold_work::schedule::requests::{self, MOST, NewRequest, NotRequested, RequestState, Requested, RunRequests};
use serde::Serialize;
use utoipa::ToSchema;

/// A request for a run, and what became of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestView {
    /// `waiting`; `taken_up` by a scheduler; `overtaken`, if the lease moved on before that; `expired`, if nobody took it up in its
    /// time; or `no_longer_known`.
    state: &'static str,
    /// Who asked for it: the key's label and id, or what the command was told.
    by: String,
    /// The reason that they gave.
    why: String,
    /// When it was asked for, by the store's clock.
    at: Time,
    /// Until when it can be taken up.
    until: Time,
    /// The epoch that was seen.
    epoch: u64,
    /// The run, once a scheduler has taken it up.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RequestedRun>,
}

/// The run that was requested.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestedRun {
    /// The epoch that it runs under.
    epoch: u64,
    /// The machine of the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// When it began, by the store's clock.
    at: Time,
    /// How it ended, once it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
}

impl RequestView {
    /// The state of a request, by the record of the job's lease.
    pub(super) fn new(request: &Requested, record: &Ownership, now: Timestamp) -> Self {
        let state = request.state(record, now);
        RequestView {
            state: state.as_str(),
            by: request.by.to_string(),
            why: request.why.to_string(),
            at: request.at.into(),
            until: request.until.into(),
            epoch: request.epoch.get(),
            run: match state {
                RequestState::TakenUp(transfer) => Some(RequestedRun {
                    epoch: transfer.epoch.get(),
                    host: transfer.to.as_ref().map(|to| to.host().to_owned()),
                    at: transfer.at.into(),
                    // One that ran out without a word, and nobody has held the lease since.
                    outcome: match transfer.outcome {
                        None if record.epoch == transfer.epoch && record.live_tenure(now).is_none() => {
                            Some(Outcome::Expired.as_str())
                        }
                        outcome => outcome.map(Outcome::as_str),
                    },
                }),
                _ => None,
            },
        }
    }
}

/// Asks the schedulers to run a job now, under its lease and as a slot of its own. It does not use up a regular slot.
#[utoipa::path(post, path = "/v1/ns/{namespace}/jobs/{name}/trigger", tag = "jobs", request_body = Decided,
    responses((status = 202, description = "A scheduler that has the job is asked.", body = RequestView)))]
pub async fn trigger(asked: Asked, body: Bytes) -> Result<(StatusCode, Json<RequestView>), Problem> {
    let job = asked.name(Verb::Operate)?.of_a_lease()?;
    let (why, epoch) = read::<Decided>(&body)?.parts()?;
    let new = NewRequest { id: asked.nonce(), job, epoch, by: asked.who(), why };
    let coordinator = asked.coordinator().await?;
    if asked.attempt.is_some()
        && let Some(known) = RunRequests::new(coordinator.clone()).find(new.id).await?
    {
        if (&known.job, known.epoch, &known.why) != (&new.job, new.epoch, &new.why) {
            return Err(key_reused());
        }
        return shown(&coordinator, &known).await;
    }
    let (id, is_repeatable) = (new.id, asked.attempt.is_some());
    let made = match ask_for_run(&asked.site, &asked.namespace, &coordinator, new).await {
        Ok(made) => made,
        // Another attempt under the same key may have been faster, and its run is what is in the way now.
        Err(problem) if is_repeatable => match RunRequests::new(coordinator.clone()).find(id).await? {
            Some(known) => known,
            None => return Err(problem),
        },
        Err(problem) => return Err(problem),
    };
    shown(&coordinator, &made).await
}

async fn shown(coordinator: &Coordinator, request: &Requested) -> Result<(StatusCode, Json<RequestView>), Problem> {
    let Inspection { record, now, .. } = coordinator.inspect(&request.job).await?;
    Ok((StatusCode::ACCEPTED, Json(RequestView::new(request, &record, now))))
}

/// Stores a request, if the job could be run now by whoever has it.
pub(crate) async fn ask_for_run(
    site: &Site,
    namespace: &Namespace,
    coordinator: &Coordinator,
    new: NewRequest,
) -> Result<Requested, Problem> {
    let job = &new.job;
    let Some(definition) = Definitions::new(coordinator.clone()).read(job).await? else {
        return Err(Problem::not_found(format!("no scheduler has published a job `{job}`")));
    };
    if !definition.is_of_file() {
        let host = &definition.host;
        let detail =
            format!("job `{job}` is run by `leasehold run --slot` on {host}, and no scheduler has it: start it there");
        return Err(conflict("no_scheduler", detail));
    }
    let seen = coordinator.inspect(job).await?;
    if let Some(refusal) = blocking_refusal(&seen, &new) {
        return Err(match &refusal {
            Refusal::Elsewhere(state) => {
                migration::elsewhere(coordinator.store().as_ref(), &format!("job `{job}`"), state).await.into()
            }
            refusal => refused(job, refusal),
        });
    }
    let made = RunRequests::new(coordinator.clone()).make(&new).await?.map_err(|not| match not {
        NotRequested::Waiting(other) => {
            let detail = format!(
                "a run of `{job}` was requested before, by {}: {}; it is not taken up yet",
                other.by, other.why
            );
            conflict("requested", detail).with("by", other.by.as_str()).with("why", other.why.as_str())
        }
        NotRequested::Full => conflict(
            "too_many",
            format!("{MOST} requests for runs wait in `{namespace}` already; nothing was requested"),
        ),
    })?;
    // Where the store tells nobody, those who watch through this server hear of it here.
    if let Ok(key) = requests::key() {
        site.tended().changed(namespace, &key);
    }
    Ok(made)
}

/// What would refuse the run now.
fn blocking_refusal(seen: &Inspection, new: &NewRequest) -> Option<Refusal> {
    let (by, why, until) = (new.by.clone(), new.why.clone(), Timestamp::from_millis(u64::MAX));
    let run = Request::Acquire {
        lineage: Lineage::random(),
        holder: HolderId::new(None),
        ttl: Ttl::MIN,
        slot: None,
        spacing: None,
        requested: Some(RunRequest { by, why, expected: new.epoch, until }),
    };
    match decide(&seen.record, &run, seen.now) {
        Decision::Refuse(refusal) => Some(refusal),
        Decision::Write(_) | Decision::AlreadyApplied => None,
    }
}
