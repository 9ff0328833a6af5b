//! One lease: who has it, who had it, and what may be done about it.

use super::act::{Given, OrderForm, lease_orders};
use super::budget::EPOCHS;
use super::fences::Fences;
use super::form::Fields;
use super::frame::{self, Frame};
use super::leases::LeaseState;
use super::timeline::{Timeline, outcome, span, told};
use super::times::{Spelled, When, brief, ms, thousands};
use super::visit::Visit;
use crate::remote::knows_resource;
use crate::serve::Problem;
use askama::Template;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use leasehold_core::{Epoch, Event, FencedMark, Inspection, LeaseName, OperatorMark, Ownership, Timestamp, Transfer};
use std::collections::HashMap;

/// What was done, or was not.
#[derive(Debug, Clone)]
pub struct Notice {
    /// `good` or `bad`: its style.
    pub style: &'static str,
    /// In words.
    pub text: String,
    /// A token for a new holder, which is shown this once.
    pub token: Option<String>,
}

impl Notice {
    /// Done.
    pub fn good(text: impl Into<String>) -> Self {
        Notice { style: "good", text: text.into(), token: None }
    }

    /// Refused.
    pub fn bad(text: impl Into<String>) -> Self {
        Notice { style: "bad", text: text.into(), token: None }
    }

    /// What the word of a notice stands for, after an order was carried out.
    pub fn by_word(fields: &Fields) -> Option<Self> {
        let text = match fields.get("done")? {
            "revoke" => "Revoked. The epoch has moved on. Guards now refuse the former holder's writes.",
            "drain" => "The holder is asked to finish. Nobody new gets it meanwhile.",
            "pause" => "Paused. Nobody new gets it; the current holder continues.",
            "resume" => "Resumed.",
            "trigger" => "Asked for. A scheduler that has the job runs it.",
            "retry" => "Back in line, with all its attempts.",
            "cancel" => "Cancelled.",
            _ => return None,
        };
        Some(Notice::good(text))
    }
}

/// A line of the history.
struct Line {
    epoch: u64,
    at: When,
    who: String,
    how: String,
    length: String,
    outcome: &'static str,
    outcome_words: String,
    slot: Option<Spelled>,
}

/// A stale write that was refused.
struct FencedLine {
    at: When,
    times: u64,
    resource: String,
    held: u64,
    seen: u64,
    by: Option<String>,
}

/// Who did something, why and when.
pub struct Mark {
    pub by: String,
    pub why: String,
    pub at: When,
}

