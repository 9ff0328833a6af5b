//! An operator's request to the worker that has claimed an item, to finish.
//!
//! Promise: nothing is taken away here. The request expires by itself, and until then nobody else can claim the item.

use super::apply::Applied;
use super::queue::{Queue, missing, refused};
use crate::backlog::Asking;
use leasehold_core::cell::Start;
use leasehold_core::drain::until_over;
use leasehold_core::item::name::ItemId;
use leasehold_core::item::protocol::{Order, Refusal, Request};
use leasehold_core::item::record::Item;
use leasehold_core::store::Watch;
use leasehold_core::{Epoch, Nonce, Result};
use std::time::Duration;

impl Queue {
    /// Asks the worker that has claimed it to finish; returns the item, or none if nobody has claimed it. Without an
    /// expected epoch, the request applies to the epoch that is read first.
    pub async fn ask_to_finish(&self, id: &ItemId, asking: Asking) -> Result<Option<Item>> {
        let name = self.item(id.clone());
        let before = self.read(&name).await?;
        let Asking { by, why, if_epoch, within } = asking;
        let expected = if_epoch.or(Some(before.record.epoch));
        let request = Request::Operate { nonce: Nonce::random(), by, why, expected, order: Order::Drain { within } };
        match self.apply(&name, &request, Start::Remembered(&before)).await? {
            Applied::Yes { written, .. } => Ok(Some(written.record)),
            Applied::No { refusal: Refusal::NotClaimed, .. } => Ok(None),
            Applied::No { refusal, seen } => Err(refused(&name, &refusal, &seen.record)),
            Applied::Missing | Applied::Overtaken => Err(missing(&name)),
        }
    }

    /// Waits, at most this long, until the worker that claimed it at this epoch
    /// has ended, has run out of time or has lost it. Returns what it saw last.
    pub async fn drained(&self, id: &ItemId, epoch: Epoch, limit: Duration) -> Result<Item> {
        let name = self.item(id.clone());
        let watch = self.store().watch(&name.key()?).await.unwrap_or(Watch::silent());
        until_over(self.clock().as_ref(), watch, limit, || async {
            let seen = self.read(&name).await?;
            let (item, now) = (seen.record, seen.anchor.now);
            let tenure = item.tenure().filter(|_| item.epoch == epoch && item.relocation.is_none());
            let left = tenure.map(|tenure| tenure.deadline.saturating_since(now)).filter(|left| !left.is_zero());
            Ok((item, left))
        })
        .await
    }
}
