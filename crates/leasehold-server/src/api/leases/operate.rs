//! What operators do to leases that others hold.
//!
//! Promise: each order has a reason and the epoch that was seen, and is refused if the lease has moved on since. Who gave it is
//! the key, by its label and id. An order that is repeated with its `Idempotency-Key` is not carried out twice: what the record
//! no longer remembers is `no_longer_known`. Another order with that key is refused.

use super::hold::Granted;
use super::view::LeaseView;
use crate::access::Verb;
use crate::api::asked::{Asked, key_reused};
use crate::api::idempotency::Attempt;
use crate::api::problems::{no_longer_known, refused, unknown};
use crate::api::reading::{field, optional, read, ttl};
use crate::serve::{Json, Problem};
use axum::body::Bytes;
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::{Epoch, Grant, Label, LeaseName, Nonce, Operated, Ownership, Why};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why, and what was seen.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Decided {
    /// For the lease's history, in one line.
    why: String,
    /// The epoch that was seen. At any other epoch the order is refused.
    #[schema(maximum = 9007199254740991_u64)]
    epoch: u64,
}

/// An order that was carried out.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ordered {
    /// The lease now.
    lease: LeaseView,
    /// The epoch that the order began, or left as it was.
    ordered_epoch: u64,
}

enum Done {
    Ordered(Box<Ordered>),
    HandedOff(Box<Grant>),
}

impl Decided {
    /// The reason and the epoch, if they are such.
    pub(in crate::api) fn parts(self) -> Result<(Why, Epoch), Problem> {
        Ok((field("why", Why::named("why", self.why))?, field("epoch", Epoch::new(self.epoch))?))
    }

    /// Carries an order out. `asked_for` is what the request says beyond the reason and the epoch.
    async fn carry_out(
        self,
        asked: &Asked,
        name: &LeaseName,
        asked_for: &[&str],
        order: impl FnOnce(Nonce) -> Order,
    ) -> Result<Done, Problem> {
        let (why, epoch) = self.parts()?;
        let coordinator = asked.coordinator().await?;
        let number = epoch.to_string();
        let words: Vec<&[u8]> = [why.as_str(), &number].iter().chain(asked_for).map(|word| word.as_bytes()).collect();
        let attempt = asked.attempt_at(&words);
        if let Some(attempt) = attempt {
            check_same(&coordinator.inspect(name).await?.record, attempt)?;
        }
        let nonce = attempt.map_or_else(Nonce::random, Attempt::nonce);
        match coordinator.operate_as(nonce, name, asked.who(), why, Some(epoch), order(nonce)).await? {
            Operated::Refused(refusal) => {
                if let (Refusal::Changed { expected, .. }, Some(_)) = (&*refusal, &asked.attempt) {
                    check_remembered(asked, name, *expected).await?;
                }
                Err(refused(name, &refusal))
            }
            Operated::HandedOff(grant) => Ok(Done::HandedOff(grant)),
            Operated::Done(carried) => {
                let seen = coordinator.inspect(name).await?;
                let ordered_epoch = carried.epoch().get();
                Ok(Done::Ordered(Box::new(Ordered { lease: LeaseView::from(&seen), ordered_epoch })))
            }
        }
    }

    async fn order(
        self,
        asked: &Asked,
        name: &LeaseName,
        asked_for: &[&str],
        order: Order,
    ) -> Result<Json<Ordered>, Problem> {
        match self.carry_out(asked, name, asked_for, |_| order).await? {
            Done::Ordered(ordered) => Ok(Json(*ordered)),
            Done::HandedOff(grant) => {
                let seen = asked.coordinator().await?.inspect(name).await?;
                Ok(Json(Ordered { lease: LeaseView::from(&seen), ordered_epoch: grant.token().epoch.get() }))
            }
        }
    }
}

/// Refuses an order whose `Idempotency-Key` was used for another one, as far as the record remembers.
fn check_same(record: &Ownership, attempt: Attempt) -> Result<(), Problem> {
    let marks = [&record.paused, &record.resumed].into_iter().flatten().chain(record.drain.iter().map(|d| d.asked()));
    let mut nonces = record.transfers.iter().map(|transfer| transfer.nonce).chain(marks.map(|mark| mark.nonce));
    if nonces.any(|nonce| attempt.is_reused_by(nonce)) { Err(key_reused()) } else { Ok(()) }
}

/// A repeated order that finds another epoch was either never carried out, or is no longer remembered.
async fn check_remembered(asked: &Asked, name: &LeaseName, since: Epoch) -> Result<(), Problem> {
    let record = asked.coordinator().await?.inspect(name).await?.record;
    let first = record.transfers.first().map(|transfer| transfer.epoch);
    if record.epoch <= since || first.is_some_and(|first| Some(first) <= since.next()) {
        return Ok(());
    }
    Err(no_longer_known(format!(
        "lease `{name}` is at epoch {}, and no longer remembers what was ordered at epoch {since}: whether this was carried out \
         is not known; look at its history",
        record.epoch
    )))
}

fn target(asked: &Asked) -> Result<LeaseName, Problem> {
    Ok(asked.name(Verb::Operate)?.of_a_lease()?)
}

/// Takes a lease from its holder; anyone may acquire it next.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/revoke", tag = "operators", request_body = Decided,
    responses((status = 200, description = "It was taken away.", body = Ordered)))]
pub async fn revoke(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = target(&asked)?;
    read::<Decided>(&body)?.order(&asked, &name, &[], Order::Revoke).await
}

/// Keeps new holders out. The present one continues.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/pause", tag = "operators", request_body = Decided,
    responses((status = 200, description = "Nobody new gets it.", body = Ordered)))]
