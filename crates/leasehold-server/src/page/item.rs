//! One item of a queue: its attempts, its checkpoint, what came after it. What it carries is hidden until it is asked for.

use super::act::{Given, OrderForm, item_orders};
use super::form::Fields;
use super::frame::{self, Frame};
use super::lease::Notice;
use super::printed::Printed;
use super::times::When;
use super::visit::Visit;
use crate::remote::{knows_origin, knows_queue};
use crate::serve::Problem;
use askama::Template;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use leasehold_core::item::{Item, ItemName, Payload, QueueName, State};
use leasehold_work::output;
use leasehold_work::queue::{Inspection, ItemId, Queue};
use std::collections::HashMap;

/// Something that happened.
struct Happened {
    at: When,
    what: String,
    style: &'static str,
    epoch: u64,
    by: String,
    why: String,
}

/// What of an item was asked for: it is hidden otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    payload: bool,
    output: bool,
}

impl Shown {
    fn of(fields: &Fields) -> Self {
        let is_shown = |part| fields.get(part) == Some("shown");
        Shown { payload: is_shown("payload"), output: is_shown("output") }
    }

    /// The address of the page that shows this.
    fn address(self, page: &str) -> String {
        let parts: Vec<&str> = [(self.payload, "payload=shown"), (self.output, "output=shown")]
            .iter()
            .filter_map(|(is_shown, part)| is_shown.then_some(*part))
            .collect();
        if parts.is_empty() { page.to_owned() } else { format!("{page}?{}", parts.join("&")) }
    }
}

/// What an item carries, or what came of it.
struct Content {
    bytes: usize,
    /// None while it is hidden.
    text: Option<String>,
    is_text: bool,
}

impl Content {
    fn of(payload: &Payload, is_shown: bool) -> Self {
        let text = payload.text().map_or_else(|| payload.base64(), str::to_owned);
        Content { bytes: payload.bytes().len(), text: is_shown.then_some(text), is_text: payload.text().is_some() }
    }
}

#[derive(Template)]
#[template(path = "item.html")]
struct ItemPage {
    frame: Frame,
    now_ms: u64,
    queue: String,
    id: String,
    told: Option<Notice>,
    state: &'static str,
    epoch: u64,
    tried: u32,
    most: u32,
    priority: u8,
    added: When,
    due: Option<When>,
    holder: Option<String>,
    expires: Option<When>,
    why: Option<String>,
    marker: Option<String>,
    checkpoint: Option<String>,
    progress_at: Option<When>,
    drain: Option<String>,
    origin: Option<String>,
    follow_ups: Vec<(String, String)>,
    payload: Content,
    result: Option<Content>,
    shown: Shown,
    /// What its newest run printed.
    output: Option<Printed>,
    /// Where the other one of hidden and shown is.
    payload_address: String,
    output_address: String,
    history: Vec<Happened>,
    action: String,
    orders: Vec<OrderForm>,
}

/// The item that a path names.
pub fn item_in(path: &HashMap<String, String>) -> Result<(QueueName, ItemId), Problem> {
    let part = |name: &str| path.get(name).map(String::as_str).unwrap_or_default();
    Ok((part("queue").parse()?, part("id").parse()?))
}

/// The page.
pub async fn page(
    visit: Visit,
    Path(path): Path<HashMap<String, String>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let (queue, id) = item_in(&path)?;
    visit.reads(queue.as_str())?;
    let fields = Fields::of_query(query.as_deref());
    let queue = Queue::new(visit.coordinator.store().clone(), queue);
    show(&visit, &queue, &id, Shown::of(&fields), Given::told(Notice::by_word(&visit.noticed))).await
}

/// The page, with what came of an order.
pub async fn show(
    visit: &Visit,
    queue: &Queue,
    id: &ItemId,
    shown: Shown,
    mut given: Given<'_>,
) -> Result<Response, Problem> {
    let Inspection { item, now, .. } = queue.inspect(id).await?;
    let progress = item.progress.as_ref();
    let tenure = item.tenure();
    let orders = if visit.operates(queue.name().as_str()) { item_orders(&item) } else { Vec::new() };
    let action = visit.frame.to(format!("item/{}/{id}", queue.name()));
    let printed = match shown.output {
        true => output::of_item(&visit.coordinator, &ItemName { queue: queue.name().clone(), id: id.clone() }).await?,
        false => None,
    };
    let page = ItemPage {
        orders: given.fill(orders),
        now_ms: now.as_millis(),
        queue: queue.name().to_string(),
        id: id.to_string(),
        told: given.told,
        state: item.word(now),
        epoch: item.epoch.get(),
        tried: item.tried,
        most: item.attempts.most,
        priority: item.priority.get(),
        added: When::new(item.added, now),
        due: item.due.filter(|due| *due > now).map(|due| When::new(due, now)),
        holder: tenure.map(|tenure| tenure.holder.to_string()),
        expires: tenure.map(|tenure| When::new(tenure.deadline, now)),
        why: why(&item),
        marker: progress.and_then(|p| p.marker.as_ref()).map(ToString::to_string),
        checkpoint: progress.and_then(|p| p.checkpoint.as_ref()).map(|c| c.as_str().to_owned()),
        progress_at: progress.map(|progress| When::new(progress.at, now)),
        drain: item.live_drain(now).map(ToString::to_string),
        origin: item.origin.clone().filter(|origin| knows_origin(&visit.caller, &visit.namespace, origin)),
        follow_ups: follow_ups(visit, &item),
        payload: Content::of(&item.payload, shown.payload),
        result: item.result.as_ref().map(|result| Content::of(result, shown.payload)),
        shown,
        output: printed.map(|printed| Printed::of(&printed, now)),
        payload_address: Shown { payload: !shown.payload, ..shown }.address(&action),
        output_address: Shown { output: !shown.output, ..shown }.address(&action),
        history: happened(&item, now),
        action,
        frame: visit.frame.clone(),
    };
    Ok(frame::send(given.status, &page))
}

fn why(item: &Item) -> Option<String> {
    if let State::Dead { why, .. } = &item.state { Some(why.to_string()) } else { None }
}

/// What its completion added, and is still to add.
fn follow_ups(visit: &Visit, item: &Item) -> Vec<(String, String)> {
    let names = item.follow_ups.iter().chain(item.outbox.iter().map(|follow_up| &follow_up.name));
    let known = names.filter(|n| knows_queue(&visit.caller, &visit.namespace, n.queue.as_str()));
    known.map(|n| (n.to_string(), visit.frame.to(format!("item/{}/{}", n.queue, n.id)))).collect()
}

fn happened(item: &Item, now: leasehold_core::Timestamp) -> Vec<Happened> {
    let happened = item.history.iter().rev().map(|event| Happened {
        at: When::new(event.at, now),
        what: event.what.as_str().replace('_', " "),
        style: event.what.as_str(),
        epoch: event.epoch.get(),
        by: event.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        why: event.why.as_ref().map(ToString::to_string).unwrap_or_default(),
    });
    happened.collect()
}
