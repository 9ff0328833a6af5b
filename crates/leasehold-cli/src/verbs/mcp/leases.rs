//! Tools for leases: acquire, renew, release, inspect.

use super::session::Session;
use super::tools::{is_on, text};
use crate::verbs::hold::releasable;
use crate::{output, view};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{
    Acquired, Ask, Error, Event, HolderId, Kind, Label, LeaseName, Outcome, Released, Resolver, Result, Right,
    Standing, Token, Ttl, parse_duration,
};
use serde_json::{Value, json};
use std::time::Duration;

pub async fn acquire(session: &Session, arguments: &Value) -> Result<Value> {
    let lease = LeaseName::to_hold(text(arguments, "lease").unwrap_or_default())?;
    if let Some((token, Standing::Held { .. })) = session.standing(&lease) {
        let message = format!("lease `{token}` is held here already; release it first, or use its token");
        return Err(Error::new(Kind::Invalid, message));
    }
    let settings = session.context.settings()?;
    let ttl: Ttl = text(arguments, "ttl").map_or(Ok(settings.ttl.value), str::parse)?;
    let label = match text(arguments, "label") {
        Some(label) => Some(Label::named("label", label)?),
        None => settings.label.value.clone(),
    };
    let wait = text(arguments, "wait").map_or(Ok(Duration::ZERO), parse_duration)?;
    if wait > Duration::from_secs(3600) {
        return Err(Error::invalid("wait", text(arguments, "wait").unwrap_or_default(), "use at most 1h"));
    }
    let ask = Ask::new(HolderId::new(label), ttl);
    match session.coordinator.acquire_within(std::slice::from_ref(&lease), &ask, wait).await? {
        Acquired::Granted(grant) => {
            let token = grant.token().clone();
            session.keep(*grant);
            let _ = session.coordinator.count(&lease, Event::Granted).await;
            let (name, epoch) = (token.lease.as_str(), token.epoch.get());
            Ok(json!({ "status": "granted", "lease": name, "epoch": epoch, "token": token.wire() }))
        }
        Acquired::Refused { lease, refusal, now } => {
            let _ = session.coordinator.count(&lease, Event::SkippedOverlap).await;
            let why = view::refusal_line(&lease, &refusal, now);
            Ok(json!({ "status": "held", "lease": lease.as_str(), "why": why }))
        }
    }
}

pub async fn renew(session: &Session, arguments: &Value) -> Result<Value> {
    let token = session.token(text(arguments, "token"), text(arguments, "lease"))?;
    let until = match session.standing(&token.lease).filter(|(kept, _)| kept.claim() == token.claim()) {
        Some((_, Standing::Lost(loss))) => {
            return Err(Error::new(Kind::Lost, format!("lease `{token}` was lost: {loss}")));
        }
        // The store decides, not what was believed last.
        Some(_) => session.tokens(&token)?.resolve(&token).await?.in_force(&token)?.trust_until,
        None => session.tokens(&token)?.renew(&token).await?.live.trust_until,
    };
    let left = until.saturating_since(SystemClock.now());
    Ok(json!({
        "status": "held", "lease": token.lease.as_str(), "epoch": token.epoch.get(),
        "seconds_left": left.as_secs(),
    }))
}

pub async fn release(session: &Session, arguments: &Value) -> Result<Value> {
    let token: Token = session.token(text(arguments, "token"), text(arguments, "lease"))?;
    if Right::of(&token.lease) != Right::Lease {
        let message = format!("token `{token}` is of a queue's item, which is not released; use queue_complete");
        return Err(Error::new(Kind::Invalid, message));
    }
    let outcome = if is_on(arguments, "failed") { Outcome::Failed } else { Outcome::Succeeded };
    let ours = session.standing(&token.lease).is_some_and(|(kept, _)| kept.claim() == token.claim());
    let grant = if ours { session.let_go(&token.lease).await } else { None };
    let released = match grant {
        Some(grant) => session.coordinator.release(&grant, outcome).await?,
        None => {
            let found = session.tokens(&token)?.resolve(&token).await?;
            releasable(&found, &token)?;
            session.coordinator.release_by_token(&token, outcome).await?
        }
    };
    match released {
        Released::Now => Ok(json!({ "status": "released", "lease": token.lease.as_str() })),
        Released::Already(_) => Ok(json!({ "status": "already_released", "lease": token.lease.as_str() })),
        Released::Lost(_) => Err(Error::new(Kind::Lost, format!("lease `{token}` was lost before; nothing changed"))),
    }
}

pub async fn inspect(session: &Session, arguments: &Value) -> Result<Value> {
    let lease: LeaseName = text(arguments, "lease").unwrap_or_default().parse()?;
    let seen = session.coordinator.inspect(&lease).await?;
    let tenure = seen.record.live_tenure(seen.now);
    Ok(json!({
        "lease": lease.as_str(),
        "epoch": seen.record.epoch.get(),
        "held": tenure.is_some(),
        "holder": tenure.map(|tenure| tenure.holder.to_string()),
        "deadline": tenure.map(|tenure| output::rfc3339(tenure.deadline)),
        "held_here": session.standing(&lease).is_some(),
        "transfers": seen.record.transfers.iter().rev().take(8).map(|transfer| json!({
            "epoch": transfer.epoch.get(), "reason": transfer.reason.as_str(), "at": output::rfc3339(transfer.at),
        })).collect::<Vec<_>>(),
    }))
}
