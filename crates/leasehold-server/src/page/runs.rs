//! The runs of a job: every due slot and what became of it, and what a run printed at its end.

use super::act::{Given, OrderForm, job_orders};
use super::form::{Fields, in_query};
use super::frame::{self, Frame};
use super::jobs::{Strip, job_word, overdue_words, style, words};
use super::lease::{Mark, Notice, mark, name_in};
use super::leases::LeaseState;
use super::printed::Printed;
use super::times::{Spelled, When, brief, thousands};
use super::visit::Visit;
use crate::serve::Problem;
use askama::Template;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use leasehold_core::{LeaseName, Ownership, Timestamp};
use leasehold_work::output;
use leasehold_work::schedule::requests::{RequestState, Requested, RunRequests};
use leasehold_work::schedule::{Definition, Definitions, Entry, JobVerbs, slot_text};
use std::collections::HashMap;

/// A slot.
struct Line {
    slot: When,
    slot_exact: Spelled,
    /// Of several slots, how many.
    many: Option<String>,
    fate: String,
    style: &'static str,
    host: String,
    epoch: Option<u64>,
    attempts: u32,
    exit: Option<u8>,
    why: Option<String>,
    length: String,
    used: String,
    output: Option<String>,
    is_chosen: bool,
}

/// A request for a run.
struct Asked {
    by: String,
    why: String,
    at: When,
    style: &'static str,
    words: String,
}

impl Asked {
    fn new(request: &Requested, record: &Ownership, now: Timestamp) -> Self {
        let (style, words) = match request.state(record, now) {
            RequestState::Waiting => ("warn", "no scheduler has taken it up yet".to_owned()),
            RequestState::TakenUp(run) => {
                let host = run.to.as_ref().map(|to| to.host()).unwrap_or_default();
                ("", format!("{host} runs it, or has run it, under epoch {}", run.epoch))
            }
            RequestState::Overtaken => ("warn", "not run: the lease had moved on before".to_owned()),
            RequestState::Expired => ("bad", "not run: no scheduler that has the job took it up in time".to_owned()),
            RequestState::NoLongerKnown => ("", "what became of it is no longer known".to_owned()),
        };
        let (by, why) = (request.by.to_string(), request.why.to_string());
        Asked { by, why, at: When::new(request.at, now), style, words }
    }
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    frame: Frame,
    now_ms: u64,
    name: String,
    told: Option<Notice>,
    state: &'static str,
    when: String,
    line: String,
    next: Option<When>,
    /// What was not run that should have been, in words.
    overdue: Option<String>,
    host: String,
    owner: String,
    on: String,
    paused: Option<Mark>,
    /// Who ended the last pause.
    resumed: Option<Mark>,
    requested: Option<Asked>,
    strip: Strip,
    lines: Vec<Line>,
    forgotten: bool,
    /// What the run of a slot printed.
    output: Option<(Spelled, Printed)>,
    /// Whether an output was asked for that is not there.
    is_output_gone: bool,
    has_lease: bool,
    epoch: u64,
    action: String,
    orders: Vec<OrderForm>,
}

/// The page.
pub async fn page(
    visit: Visit,
    Path(path): Path<HashMap<String, String>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let name = name_in(&path)?;
    visit.reads(name.as_str())?;
    let fields = Fields::of_query(query.as_deref());
    show(&visit, &name, fields.get("slot"), Given::told(Notice::by_word(&visit.noticed))).await
}

