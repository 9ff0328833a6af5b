//! Ending a claim: the item is completed, its attempt failed, or it is given back.
//!
//! Promise: a completion, its result and what it adds count together or not at all, and once. Ending a claim again changes
//! nothing and answers the same, for as long as the item's record remembers it; after that it is `fenced`, or with an
//! `Idempotency-Key` `no_longer_known`.

use super::add::Adding;
use super::claim::own;
use super::view::{ItemView, Payloads};
use crate::access::Verb;
use crate::api::asked::{Asked, check_ours};
use crate::api::problems::{conflict, no_longer_known};
use crate::api::reading::{duration, field, read};
use crate::api::values::bytes;
use crate::serve::{Json, Problem};
use axum::body::Bytes;
use leasehold_core::{Error, Kind, Timestamp, Token};
use leasehold_work::queue::{Event, FollowUp, Item, ItemId, ItemName, Payload, Queue, QueueName, Reason, State, What};
use serde::Deserialize;
use std::time::Duration;
use utoipa::ToSchema;

/// The longest pause before an item is tried again.
const MAX_PAUSE: Duration = Duration::from_secs(366 * 86_400);

/// The completion of a claimed item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Completing {
    /// The token from the answer to the claim.
    token: String,
    /// What the work came to, as text of at most 16 KiB.
    result: Option<String>,
    /// The same in base64, for bytes that are not text.
    result_base64: Option<String>,
    /// Items to add if and only if the completion counts. Each needs `work` on its queue.
    #[serde(default)]
    add: Vec<Following>,
}

/// An item that a completion adds.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Following {
    /// The queue that it goes to; by default that of the completed item.
    queue: Option<String>,
    /// The item.
    item: Adding,
}

/// Completes an item, and adds what follows from it in the same step. `fenced` (412) means that somebody else has it.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/complete", tag = "queues",
    request_body = Completing, responses((status = 200, description = "It is done.", body = ItemView)))]
pub async fn complete(asked: Asked, body: Bytes) -> Result<Json<ItemView>, Problem> {
    let own_queue = asked.queue_name(Verb::Work)?;
    let body: Completing = read(&body)?;
    let token = own(&asked, &body.token)?;
    let result = field("result", bytes("result", body.result, body.result_base64))?;
    let result = field("result", result.map(Payload::result).transpose())?;
    let mut follow_ups = Vec::with_capacity(body.add.len());
    for (index, following) in body.add.into_iter().enumerate() {
        follow_ups.push(follow_up(&asked, &own_queue, index, following)?);
    }
    let queue = asked.queue_of_holder().await?;
    let grant = queue.by_token(&token).await?;
    if !follow_ups.is_empty() {
        // Follow-ups that this server cannot add now, because the store is away, it adds later, even if nobody claims from this
        // queue.
        let patient = asked.coordinator_of_waiter().await?;
        let (account, own_queue) = (asked.caller.account(), own_queue.as_str());
        asked.site.tended().look_after(account, &asked.namespace, &patient, own_queue).await;
    }
    let ended = queue.complete(&grant, result.clone(), follow_ups.clone()).await;
    if let Ok(item) = &ended
        && !is_same(item, result.as_ref(), &follow_ups)
    {
        let detail =
            "this claim was completed before, with another result or other items to add, and nothing was done now";
        return Err(conflict("key_reused", detail));
    }
    ended_item(&asked, &queue, &token, What::Completed, ended).await
}

/// Whether an item was completed with this result and these follow-ups, as far as its record shows, which does not have their
/// payloads.
fn is_same(item: &Item, result: Option<&Payload>, follow_ups: &[FollowUp]) -> bool {
    let is_added = |(added, asked): (&ItemName, &FollowUp)| {
        let is_keyed = added.id.is_keyed() || asked.name.id.is_keyed();
        added.queue == asked.name.queue && (!is_keyed || added.id == asked.name.id)
    };
    item.result.as_ref() == result
        && item.follow_ups.len() == follow_ups.len()
        && item.follow_ups.iter().zip(follow_ups).all(is_added)
}

fn follow_up(asked: &Asked, own: &QueueName, index: usize, following: Following) -> Result<FollowUp, Problem> {
    let queue = match following.queue {
        Some(queue) => field(&format!("add[{index}].queue"), queue.parse())?,
        None => own.clone(),
    };
    asked.caller.may(Verb::Work, &asked.namespace, Some(queue.as_str()))?;
    check_ours(&queue)?;
    let item = following.item.item(&format!("add[{index}].item"))?;
    // The time only decides the id's position in the order.
    let now = Timestamp::from_millis(leasehold_system::clock::wall_ms());
    Ok(FollowUp {
        name: ItemName { queue, id: item.key.as_ref().map_or_else(|| ItemId::fresh(now), ItemId::keyed) },
        priority: item.priority,
        delay_ms: crate::api::values::millis(item.delay),
        attempts: item.attempts,
        payload: item.payload,
    })
}

