//! Claiming items, and keeping them.
//!
//! Promise: what is answered as claimed is stored. A claim that has begun is finished although its client disconnects, and given
//! back if nobody receives the answer, unless the client has an `Idempotency-Key` to ask again with. Non-promise: nothing is
//! renewed by itself; a claim that is not renewed expires, and the item is given to another worker.

use super::recent::Recent;
use super::view::ClaimView;
use crate::access::{Refused, Verb};
use crate::api::asked::{Asked, key_reused};
use crate::api::problems::conflict;
use crate::api::reading::{duration, optional, read, token, ttl};
use crate::serve::{Json, Ongoing, Problem, Waiter};
use axum::Extension;
use axum::body::Bytes;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Checkpoint, Kind, Label, Marker, Nonce, Token};
use leasehold_work::queue::{Claimed, Claimer, ItemGrant, ItemName, Queue};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// The longest that a request waits, and the most items that it claims.
const MAX_WAIT: Duration = Duration::from_secs(600);
const MAX_ITEMS: u32 = 100;
/// How long an attempt waits at least for an earlier attempt at the same request.
const TURN: Duration = Duration::from_secs(5);

/// How many items to claim, and for how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// How long each is claimed unless renewed, such as `90s`: 1s to 24h.
    ttl: String,
    /// How long to wait for the first if there is none, such as `30s`: up to 10m.
    wait: Option<String>,
    /// At most this many, 1 to 100; 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    count: Option<u32>,
    /// What the worker calls itself; by default the key's label.
    label: Option<String>,
}

/// Items that are claimed now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Claims {
    /// Empty if there was nothing to claim in that time.
    items: Vec<ClaimView>,
}

/// Claims the next items, or waits for the first.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/claim", tag = "queues", request_body = Claim,
    responses((status = 200, description = "What was claimed.", body = Claims)))]
pub async fn claim(
    asked: Asked,
    Extension(recent): Extension<Recent>,
    waiter: Waiter,
    body: Bytes,
) -> Result<Json<Claims>, Problem> {
    asked.queue_name(Verb::Work)?;
    let body: Claim = read(&body)?;
    let wait = duration("wait", body.wait, MAX_WAIT)?.unwrap_or_default();
    let count = body.count.unwrap_or(1);
    if !(1..=MAX_ITEMS).contains(&count) {
        return Err(Problem::invalid(format!("field `count`: 1 to {MAX_ITEMS}")).with("field", "count"));
    }
    let label = optional("label", body.label, |label| Label::named("label", label))?;
    let ttl = ttl(&body.ttl)?;
    // Not how long it waits: an attempt may have less time left than the one before it.
    let asked_for = [body.ttl, count.to_string(), label.as_ref().map(ToString::to_string).unwrap_or_default()];
    let attempt = asked.attempt_at(&asked_for.each_ref().map(String::as_bytes));
    let mut queue = asked.queue(Verb::Work).await?;
    let mut waiting = None;
    let _turn = match &asked.attempt {
        None => None,
        Some(attempt) => {
            let turn = recent.turn(attempt.nonce());
            Some(match turn.clone().try_lock_owned() {
                Ok(turn) => turn,
                // A waiting request, even if it waits for itself, takes no place from others.
                Err(_) => {
                    queue = asked.queue_of_waiter().await?;
                    let waiting = waiting.insert(waiter.begin()?);
                    tokio::select! {
                        turn = tokio::time::timeout(wait.max(TURN), turn.lock_owned()) => turn.map_err(|_| {
                            Problem::overloaded("an earlier attempt at this request is still under way; ask again")
                        })?,
                        over = waiting.over() => return Err(over.into()),
                    }
                }
            })
        }
    };
    if let Some((mark, tokens)) = asked.attempt.as_ref().and_then(|request| recent.find(request.nonce())) {
        if attempt.is_some_and(|attempt| attempt.is_reused_by(mark)) {
            return Err(key_reused());
        }
        return again(&asked, &queue, tokens).await;
    }
    let holder = asked.holder(label, Nonce::random());
    let patient = asked.queue_of_waiter().await?;
    let mut taken = Taken { queue: patient.clone(), ongoing: asked.site.ongoing().clone(), grants: Vec::new() };
    // While it has its permit, as everybody else: whoever finds something does not wait.
    let mut claimer = Claimer::new(queue, None, ttl)?.for_holder(holder.clone());
    if !taken.look(&mut claimer, count, wait.is_zero()).await? {
        let mut claimer = Claimer::new(patient, None, ttl)?.for_holder(holder);
        let mut waiting = waiting.map_or_else(|| waiter.begin(), Ok)?;
        // It ends between claims, and not within one: of that nobody would know what became of it.
        let mut over = std::pin::pin!(waiting.over());
        match claimer.next_unless(wait, over.as_mut()).await? {
            Ok(found) => taken.grants.extend(found),
            Err(over) => return Err(over.into()),
        }
        // With a key that is no longer valid nobody could work on them, or give them back. A waiter is told of it too late.
        if let Err(Refused::Denied(denied)) = asked.site.keys().again(&asked.caller).await {
            return Err(denied.into());
        }
        if !taken.grants.is_empty() {
            taken.fill(&mut claimer, count).await;
        }
    }
    if let (Some(request), Some(attempt)) = (&asked.attempt, attempt) {
        let tokens = taken.grants.iter().map(|grant| grant.token().clone()).collect();
        recent.note(asked.caller.account(), request.nonce(), attempt.nonce(), tokens);
    }
    let claims = Claims { items: taken.grants.iter().map(|grant| ClaimView::new(&asked, grant)).collect() };
    match asked.attempt {
        None => asked.undo.set(give_back(taken.queue.clone(), std::mem::take(&mut taken.grants))),
        // The client's next attempt finds them.
        Some(_) => taken.grants.clear(),
    }
    Ok(Json(claims))
}

