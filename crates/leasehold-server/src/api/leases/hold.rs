//! Acquiring, keeping and releasing leases.
//!
//! Promise: what is answered as granted is stored. A client that goes away without an `Idempotency-Key` leaves nothing held
//! behind, as far as the server can tell; with one, its next attempt finds what it was granted, unless its key counts no more.
//! `trust_ms` counts from the instant at which the client sent the request, however long it waited. Non-promise: nothing is renewed
//! by itself.

use crate::access::Verb;
use crate::api::asked::Asked;
use crate::api::problems::{conflict, no_longer_known, refused};
use crate::api::reading::{duration, field, instant, optional, read, token, ttl};
use crate::api::values::{Draining, Report as ReportView, Time, millis};
use crate::early;
use crate::serve::{Claimed, Json, Ongoing, Over, Problem, Waiter};
use axum::body::Bytes;
use leasehold_core::lease::protocol::{AfterFailure, Report, SlotClaim};
use leasehold_core::{
    Acquired, Ask, Checkpoint, Coordinator, Epoch, Event, Grant, Kind, Label, LeaseName, Marker, Outcome, Ownership,
    Released, Resolver, Slot, Tenure, Token, TokenState,
};
use leasehold_work::Tokens;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// How long a request waits at most.
pub const MAX_WAIT: Duration = Duration::from_secs(600);
/// How often giving back what an abandoned request may have been granted is tried.
const WITHDRAWALS: u32 = 5;

/// A lease to acquire.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// How long it is held unless renewed, such as `90s`: 1s to 24h.
    ttl: String,
    /// How long to wait for it if somebody holds it, such as `30s`: up to 10m.
    wait: Option<String>,
    /// What the holder calls itself; by default the key's label.
    label: Option<String>,
    /// A scheduled slot to claim in the same step, in RFC 3339: one that has run is refused with `already_run`, and one that is
    /// more than 5m ahead of the store's time with `invalid`.
    slot: Option<String>,
    /// Whether a slot whose run failed is run again: `leave` or `retry`.
    after_failure: Option<RunAgain>,
    /// With an `Idempotency-Key`: the epoch that was seen before the first attempt. If the lease no longer remembers back to it,
    /// the answer is `no_longer_known` instead of a second acquisition.
    #[schema(maximum = 9007199254740991_u64)]
    since_epoch: Option<u64>,
}

/// What a failed run of a slot means.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunAgain {
    /// It counts as a run: the slot is not run again.
    Leave,
    /// It is run again.
    Retry,
}

/// A lease that is held now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Granted {
    /// The name of the lease.
    pub lease: String,
    /// The proof to renew and release it with, and to show to guards. Whoever has it can act as the holder.
    pub token: String,
    /// The fencing number, which guards compare: higher than that of every earlier holder.
    pub epoch: u64,
    /// The store's time when it was granted.
    pub now: Time,
    /// Until when it is held unless renewed, by the store's clock.
    pub deadline: Time,
    /// How far each renewal moves the deadline.
    pub ttl_ms: u64,
    /// How long it can be trusted, counted from the instant at which this request was sent. After that somebody else may have it.
    pub trust_ms: u64,
    /// What an earlier holder reported, with its checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ReportView>,
    /// Who asks the holder to finish, if anybody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Draining>,
}

impl Granted {
    pub fn new(asked: &Asked, grant: &Grant) -> Self {
        let (seen, token) = (grant.seen(), grant.token());
        let Ownership { tenure, progress, .. } = &seen.record;
        let deadline = tenure.as_ref().map_or(seen.anchor.now, |tenure| tenure.deadline);
        Granted {
            lease: token.lease.to_string(),
            token: token.wire(),
            epoch: token.epoch.get(),
            now: seen.anchor.now.into(),
            deadline: deadline.into(),
            ttl_ms: millis(grant.ttl().get()),
            trust_ms: millis(asked.trust(grant.trust_until())),
            progress: progress.as_ref().map(ReportView::from),
            drain: seen.record.live_drain(seen.anchor.now).map(Draining::from),
        }
    }
}

