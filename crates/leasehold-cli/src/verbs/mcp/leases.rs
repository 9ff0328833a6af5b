//! Tools for leases: acquire, renew, release, list, show, progress and checkpoint.

use super::era::Era;
use super::session::Session;
use super::tools::Call;
use crate::args::Ls;
use crate::verbs::hold::{count_end, releasable, report};
use crate::verbs::{look, run};
use crate::{output, view};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{
    Acquired, Ask, Coordinator, Drain, Error, Event, HolderId, KeeperState, Kind, Label, LeaseName, NamePattern,
    Outcome, Released, Resolver, Result, TokenKind, Ttl,
};
use leasehold_work::Renewed;
use serde_json::{Value, json};
use std::time::Duration;

/// How many leases are listed, unless the caller says.
const LISTED: u64 = 100;
/// How many transfers are shown.
const TRANSFERS: usize = 8;

/// A request whose answer is waited for. Dropped, it is taken back.
struct Asking<'a> {
    session: &'a Session,
    coordinator: &'a Coordinator,
    lease: &'a LeaseName,
    ask: &'a Ask,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.session.withdraw(self.coordinator, self.lease, self.ask);
    }
}

pub async fn acquire(call: &Call<'_>) -> Result<Value> {
    let session = call.session;
    let lease = LeaseName::to_hold(call.text("lease").unwrap_or_default())?;
    let wait = call.wait()?.unwrap_or(Duration::ZERO);
    let in_session = call.era == Era::Session;
    if let Some(token) = session.of_the_run(&lease)
        && session.tokens(token)?.resolve(token).await?.in_force(token).is_ok()
    {
        let message = format!(
            "lease `{token}` is held by the `leasehold run` that this server is part of: use the other tools for it as they are"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    if in_session && let Some((token, KeeperState::Held { .. })) = session.state(&lease) {
        // The store decides, not what was believed last: an operator may just have taken it away.
        if session.tokens(&token)?.resolve(&token).await?.in_force(&token).is_ok() {
            let message = format!("lease `{token}` is held here already; release it first, or use its token");
            return Err(Error::new(Kind::Invalid, message));
        }
        session.let_go(&lease).await;
    }
    let settings = session.context.settings()?;
    let ttl: Ttl = call.text("ttl").map_or(Ok(settings.ttl.value), str::parse)?;
    let label = match call.text("label") {
        Some(label) => Some(Label::named("label", label)?),
        None => settings.label.value.clone(),
    };
    let ask = Ask::new(HolderId::new(label), ttl);
    let coordinator = match call.era {
        Era::Session => session.coordinator.clone(),
        Era::Stateless => session.coordinator.clone().for_others(),
    };
    let asking = Asking { session, coordinator: &coordinator, lease: &lease, ask: &ask };
    let acquired = coordinator.acquire_within(std::slice::from_ref(&lease), &ask, wait).await;
    std::mem::forget(asking);
    match acquired? {
        Acquired::Granted(grant) => {
            let (token, progress) = (grant.token().clone(), grant.record().progress.clone());
            let ttl_ms = grant.ttl().get().as_millis() as u64;
            if in_session {
                session.keep(*grant);
            }
            let _ = coordinator.count(&lease, Event::Granted).await;
            Ok(json!({
                "status": "granted", "lease": token.lease.as_str(), "epoch": token.epoch.get(), "token": token.wire(),
                "ttl_ms": ttl_ms, "renewed": in_session,
                "marker": progress.as_ref().and_then(|p| p.marker.as_ref()).map(|marker| marker.as_str()),
                "checkpoint": progress.as_ref().and_then(|p| p.checkpoint.as_ref()).map(|text| text.as_str()),
            }))
        }
        Acquired::Refused { lease, refusal, now } => {
            let _ = coordinator.count(&lease, run::skip_event(&refusal)).await;
            let why = view::refusal_line(&lease, &refusal, now);
            Ok(json!({ "status": "held", "lease": lease.as_str(), "why": why }))
        }
    }
}

pub async fn renew(call: &Call<'_>) -> Result<Value> {
    let (session, token) = (call.session, call.token()?);
    let (until, asked) = match session.state(&token.lease).filter(|(kept, _)| kept.claim() == token.claim()) {
        Some((_, KeeperState::Lost(loss))) => {
            return Err(Error::new(Kind::Lost, format!("lease `{token}` was lost: {loss}")));
        }
        // The store decides, not what was believed last.
        Some(_) => {
            let found = session.tokens(&token)?.resolve(&token).await?;
            (found.in_force(&token)?.trust_until, session.asked(&token.lease))
        }
        None => {
            let Renewed { live, asked } = session.tokens(&token)?.renew(&token).await?;
            (live.trust_until, asked)
        }
    };
    let told = |drain: Drain| format!("{drain}; release it by {}", output::rfc3339(drain.until()));
    Ok(json!({
        "status": "held", "lease": token.lease.as_str(), "epoch": token.epoch.get(),
        "seconds_left": until.saturating_since(SystemClock.now()).as_secs(),
        "drain": asked.map(told),
    }))
}

pub async fn release(call: &Call<'_>) -> Result<Value> {
    let session = call.session;
    let answer = |status: &str, lease: &LeaseName| json!({ "status": status, "lease": lease.as_str() });
    if let Some(lease) = call.text("lease").filter(|_| call.text("token").is_none()) {
        let lease: LeaseName = lease.parse()?;
        if session.state(&lease).is_none() && session.was_released(&lease) {
            return Ok(answer("already_released", &lease));
        }
    }
    let token = call.token()?;
    if TokenKind::of(&token.lease) != TokenKind::Lease {
        let message =
            format!("token `{token}` is of a queue's item, which is not released; use queue_complete or queue_fail");
        return Err(Error::new(Kind::Invalid, message));
    }
    if session.of_the_run(&token.lease).is_some_and(|own| own.claim() == token.claim()) {
        let message = format!(
            "lease `{token}` is held by the `leasehold run` that this server is part of, which releases it when its command ends"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    let outcome = if call.is_on("failed") { Outcome::Failed } else { Outcome::Succeeded };
    let ours = session.state(&token.lease).is_some_and(|(kept, _)| kept.claim() == token.claim());
    let grant = if ours { session.let_go(&token.lease).await } else { None };
    let released = match grant {
        Some(grant) => {
            let released = session.coordinator.release(&grant, outcome).await?;
            if !matches!(released, Released::Lost(_)) {
                session.note_released(&token.lease);
            }
            released
        }
        None => {
            let found = session.tokens(&token)?.resolve(&token).await?;
            releasable(&found, &token)?;
            session.coordinator.release_by_token(&token, outcome).await?
        }
    };
    match released {
        Released::Now => {
            count_end(&session.coordinator, &token.lease, outcome).await;
            Ok(answer("released", &token.lease))
        }
        Released::Already(_) => Ok(answer("already_released", &token.lease)),
        Released::Lost(_) => Err(Error::new(Kind::Lost, format!("lease `{token}` was lost before; nothing changed"))),
    }
}

pub async fn list(call: &Call<'_>) -> Result<Value> {
    let wanted = Ls {
        pattern: call.text("pattern").map(str::to_owned),
        held: call.is_on("held"),
        free: false,
        paused: false,
        all: call.is_on("all"),
        watch: false,
    };
    let limit = usize::try_from(call.number("limit").unwrap_or(LISTED)).unwrap_or(usize::MAX);
    let pattern = wanted.pattern.as_deref().map(NamePattern::or_prefix).transpose()?;
    let found = look::gather(&call.session.coordinator, &wanted, pattern.as_ref()).await?;
    Ok(json!({
        "status": "found",
        "leases": found.leases.iter().take(limit).map(view::lease_json).collect::<Vec<_>>(),
        "more": found.hidden + found.leases.len().saturating_sub(limit),
        "damaged": found.damaged.iter().map(ToString::to_string).collect::<Vec<_>>(),
    }))
}

pub async fn show(call: &Call<'_>) -> Result<Value> {
    let lease: LeaseName = call.text("lease").unwrap_or_default().parse()?;
    let seen = call.session.coordinator.inspect(&lease).await?;
    let mut value = view::lease_json(&seen);
    value["held_here"] = json!(call.era == Era::Session && call.session.state(&lease).is_some());
    value["transfers"] =
        seen.record.transfers.iter().rev().take(TRANSFERS).map(|transfer| view::transfer_json(transfer)).collect();
    Ok(value)
}

/// For markers and for checkpoints.
pub async fn progress(call: &Call<'_>) -> Result<Value> {
    let token = call.token()?;
    let report = report(call.text("marker"), call.text("checkpoint"))?;
    call.session.tokens(&token)?.progress(&token, report).await?;
    Ok(json!({ "status": "noted", "lease": token.lease.as_str(), "epoch": token.epoch.get() }))
}