pub async fn pause(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = target(&asked)?;
    read::<Decided>(&body)?.order(&asked, &name, &[], Order::Pause).await
}

/// Why, what was seen, and which pause is to end.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resuming {
    /// For the lease's history, in one line.
    why: String,
    /// The epoch that was seen. At any other epoch the order is refused.
    #[schema(maximum = 9007199254740991_u64)]
    epoch: u64,
    /// The pause that was seen, as `paused` names it: another one refuses the order. Without it, the one that is there ends.
    pause: Option<String>,
}

/// Lets new holders in again.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/resume", tag = "operators", request_body = Resuming,
    responses((status = 200, description = "It can be acquired again.", body = Ordered)))]
pub async fn resume(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = target(&asked)?;
    resume_lease(&asked, &name, read(&body)?).await
}

/// The same for a job, whose pauses are those of its lease.
pub(in crate::api) async fn resume_lease(
    asked: &Asked,
    name: &LeaseName,
    Resuming { why, epoch, pause: named }: Resuming,
) -> Result<Json<Ordered>, Problem> {
    let pause = match optional("pause", named.clone(), |pause| pause.parse::<Nonce>())? {
        Some(seen) => seen,
        None => {
            let record = asked.coordinator().await?.inspect(name).await?.record;
            // One that is not there refuses the order, unless it was this order that ended it.
            record.paused.map_or_else(Nonce::random, |mark| mark.nonce)
        }
    };
    let asked_for: Vec<&str> = named.iter().map(String::as_str).collect();
    Decided { why, epoch }.order(asked, name, &asked_for, Order::Resume { pause }).await
}

pub(in crate::api) async fn pause_lease(
    asked: &Asked,
    name: &LeaseName,
    decided: Decided,
) -> Result<Json<Ordered>, Problem> {
    decided.order(asked, name, &[], Order::Pause).await
}

/// Why, what was seen, and for how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskingToFinish {
    /// For the lease's history, in one line.
    why: String,
    /// The epoch that was seen. At any other epoch the order is refused.
    #[schema(maximum = 9007199254740991_u64)]
    epoch: u64,
    /// How long the holder has to finish, such as `5m`. Until then nobody new gets the lease.
    within: String,
}

/// Asks the holder to finish. It learns of it at its next renewal.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/drain", tag = "operators", request_body = AskingToFinish,
    responses((status = 200, description = "The holder has been asked.", body = Ordered)))]
pub async fn drain(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = target(&asked)?;
    let AskingToFinish { why, epoch, within } = read(&body)?;
    let ttl = field("within", within.parse())?;
    Decided { why, epoch }.order(&asked, &name, &[&within], Order::Drain { within: ttl }).await
}

/// Why, what was seen, and who gets it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandingOff {
    /// For the lease's history, in one line.
    why: String,
    /// The epoch that was seen. At any other epoch the order is refused.
    #[schema(maximum = 9007199254740991_u64)]
    epoch: u64,
    /// What the new holder is called; by default the key's label.
    to: Option<String>,
    /// How long it is held unless renewed, such as `90s`.
    ttl: String,
}

/// Takes a lease from its holder, and gives it to another in the same step. The answer has the new holder's token.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/hand-off", tag = "operators", request_body = HandingOff,
    responses((status = 200, description = "It is held by the new holder.", body = Granted)))]
pub async fn hand_off(asked: Asked, body: Bytes) -> Result<Json<Granted>, Problem> {
    let name = LeaseName::to_hold(target(&asked)?.as_str())?;
    let HandingOff { why, epoch, to, ttl: lasts } = read(&body)?;
    let to = optional("to", to, |label| Label::named("to", label))?;
    let ttl = ttl(&lasts)?;
    let asked_for = [to.as_ref().map_or("", Label::as_str), &lasts];
    let order = |nonce| Order::HandOff { to: asked.holder(to.clone(), nonce), ttl };
    match (Decided { why, epoch }).carry_out(&asked, &name, &asked_for, order).await? {
        Done::HandedOff(grant) => Ok(Json(Granted::new(&asked, &grant))),
        Done::Ordered(_) => Err(unknown(format!("lease `{name}` was handed off; look at it"))),
    }
}

/// Why, what was seen, and how far.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Advancing {
    /// For the lease's history, in one line.
    why: String,
    /// The epoch that was seen. At any other epoch the order is refused.
    #[schema(maximum = 9007199254740991_u64)]
    epoch: u64,
    /// The highest epoch that some guard has seen.
    #[schema(maximum = 9007199254740991_u64)]
    past: u64,
    /// The lineage that guards know, if the record was lost and began a new one. Needs a key for all names.
    lineage: Option<String>,
}

/// Moves the epoch past a number: repairs a store that was restored from an old copy. Stop the job first.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/advance", tag = "operators", request_body = Advancing,
    responses((status = 200, description = "Its epochs go on past that.", body = Ordered)))]
pub async fn advance(asked: Asked, body: Bytes) -> Result<Json<Ordered>, Problem> {
    let name = target(&asked)?;
    let Advancing { why, epoch, past, lineage } = read(&body)?;
    let past = field("past", Epoch::new(past))?;
    let asked_for = [past.to_string(), lineage.clone().unwrap_or_default()];
    let lineage = optional("lineage", lineage, |lineage| lineage.parse())?;
    let order = Order::Advance { past, lineage };
    crate::remote::may_order(&asked.caller, &asked.namespace, &order)?;
    Decided { why, epoch }.order(&asked, &name, &[&asked_for[0], &asked_for[1]], order).await
}
