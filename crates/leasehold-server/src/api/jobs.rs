//! Scheduled jobs, as schedulers publish them: when each is due, what became of its slots, what its runs printed.
//!
//! Promise: a job's pause is its lease's. Non-promise: what a job runs is known only to the machines that run it, so a server can
//! start none: see [`super::trigger`].

use super::asked::Asked;
use super::leases::operate::{Decided, Ordered, pause_lease, resume_lease};
use super::leases::state;
use super::reading::{Params, field, limit, read};
use super::trigger::RequestView;
use super::values::{Mark, SlotState, Time, millis};
use crate::access::Verb;
use crate::serve::{Json, Problem, Site};
use axum::body::Bytes;
use leasehold_core::{Epoch, Inspection, LeaseName, LeaseVerbs, NamePattern};
use leasehold_work::output::{self, Ring, RunOutput};
use leasehold_work::schedule::requests::{Requested, RunRequests};
use leasehold_work::schedule::{Definition, Definitions, Entry, Journals};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// How many jobs a listing has at most; each takes a read of its own.
const MAX_JOBS: usize = 500;

pub(super) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(one))
        .routes(routes!(next))
        .routes(routes!(runs))
        .routes(routes!(logs))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(super::trigger::trigger))
}

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobView {
    /// Its name, which is that of its lease.
    name: String,
    /// When it is due, as it was written.
    schedule: String,
    /// The same, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<String>,
    /// The next slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Time>,
    /// How long after a slot's start it is late.
    late_after_ms: u64,
    /// The labels of machines that run it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    on: Vec<String>,
    /// Whose it is: a file, or `run --slot`.
    owner: String,
    /// The machine that published it.
    host: String,
    /// Whether a scheduler has it, which can be asked to run it. `run --slot` alone cannot.
    has_scheduler: bool,
    /// The state of its lease.
    state: &'static str,
    /// Its lease's epoch: what `pause`, `resume` and `trigger` want as the epoch that was seen.
    epoch: u64,
    /// The newest slot that was claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<SlotState>,
    /// The pause that keeps it from running.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<Mark>,
    /// The latest request for a run of it, for an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<RequestView>,
}

impl JobView {
    fn new(name: &LeaseName, definition: Definition, lease: &Inspection, requests: &[Requested]) -> Self {
        let (record, now, schedule) = (&lease.record, lease.now, definition.schedule().ok());
        let requested = requests.iter().rfind(|request| request.job == *name);
        JobView {
            name: name.to_string(),
            schedule: definition.timing.to_string(),
            words: schedule.as_ref().map(|schedule| schedule.words()),
            next: schedule.and_then(|schedule| schedule.next_after(now)).map(Time::from),
            late_after_ms: millis(definition.late_after()),
            has_scheduler: definition.is_of_file(),
            on: definition.on,
            owner: definition.owner,
            host: definition.host,
            state: state(record, now),
            epoch: record.epoch.get(),
            slot: record.slot.map(SlotState::from),
            paused: record.paused.as_ref().map(Mark::from),
            requested: requested.map(|request| RequestView::new(request, record, now)),
        }
    }
}

/// Which jobs are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Only names like this: `*` stands for any characters, `?` for one.
    name: Option<String>,
}

/// Jobs, in the order of their names.
#[derive(Debug, Serialize, ToSchema)]
pub struct Jobs {
    jobs: Vec<JobView>,
    /// Whether there are more than 500: narrow it by `name`.
    more: bool,
    /// The store's time.
    now: Time,
}

/// The jobs that schedulers have published.
#[utoipa::path(get, path = "/v1/ns/{namespace}/jobs", tag = "jobs", params(Wanted),
    responses((status = 200, description = "The jobs.", body = Jobs)))]
pub async fn list(asked: Asked, Params(wanted): Params<Wanted>) -> Result<Json<Jobs>, Problem> {
    asked.lists()?;
    let pattern = super::reading::optional("name", wanted.name, |name| name.parse::<NamePattern>())?;
    let coordinator = asked.coordinator().await?;
    let (requests, now) = RunRequests::new(coordinator.clone()).all().await?;
    let mut found = Definitions::new(coordinator.clone()).all().await?;
    let is_wanted = |name: &str| pattern.as_ref().is_none_or(|pattern| pattern.matches(name));
    found.retain(|(name, _)| is_wanted(name.as_str()) && asked.caller.sees(&asked.namespace, name.as_str()));
    let more = found.len() > MAX_JOBS;
    let mut jobs = Vec::new();
    for (name, definition) in found.into_iter().take(MAX_JOBS) {
        let lease = coordinator.inspect(&name).await?;
        jobs.push(JobView::new(&name, definition, &lease, &requests));
    }
    Ok(Json(Jobs { jobs, more, now: now.into() }))
}