/// Refuses an attempt that asks for something else than the first one, which was granted.
fn check_same(grant: &Grant, ask: &Ask) -> Result<(), Problem> {
    let record = &grant.seen().record;
    let claimed = record.slot.filter(|mark| mark.epoch == grant.token().epoch).map(|mark| mark.slot);
    let is_same = |tenure: &Tenure| tenure.ttl == ask.ttl && tenure.holder.label() == ask.holder.label();
    if claimed == ask.slot.map(|claim| claim.slot) && record.tenure.as_ref().is_some_and(is_same) {
        return Ok(());
    }
    let detail = "this `Idempotency-Key` has acquired the lease for another slot, TTL or label; ask with a new key";
    Err(conflict("key_reused", detail))
}

/// Acquires a lease, or waits for it.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/acquire", tag = "leases", request_body = Acquire,
    responses((status = 200, description = "It is held. `held` (409) says by whom, if not.", body = Granted)))]
pub async fn acquire(asked: Asked, waiter: Waiter, body: Bytes) -> Result<Json<Granted>, Problem> {
    let name = LeaseName::to_hold(asked.name(Verb::Hold)?.as_str())?;
    let body: Acquire = read(&body)?;
    let wait = duration("wait", body.wait, MAX_WAIT)?.unwrap_or_default();
    let label = optional("label", body.label, |label| Label::named("label", label))?;
    let again = match body.after_failure {
        Some(RunAgain::Retry) => AfterFailure::Retry,
        Some(RunAgain::Leave) | None => AfterFailure::Leave,
    };
    let slot = body.slot.map(|slot| instant("slot", &slot)).transpose()?;
    let since = field("since_epoch", body.since_epoch.map(Epoch::new).transpose())?;
    let mut ask = Ask::new(asked.holder(label, asked.nonce()), ttl(&body.ttl)?);
    ask.slot = slot.map(|slot| SlotClaim::new(Slot(slot), again));
    let coordinator = asked.coordinator().await?;
    if let Some(claim) = &ask.slot {
        field("slot", early::check_is_due(&coordinator, &name, claim.slot).await)?;
    }
    if let Some(since) = since.filter(|_| asked.attempt.is_some()) {
        check_remembered(&coordinator, &name, &ask, since).await?;
    }
    let patient = asked.coordinator_of_waiter().await?;
    let ongoing = asked.site.ongoing().clone();
    let mut pending =
        Pending { coordinator: patient.clone(), ongoing, name: name.clone(), ask: ask.clone(), is_over: false };
    // The client's next attempt finds what this one was granted.
    pending.is_over = asked.attempt.is_some();
    // With its permit, like any request: only a refused one waits.
    let first = coordinator.acquire(&name, &ask).await;
    let acquired = match first {
        first if wait.is_zero() => first,
        Ok(Acquired::Granted(_)) => first,
        Err(error) if error.kind() != Kind::Contended => Err(error),
        refused => {
            let mut waiting = waiter.begin()?;
            let acquiring = async {
                match refused {
                    Ok(refused) => patient.acquire_after(refused, &name, &ask, wait).await,
                    Err(_) => patient.acquire_within(std::slice::from_ref(&name), &ask, wait).await,
                }
            };
            tokio::select! {
                acquired = acquiring => acquired,
                over = waiting.over() => {
                    // Nobody asks again with a key that is no longer valid.
                    pending.is_over &= !matches!(over, Over::Denied(_));
                    return Err(over.into());
                }
            }
        }
    };
    match acquired {
        Ok(Acquired::Granted(grant)) => {
            pending.is_over = true;
            match asked.attempt {
                Some(_) => check_same(&grant, &ask)?,
                None => asked.undo.set(withdraw(patient, name.clone(), ask)),
            }
            let (epoch, died) = (grant.token().epoch, !grant.record().found_dead().is_empty());
            asked.site.tally().granted(&asked.namespace, &coordinator, &name, epoch, died);
            Ok(Json(Granted::new(&asked, &grant)))
        }
        Ok(Acquired::Refused { refusal, .. }) => {
            pending.is_over = true;
            asked.site.tally().refused(&asked.namespace, &coordinator, &name, &refusal);
            Err(refused(&name, &refusal))
        }
        Err(error) => {
            // Only if the outcome is unknown may something be held.
            pending.is_over |= error.kind() != Kind::Indeterminate;
            Err(error.into())
        }
    }
}

