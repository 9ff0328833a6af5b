//! Looking at queues and their items.
//!
//! Promise: each request reads a bounded number of records, however many there are. Counts over more than that say so. What
//! items carry is shown only where it is asked for.

use super::view::{EventView, ItemView, Payloads};
use crate::access::Verb;
use crate::api::asked::Asked;
use crate::api::cursor::{self, Beginnings};
use crate::api::reading::{Params, limit};
use crate::api::values::Time;
use crate::api::walk::{Steps, Walk};
use crate::serve::{Json, Problem};
use leasehold_core::store::Range;
use leasehold_core::{Kind, LeaseName, Shelf};
use leasehold_work::queue::{Item, QueueName, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

const PAGE: usize = 500;
/// How many records one listing reads, and one count.
const MAX_READ: usize = 5_000;
const MAX_COUNTED: usize = 10_000;
/// How often a listing of queues reads on past those that are hidden.
const QUEUE_READS: usize = 20;
const STATES: [&str; 9] = ["ready", "delayed", "claimed", "done", "dead", "cancelled", "moving", "moved", "arriving"];

/// Where a listing continues.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Going {
    /// At most this many, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where an earlier listing stopped: its `next`.
    cursor: Option<String>,
}

/// Queues, in the order of their names.
#[derive(Debug, Serialize, ToSchema)]
pub struct Queues {
    /// Their names, sorted.
    queues: Vec<String>,
    /// There may be more: give this as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// The queues to which anything was ever added.
#[utoipa::path(get, path = "/v1/ns/{namespace}/queues", tag = "queues", params(Going),
    responses((status = 200, description = "A page of queues.", body = Queues)))]
pub async fn queues(asked: Asked, Params(going): Params<Going>) -> Result<Json<Queues>, Problem> {
    asked.lists()?;
    let most = limit(going.limit, 100, 1_000)?;
    let listing = ["queues", asked.namespace.as_str()];
    let after = cursor::read(&asked.site, &listing, going.cursor.as_deref()).await?;
    let coordinator = asked.coordinator().await?;
    // How full a page is, and whether another follows, must not count the queues that the key is not for.
    let mut seen: Vec<LeaseName> = Vec::new();
    let steps = Steps { first: most + 1, further: PAGE, most: QUEUE_READS };
    let mut walk = Walk::new(Beginnings::of(asked.caller.scope()), after.as_ref(), steps);
    let next = loop {
        let Some((at, step)) = walk.step() else { break walk.next() };
        let page = coordinator.store().list(Shelf::Queue, Range::new(at.as_ref(), step)).await?;
        for (name, _) in page.entries {
            walk.pass(&name);
            if asked.caller.sees(&asked.namespace, name.as_str()) {
                seen.push(name);
            }
        }
        if seen.len() > most {
            seen.truncate(most);
            break seen.last().cloned();
        }
        walk.end(page.more);
    };
    let next = cursor::after(&asked.site, &listing, next.as_ref()).await?;
    Ok(Json(Queues { queues: seen.iter().map(ToString::to_string).collect(), next }))
}

/// How many items are in each state.
#[derive(Debug, Serialize, ToSchema)]
pub struct Counts {
    /// The name of the queue.
    queue: String,
    /// May be claimed now.
    ready: u64,
    /// May be claimed later.
    delayed: u64,
    /// Claimed by a worker, or until the claim expired.
    claimed: u64,
    /// Dead letters: no attempts are left.
    dead: u64,
    /// Completed by a worker.
    done: u64,
    /// Cancelled by an operator.
    cancelled: u64,
    /// Moving to another store, moved there, or arriving from one.
    elsewhere: u64,
    /// Records that could not be read, and so were not counted.
    damaged: u64,
    /// Since when the oldest ready item has waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest: Option<Time>,
    /// Whether all items were counted. If not, the numbers are lower bounds.
    exact: bool,
    /// The store's time of the count.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<Time>,
}

/// How many items of a queue are in each state, up to 10,000 items.
#[utoipa::path(get, path = "/v1/ns/{namespace}/queues/{queue}", tag = "queues",
    responses((status = 200, description = "The counts.", body = Counts)))]