/// A job that a scheduler has published, and the latest request for a run of it.
#[utoipa::path(get, path = "/v1/ns/{namespace}/jobs/{name}", tag = "jobs",
    responses((status = 200, description = "The job.", body = OneJob)))]
pub async fn one(asked: Asked) -> Result<Json<OneJob>, Problem> {
    let name = asked.name(Verb::Read)?;
    let definition = definition(&asked, &name).await?;
    let coordinator = asked.coordinator().await?;
    let (requests, _) = RunRequests::new(coordinator.clone()).all().await?;
    let lease = coordinator.inspect(&name).await?;
    Ok(Json(OneJob { job: JobView::new(&name, definition, &lease, &requests), now: lease.now.into() }))
}

/// One job.
#[derive(Debug, Serialize, ToSchema)]
pub struct OneJob {
    job: JobView,
    /// The store's time.
    now: Time,
}

async fn definition(asked: &Asked, name: &LeaseName) -> Result<Definition, Problem> {
    let found = Definitions::new(asked.coordinator().await?).read(name).await?;
    found.ok_or_else(|| Problem::not_found(format!("no scheduler has published a job `{name}`")))
}

/// How many.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Count {
    /// At most so many, 1 to 100; usually 5.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
}

/// The slots that come next.
#[derive(Debug, Serialize, ToSchema)]
pub struct Coming {
    slots: Vec<ComingSlot>,
    /// The store's time.
    now: Time,
}

/// A slot to come.
#[derive(Debug, Serialize, ToSchema)]
pub struct ComingSlot {
    /// Its instant.
    slot: Time,
    /// When it starts: its instant, and the job's own jitter.
    starts: Time,
}

/// When a job is due next.
#[utoipa::path(get, path = "/v1/ns/{namespace}/jobs/{name}/next", tag = "jobs", params(Count),
    responses((status = 200, description = "Its next slots.", body = Coming)))]
pub async fn next(asked: Asked, Params(count): Params<Count>) -> Result<Json<Coming>, Problem> {
    let name = asked.name(Verb::Read)?;
    let most = limit(count.limit, 5, 100)?;
    let definition = definition(&asked, &name).await?;
    let schedule = definition.schedule()?;
    let now = LeaseVerbs::now(&asked.coordinator().await?).await?;
    let (mut slots, mut after) = (Vec::new(), now);
    while slots.len() < most
        && let Some(slot) = schedule.next_after(after)
    {
        slots.push(ComingSlot { slot: slot.into(), starts: slot.0.plus(definition.delay(slot)).into() });
        after = slot.0;
    }
    Ok(Json(Coming { slots, now: now.into() }))
}

/// What became of a slot, or of several that were passed over together.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunView {
    /// The slot; of several, the first.
    slot: Time,
    /// Of several, the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Time>,
    /// How many.
    count: u64,
    /// `running`, `succeeded`, `failed`, `lost`, `not_started`, `skipped_overlap`, `dropped_too_old`, `dropped_coalesced`,
    /// `dropped_clock_ahead`, `paused` or `died`.
    fate: &'static str,
    /// When it began, or was written down.
    at: Time,
    /// The machine.
    host: String,
    /// The epoch that it was run under.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// How often it was begun.
    attempts: u32,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<u8>,
    /// How long it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    ran_for_ms: Option<u64>,
    /// Why it did not end by itself, or could not be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl From<&Entry> for RunView {
    fn from(entry: &Entry) -> Self {
        RunView {
            slot: entry.slot.into(),
            last: entry.last.map(Time::from),
            count: entry.count.unwrap_or(1),
            fate: entry.fate.as_str(),
            at: entry.at.into(),
            host: entry.host.clone(),
            epoch: entry.epoch.map(|epoch| epoch.get()),
            attempts: entry.attempts,
            exit: entry.exit,
            ran_for_ms: entry.ran_for_ms,
            why: entry.why.as_ref().map(ToString::to_string),
        }
    }
}

