//! `acquire`, `renew`, `progress`, `release`: for scripts that hold a lease themselves. `renew` and `progress` take an
//! item's token too.

use super::queue::view as items;
use super::run::skip_event;
use crate::args::{Acquire, Progress, Release, Renew};
use crate::config::duration_of;
use crate::context::{Context, OpenToken};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::view;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{
    Acquired, Ask, Checkpoint, Coordinator, Drain, Error, Event, HolderId, Kind, LeaseName, Marker, Outcome, Released,
    Resolved, Result, Token, TokenKind, TokenState,
};
use leasehold_work::Renewed;
use leasehold_work::queue::{ItemName, Queue};
use serde_json::{Value, json};

pub async fn acquire(context: &Context, args: &Acquire) -> Result<Exit> {
    let lease = LeaseName::to_hold(&args.name)?;
    let wait = duration_of("--wait", args.wait.as_deref())?;
    let settings = context.settings()?;
    let coordinator = context.coordinator().await?.clone().for_others();
    let ask = Ask::new(HolderId::new(settings.label.value.clone()), settings.ttl.value);
    let acquired = match wait {
        Some(limit) => coordinator.acquire_within(std::slice::from_ref(&lease), &ask, limit).await?,
        None => coordinator.acquire(&lease, &ask).await?,
    };
    let grant = match acquired {
        Acquired::Granted(grant) => grant,
        Acquired::Refused { lease, refusal, now } => {
            let _ = coordinator.count(&lease, skip_event(&refusal)).await;
            output::say(&view::refusal_line(&lease, &refusal, now));
            return Ok(Exit::Held);
        }
    };
    let _ = coordinator.count(&lease, Event::Granted).await;
    let mut text = grant.token().wire();
    if context.common.json {
        let mut value = view::token_json(grant.token());
        value["ttl_ms"] = json!(grant.ttl().get().as_millis() as u64);
        text = value.to_string();
    }
    let why = match output::deliver(&format!("{text}\n")) {
        Ok(Reader::There) => return Ok(Exit::Done),
        Ok(Reader::Gone) => "nobody reads the token",
        Err(_) => "cannot print the token",
    };
    // Nobody can use a lease whose token was lost, so it is given back.
    let message = match coordinator.release(&grant, Outcome::Failed).await {
        Ok(_) => format!("{why}: the lease was released"),
        Err(error) => format!(
            "nobody has the token of `{lease}`, and it was not released; it expires after {}: {error}",
            grant.ttl()
        ),
    };
    Err(Error::new(Kind::Unavailable, message))
}

/// Tells a script that an operator asks it to finish.
pub fn tell_asked(token: &Token, drain: &Drain) {
    let until = output::rfc3339(drain.until());
    output::say(&format!("`{token}` is {drain}; release it by {until}, or it is taken away then"));
}

pub async fn renew(context: &Context, args: &Renew) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let opened = context.open_token(&token).await?;
    let Renewed { live, asked } = opened.tokens.renew(&token).await?;
    if let Some(drain) = asked {
        tell_asked(&token, &drain);
    }
    let shown = if context.common.json { record(&opened, &token).await? } else { None };
    context.print_json(|| {
        let ttl_ms = live.ttl.get().as_millis() as u64;
        shown.unwrap_or_else(|| json!({ "name": token.lease.as_str(), "epoch": token.epoch.get(), "ttl_ms": ttl_ms }))
    })
}

/// The record as `show` and `queue show` print it; a spool's file has none.
async fn record(opened: &OpenToken, token: &Token) -> Result<Option<Value>> {
    let Some(coordinator) = &opened.coordinator else { return Ok(None) };
    match TokenKind::of(&token.lease) {
        TokenKind::Lease => Ok(Some(view::lease_json(&coordinator.inspect(&token.lease).await?))),
        TokenKind::Item => {
            let ItemName { queue, id } = ItemName::of(token)?;
            let seen = Queue::new(coordinator.store().clone(), queue).inspect(&id).await?;
            Ok(Some(items::item(&seen.name, &seen.item, seen.now, true)))
        }
        TokenKind::SpoolFile => Ok(None),
    }
}

pub async fn progress(context: &Context, args: &Progress) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let report = report(args.marker.as_deref(), args.checkpoint.as_deref())?;
    context.open_token(&token).await?.tokens.progress(&token, report).await?;
    Ok(Exit::Done)
}

/// How far the work has come.
pub fn report(marker: Option<&str>, checkpoint: Option<&str>) -> Result<Report> {
    let marker = marker.map(|text| Marker::named("marker", text)).transpose()?;
    Ok(Report { marker, checkpoint: checkpoint.map(Checkpoint::new).transpose()? })
}

pub async fn release(context: &Context, args: &Release) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let opened = context.open_token(&token).await?;
    let found = opened.resolve().await?;
    let (Some(coordinator), TokenKind::Lease) = (&opened.coordinator, found.kind) else {
        return Err(not_released(&found, &token));
    };
    releasable(&found, &token)?;
    let outcome = if args.failed { Outcome::Failed } else { Outcome::Succeeded };
    let (word, exit) = match coordinator.release_by_token(&token, outcome).await? {
        Released::Now => {
            count_end(coordinator, &token.lease, outcome).await;
            ("released", Exit::Done)
        }
        Released::Already(outcome) => {
            output::say(&format!("`{token}` was already released ({}); nothing changed", outcome.as_str()));
            ("already_released", Exit::Done)
        }
        Released::Lost(_) => {
            output::say(&format!("`{token}` no longer holds the lease; nothing changed"));
            ("lost", Exit::Lost)
        }
    };
    context
        .print_json(|| json!({ "name": token.lease.as_str(), "epoch": token.epoch.get(), "result": word }))
        .map(|_| exit)
}

/// Counts how a tenure without a supervisor ended, best effort.
pub async fn count_end(coordinator: &Coordinator, lease: &LeaseName, outcome: Outcome) {
    let event = if outcome == Outcome::Failed { Event::Failed } else { Event::Succeeded };
    let _ = coordinator.count(lease, event).await;
}

/// Refuses a token that the record never granted, or has sent elsewhere.
pub fn releasable(found: &Resolved, token: &Token) -> Result<()> {
    match found.state {
        TokenState::NeverGranted | TokenState::OtherLineage { .. } | TokenState::Moved(_) | TokenState::Missing => {
            Err(found.refusal(token))
        }
        _ => Ok(()),
    }
}

/// An item is not released: it is completed or it fails, and its worker says which.
fn not_released(found: &Resolved, token: &Token) -> Error {
    if !found.is_newest() {
        return found.refusal(token);
    }
    let queue = match (found.kind, token.lease.as_str().split('/').nth(1)) {
        (TokenKind::Item, Some(queue)) => queue,
        _ => "spool:PATH",
    };
    let message = format!(
        "token `{token}` belongs to an item of a queue, which is completed or fails instead of being released: use \
         `leasehold queue complete {queue}` or `leasehold queue fail {queue} --why ...`; nothing was changed"
    );
    Error::new(Kind::Invalid, message)
}
