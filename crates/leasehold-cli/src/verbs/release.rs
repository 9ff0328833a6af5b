//! `release`: give a lease back.

use super::{token, tokens};
use crate::args::{Common, Release as Args};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Outcome, Released, Resolved, Result, Right, Token, TokenState};
use serde_json::json;

pub async fn release(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let opened = tokens::open(common, &token).await?;
    let found = opened.resolve(&token).await?;
    let (Some(coordinator), Right::Lease) = (&opened.coordinator, found.right) else {
        return Err(not_released(&found, &token));
    };
    if let TokenState::NeverGranted | TokenState::OtherLineage { .. } | TokenState::Moved(_) | TokenState::Missing =
        found.state
    {
        return Err(found.refusal(&token));
    }
    let outcome = if args.failed { Outcome::Failed } else { Outcome::Succeeded };
    let (word, exit) = match coordinator.release_by_token(&token, outcome).await? {
        Released::Now => ("released", Exit::Done),
        Released::Already(outcome) => {
            output::say(&format!("`{token}` had been released before ({}); nothing changed", outcome.as_str()));
            ("already_released", Exit::Done)
        }
        Released::Lost(_) => {
            output::say(&format!("`{token}` is no longer the holder's; nothing changed"));
            ("lost", Exit::Lost)
        }
    };
    if common.json {
        output::json(&json!({ "name": token.lease.as_str(), "epoch": token.epoch.get(), "result": word }))?;
    }
    Ok(exit)
}

/// An item is not released but ended, and its worker says how.
fn not_released(found: &Resolved, token: &Token) -> Error {
    if !found.is_newest() {
        return found.refusal(token);
    }
    let queue = match (found.right, token.lease.as_str().split('/').nth(1)) {
        (Right::Item, Some(queue)) => queue,
        _ => "spool:PATH",
    };
    let message = format!(
        "token `{token}` is of a queue's item, which is not released but ended: use `leasehold queue complete {queue}` or \
         `leasehold queue fail {queue} --why ...`; nothing was changed"
    );
    Error::new(Kind::Invalid, message)
}