/// The slots of a job, the latest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct Runs {
    runs: Vec<RunView>,
    /// Up to this slot entries were dropped to keep the journal small.
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten_to: Option<Time>,
    /// The store's time.
    now: Time,
}

/// What became of a job's due slots: its journal.
#[utoipa::path(get, path = "/v1/ns/{namespace}/jobs/{name}/runs", tag = "jobs",
    responses((status = 200, description = "Its slots.", body = Runs)))]
pub async fn runs(asked: Asked) -> Result<Json<Runs>, Problem> {
    let name = asked.name(Verb::Read)?;
    let (journal, now) = Journals::new(asked.coordinator().await?).read(&name).await?;
    let runs = journal.entries.iter().rev().map(RunView::from).collect();
    Ok(Json(Runs { runs, forgotten_to: journal.forgotten_to.map(Time::from), now: now.into() }))
}

/// Which run's output.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// Only of the run under this epoch.
    #[param(maximum = 9007199254740991_u64)]
    epoch: Option<u64>,
    /// At most so many, 1 to 50; usually 5.
    #[param(minimum = 1, maximum = 50)]
    limit: Option<u32>,
}

/// The end of what a run printed.
#[derive(Debug, Serialize, ToSchema)]
pub struct LogView {
    /// The epoch that it ran under.
    epoch: u64,
    /// The slot that it was for.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<Time>,
    /// The machine that it ran on.
    host: String,
    /// When it ended.
    at: Time,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<u8>,
    /// How much it printed in all.
    bytes: u64,
    /// Whether there was more than the tail.
    cut: bool,
    /// The last lines.
    tail: String,
}

impl From<&RunOutput> for LogView {
    fn from(output: &RunOutput) -> Self {
        LogView {
            epoch: output.epoch.get(),
            slot: output.slot.map(Time::from),
            host: output.host.clone(),
            at: output.at.into(),
            exit: output.exit,
            bytes: output.bytes,
            cut: output.is_cut,
            tail: output.tail.clone(),
        }
    }
}

/// The ends of what a job's runs printed, the latest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct Logs {
    logs: Vec<LogView>,
}

/// What a job's runs printed last, as far as it is kept in the store.
#[utoipa::path(get, path = "/v1/ns/{namespace}/jobs/{name}/logs", tag = "jobs", params(Which),
    responses((status = 200, description = "The ends of its output.", body = Logs)))]
pub async fn logs(asked: Asked, Params(which): Params<Which>) -> Result<Json<Logs>, Problem> {
    let name = asked.name(Verb::Read)?;
    let most = limit(which.limit, 5, 50)?;
    let epoch = field("epoch", which.epoch.map(Epoch::new).transpose())?;
    let coordinator = asked.coordinator().await?;
    let Some(lineage) = coordinator.inspect(&name).await?.record.lineage else {
        return Ok(Json(Logs { logs: Vec::new() }));
    };
    let kept = output::list(&coordinator, &Ring::of_lease(&name, lineage, 1)).await?;
    let is_wanted = |output: &&RunOutput| output.bytes > 0 && epoch.is_none_or(|epoch| output.epoch == epoch);
    let logs = kept.iter().rev().filter(is_wanted).take(most).map(LogView::from).collect();
    Ok(Json(Logs { logs }))
}

/// Keeps a job from running. A run that has begun continues.
#[utoipa::path(post, path = "/v1/ns/{namespace}/jobs/{name}/pause", tag = "jobs", request_body = Decided,
    responses((status = 200, description = "Its slots are passed over.", body = Ordered)))]
pub async fn pause(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = asked.name(Verb::Operate)?.of_a_lease()?;
    pause_lease(&asked, &name, read(&body)?).await
}

/// Lets a job run again.
#[utoipa::path(post, path = "/v1/ns/{namespace}/jobs/{name}/resume", tag = "jobs", request_body = Decided,
    responses((status = 200, description = "Its next slot is run.", body = Ordered)))]
pub async fn resume(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = asked.name(Verb::Operate)?.of_a_lease()?;
    resume_lease(&asked, &name, read(&body)?).await
}