/// Checks that an acquisition under this nonce could be distinguished from one that was never made.
async fn check_remembered(leases: &Coordinator, name: &LeaseName, ask: &Ask, since: Epoch) -> Result<(), Problem> {
    let record = leases.inspect(name).await?.record;
    let first = record.transfers.first().map(|transfer| transfer.epoch);
    let is_known = record.transfer_by(ask.holder.nonce()).is_some();
    if is_known || record.epoch <= since || first.is_some_and(|first| Some(first) <= since.next()) {
        return Ok(());
    }
    Err(no_longer_known(format!(
        "lease `{name}` is at epoch {}, and remembers no further back than epoch {}: whether this request was granted since epoch \
         {since} is not known; look at its history",
        record.epoch,
        first.unwrap_or(record.epoch)
    )))
}

/// An acquisition whose answer is not sent yet. If it is dropped before that, it is given back.
struct Pending {
    coordinator: Coordinator,
    ongoing: Ongoing,
    name: LeaseName,
    ask: Ask,
    is_over: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.ongoing.spawn(withdraw(self.coordinator.clone(), self.name.clone(), self.ask.clone()));
    }
}

async fn withdraw(coordinator: Coordinator, name: LeaseName, ask: Ask) {
    for attempt in 1..=WITHDRAWALS {
        match coordinator.withdraw(std::slice::from_ref(&name), &ask).await {
            Ok(()) => return,
            Err(error) => tracing::debug!("a lease that nobody waits for was not given back: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1) * attempt).await;
    }
}

/// The token of a held lease, and perhaps how far its work has come.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// The token from the answer to the acquisition.
    token: String,
    /// How far the work has come, in one line.
    marker: Option<String>,
    /// What the next attempt needs to continue; an earlier one stays if there is none.
    checkpoint: Option<String>,
}

fn report(marker: Option<String>, checkpoint: Option<String>) -> Result<Report, Problem> {
    Ok(Report {
        marker: optional("marker", marker, |text| Marker::named("marker", text))?,
        checkpoint: optional("checkpoint", checkpoint, Checkpoint::new)?,
    })
}

/// The token of a request, if it is of the lease in its path.
fn own(name: &LeaseName, text: &str) -> Result<Token, Problem> {
    let token = token(text)?;
    if token.lease != *name {
        let detail = format!("field `token`: this token is of `{}`, but the path names `{name}`", token.lease);
        return Err(Problem::invalid(detail).with("field", "token"));
    }
    Ok(token)
}

/// Explains a token that the record does not know as its holder's: how the lease was lost.
async fn told(asked: &Asked, coordinator: &Coordinator, token: &Token, error: leasehold_core::Error) -> Problem {
    if error.kind() != Kind::Lost {
        return error.into();
    }
    match coordinator.resolve(token).await {
        Ok(found) if found.in_force(token).is_err() => {
            if let TokenState::Superseded { .. } = found.state {
                let (lease, epoch) = (&token.lease, token.epoch);
                asked.site.tally().once(&asked.namespace, coordinator, lease, Event::Lost, epoch);
            }
            found.refusal(token).into()
        }
        _ => error.into(),
    }
}

/// Holds a lease for another TTL. `lost` (409) is final: stop.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/renew", tag = "leases", request_body = Renew,
    responses((status = 200, description = "It is held for another TTL.", body = Granted)))]
pub async fn renew(asked: Asked, body: Bytes) -> Result<Json<Granted>, Problem> {
    let name = asked.name(Verb::Hold)?.of_a_lease()?;
    let body: Renew = read(&body)?;
    let token = own(&name, &body.token)?;
    let report = Some(report(body.marker, body.checkpoint)?).filter(|report| *report != Report::default());
    let coordinator = asked.coordinator_of_holder().await?;
    let renewing = async {
        let mut grant = coordinator.clone().for_others().adopt(&token).await?;
        coordinator.renew(&mut grant, report).await.map(|()| grant)
    };
    match renewing.await {
        Ok(grant) => Ok(Json(Granted::new(&asked, &grant))),
        Err(error) => Err(told(&asked, &coordinator, &token, error).await),
    }
}

/// A lease that is given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The token from the answer to the acquisition.
    token: String,
    /// How the work went: `succeeded` (the default), `failed` or `not_started`.
    outcome: Option<Ending>,
}

