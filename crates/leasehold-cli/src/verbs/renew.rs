//! `renew`: keep a lease, or an item, for another TTL.

use super::queue::view as items;
use super::{token, tokens};
use crate::args::{Common, Renew as Args};
use crate::exit::Exit;
use crate::{output, view};
use leasehold_core::{Result, Right, Token};
use leasehold_work::queue::{ItemName, Queue};
use serde_json::{Value, json};
use tokens::Opened;

pub async fn renew(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let opened = tokens::open(common, &token).await?;
    let live = opened.tokens.renew(&token).await?;
    if common.json {
        let shown = record(&opened, &token).await?;
        output::json(&shown.unwrap_or_else(|| {
            json!({ "name": token.lease.as_str(), "epoch": token.epoch.get(), "ttl_ms": live.ttl.get().as_millis() as u64 })
        }))?;
    }
    Ok(Exit::Done)
}

/// The record as `show` and `queue show` print it; a spool's file has none.
async fn record(opened: &Opened, token: &Token) -> Result<Option<Value>> {
    let Some(coordinator) = &opened.coordinator else { return Ok(None) };
    match Right::of(&token.lease) {
        Right::Lease => Ok(Some(view::lease_json(&coordinator.inspect(&token.lease).await?))),
        Right::Item => {
            let ItemName { queue, id } = ItemName::of(token)?;
            let seen = Queue::new(coordinator.store().clone(), queue).inspect(&id).await?;
            Ok(Some(items::item(&seen.name, &seen.item, true)))
        }
        Right::SpoolFile => Ok(None),
    }
}
