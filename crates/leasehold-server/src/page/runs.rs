//! The runs of a job: every due slot and what became of it, and what a run printed at its end.

use super::act::{Given, OrderForm, job_orders};
use super::form::{Fields, in_query};
use super::frame::{self, Frame};
use super::jobs::{Strip, overdue_words, style, words};
use super::lease::{Mark, Notice, mark, name_in};
use super::leases::LeaseState;
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

/// The most of an output that is shown: its end.
const TAIL: usize = 32 * 1024;

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

/// The end of what a run printed.
struct Output {
    slot: Spelled,
    at: When,
    host: String,
    bytes: String,
    is_cut: bool,
    file: Option<String>,
    text: String,
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
    output: Option<Output>,
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
        state: LeaseState::of(&lease.record, now).word(),
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
        output,
        has_lease: !lease.record.is_unknown(),
        epoch: lease.record.epoch.get(),
        action: visit.frame.to(format!("job/{name}")),
        frame: visit.frame.clone(),
    };
    Ok(frame::send(given.status, &page))
}

/// What the run of a slot printed at its end, if that is kept.
async fn printed(visit: &Visit, name: &LeaseName, slot: &Entry, now: Timestamp) -> Result<Option<Output>, Problem> {
    let Some(record) = &slot.output else { return Ok(None) };
    let printed = output::at(&visit.coordinator, record).await?;
    // The record may be a newer run's by now.
    let printed = printed.filter(|printed| printed.lease == *name && Some(printed.epoch) == slot.epoch);
    Ok(printed.map(|printed| Output {
        slot: When::new(slot.slot.0, now).slot(),
        at: When::new(printed.at, now),
        host: printed.host.clone(),
        bytes: thousands(printed.bytes),
        is_cut: printed.is_cut || printed.tail.len() > TAIL,
        file: printed.file.clone(),
        text: fold(tail(&printed.tail)),
    }))
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

/// The end of a text, from a whole character on.
fn tail(text: &str) -> &str {
    let from = text.len().saturating_sub(TAIL);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

/// What a terminal would show in the end: a carriage return writes over its line, and colours are left out.
fn fold(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        output::plain(line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default())
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carriage_return_writes_over_its_line() {
        assert_eq!(fold("10%\r50%\r100%\ndone\r\n\rx\r"), "100%\ndone\nx");
        assert_eq!(fold("\u{1b}[31mred\u{1b}[0m\tand\u{7}plain\u{1b}["), "red\tandplain");
    }

    #[test]
    fn the_end_of_an_output_begins_with_a_whole_character() {
        let text = "é".repeat(TAIL);
        assert!(tail(&text).len() <= TAIL && tail(&text).starts_with('é'));
        assert_eq!(tail("short"), "short");
    }
}