/// How work went, as its holder says.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The work succeeded.
    Succeeded,
    /// The work failed; a slot that it was for may be run again.
    Failed,
    /// It was not begun.
    NotStarted,
}

/// A lease that was given back.
#[derive(Debug, Serialize, ToSchema)]
pub struct Freed {
    /// The name of the lease.
    lease: String,
    /// The epoch that ended.
    epoch: u64,
    /// How it ended. If it had already been released, the earlier outcome.
    outcome: &'static str,
}

/// Releases a lease. Repeating it changes nothing and returns the same answer.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/release", tag = "leases", request_body = Release,
    responses((status = 200, description = "It is free.", body = Freed)))]
pub async fn release(asked: Asked, body: Bytes) -> Result<Json<Freed>, Problem> {
    let name = asked.name(Verb::Hold)?.of_a_lease()?;
    let body: Release = read(&body)?;
    let token = own(&name, &body.token)?;
    let outcome = match body.outcome {
        None | Some(Ending::Succeeded) => Outcome::Succeeded,
        Some(Ending::Failed) => Outcome::Failed,
        Some(Ending::NotStarted) => Outcome::NotStarted,
    };
    let coordinator = asked.coordinator_of_holder().await?;
    let outcome = match coordinator.release_by_token(&token, outcome).await? {
        Released::Now => {
            let event = match outcome {
                Outcome::Succeeded => Some(Event::Succeeded),
                Outcome::Failed => Some(Event::Failed),
                _ => None,
            };
            if let Some(event) = event {
                asked.site.tally().once(&asked.namespace, &coordinator, &name, event, token.epoch);
            }
            outcome
        }
        Released::Already(before) => {
            asked.site.claimed_nothing(&asked.caller, Claimed::ToChange);
            if asked.attempt.is_some() && before != outcome {
                let detail = format!(
                    "this grant was released before, with the outcome `{}`, and nothing was done now",
                    before.as_str()
                );
                return Err(conflict("key_reused", detail));
            }
            before
        }
        Released::Lost(refusal) => {
            return Err(told(&asked, &coordinator, &token, leasehold_core::lost_error(&token, &refusal)).await);
        }
    };
    Ok(Json(Freed { lease: name.to_string(), epoch: token.epoch.get(), outcome: outcome.as_str() }))
}

/// A report of progress.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Marked {
    /// The token from the answer to the acquisition.
    token: String,
    /// How far the work has come, in one line.
    marker: String,
}

/// Reports how far the work has come. It does not renew.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/progress", tag = "leases", request_body = Marked,
    responses((status = 200, description = "It is recorded.", body = Noted)))]
pub async fn progress(asked: Asked, body: Bytes) -> Result<Json<Noted>, Problem> {
    let name = asked.name(Verb::Hold)?.of_a_lease()?;
    let body: Marked = read(&body)?;
    note(&asked, own(&name, &body.token)?, report(Some(body.marker), None)?).await
}

/// What the next attempt needs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpointed {
    /// The token from the answer to the acquisition.
    token: String,
    /// Any text of at most 4096 bytes.
    checkpoint: String,
    /// How far the work has come, in one line.
    marker: Option<String>,
}

/// Keeps what the next attempt needs to continue.
#[utoipa::path(post, path = "/v1/ns/{namespace}/leases/{name}/checkpoint", tag = "leases", request_body = Checkpointed,
    responses((status = 200, description = "It is kept.", body = Noted)))]
pub async fn checkpoint(asked: Asked, body: Bytes) -> Result<Json<Noted>, Problem> {
    let name = asked.name(Verb::Hold)?.of_a_lease()?;
    let body: Checkpointed = read(&body)?;
    note(&asked, own(&name, &body.token)?, report(body.marker, Some(body.checkpoint))?).await
}

/// A report that was recorded.
#[derive(Debug, Serialize, ToSchema)]
pub struct Noted {
    /// The epoch under which it was recorded.
    pub epoch: u64,
}

async fn note(asked: &Asked, token: Token, report: Report) -> Result<Json<Noted>, Problem> {
    Tokens::new(asked.coordinator_of_holder().await?).progress(&token, report).await?;
    Ok(Json(Noted { epoch: token.epoch.get() }))
}
