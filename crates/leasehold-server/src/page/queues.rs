//! Queues: how much waits, since when, and what was given up, by reason.
//!
//! Non-promise: positions in line are hints, so a number may be off by what is changing.

use super::Shared;
use super::budget::{self, BULK, FIRST_STEP, ITEMS_STEP, ITEMS_STEPS, QUEUES, RECENT_STEP, SEARCH_STEPS};
use super::bulk::{self, BulkOrder};
use super::counts::{Counting, Counts};
use super::form::{Fields, in_query};
use super::frame::{self, Frame};
use super::lease::Notice;
use super::throughput::{Throughput, Words};
use super::times::{When, thousands};
use super::visit::Visit;
use crate::api::walk::Walk;
use crate::serve::Problem;
use askama::Template;
use axum::Extension;
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use axum::response::Response;
use leasehold_core::item::{Item, ItemName, Priority, QueueName, State};
use leasehold_core::store::Range;
use leasehold_core::{LeaseName, Shelf, Timestamp};
use leasehold_work::queue::Queue;
use ring::digest::{SHA256, digest};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A queue in the listing.
struct Row {
    name: String,
    address: String,
    waiting: String,
    claimed: String,
    later: String,
    oldest: Option<When>,
    ended: Words,
}

#[derive(Template)]
#[template(path = "queues.html")]
struct QueuesPage {
    frame: Frame,
    now_ms: u64,
    rows: Vec<Row>,
    /// Whether it begins behind other queues.
    is_later: bool,
    next: Option<String>,
}

/// Answers with a page of queues: those that the visitor may see.
pub async fn all(
    visit: Visit,
    Extension(shared): Extension<Arc<Shared>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let fields = Fields::of_query(query.as_deref());
    let after = visit.after(&fields).await?;
    let store = visit.coordinator.store().clone();
    let (names, next, mut now) = names(&visit, after.as_ref()).await?;
    let mut rows = Vec::new();
    let mut counting = Counting::begin(&visit.namespace, &shared.bounds, visit.coordinator.clock().as_ref());
    for queue in names {
        let counts = Counts::of(store.as_ref(), &queue, &mut counting).await?;
        now = counts.now;
        let (items, mut ended) = (Queue::new(store.clone(), queue.clone()), Throughput::default());
        ended.look_at_first(&items, FIRST_STEP).await?;
        ended.look(&items, now, counts.oldest, RECENT_STEP).await?;
        rows.push(Row {
            ended: ended.words(),
            address: visit.frame.to(format!("queue/{queue}")),
            name: queue.to_string(),
            waiting: counts.waiting.words(),
            claimed: counts.claimed.words(),
            later: counts.later.words(),
            oldest: counts.oldest.map(|at| When::new(at, counts.now)),
        });
    }
    let next = visit.cursor(next.as_ref()).await?;
    let next = next.map(|next| format!("{}?after={next}", visit.frame.to("queues")));
    let (now_ms, is_later) = (now.as_millis(), after.is_some());
    Ok(frame::send(StatusCode::OK, &QueuesPage { now_ms, rows, is_later, next, frame: visit.frame }))
}

/// The names of queues that the visitor may see, where to go on, and the store's time.
async fn names(
    visit: &Visit,
    after: Option<&LeaseName>,
) -> leasehold_core::Result<(Vec<QueueName>, Option<LeaseName>, Timestamp)> {
    let mut walk = Walk::new(visit.reach(), after, budget::search(QUEUES, SEARCH_STEPS));
    let (mut names, mut now) = (Vec::new(), Timestamp::from_millis(leasehold_system::clock::wall_ms()));
    while let Some((at, step)) = walk.step() {
        let page = visit.coordinator.store().list(Shelf::Queue, Range::new(at.as_ref(), step)).await?;
        now = page.now;
        let mut left = page.entries.len();
        for (name, _) in page.entries {
            walk.pass(&name);
            left -= 1;
            if visit.sees(name.as_str()) {
                names.extend(name.as_str().parse::<QueueName>());
            }
            if names.len() >= QUEUES {
                break;
            }
        }
        walk.end(page.more || left > 0);
        if names.len() >= QUEUES {
            break;
        }
    }
    Ok((names, walk.next(), now))
}

