//! Scheduled jobs, as schedulers publish them: when each is due, what became of its slots, what its runs printed.
//!
//! Promise: a job's pause is its lease's. Non-promise: what a job runs is known only to the machines that run it, so a server can
//! start none: see [`super::trigger`].

use super::asked::Asked;
use super::cursor::{self, Beginnings};
use super::leases::operate::{Decided, Ordered, Resuming, pause_lease, resume_lease};
use super::leases::{Damaged, state};
use super::reading::{Params, field, limit, optional, read};
use super::trigger::RequestView;
use super::values::{Pause, SlotState, Time, millis};
use super::walk::{Steps, Walk};
use crate::access::Verb;
use crate::serve::{Json, Problem, Site};
use axum::body::Bytes;
use leasehold_core::{Coordinator, Epoch, Error, Inspection, Kind, LeaseName, LeaseVerbs, NamePattern};
use leasehold_work::output::{self, Ring, RunOutput};
use leasehold_work::schedule::requests::{Requested, RunRequests};
use leasehold_work::schedule::{Definition, Definitions, Entry, Journals};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// How many definitions one request reads at a time, and how often. Each job that is shown takes a read of its lease besides.
const PAGE: usize = 250;
const READS: usize = 20;

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

/// A job, and the state of its lease.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobView {
    /// Its name, which is that of its lease.
    name: String,
    /// Its schedule, as it was written.
    schedule: String,
    /// The same, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<String>,
    /// The next slot that is due; none if its schedule has no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Time>,
    /// How long after a slot's start it is late.
    late_after_ms: u64,
    /// The labels of machines that run it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    on: Vec<String>,
    /// Who published it: a file, or `run --slot`.
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
    paused: Option<Pause>,
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
            paused: record.paused.as_ref().map(Pause::from),
            requested: requested.map(|request| RequestView::new(request, record, now)),
        }
    }
}

/// Which jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Only names like this: `*` stands for any characters, `?` for one.
    name: Option<String>,
    /// At most this many, 1 to 250; 100 by default.
    #[param(minimum = 1, maximum = 250)]
    limit: Option<u32>,
    /// Where an earlier listing stopped: its `next`.
    cursor: Option<String>,
}

/// A page of jobs, in the order of their names.
#[derive(Debug, Serialize, ToSchema)]
pub struct Jobs {
    jobs: Vec<JobView>,
    /// Jobs whose definition or lease cannot be read, by name. The others are listed all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged: Vec<Damaged>,
    /// There may be more: give this as `cursor`. A page that was read to its bound may be short, or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The store's time.
    now: Time,
}

/// The jobs that schedulers have published.
#[utoipa::path(get, path = "/v1/ns/{namespace}/jobs", tag = "jobs", params(Wanted),
    responses((status = 200, description = "A page of jobs.", body = Jobs)))]
pub async fn list(asked: Asked, Params(wanted): Params<Wanted>) -> Result<Json<Jobs>, Problem> {
    asked.lists()?;
    let pattern = optional("name", wanted.name, |name| name.parse::<NamePattern>())?;
    let most = limit(wanted.limit, 100, PAGE)?;
    let own = ["jobs", asked.namespace.as_str()];
    let after = cursor::read(&asked.site, &own, wanted.cursor.as_deref()).await?;
    let coordinator = asked.coordinator().await?;
    let (found, next) = definitions(&asked, &coordinator, pattern.as_ref(), after.as_ref(), most).await?;
    let (requests, now) = RunRequests::new(coordinator.clone()).all().await?;
    let (mut jobs, mut damaged) = (Vec::new(), Vec::new());
    for (name, definition) in found {
        let read = match definition {
            Ok(definition) => coordinator.inspect(&name).await.map(|lease| (definition, lease)),
            Err(error) => Err(error),
        };
        match read {
            Ok((definition, lease)) => jobs.push(JobView::new(&name, definition, &lease, &requests)),
            // The others are listed all the same.
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => {
                damaged.push(Damaged { name: name.to_string(), why: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        }
    }
    let next = cursor::after(&asked.site, &own, next.as_ref()).await?;
    Ok(Json(Jobs { jobs, damaged, next, now: now.into() }))
}

/// A job with its definition, or why that cannot be read.
type NamedDefinition = (LeaseName, Result<Definition, Error>);

/// The published jobs like this that the caller may see, and where to go on.
async fn definitions(
    asked: &Asked,
    coordinator: &Coordinator,
    pattern: Option<&NamePattern>,
    after: Option<&LeaseName>,
    most: usize,
) -> Result<(Vec<NamedDefinition>, Option<LeaseName>), Problem> {
    let text = pattern.map(ToString::to_string).unwrap_or_default();
    let reach = Beginnings::of(asked.caller.scope()).within(cursor::prefix(&text));
    let definitions = Definitions::new(coordinator.clone());
    let is_shown =
        |name: &str| pattern.is_none_or(|pattern| pattern.matches(name)) && asked.caller.sees(&asked.namespace, name);
    let mut walk = Walk::new(reach, after, Steps { first: PAGE, further: PAGE, most: READS });
    let mut found: Vec<NamedDefinition> = Vec::new();
    while found.len() < most
        && let Some((at, step)) = walk.step()
    {
        let (page, next) = definitions.page(at.as_ref(), step).await?;
        let mut shown = page.into_iter().filter(|(name, _)| is_shown(name.as_str())).peekable();
        while found.len() < most
            && let Some((name, definition)) = shown.next()
        {
            walk.pass(&name);
            found.push((name, definition));
        }
        let is_full = found.len() == most;
        // Records of jobs that were retired are not among those of the page.
        if let Some(next) = next.as_ref().filter(|_| !is_full) {
            walk.pass(next);
        }
        walk.end(next.is_some() || shown.peek().is_some());
    }
    Ok((found, walk.next()))
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

/// How many slots to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Count {
    /// At most this many, 1 to 100; 5 by default.
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
    /// When it is due, by the job's schedule.
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
    /// The slot; the first one, if the entry is about several.
    slot: Time,
    /// The last slot, if the entry is about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Time>,
    /// How many slots this is about: 1, unless they were passed over together.
    count: u64,
    /// `running`, `succeeded`, `failed`, `lost`, `not_started`, `skipped_overlap`, `dropped_too_old`, `dropped_coalesced`,
    /// `dropped_clock_ahead`, `paused` or `died`.
    fate: &'static str,
    /// When it began, or was recorded.
    at: Time,
    /// The machine that ran it or passed it over.
    host: String,
    /// The epoch that it was run under.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// How often it was started.
    attempts: u32,
    /// The exit code of its command, 128 and the number for a signal; none if it has not ended.
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
    /// Entries up to this slot were dropped, to keep the journal small.
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

/// Which runs' output to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// Only of the run under this epoch.
    #[param(maximum = 9007199254740991_u64)]
    epoch: Option<u64>,
    /// At most this many, 1 to 50; 5 by default.
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
    /// When it ended, by the store's clock.
    at: Time,
    /// The exit code of its command, 128 and the number for a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<u8>,
    /// How many bytes it printed in all.
    bytes: u64,
    /// Whether there was more than the tail.
    cut: bool,
    /// The last lines, as the command printed them.
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
#[utoipa::path(post, path = "/v1/ns/{namespace}/jobs/{name}/resume", tag = "jobs", request_body = Resuming,
    responses((status = 200, description = "Its next slot is run.", body = Ordered)))]
pub async fn resume(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = asked.name(Verb::Operate)?.of_a_lease()?;
    resume_lease(&asked, &name, read(&body)?).await
}