#[derive(Template)]
#[template(path = "lease.html")]
struct LeasePage {
    frame: Frame,
    now_ms: u64,
    name: String,
    is_job: bool,
    told: Option<Notice>,
    standing: &'static str,
    epoch: u64,
    lineage: String,
    holder: Option<String>,
    since: Option<When>,
    expires: Option<When>,
    ttl: Option<String>,
    marker: Option<String>,
    checkpoint: Option<String>,
    progress_at: Option<When>,
    paused: Option<Mark>,
    /// Who ended the last pause.
    resumed: Option<Mark>,
    drain: Option<(Mark, When)>,
    /// Who asked the holder to finish, if the time for that is over.
    asked: Option<Mark>,
    relocation: Option<String>,
    slot: Option<(Spelled, &'static str)>,
    timeline: Option<Timeline>,
    history: Vec<Line>,
    older: bool,
    damaged: Vec<String>,
    counts: Vec<(&'static str, String)>,
    fenced: Vec<FencedLine>,
    fences: Fences,
    /// Where to look for more fences.
    more_fences: Option<String>,
    action: String,
    orders: Vec<OrderForm>,
}

/// The name in a path.
pub fn name_in(path: &HashMap<String, String>) -> Result<LeaseName, Problem> {
    let text = path.get("name").map(String::as_str).unwrap_or_default();
    Ok(LeaseName::new(text)?.of_a_lease()?)
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
    let fences_after = visit.after(&fields).await?;
    show_from(&visit, &name, fences_after.as_ref(), Given::told(Notice::by_word(&visit.noticed))).await
}

/// The page, with what came of an order.
pub async fn show(visit: &Visit, name: &LeaseName, given: Given<'_>) -> Result<Response, Problem> {
    show_from(visit, name, None, given).await
}

async fn show_from(
    visit: &Visit,
    name: &LeaseName,
    fences_after: Option<&LeaseName>,
    mut given: Given<'_>,
) -> Result<Response, Problem> {
    let Inspection { record, now, .. } = visit.coordinator.inspect(name).await?;
    if record.is_unknown() {
        return Err(Problem::not_found(format!("nobody has ever held a lease `{name}` in `{}`", visit.namespace)));
    }
    let from = Epoch::new(record.epoch.get().saturating_sub(EPOCHS).max(1)).unwrap_or(Epoch::ZERO);
    let history = visit.coordinator.history_since(name, &record, from).await?;
    let mut counters = visit.coordinator.counters(name).await.unwrap_or_default();
    counters.keep_fenced_writes(|mark| knows_resource(&visit.caller, &visit.namespace, mark.write.resource.as_str()));
    let fences = Fences::of(visit, name, &record, fences_after).await?;
    let more_fences = visit.cursor(fences.next.as_ref()).await?;
    let transfers = &history.transfers;
    let tenure = record.live_tenure(now);
    let progress = record.progress.as_ref();
    let counts = [
        ("Granted", Event::Granted),
        ("Succeeded", Event::Succeeded),
        ("Failed", Event::Failed),
        ("Lost", Event::Lost),
        ("Died", Event::Died),
        ("Taken away by an operator", Event::Evicted),
        ("Stale writes refused", Event::Fenced),
        ("Skipped, held by another", Event::SkippedOverlap),
    ];
    let orders = if visit.operates(name.as_str()) { lease_orders(&record, now) } else { Vec::new() };
    let page = LeasePage {
        orders: given.fill(orders),
        now_ms: now.as_millis(),
        name: name.to_string(),
        is_job: record.slot.is_some(),
        told: given.told,
        standing: LeaseState::of(&record, now).word(),
        epoch: record.epoch.get(),
        lineage: record.lineage.map(|lineage| lineage.to_string()).unwrap_or_default(),
        holder: tenure.map(|tenure| tenure.holder.to_string()),
        since: tenure.map(|t| t.granted_at).or_else(|| record.idle_since()).map(|at| When::new(at, now)),
        expires: tenure.map(|tenure| When::new(tenure.deadline, now)),
        ttl: tenure.map(|tenure| brief(ms(tenure.ttl.get()))),
        marker: progress.and_then(|p| p.marker.as_ref()).map(ToString::to_string),
        checkpoint: progress.and_then(|p| p.checkpoint.as_ref()).map(|c| c.as_str().to_owned()),
        progress_at: progress.map(|progress| When::new(progress.at, now)),
        paused: record.paused.as_ref().map(|paused| mark(paused, now)),
        resumed: record.resumed.as_ref().filter(|_| record.paused.is_none()).map(|resumed| mark(resumed, now)),
        asked: record.drain.as_ref().filter(|drain| now >= drain.until()).map(|drain| mark(drain.asked(), now)),
        drain: record.live_drain(now).map(|drain| (mark(drain.asked(), now), When::new(drain.until(), now))),
        relocation: record.relocation.as_ref().map(ToString::to_string),
        slot: record.slot.map(|mark| (When::new(mark.slot.0, now).slot(), mark.state.as_str())),
        timeline: Timeline::draw(transfers, counters.fenced_writes(), &record, now),
        history: transfers.iter().rev().map(|transfer| line(transfer, &record, now)).collect(),
        older: transfers.first().is_some_and(|first| first.epoch.get() > 1),
        damaged: history.damaged.iter().map(ToString::to_string).collect(),
        counts: counts.map(|(word, event)| (word, thousands(counters.get(event)))).to_vec(),
        fenced: counters.fenced_writes().iter().rev().map(|mark| fenced_line(mark, now)).collect(),
        more_fences: more_fences.map(|after| visit.frame.to(format!("lease/{name}?after={after}#fences"))),
        fences,
        action: visit.frame.to(format!("lease/{name}")),
        frame: visit.frame.clone(),
    };
    Ok(frame::send(given.status, &page))
}

/// An operator's mark, as a page shows it.
pub fn mark(mark: &OperatorMark, now: Timestamp) -> Mark {
    Mark { by: mark.by.to_string(), why: mark.why.to_string(), at: When::new(mark.at, now) }
}

fn fenced_line(mark: &FencedMark, now: Timestamp) -> FencedLine {
    let write = &mark.write;
    FencedLine {
        at: When::new(mark.at, now),
        times: mark.times,
        resource: write.resource.to_string(),
        held: write.held.get(),
        seen: write.seen.get(),
        by: write.by.as_ref().map(ToString::to_string),
    }
}

fn line(transfer: &Transfer, record: &Ownership, now: Timestamp) -> Line {
    let outcome = if transfer.to.is_some() { outcome(transfer, record, now) } else { "" };
    Line {
        epoch: transfer.epoch.get(),
        at: When::new(transfer.at, now),
        who: transfer.to.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string),
        how: told(transfer),
        length: span(transfer, record, now).map(|(a, b)| brief(ms(b.saturating_since(a)))).unwrap_or_default(),
        outcome,
        outcome_words: outcome.replace('_', " "),
        slot: transfer.slot.map(|slot| When::new(slot.0, now).slot()),
    }
}
