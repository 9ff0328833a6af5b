//! Fences for targets that cannot keep one themselves: the number is kept in the store, and checked here.
//!
//! Promise: once a resource was sealed at or admitted an epoch, no older one is admitted; only tokens that the store itself
//! granted count. Non-promise: to be admitted and then to write is two steps. Between them a newer holder may be admitted and
//! write, and the older write lands after it. It is atomic only where the target keeps the number itself and checks it in the
//! write.

use super::asked::Asked;
use super::reading::{read, token};
use super::values::Time;
use crate::access::Verb;
use crate::serve::{Json, Problem, Site};
use axum::body::Bytes;
use leasehold_core::guard::{self, HighWater, Policy, Rejection};
use leasehold_core::{Epoch, Error, FencedWrite, Kind, LeaseName, Resolver, Token, TokenState};
use leasehold_guards::stored::{FenceDocument, FenceRecord, named};
use leasehold_work::Tokens;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The folder of these fences' records, separate from those of proxies and gates.
const FOLDER: &str = "api";
/// How often a fence is tried when others move it at the same time.
const ATTEMPTS: usize = 16;

pub(super) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new().routes(routes!(high_water)).routes(routes!(seal)).routes(routes!(admit))
}

/// The highest token that a resource has seen, without what would let anybody act in its name.
#[derive(Debug, Serialize, ToSchema)]
pub struct FenceView {
    /// The resource.
    resource: String,
    /// The lease that fences it; none if it has no fence yet, or if the key is not for that lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    /// The line of epochs that the number belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    lineage: Option<String>,
    /// The highest epoch that it has seen; 0 if none.
    epoch: u64,
    /// The number of the last write; 0 if it was only sealed.
    seq: u64,
    /// The store's time.
    now: Time,
}

impl FenceView {
    fn new(asked: &Asked, name: &LeaseName, high: Option<&HighWater>, now: Time) -> Self {
        let known = high.filter(|high| knows(asked, &high.lease));
        FenceView {
            resource: name.to_string(),
            lease: known.map(|high| high.lease.to_string()),
            lineage: known.map(|high| high.lineage.to_string()),
            epoch: high.map_or(0, |high| high.epoch.get()),
            seq: high.map_or(0, |high| high.seq),
            now,
        }
    }
}

/// The high water of a resource.
#[utoipa::path(get, path = "/v1/ns/{namespace}/fences/{name}", tag = "fences",
    responses((status = 200, description = "The highest epoch that it has seen.", body = FenceView)))]
pub async fn high_water(asked: Asked) -> Result<Json<FenceView>, Problem> {
    let name = asked.name(Verb::Read)?;
    let seen = FenceDocument::new(&asked.coordinator().await?, &named(FOLDER, &name)?).look().await?;
    Ok(Json(FenceView::new(&asked, &name, seen.record.high.as_ref(), seen.anchor.now.into())))
}

/// The token to seal a resource with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Sealing {
    /// Of a lease or an item that is held.
    token: String,
}

/// Shuts out every older holder before the work begins. Repeating it changes nothing.
#[utoipa::path(post, path = "/v1/ns/{namespace}/fences/{name}/seal", tag = "fences", request_body = Sealing,
    responses((status = 200, description = "Older tokens are refused from now on.", body = FenceView)))]
pub async fn seal(asked: Asked, body: Bytes) -> Result<Json<FenceView>, Problem> {
    let name = asked.name(Verb::Hold)?;
    let body: Sealing = read(&body)?;
    let token = token(&body.token)?;
    may_know(&asked, &token)?;
    let found = Tokens::new(asked.coordinator().await?).resolve(&token).await?;
    if let Err(refusal) = found.in_force(&token) {
        if let TokenState::Superseded { .. } = found.state {
            count(&asked, &token, &resource(&name), found.epoch).await?;
        }
        return Err(refusal.into());
    }
    raise(&asked, &name, &token, guard::seal).await
}

/// Which writes of one tenure are admitted.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Any number.
    #[default]
    Reentrant,
    /// Only with a larger sequence in the token than the last.
    Ordered,
    /// One.
    OncePerEpoch,
}

/// The token of a write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Admitting {
    /// Of a lease or an item.
    token: String,
    /// Which writes of one tenure are admitted; by default `reentrant`.
    #[serde(default)]
    policy: Order,
}

