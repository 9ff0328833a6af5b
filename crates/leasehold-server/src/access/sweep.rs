//! Removing exchanged keys: there are many, nobody revokes them, and nobody uses them once they have expired.
//!
//! Promise: only exchanged keys are removed, at least [`REMEMBERED`] after they expired by the store's clock, and a bounded number
//! of records is read for it. Non-promise: when that happens depends on how many are made.

use super::keys::{KEYS, KIND, Keys, USES};
use super::record::KeyRecord;
use leasehold_core::store::{Change, Range};
use leasehold_core::{Key, LeaseName, Result, Shelf, codec};
use std::time::Duration;

/// How long an exchanged key is still listed after it has expired.
pub const REMEMBERED: Duration = Duration::from_secs(3600);
/// How many records are read at once: more than are made in the meantime.
const PAGE: usize = 64;

impl Keys {
    /// Removes what has to be removed among the records after this one; returns the last one read, and none at the end.
    pub(crate) async fn sweep(&self, after: Option<&LeaseName>) -> Result<Option<LeaseName>> {
        let first = LeaseName::new(KEYS)?;
        let page = self.store().list(Shelf::Access, Range::new(Some(after.unwrap_or(&first)), PAGE)).await?;
        for (name, value) in &page.entries {
            let Some((KEYS, _)) = name.as_str().split_once('/') else { return Ok(None) };
            let Ok(record) = codec::decode::<KeyRecord>(KIND, &value.bytes, name.as_str()) else { continue };
            let is_over = |at: leasehold_core::Timestamp| page.now >= at.plus(REMEMBERED);
            if record.origin.is_none() || !record.expires.is_some_and(is_over) {
                continue;
            }
            self.store().write(&Change::erase(&Key::new(Shelf::Access, name), &value.revision)).await?;
            let used = Key::new(Shelf::Access, &record.id.record(USES)?);
            if let Some(value) = self.store().read(&used).await?.value {
                self.store().write(&Change::erase(&used, &value.revision)).await?;
            }
        }
        Ok(page.entries.last().filter(|_| page.more).map(|(name, _)| name.clone()))
    }
}