/// Dead letters of one reason.
struct Group {
    /// The same as long as the reason is, wherever it stands on the page.
    key: String,
    why: String,
    count: String,
    newest: When,
    items: Vec<ItemRow>,
    more: usize,
    /// What a button calls those that one order takes: `these 37`.
    these: String,
    /// Where they are counted for an order, for those who may give one.
    retry: Option<String>,
    purge: Option<String>,
}

/// An item in a listing.
struct ItemRow {
    id: String,
    address: String,
    state: &'static str,
    tried: String,
    /// Whether it is claimed before or after others.
    priority: Option<u8>,
    at: When,
    /// Who has it.
    holder: String,
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: Frame,
    now_ms: u64,
    name: String,
    told: Option<Notice>,
    waiting: String,
    claimed: String,
    later: String,
    oldest: Option<When>,
    /// How many of the items that were looked at are finished, and how.
    done: u64,
    cancelled: u64,
    dead: u64,
    ended: Words,
    groups: Vec<Group>,
    /// How many dead letters have other reasons than those groups, and how many reasons.
    other_reasons: Option<(String, String)>,
    items: Vec<ItemRow>,
    troubles: Vec<String>,
    looked_at: String,
    next: Option<String>,
}

/// How many reasons are shown: programs write numbers into them, and then each dead letter has its own.
const GROUPS: usize = 50;
/// How many items of a group, and of the queue, are shown.
const SHOWN: usize = 10;
const LISTED: usize = 50;

/// What was found among the items that were looked at.
#[derive(Default)]
pub struct DeadLetters {
    /// How many that is.
    pub looked_at: u64,
    done: u64,
    cancelled: u64,
    /// Dead letters by reason, those of a reason in the order of their ids.
    pub dead: BTreeMap<String, Vec<(ItemName, Item)>>,
    open: Vec<(ItemName, Item)>,
    ended: Throughput,
    troubles: Vec<String>,
    /// Where to look further, if there is more.
    pub next: Option<LeaseName>,
}

