//! `release`: give a lease back.

use super::{of_token, token};
use crate::args::{Common, Release as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold::{Outcome, Released, Result};
use serde_json::json;

pub async fn release(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let coordinator = of_token(&Settings::gather(common)?).await?;
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