pub async fn counts(asked: Asked) -> Result<Json<Counts>, Problem> {
    let queue = asked.queue(Verb::Read).await?;
    let mut counts = Counts::new(queue.name());
    let (mut after, mut read, mut oldest) = (None, 0, None);
    loop {
        let page = queue.list(after.as_ref(), PAGE).await?;
        counts.now = Some(page.now.into());
        read += page.entries.len().max(1);
        for (_, item) in &page.entries {
            let Ok(item) = item else {
                counts.damaged += 1;
                continue;
            };
            let is_due = item.is_due(page.now);
            *counts.of(item, is_due) += 1;
            if item.state == State::Ready && is_due && item.relocation.is_none() {
                let since = item.due.unwrap_or(item.since);
                oldest = Some(oldest.map_or(since, |oldest| since.min(oldest)));
            }
        }
        counts.exact = page.next.is_none();
        match page.next.filter(|_| read < MAX_COUNTED) {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    counts.oldest = oldest.map(Time::from);
    Ok(Json(counts))
}

impl Counts {
    fn new(queue: &QueueName) -> Self {
        Counts {
            queue: queue.to_string(),
            ready: 0,
            delayed: 0,
            claimed: 0,
            dead: 0,
            done: 0,
            cancelled: 0,
            elsewhere: 0,
            damaged: 0,
            oldest: None,
            exact: true,
            now: None,
        }
    }

    fn of(&mut self, item: &Item, is_due: bool) -> &mut u64 {
        match &item.state {
            _ if item.relocation.is_some() => &mut self.elsewhere,
            State::Ready if is_due => &mut self.ready,
            State::Ready => &mut self.delayed,
            State::Claimed(_) => &mut self.claimed,
            State::Dead { .. } => &mut self.dead,
            State::Done { .. } => &mut self.done,
            State::Cancelled { .. } | State::Purged { .. } => &mut self.cancelled,
        }
    }
}

/// Which ones to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Listing {
    /// Only those in this state.
    state: Option<String>,
    /// Whether to show what they carry.
    payload: Option<bool>,
    /// At most this many, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where an earlier listing stopped: its `next`.
    cursor: Option<String>,
}

/// A page of items, in the order of their ids.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemPage {
    items: Vec<ItemView>,
    /// Items whose record cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged: Vec<String>,
    /// There may be more: give this as `cursor`. A page that was read to its bound may be short, or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Items of a queue.
#[utoipa::path(get, path = "/v1/ns/{namespace}/queues/{queue}/items", tag = "queues", params(Listing),
    responses((status = 200, description = "A page of items.", body = ItemPage)))]
pub async fn items(asked: Asked, Params(listing): Params<Listing>) -> Result<Json<ItemPage>, Problem> {
    let name = asked.queue_name(Verb::Read)?;
    let most = limit(listing.limit, 100, 1_000)?;
    if listing.state.as_deref().is_some_and(|state| !STATES.contains(&state)) {
        return Err(Problem::invalid(format!("field `state`: use {}", STATES.join(", "))).with("field", "state"));
    }
    let payloads = Payloads::from(listing.payload);
    let own = ["items", asked.namespace.as_str(), name.as_str()];
    let mut after = cursor::read(&asked.site, &own, listing.cursor.as_deref()).await?;
    let queue = asked.queue(Verb::Read).await?;
    let mut found = ItemPage { items: Vec::new(), damaged: Vec::new(), next: None };
    let mut read = 0;
    loop {
        // Not more than there is room for, so that the cursor is where the page ends.
        let room = (most - found.items.len()).min(PAGE);
        let page = queue.list(after.as_ref(), room).await?;
        read += room;
        for (name, item) in &page.entries {
            match item {
                Err(error) => found.damaged.push(error.to_string()),
                Ok(item) if listing.state.as_deref().is_none_or(|state| state == item.word(page.now)) => {
                    found.items.push(ItemView::new(&asked, name, item, page.now, payloads));
                }
                Ok(_) => {}
            }
        }
        match page.next {
            None => return Ok(Json(found)),
            Some(next) if read >= MAX_READ || found.items.len() >= most => {
                found.next = cursor::after(&asked.site, &own, Some(&next)).await?;
                return Ok(Json(found));
            }
            Some(next) => after = Some(next),
        }
    }
}

/// Whether to show what an item carries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Showing {
    /// Whether to show what it carries, and its result.
    payload: Option<bool>,
}

/// An item with its history.
#[derive(Debug, Serialize, ToSchema)]
pub struct WholeItem {
    item: ItemView,
    /// The last events, oldest first.
    history: Vec<EventView>,
}

/// One item.
#[utoipa::path(get, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}", tag = "queues", params(Showing),
    responses((status = 200, description = "The item.", body = WholeItem)))]
pub async fn item(asked: Asked, Params(showing): Params<Showing>) -> Result<Json<WholeItem>, Problem> {
    asked.queue_name(Verb::Read)?;
    let id = asked.item()?;
    let queue = asked.queue(Verb::Read).await?;
    let seen = queue.inspect(&id).await.map_err(|error| match error.kind() {
        Kind::Invalid => Problem::not_found(error.to_string()),
        _ => error.into(),
    })?;
    if let State::Purged { .. } = seen.item.state {
        return Err(Problem::not_found(format!("item `{}` was finished and purged", seen.name)));
    }
    let item = ItemView::new(&asked, &seen.name, &seen.item, seen.now, Payloads::from(showing.payload));
    Ok(Json(WholeItem { item, history: seen.item.history.iter().map(EventView::from).collect() }))
}
