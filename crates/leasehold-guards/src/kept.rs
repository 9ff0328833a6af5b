//! A fence that is kept in the store, for resources that cannot keep one beside themselves.
//!
//! Promise: a fence that was put is durable, and of two who put over the same reading at most one succeeds; a lost answer
//! is resolved by reading back. Non-promise: it says nothing about the moment between a look and what is done upon it.

use leasehold::guard::HighWater;
use leasehold::store::{Store, Swap};
use leasehold::{Claim, Epoch, Error, Key, Kind, LeaseName, Lineage, Nonce, Result, Revision, Shelf, codec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const KIND: &str = "fence";

/// The record: who was let in last, and which watcher (a proxy, a gate) answers for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<High>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<Mark>,
    /// Unique for every write, so that a lost answer can be told from somebody else's equal write.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<Nonce>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct High {
    lease: LeaseName,
    lineage: Lineage,
    epoch: Epoch,
    nonce: Nonce,
    seq: u64,
}

impl From<High> for HighWater {
    fn from(High { lease, lineage, epoch, nonce, seq }: High) -> Self {
        HighWater { lease, lineage, epoch, nonce, seq }
    }
}

impl From<HighWater> for High {
    fn from(HighWater { lease, lineage, epoch, nonce, seq }: HighWater) -> Self {
        High { lease, lineage, epoch, nonce, seq }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    epoch: Epoch,
    nonce: Nonce,
}

/// A fence as it was last seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    /// The highest token that was let in.
    pub(crate) high: Option<HighWater>,
    /// The tenure of the watcher that answers for it.
    pub(crate) by: Option<Claim>,
    revision: Option<Revision>,
}

/// The fence of one resource in a store.
#[derive(Debug, Clone)]
pub(crate) struct KeptFence {
    store: Arc<dyn Store>,
    key: Key,
}

impl KeptFence {
    pub(crate) fn new(store: Arc<dyn Store>, name: &LeaseName) -> Self {
        KeptFence { store, key: Key::new(Shelf::Fence, name) }
    }

    #[cfg_attr(not(feature = "mcp"), allow(dead_code))]
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) async fn look(&self) -> Result<Kept> {
        Ok(match self.store.read(&self.key).await?.value {
            None => Kept::default(),
            Some(value) => {
                let record: Record = codec::decode(KIND, &value.bytes, self.key.name.as_str())?;
                let high = record.high.map(HighWater::from);
                let by = record.by.map(|m| Claim { epoch: m.epoch, nonce: m.nonce });
                Kept { high, by, revision: Some(value.revision) }
            }
        })
    }

    /// Puts what is remembered next over what was seen; none if somebody else was faster.
    pub(crate) async fn put(&self, seen: &Kept, high: Option<HighWater>, by: Option<Claim>) -> Result<Option<Kept>> {
        let tag = Nonce::random();
        let record = Record {
            high: high.clone().map(High::from),
            by: by.map(|c| Mark { epoch: c.epoch, nonce: c.nonce }),
            tag: Some(tag),
        };
        let bytes = codec::encode(KIND, &record)?;
        match self.store.swap(&self.key, seen.revision.as_ref(), &bytes).await {
            Ok(Swap::Done { revision, .. }) => Ok(Some(Kept { high, by, revision: Some(revision) })),
            Ok(Swap::Mismatch) => Ok(None),
            Err(error) if error.kind() == Kind::Indeterminate => {
                let Some(value) = self.store.read(&self.key).await?.value else { return Err(error) };
                let found: Record = codec::decode(KIND, &value.bytes, self.key.name.as_str())?;
                if found.tag == Some(tag) {
                    return Ok(Some(Kept { high, by, revision: Some(value.revision) }));
                }
                // Still as it was: the swap may yet arrive, and then finds what it expects. Nothing may be built on it.
                if Some(&value.revision) == seen.revision.as_ref() { Err(error) } else { Ok(None) }
            }
            Err(error) => Err(error),
        }
    }
}

/// The refusal of a name that would not fit on the shelf under its prefix.
pub(crate) fn named(prefix: &str, resource: &LeaseName) -> Result<LeaseName> {
    LeaseName::new(format!("{prefix}/{resource}"))
        .map_err(|_| Error::invalid("resource", resource, format!("use at most {} bytes", 199 - prefix.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::MemoryStore;

    fn high(epoch: u64) -> HighWater {
        HighWater {
            lease: "daily".parse().unwrap(),
            lineage: Lineage::from_u128(1),
            epoch: Epoch::new(epoch).unwrap(),
            nonce: Nonce::from_u128(u128::from(epoch)),
            seq: 0,
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn of_two_over_one_reading_one_succeeds() {
        let fence = KeptFence::new(Arc::new(MemoryStore::default()), &"http/x".parse().unwrap());
        let seen = fence.look().await.unwrap();
        assert!(seen.high.is_none());
        let put = fence.put(&seen, Some(high(41)), None).await.unwrap().unwrap();
        assert!(fence.put(&seen, Some(high(40)), None).await.unwrap().is_none());
        assert_eq!(fence.look().await.unwrap().high, Some(high(41)));
        assert!(fence.put(&put, Some(high(42)), None).await.unwrap().is_some());
        assert_eq!(fence.look().await.unwrap().high, Some(high(42)));
    }
}