/// Looks at a bounded number of items, in the order of their ids.
pub async fn search(queue: &Queue, after: Option<LeaseName>) -> leasehold_core::Result<DeadLetters> {
    let is_from_the_beginning = after.is_none();
    let (mut found, mut cursor) = (DeadLetters::default(), after);
    for _ in 0..ITEMS_STEPS {
        let page = queue.list(cursor.as_ref(), ITEMS_STEP).await?;
        for (name, item) in page.entries {
            found.looked_at += 1;
            if let Ok(item) = &item {
                found.ended.see(&name, item, page.now);
            }
            match item {
                Err(error) => found.troubles.push(error.to_string()),
                Ok(item) => match &item.state {
                    State::Done { .. } => found.done += 1,
                    State::Cancelled { .. } => found.cancelled += 1,
                    State::Dead { why, .. } => found.dead.entry(why.to_string()).or_default().push((name, item)),
                    State::Ready | State::Claimed(_) if found.open.len() < LISTED => found.open.push((name, item)),
                    _ => {}
                },
            }
        }
        found.next = page.next.clone();
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    if is_from_the_beginning && found.next.is_none() {
        found.ended.is_everything();
    }
    Ok(found)
}

/// The name in a path.
pub fn queue_in(path: &HashMap<String, String>) -> Result<QueueName, Problem> {
    Ok(path.get("queue").map(String::as_str).unwrap_or_default().parse()?)
}

/// Answers with the page of one queue, if the visitor may see it.
pub async fn one(
    visit: Visit,
    Extension(shared): Extension<Arc<Shared>>,
    Path(path): Path<HashMap<String, String>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let name = queue_in(&path)?;
    visit.reads(name.as_str())?;
    let fields = Fields::of_query(query.as_deref());
    let after = fields.get("after").and_then(|name| LeaseName::new(name).ok());
    let queue = Queue::new(visit.coordinator.store().clone(), name.clone());
    let store = visit.coordinator.store();
    if store.read(&leasehold_core::Key::new(Shelf::Queue, &LeaseName::new(name.as_str())?)).await?.value.is_none() {
        return Err(Problem::not_found(format!("nothing was ever added to a queue `{name}` in `{}`", visit.namespace)));
    }
    let mut counting = Counting::begin(&visit.namespace, &shared.bounds, visit.coordinator.clock().as_ref());
    let counts = Counts::of(store.as_ref(), &name, &mut counting).await?;
    let mut found = search(&queue, after.clone()).await?;
    let now = counts.now;
    found.ended.look(&queue, now, counts.oldest, ITEMS_STEP).await?;
    let page = QueuePage {
        now_ms: now.as_millis(),
        told: bulk::by_numbers(&visit.noticed),
        waiting: counts.waiting.words(),
        claimed: counts.claimed.words(),
        later: counts.later.words(),
        oldest: counts.oldest.map(|at| When::new(at, now)),
        done: found.done,
        cancelled: found.cancelled,
        ended: found.ended.words(),
        dead: found.dead.values().map(|letters| letters.len() as u64).sum(),
        groups: groups(&visit, &name, &found.dead, after.as_ref(), now),
        other_reasons: other_reasons(&found.dead),
        items: found.open.iter().map(|(name, item)| row(&visit, name, item, now)).collect(),
        troubles: found.troubles,
        looked_at: thousands(found.looked_at),
        next: found
            .next
            .map(|next| format!("{}?after={}", visit.frame.to(format!("queue/{name}")), in_query(next.as_str()))),
        name: name.to_string(),
        frame: visit.frame.clone(),
    };
    Ok(frame::send(StatusCode::OK, &page))
}

fn groups(
    visit: &Visit,
    queue: &QueueName,
    dead: &BTreeMap<String, Vec<(ItemName, Item)>>,
    after: Option<&LeaseName>,
    now: Timestamp,
) -> Vec<Group> {
    let operates = visit.operates(queue.as_str());
    let mut groups: Vec<_> = dead.iter().collect();
    groups.sort_by_key(|(_, letters)| std::cmp::Reverse(letters.len()));
    let group = |(why, letters): (&String, &Vec<(ItemName, Item)>)| {
        let newest = letters.iter().filter_map(|(_, item)| item.state.finished_at()).max().unwrap_or(now);
        let mut letters: Vec<_> = letters.iter().collect();
        letters.sort_by_key(|(_, item)| std::cmp::Reverse(item.state.finished_at()));
        let order = |order| operates.then(|| bulk::address(&visit.frame, queue, order, why, after));
        Group {
            key: key(why),
            retry: order(BulkOrder::Retry),
            purge: order(BulkOrder::Purge),
            these: these(letters.len()),
            why: why.clone(),
            count: thousands(letters.len() as u64),
            newest: When::new(newest, now),
            items: letters.iter().take(SHOWN).map(|(name, item)| row(visit, name, item, now)).collect(),
            more: letters.len().saturating_sub(SHOWN),
        }
    };
    groups.into_iter().take(GROUPS).map(group).collect()
}

/// What is behind the reasons that are shown.
fn other_reasons(dead: &BTreeMap<String, Vec<(ItemName, Item)>>) -> Option<(String, String)> {
    let mut counts: Vec<usize> = dead.values().map(Vec::len).collect();
    counts.sort_by_key(|count| std::cmp::Reverse(*count));
    let others = counts.get(GROUPS..).filter(|others| !others.is_empty())?;
    Some((thousands(others.iter().sum::<usize>() as u64), thousands(others.len() as u64)))
}

fn key(why: &str) -> String {
    digest(&SHA256, why.as_bytes()).as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

fn these(count: usize) -> String {
    match count {
        1 => "this one".to_owned(),
        _ if count <= BULK => format!("these {}", thousands(count as u64)),
        _ => format!("{} of these {}", thousands(BULK as u64), thousands(count as u64)),
    }
}

fn row(visit: &Visit, name: &ItemName, item: &Item, now: Timestamp) -> ItemRow {
    let (at, holder) = match &item.state {
        State::Claimed(tenure) => (tenure.granted_at, tenure.holder.to_string()),
        State::Ready => (item.due.filter(|due| *due > now).unwrap_or(item.since), String::new()),
        state => (state.finished_at().unwrap_or(item.added), String::new()),
    };
    ItemRow {
        id: name.id.to_string(),
        address: visit.frame.to(format!("item/{}/{}", name.queue, name.id)),
        state: item.word(now),
        tried: format!("{} of {}", item.tried, item.attempts.most),
        priority: Some(item.priority)
            .filter(|priority| *priority != Priority::default())
            .map(|priority| priority.get()),
        at: When::new(at, now),
        holder,
    }
}