/// An attempt that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Failing {
    /// The token from the answer to the claim.
    token: String,
    /// For the item's history, in one line.
    why: String,
    /// How soon it may be tried again, such as `1m`, instead of by the item's own backoff.
    retry_in: Option<String>,
    /// Whether trying again is useless: then it becomes a dead letter at once.
    #[serde(default, rename = "final")]
    is_final: bool,
}

/// Gives an attempt up. The item is tried again after a pause, or becomes a dead letter.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/fail", tag = "queues", request_body = Failing,
    responses((status = 200, description = "It waits to be tried again, or is dead.", body = ItemView)))]
pub async fn fail(asked: Asked, body: Bytes) -> Result<Json<ItemView>, Problem> {
    asked.queue_name(Verb::Work)?;
    let body: Failing = read(&body)?;
    let token = own(&asked, &body.token)?;
    let why = field("why", Reason::named("why", body.why))?;
    let retry_in = duration("retry_in", body.retry_in, MAX_PAUSE)?;
    let queue = asked.queue_of_holder().await?;
    let grant = queue.by_token(&token).await?;
    let ended = queue.fail(&grant, why.clone(), retry_in, body.is_final).await;
    if asked.attempt.is_some() && ended.as_ref().is_ok_and(|item| !failed_so(item, &token, &why, body.is_final)) {
        let detail = "this attempt was failed before, for another reason or not finally, and nothing was done now";
        return Err(conflict("key_reused", detail));
    }
    ended_item(&asked, &queue, &token, What::Failed, ended).await
}

/// Whether an attempt failed like this, as far as the item's record shows. A final failure made it a dead letter, until an order.
fn failed_so(item: &Item, token: &Token, why: &Reason, is_final: bool) -> bool {
    let of_attempt = |event: &&Event| event.epoch == token.epoch && event.what == What::Failed;
    let is_same = |event: &Event| event.why.as_ref() == Some(why);
    let was_ended = item.epoch != token.epoch || matches!(item.state, State::Dead { .. });
    item.history.iter().find(of_attempt).is_none_or(is_same) && (!is_final || was_ended)
}

/// A claim that is given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GivingBack {
    /// The token from the answer to the claim.
    token: String,
}

/// Gives an item back untried. It does not count as an attempt.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/give-back", tag = "queues",
    request_body = GivingBack, responses((status = 200, description = "It is in line again.", body = ItemView)))]
pub async fn give_back(asked: Asked, body: Bytes) -> Result<Json<ItemView>, Problem> {
    asked.queue_name(Verb::Work)?;
    let body: GivingBack = read(&body)?;
    let token = own(&asked, &body.token)?;
    let queue = asked.queue_of_holder().await?;
    let grant = queue.by_token(&token).await?;
    let ended = queue.give_back(&grant).await;
    ended_item(&asked, &queue, &token, What::Returned, ended).await
}

/// The item after a claim was ended, now or by an earlier attempt at the same.
async fn ended_item(
    asked: &Asked,
    queue: &Queue,
    token: &Token,
    how: What,
    ended: Result<Item, Error>,
) -> Result<Json<ItemView>, Problem> {
    let name = ItemName::of(token)?;
    let refused = match ended {
        Err(error) if error.kind() == Kind::Fenced => Some(error),
        Err(error) => return Err(error.into()),
        Ok(_) => None,
    };
    let seen = queue.inspect(&name.id).await?;
    if let Some(error) = refused {
        let item = &seen.item;
        let is_ours = item.lineage == token.lineage;
        let was_ended = is_ours && item.history.iter().any(|event| event.epoch == token.epoch && event.what == how);
        let is_forgotten = is_ours && item.history.first().is_none_or(|first| first.epoch > token.epoch);
        if is_forgotten && asked.attempt.is_some() {
            let detail = format!("{error}; whether this request was carried out before is no longer remembered");
            return Err(no_longer_known(detail));
        }
        if !was_ended {
            return Err(error.into());
        }
    }
    Ok(Json(ItemView::new(asked, &name, &seen.item, seen.now, Payloads::Hidden)))
}