/// The page, with what came of an order. `slot` is the one whose output is shown.
pub async fn show(
    visit: &Visit,
    name: &LeaseName,
    slot: Option<&str>,
    mut given: Given<'_>,
) -> Result<Response, Problem> {
    let lease = visit.coordinator.inspect(name).await?;
    let (journal, now) = visit.coordinator.journal(name).await?;
    let definition = definition(visit, name).await?;
    let requested = RunRequests::new(visit.coordinator.clone()).latest(name).await?;
    if definition.is_none() && journal.entries.is_empty() {
        return Err(Problem::not_found(format!("there is no job `{name}` in `{}`", visit.namespace)));
    }
    let schedule = definition.as_ref().map(Definition::schedule);
    let chosen = journal.entries.iter().find(|entry| slot == Some(slot_text(entry.slot).as_str()));
    let output = match chosen {
        Some(entry) => printed(visit, name, entry, now).await?,
        None => None,
    };
    let next = schedule.as_ref().and_then(|schedule| schedule.as_ref().ok()?.next_after(now));
    let lines = journal.entries.iter().rev().map(|entry| line(visit, name, entry, now, chosen == Some(entry)));
    let waits = requested.as_ref().is_some_and(|request| request.state(&lease.record, now) == RequestState::Waiting);
    let can_be_asked_for = !waits && definition.as_ref().is_some_and(Definition::is_of_file);
    let orders = match visit.operates(name.as_str()) {
        true => job_orders(&lease.record, now, can_be_asked_for),
        false => Vec::new(),
    };
    let page = RunsPage {
        orders: given.fill(orders),
        now_ms: now.as_millis(),
        name: name.to_string(),
        told: given.told,
        state: job_word(LeaseState::of(&lease.record, now)),
        when: match &schedule {
            Some(Ok(schedule)) => schedule.words(),
            Some(Err(error)) => error.to_string(),
            None => "no longer in any file".to_owned(),
        },
        line: definition.as_ref().map(|definition| definition.timing.to_string()).unwrap_or_default(),
        next: next.map(|slot| When::new(slot.0, now)),
        overdue: definition.as_ref().and_then(|definition| overdue_words(definition, &lease, &journal)),
        host: definition.as_ref().map(|definition| definition.host.clone()).unwrap_or_default(),
        owner: definition.as_ref().map(|definition| definition.owner.clone()).unwrap_or_default(),
        on: definition.as_ref().map(|definition| definition.on.join(", ")).unwrap_or_default(),
        paused: lease.record.paused.as_ref().map(|paused| mark(paused, now)),
        resumed: lease
            .record
            .resumed
            .as_ref()
            .filter(|_| lease.record.paused.is_none())
            .map(|resumed| mark(resumed, now)),
        requested: requested.as_ref().map(|request| Asked::new(request, &lease.record, now)),
        strip: Strip::of(&journal),
        lines: lines.collect(),
        forgotten: journal.forgotten_to.is_some(),
        is_output_gone: slot.is_some() && output.is_none(),
        output,
        has_lease: !lease.record.is_unknown(),
        epoch: lease.record.epoch.get(),
        action: visit.frame.to(format!("job/{name}")),
        frame: visit.frame.clone(),
    };
    Ok(frame::send(given.status, &page))
}

/// What the run of a slot printed at its end, if that is kept.
async fn printed(
    visit: &Visit,
    name: &LeaseName,
    slot: &Entry,
    now: Timestamp,
) -> Result<Option<(Spelled, Printed)>, Problem> {
    let Some(record) = &slot.output else { return Ok(None) };
    let printed = output::at(&visit.coordinator, record).await?;
    // The record may be a newer run's by now.
    let printed = printed.filter(|printed| printed.lease == *name && Some(printed.epoch) == slot.epoch);
    Ok(printed.map(|printed| (When::new(slot.slot.0, now).slot(), Printed::of(&printed, now))))
}

/// The published definition of one job.
async fn definition(visit: &Visit, name: &LeaseName) -> Result<Option<Definition>, Problem> {
    Ok(Definitions::new(visit.coordinator.clone()).read(name).await?)
}

fn line(visit: &Visit, name: &LeaseName, entry: &Entry, now: Timestamp, is_chosen: bool) -> Line {
    let more = if entry.more { "+" } else { "" };
    let output = entry
        .output
        .as_ref()
        .map(|_| format!("{}?slot={}#output", visit.frame.to(format!("job/{name}")), in_query(&slot_text(entry.slot))));
    let used = entry.usage.map(|usage| {
        format!("{} cpu, {} MiB", brief(usage.cpu_ms), thousands(usage.peak_memory_bytes.div_ceil(1 << 20)))
    });
    Line {
        slot: When::new(entry.slot.0, now),
        slot_exact: When::new(entry.slot.0, now).slot(),
        many: entry.count.map(|count| format!("{}{more} slots", thousands(count))),
        fate: words(entry.fate),
        style: style(entry.fate),
        host: entry.host.clone(),
        epoch: entry.epoch.map(|epoch| epoch.get()),
        attempts: entry.attempts,
        exit: entry.exit,
        why: entry.why.as_ref().map(ToString::to_string),
        length: entry.ran_for_ms.map(brief).unwrap_or_default(),
        used: used.unwrap_or_default(),
        output,
        is_chosen,
    }
}