/// What an earlier attempt was given, as far as it is still in force.
async fn again(asked: &Asked, queue: &Queue, tokens: Vec<Token>) -> Result<Json<Claims>, Problem> {
    let mut items = Vec::with_capacity(tokens.len());
    for token in &tokens {
        match queue.adopt(token).await {
            Ok(grant) => items.push(ClaimView::new(asked, &grant)),
            // A claim is not lost only because the store is away.
            Err(error) if error.is_retryable() || error.kind() == Kind::Indeterminate => return Err(error.into()),
            Err(_) => {}
        }
    }
    if items.is_empty() {
        return Err(conflict(
            "lost",
            "the items that this request was given are no longer claimed by it; ask with a new key",
        ));
    }
    Ok(Json(Claims { items }))
}

/// What was claimed for a request whose answer is not sent yet. If it is dropped before that, it is given back.
struct Taken {
    queue: Queue,
    ongoing: Ongoing,
    grants: Vec<ItemGrant>,
}

impl Taken {
    /// Claims what is there. Whether that is all: something was claimed, or what is not there is not waited for.
    async fn look(&mut self, claimer: &mut Claimer, count: u32, is_last: bool) -> Result<bool, Problem> {
        match claimer.claim().await {
            Ok(Claimed::Item(grant)) => self.grants.push(*grant),
            Ok(Claimed::Nothing { held_up: Some(error), .. }) if is_last => return Err(error.into()),
            Ok(Claimed::Nothing { .. }) => return Ok(is_last),
            Err(error) if error.kind() == Kind::Contended && !is_last => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.fill(claimer, count).await;
        Ok(true)
    }

    /// Claims what else is there. An error is ignored, because what was already claimed matters more.
    async fn fill(&mut self, claimer: &mut Claimer, count: u32) {
        while self.grants.len() < count as usize {
            let Ok(Claimed::Item(grant)) = claimer.claim().await else { return };
            self.grants.push(*grant);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.grants.is_empty() {
            return;
        }
        self.ongoing.spawn(give_back(self.queue.clone(), std::mem::take(&mut self.grants)));
    }
}

async fn give_back(queue: Queue, grants: Vec<ItemGrant>) {
    for grant in grants {
        if let Err(error) = queue.give_back(&grant).await {
            tracing::debug!("an item that nobody waits for runs out by itself: {error}");
        }
    }
}

/// The token of a claimed item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Renewing {
    /// The token from the answer to the claim.
    token: String,
}

/// The token of a request, if it is of the item in its path.
pub(super) fn own(asked: &Asked, text: &str) -> Result<Token, Problem> {
    let token = token(text)?;
    let name = ItemName { queue: asked.queue_name(Verb::Work)?, id: asked.item()? };
    if token.lease != name.lease()? {
        let detail = format!("field `token`: this token is of `{}`, but the path names item `{name}`", token.lease);
        return Err(Problem::invalid(detail).with("field", "token"));
    }
    Ok(token)
}

/// Keeps an item for another TTL. `lost` (409) is final: stop.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/renew", tag = "queues", request_body = Renewing,
    responses((status = 200, description = "It is claimed for another TTL.", body = ClaimView)))]
pub async fn renew(asked: Asked, body: Bytes) -> Result<Json<ClaimView>, Problem> {
    asked.queue_name(Verb::Work)?;
    let body: Renewing = read(&body)?;
    let token = own(&asked, &body.token)?;
    let queue = asked.queue_of_holder().await?;
    let mut grant = queue.adopt(&token).await?;
    queue.renew(&mut grant).await?;
    Ok(Json(ClaimView::new(&asked, &grant)))
}

/// A report of progress.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Progressing {
    /// The token from the answer to the claim.
    token: String,
    /// How far the work has come, in one line.
    marker: Option<String>,
    /// What the next attempt needs to continue; an earlier one stays if there is none.
    checkpoint: Option<String>,
}

/// A report that was recorded.
#[derive(Debug, Serialize, ToSchema)]
pub struct NotedItem {
    /// The epoch under which it was recorded.
    epoch: u64,
}

/// Reports how far the work on an item has come. It does not renew.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/items/{id}/progress", tag = "queues",
    request_body = Progressing, responses((status = 200, description = "It is recorded.", body = NotedItem)))]
pub async fn progress(asked: Asked, body: Bytes) -> Result<Json<NotedItem>, Problem> {
    asked.queue_name(Verb::Work)?;
    let body: Progressing = read(&body)?;
    let token = own(&asked, &body.token)?;
    let report = Report {
        marker: optional("marker", body.marker, |text| Marker::named("marker", text))?,
        checkpoint: optional("checkpoint", body.checkpoint, Checkpoint::new)?,
    };
    asked.queue_of_holder().await?.progress(&token, report).await?;
    Ok(Json(NotedItem { epoch: token.epoch.get() }))
}
