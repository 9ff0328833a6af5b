//! What operators do to items.
//!
//! Promise: each order has a reason and the epoch that was seen, and is refused if the item has changed since.

use super::view::{ItemView, Payloads};
use crate::access::Verb;
use crate::api::asked::{Asked, key_reused};
use crate::api::idempotency::Attempt;
use crate::api::problems::{changed, conflict, no_longer_known, unknown};
use crate::api::reading::{field, optional, read, ttl};
use crate::serve::{Json, Problem};
use axum::body::Bytes;
use leasehold_core::{Epoch, Kind, Label, Nonce, Token, Why};
use leasehold_work::queue::protocol::Order;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why, and what was seen.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecidedItem {
    /// For the item's history, in one line.
    why: String,
    /// The epoch that was seen. At any other epoch the order is refused.
    #[schema(maximum = 9007199254740991_u64)]
    epoch: u64,
}

/// Carries an order out. `asked_for` is what the request says beyond the reason and the epoch.
async fn carry_out(
    asked: &Asked,
    decided: DecidedItem,
    asked_for: &[&str],
    order: impl FnOnce(Nonce) -> Order,
) -> Result<(ItemView, Option<Token>), Problem> {
    let why = field("why", Why::named("why", decided.why))?;
    let expected = field("epoch", Epoch::new(decided.epoch))?;
    let id = asked.item()?;
    let queue = asked.queue(Verb::Operate).await?;
    let name = queue.item(id.clone());
    let missing = |error: leasehold_core::Error| match error.kind() {
        Kind::Invalid => Problem::not_found(error.to_string()),
        _ => error.into(),
    };
    let before = queue.inspect(&id).await.map_err(missing)?;
    let number = expected.to_string();
    let words: Vec<&[u8]> = [why.as_str(), &number].iter().chain(asked_for).map(|word| word.as_bytes()).collect();
    let attempt = asked.attempt_at(&words);
    if let (Some(attempt), Some(last)) = (attempt, before.item.ordered)
        && attempt.is_reused_by(last)
    {
        return Err(key_reused());
    }
    let nonce = attempt.map_or_else(Nonce::random, Attempt::nonce);
    let ordered = queue.operate_as(nonce, &id, asked.who(), why, Some(expected), order(nonce)).await;
    let seen = queue.inspect(&id).await.map_err(missing)?;
    match ordered {
        Ok((_, token)) => Ok((ItemView::new(asked, &name, &seen.item, seen.now, Payloads::Hidden), token)),
        // The only order of an item that is fenced is one that was decided on another epoch.
        Err(error) if error.kind() == Kind::Fenced => {
            let epoch = seen.item.epoch;
            // Each order and each claim raises the epoch by one, and the last order leaves its nonce.
            if asked.attempt.is_some() && Some(epoch) > expected.next() {
                let detail = format!(
                    "item `{name}` is at epoch {epoch}, and remembers its last order only: whether this one was carried out at \
                     epoch {expected} is not known; look at its history"
                );
                return Err(no_longer_known(detail));
            }
            Err(changed(&format!("item `{name}`"), expected, epoch))
        }
        Err(error) if error.kind() == Kind::Invalid => Err(conflict("refused", error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Puts an item back in line, with all its attempts. A worker that has it loses it.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/retry", tag = "operators",
    request_body = DecidedItem, responses((status = 200, description = "It is in line.", body = ItemView)))]
pub async fn retry(asked: Asked, body: Bytes) -> Result<Json<ItemView>, Problem> {
    asked.queue_name(Verb::Operate)?;
    Ok(Json(carry_out(&asked, read(&body)?, &[], |_| Order::Retry { past: None }).await?.0))
}

/// Takes an item out of the line, permanently. A worker that has it loses it.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/cancel", tag = "operators",
    request_body = DecidedItem, responses((status = 200, description = "It is cancelled.", body = ItemView)))]
pub async fn cancel(asked: Asked, body: Bytes) -> Result<Json<ItemView>, Problem> {
    asked.queue_name(Verb::Operate)?;
    Ok(Json(carry_out(&asked, read(&body)?, &[], |_| Order::Cancel).await?.0))
}

/// Why, what was seen, and who gets it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandingOffItem {
    /// For the item's history, in one line.
    why: String,
    /// The epoch that was seen. At any other epoch the order is refused.
    #[schema(maximum = 9007199254740991_u64)]
    epoch: u64,
    /// What the new worker is called; by default the key's label.
    to: Option<String>,
    /// How long it is claimed unless renewed, such as `90s`.
    ttl: String,
}

/// An item that was given to another worker.
#[derive(Debug, Serialize, ToSchema)]
pub struct HandedOff {
    /// The new worker's proof.
    token: String,
    /// The item now.
    item: ItemView,
}

/// Takes an item from its worker, and gives it to another in the same step.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/hand-off", tag = "operators",
    request_body = HandingOffItem, responses((status = 200, description = "It is claimed by the new worker.", body = HandedOff)))]
pub async fn hand_off(asked: Asked, body: Bytes) -> Result<Json<HandedOff>, Problem> {
    asked.queue_name(Verb::Operate)?;
    let HandingOffItem { why, epoch, to, ttl: lasts } = read(&body)?;
    let to = optional("to", to, |label| Label::named("to", label))?;
    let ttl = ttl(&lasts)?;
    let asked_for = [to.as_ref().map_or("", Label::as_str), &lasts];
    let order = |nonce| Order::HandOff { to: asked.holder(to.clone(), nonce), ttl };
    match carry_out(&asked, DecidedItem { why, epoch }, &asked_for, order).await? {
        (item, Some(token)) => Ok(Json(HandedOff { token: token.wire(), item })),
        (item, None) => Err(unknown(format!("item `{}` was handed off; look at it", item.id))),
    }
}