/// Whether a write may begin: check-then-act. A newer holder may be admitted, and write, before this write lands. It is atomic only
/// where the target keeps the number itself and compares it in the write.
#[utoipa::path(post, path = "/v1/ns/{namespace}/fences/{name}/admit", tag = "fences", request_body = Admitting,
    responses((status = 200, description = "No newer token was there yet. `fenced` (412) if one was.", body = FenceView)))]
pub async fn admit(asked: Asked, body: Bytes) -> Result<Json<FenceView>, Problem> {
    let name = asked.name(Verb::Hold)?;
    let body: Admitting = read(&body)?;
    let token = token(&body.token)?;
    may_know(&asked, &token)?;
    let policy = match body.policy {
        Order::Reentrant => Policy::Reentrant,
        Order::Ordered => Policy::Ordered,
        Order::OncePerEpoch => Policy::OncePerEpoch,
    };
    let found = Tokens::new(asked.coordinator().await?).resolve(&token).await?;
    if let Err(refusal) = found.may_write(&token, &resource(&name)) {
        if refusal.kind() == Kind::Fenced {
            count(&asked, &token, &resource(&name), found.epoch).await?;
        }
        return Err(refusal.into());
    }
    raise(&asked, &name, &token, |high, token| guard::admit(high, token, policy)).await
}

/// Counts a refusal, and where it was.
async fn count(asked: &Asked, token: &Token, resource: &str, seen: Epoch) -> Result<(), Problem> {
    let write = FencedWrite::new(resource, token.epoch, seen, Some(asked.who()));
    asked.site.tally().fenced(&asked.namespace, &asked.coordinator().await?, &token.lease, write);
    Ok(())
}

fn knows(asked: &Asked, lease: &LeaseName) -> bool {
    crate::remote::may_know(&asked.caller, &asked.namespace, lease)
}

/// A refusal that does not name a lease outside the caller's scope.
fn refused(asked: &Asked, refusal: Rejection, resource: &str) -> Error {
    match refusal {
        Rejection::Foreign { held, seen } if !knows(asked, &seen) => {
            let message = format!(
                "token of another lease refused: resource=`{resource}` is fenced by a lease outside this key's scope, the token is \
                 of `{held}`; whoever has a key for that lease may give the resource to `{held}`"
            );
            Error::new(Kind::Invalid, message)
        }
        other => other.into_error(resource),
    }
}

/// Refuses a token of a lease outside the caller's scope, because any other answer would reveal something about that lease.
fn may_know(asked: &Asked, token: &Token) -> Result<(), Problem> {
    if knows(asked, &token.lease) {
        return Ok(());
    }
    Ok(asked.caller.may(Verb::Hold, &asked.namespace, Some(&crate::remote::name_of(&token.lease)))?)
}

fn resource(name: &LeaseName) -> String {
    format!("{FOLDER}:{name}")
}

/// Moves the high water, if the token may.
async fn raise(
    asked: &Asked,
    name: &LeaseName,
    token: &Token,
    judge: impl Fn(Option<&HighWater>, &Token) -> Result<HighWater, Rejection>,
) -> Result<Json<FenceView>, Problem> {
    let resource = resource(name);
    let document = FenceDocument::new(&asked.coordinator().await?, &named(FOLDER, name)?);
    for _ in 0..ATTEMPTS {
        let seen = document.look().await?;
        let high = match judge(seen.record.high.as_ref(), token) {
            Ok(high) => high,
            Err(rejection) => {
                let (highest, refusal) =
                    (seen.record.high.map(|high| high.epoch), refused(asked, rejection, &resource));
                if let (Kind::Fenced, Some(highest)) = (refusal.kind(), highest) {
                    count(asked, token, &resource, highest).await?;
                }
                return Err(refusal.into());
            }
        };
        if seen.record.high.as_ref() == Some(&high) {
            return Ok(Json(FenceView::new(asked, name, Some(&high), seen.anchor.now.into())));
        }
        let next = FenceRecord { high: Some(high.clone()), ..seen.record.clone() };
        if let Some(written) = document.put(&seen, next).await? {
            return Ok(Json(FenceView::new(asked, name, Some(&high), written.anchor.now.into())));
        }
    }
    let message = format!("resource=`{resource}` is written by too many others at the same time; try again");
    Err(Error::new(Kind::Contended, message).into())
}
