//! Adding items.
//!
//! Promise: with an `Idempotency-Key` each item is added once, however often the request is repeated: its key is made of it. A
//! key that was used for other content is refused, and one whose item was purged is `no_longer_known`.

use crate::access::Verb;
use crate::api::asked::{Asked, key_reused};
use crate::api::idempotency::Attempt;
use crate::api::problems::{no_longer_known, unknown};
use crate::api::reading::{duration, field, read};
use crate::api::values::bytes;
use crate::serve::{Json, Problem};
use axum::body::Bytes;
use leasehold_core::store::Range;
use leasehold_core::wire::MAX_DELAY;
use leasehold_core::{Kind, LeaseName, Shelf};
use leasehold_work::queue::{Added, Attempts, DedupeKey, ItemId, NewItem, Payload, Priority, Queue, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most items of one request.
const MAX_ITEMS: usize = 1_000;

/// An item to be added.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Adding {
    /// What it carries, as text.
    payload: Option<String>,
    /// The same in base64, for bytes that are not text.
    payload_base64: Option<String>,
    /// 0 to 9, higher first; 5 by default.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// How long it waits before it may be claimed, such as `10m`.
    delay: Option<String>,
    /// How often it is tried at most; 5 by default.
    #[schema(minimum = 1, maximum = 4294967295_u32, format = "int64")]
    attempts: Option<u32>,
    /// The pause after its first failure, such as `10s`; it doubles with each.
    backoff: Option<String>,
    /// Added only if no item has this key: 1 to 64 of A-Z a-z 0-9 . _ -
    key: Option<String>,
}

impl Adding {
    /// The item; `at` is the field that it was in.
    pub fn item(self, at: &str) -> Result<NewItem, Problem> {
        let name = |field: &str| format!("{at}.{field}");
        let content = field(&name("payload"), bytes("payload", self.payload, self.payload_base64))?.unwrap_or_default();
        let usual = Attempts::default();
        let backoff = duration(&name("backoff"), self.backoff, MAX_DELAY)?;
        if self.attempts == Some(0) {
            return Err(Problem::invalid("field `attempts`: at least 1").with("field", name("attempts")));
        }
        Ok(NewItem {
            payload: field(&name("payload"), Payload::new(content))?,
            priority: field(&name("priority"), self.priority.map(Priority::try_from).transpose())?.unwrap_or_default(),
            delay: duration(&name("delay"), self.delay, MAX_DELAY)?.unwrap_or_default(),
            attempts: Attempts {
                most: self.attempts.unwrap_or(usual.most),
                backoff_ms: backoff.map_or(usual.backoff_ms, crate::api::values::millis),
            },
            key: field(&name("key"), self.key.map(|key| key.parse::<DedupeKey>()).transpose())?,
        })
    }
}

/// Items to be added, in this order.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Items {
    /// The items, 1 to 1000.
    items: Vec<Adding>,
}

/// The items that were added.
#[derive(Debug, Serialize, ToSchema)]
pub struct AddedItems {
    /// In the order of the request.
    items: Vec<AddedItem>,
}

/// An item that was added, or that already existed.
#[derive(Debug, Serialize, ToSchema)]
pub struct AddedItem {
    /// Its id in the queue.
    id: String,
    /// False if there was already an item with its key; then nothing was added.
    new: bool,
}

/// Adds items.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items", tag = "queues", request_body = Items,
    responses((status = 200, description = "They are in line.", body = AddedItems)))]
pub async fn add(asked: Asked, body: Bytes) -> Result<Json<AddedItems>, Problem> {
    asked.queue_name(Verb::Work)?;
    let Items { items } = read(&body)?;
    if items.is_empty() || items.len() > MAX_ITEMS {
        return Err(Problem::invalid(format!("field `items`: 1 to {MAX_ITEMS}")).with("field", "items"));
    }
    let mut new = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        new.push(item.item(&format!("items[{index}]"))?);
    }
    let queue = asked.queue(Verb::Work).await?;
    let mut made = vec![false; new.len()];
    if let Some(request) = &asked.attempt {
        let words = words(&new);
        let attempt = request.at(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        check_same(&queue, attempt).await?;
        for (index, item) in new.iter_mut().enumerate().filter(|(_, item)| item.key.is_none()) {
            item.key = Some(attempt.item(index)?);
            made[index] = true;
        }
        check_known(&queue, &new, &made).await?;
    }
    let mut added = Vec::with_capacity(new.len());
    if let Err(error) = queue.add_each(new, &mut added).await {
        let ids: Vec<&str> = added.iter().map(|added| added.name().id.as_str()).collect();
        let count = ids.len();
        // *Surely nothing was applied* would be wrong.
        return Err(match error.is_retryable() && count > 0 {
            true => {
                unknown(format!("{count} items were added before this went wrong: {error}; repeat it with its key"))
            }
            false => error.into(),
        }
        .with("added", ids));
    }
    let items = added
        .into_iter()
        .map(|added| AddedItem { id: added.name().id.to_string(), new: matches!(added, Added::New(_)) });
    Ok(Json(AddedItems { items: items.collect() }))
}

/// What a request asks for: everything that its items say.
fn words(new: &[NewItem]) -> Vec<Vec<u8>> {
    let of = |item: &NewItem| {
        let key = item.key.as_ref().map(ToString::to_string).unwrap_or_default();
        let Attempts { most, backoff_ms } = item.attempts;
        let more = format!("{} {} {most} {backoff_ms} {key}", item.priority.get(), item.delay.as_millis());
        [item.payload.bytes().to_vec(), more.into_bytes()]
    };
    new.iter().flat_map(of).collect()
}

/// Refuses an `Idempotency-Key` under which other items were added.
async fn check_same(queue: &Queue, attempt: Attempt) -> Result<(), Problem> {
    let [all, own] = attempt.items().map(|start| format!("{}/{start}", queue.name()));
    // Also what is left of those that were purged.
    let found = queue.store().list(Shelf::Item, Range::new(Some(&LeaseName::new(&all)?), 1)).await?;
    let is_other = |name: &str| name.starts_with(&all) && !name.starts_with(&own);
    if found.entries.first().is_some_and(|(name, _)| is_other(name.as_str())) { Err(key_reused()) } else { Ok(()) }
}

/// Refuses to take an item for this request's that is not, or that was purged.
async fn check_known(queue: &Queue, new: &[NewItem], made: &[bool]) -> Result<(), Problem> {
    let mut is_first = true;
    for (item, _) in new.iter().zip(made).filter(|(_, made)| **made) {
        let Some(key) = &item.key else { continue };
        let found = match queue.inspect(&ItemId::keyed(key)).await {
            Ok(found) => found.item,
            // The first item of a request is added first: without it there is no other.
            Err(error) if error.kind() == Kind::Invalid && is_first => return Ok(()),
            Err(error) if error.kind() == Kind::Invalid => continue,
            Err(error) => return Err(error.into()),
        };
        is_first = false;
        if let State::Purged { .. } = found.state {
            let detail = "an item of this Idempotency-Key was added, finished and purged; whether all of this request was \
                          carried out is not known";
            return Err(no_longer_known(detail));
        }
        if found.payload != item.payload {
            return Err(key_reused());
        }
    }
    Ok(())
}
