//! A fence that is kept in the store, for resources that cannot have one beside them.
//!
//! Promise: a fence that was put is durable, and of two puts over the same revision at most one succeeds. A write
//! without an answer is read back and confirmed by a second write that was answered, because what is visible need not
//! be durable. Non-promise: between reading the fence and acting on it, it may move.

mod adopt;
pub mod high_water;

pub use adopt::{Behind, StoreFence};

use leasehold_core::cell::{Applied, Cell, Fate, Snapshot, Start};
use leasehold_core::clock::Clock;
use leasehold_core::document::{Document, Edit};
use leasehold_core::guard::{self, HighWater};
use leasehold_core::store::Store;
use leasehold_core::{
    Coordinator, Epoch, Error, Key, Kind, LeaseName, Lineage, Nonce, Ownership, Remedy, Result, Shelf, StoredLineage,
    Timestamp, Token, Who, Why, codec,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

const KIND: &str = "fence";
/// How often a write without an answer is written again, to be sure of it.
const MAX_ATTEMPTS: u32 = 4;
/// How many leases that had the resource before the fence has room for.
pub const MAX_ADOPTIONS: usize = 32;

/// What a fence says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceRecord {
    /// The highest token that was admitted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_token")]
    pub high: Option<HighWater>,
    /// The tenure of the proxy that answers for it: its epoch and nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<(Epoch, Nonce)>,
    /// Until when admitted requests may still be running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon: Option<Horizon>,
    /// The leases that had the resource before, each once, with the highest epoch that was seen of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adopted: Vec<Adoption>,
    /// Set by [`FenceDocument::put`], and unique for every write: so a lost answer can be told from somebody else's equal
    /// write.
    pub tag: Option<Nonce>,
}

/// A high water as text, as `LEASEHOLD_TOKEN` has it.
mod as_token {
    use super::{Deserialize, HighWater, Serialize, Token};
    use serde::de::{Deserializer, Error as _};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(high: &Option<HighWater>, serializer: S) -> Result<S::Ok, S::Error> {
        high.as_ref().map(|high| high.token().wire()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HighWater>, D::Error> {
        let text: Option<String> = Deserialize::deserialize(deserializer)?;
        let token = text.map(|text| text.parse::<Token>()).transpose().map_err(D::Error::custom)?;
        Ok(token.map(|token| HighWater::of(&token, token.seq)))
    }
}

/// Until when requests of one epoch may still be running behind a proxy, whatever happened to it and its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Horizon {
    pub lineage: Lineage,
    pub epoch: Epoch,
    /// By the store's clock.
    pub until: Timestamp,
    /// How far ahead that was when it was written. Nobody waits longer than this, even if the store's clock was wrong.
    pub length_ms: u64,
}

/// An operator gave the resource from this lease to another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adoption {
    lease: LeaseName,
    lineage: Lineage,
    epoch: Epoch,
    by: Who,
    why: Why,
}

impl Adoption {
    pub fn new(from: &HighWater, by: &Who, why: &Why) -> Self {
        let HighWater { lease, lineage, epoch, .. } = from.clone();
        Adoption { lease, lineage, epoch, by: by.clone(), why: why.clone() }
    }

    /// The highest epoch of this token's lease, if it was the one that gave the resource away.
    pub fn seen(&self, token: &Token) -> Option<Epoch> {
        ((&self.lease, self.lineage) == (&token.lease, token.lineage)).then_some(self.epoch)
    }

    /// The lease that gave the resource away.
    pub fn lease(&self) -> &LeaseName {
        &self.lease
    }

    /// The highest epoch that was seen of it.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether this one remembers this epoch of this lease, or a higher one.
    pub fn covers(&self, lease: &LeaseName, lineage: Lineage, epoch: Epoch) -> bool {
        (&self.lease, self.lineage) == (lease, lineage) && self.epoch >= epoch
    }

    /// Whether a later adoption from the same lease makes this one superfluous.
    pub fn is_covered_by(&self, later: &Adoption) -> bool {
        later.covers(&self.lease, self.lineage, self.epoch)
    }
}

/// Whether a stored fence is an older copy of another: it says nothing that the other does not say too.
pub fn is_older_copy(key: &Key, old: &[u8], new: &[u8]) -> Result<bool> {
    let (old, new) = (FenceRecord::decode(old, key)?, FenceRecord::decode(new, key)?);
    let is_passed = |lease: &LeaseName, lineage, epoch| {
        let is_later = |now: &HighWater| (&now.lease, now.lineage) == (lease, lineage) && now.epoch > epoch;
        new.high.as_ref().is_some_and(is_later) || new.adopted.iter().any(|it| it.covers(lease, lineage, epoch))
    };
    let is_covered = |high: &HighWater| {
        let now = new.high.as_ref().filter(|now| now.seq >= high.seq);
        now.is_some_and(|now| HighWater { seq: high.seq, ..now.clone() } == *high)
            || is_passed(&high.lease, high.lineage, high.epoch)
    };
    Ok(old.high.as_ref().is_none_or(is_covered)
        && old.adopted.iter().all(|it| is_passed(&it.lease, it.lineage, it.epoch)))
}

/// A fence as it was last read or written.
pub type FenceSnapshot = Snapshot<FenceRecord>;

/// The fence of one resource in a store.
#[derive(Debug, Clone)]
pub struct FenceDocument {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    key: Key,
}

impl FenceDocument {
    pub fn new(coordinator: &Coordinator, name: &LeaseName) -> Self {
        let (store, clock) = (coordinator.store().clone(), coordinator.clock().clone());
        FenceDocument { store, clock, key: Key::new(Shelf::Fence, name) }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How far the time in a store's answer may be from the true one.
    pub fn grain(&self) -> Duration {
        self.store.capabilities().clock.grain()
    }

    pub async fn look(&self) -> Result<FenceSnapshot> {
        self.document().look(self.clock.now()).await
    }

    /// Replaces what was seen; none if somebody else was faster.
    ///
    /// A write without an answer may be visible and yet be gone after a crash. So it is written again until a write is
    /// answered. If none is, the error is [`Kind::Indeterminate`].
    pub async fn put(&self, seen: &FenceSnapshot, next: FenceRecord) -> Result<Option<FenceSnapshot>> {
        let record = FenceRecord { tag: Some(Nonce::random()), ..next };
        let is_ours = |found: &FenceRecord| found.tag == record.tag;
        let decide = |found: &FenceRecord, _| Ok((!is_ours(found)).then(|| record.clone()));
        let fate = |found: &FenceRecord| if is_ours(found) { Fate::Applied } else { Fate::NotApplied };
        let edit = Edit { decide: &decide, fate: &fate, attempts: MAX_ATTEMPTS };
        let mut cell = Cell::new(self.document(), self.store.as_ref(), self.clock.as_ref());
        match cell.apply(&edit, Start::OnlyOn(seen), &mut None).await? {
            Applied::Yes { written, .. } => Ok(Some(*written)),
            Applied::No { .. } | Applied::Overtaken | Applied::Missing => Ok(None),
        }
    }

    fn document(&self) -> Document<'_, FenceRecord> {
        Document::new(self.store.as_ref(), self.key.clone(), KIND, format!("fence `{}`", self.key))
    }
}

impl FenceRecord {
    /// Reads it from its bytes.
    pub fn decode(bytes: &[u8], key: &Key) -> Result<Self> {
        codec::decode(KIND, bytes, &key.to_string())
    }

    /// As it is stored, with its header line.
    pub fn encode(&self) -> Result<Vec<u8>> {
        codec::encode(KIND, self)
    }

    /// Whether this may follow by way of a token that is not older, with or without a write. What an operator gave away stays.
    pub fn may_become(&self, next: &FenceRecord) -> bool {
        let is_forward = match (&self.high, &next.high) {
            (now, Some(next)) => {
                let is_same = now.as_ref().is_some_and(|now| (&now.lease, now.epoch) == (&next.lease, next.epoch));
                guard::seal(now.as_ref(), &next.token()).is_ok_and(|high| !is_same || high.seq <= next.seq)
            }
            (now, None) => now.is_none(),
        };
        is_forward && self.adopted == next.adopted
    }

    /// How long after this moment of the store's clock requests may still be running behind a proxy.
    pub fn horizon_left(&self, now: Timestamp) -> Duration {
        let Some(horizon) = self.horizon else { return Duration::ZERO };
        horizon.until.saturating_since(now).min(Duration::from_millis(horizon.length_ms))
    }

    /// The high water, by the fence in the store and the files of this machine.
    ///
    /// If an operator gave the resource to another lease, the store counts. Otherwise the higher one counts: a store
    /// that knows less has lost something.
    pub fn merged(&self, resource: &str, filed: Option<&HighWater>) -> Result<Merged> {
        let (Some(stored), Some(filed)) = (&self.high, filed) else {
            let is_behind = self.high.is_none() && filed.is_some();
            return Ok(Merged { high: self.high.clone().or_else(|| filed.cloned()), is_behind, is_adopted: false });
        };
        let is_same_lease = stored.lease == filed.lease && stored.lineage == filed.lineage;
        if !is_same_lease && self.adopted.iter().any(|it| it.covers(&filed.lease, filed.lineage, filed.epoch)) {
            return Ok(Merged { high: Some(stored.clone()), is_behind: false, is_adopted: true });
        }
        if is_same_lease && stored.epoch != filed.epoch {
            let is_behind = stored.epoch < filed.epoch;
            let high = if is_behind { filed } else { stored };
            return Ok(Merged { high: Some(high.clone()), is_behind, is_adopted: false });
        }
        // Another lease without an adoption, or two grants of one epoch.
        guard::seal(Some(filed), &stored.token()).map_err(|rejection| rejection.into_error(resource))?;
        Ok(Merged { high: Some(stored.clone()), is_behind: false, is_adopted: false })
    }
}

/// See [`FenceRecord::merged`].
#[derive(Debug)]
pub struct Merged {
    pub high: Option<HighWater>,
    /// The files know more than the store.
    pub is_behind: bool,
    /// The files are still about the former lease.
    pub is_adopted: bool,
}

/// The error if the store's record of a lease is behind what the resource has seen of it: the store went back in time, or
/// was lost and created again.
pub fn behind(resource: &str, high: &HighWater, record: &Ownership) -> Option<Error> {
    let HighWater { lease, lineage, epoch, .. } = high;
    if record.lineage != Some(*lineage) {
        let found = match record.lineage {
            Some(other) => format!("has a lease of that name with lineage {other}"),
            None => "has no lease of that name".into(),
        };
        let message = format!(
            "store regressed: resource=`{resource}` has seen epoch {epoch} of lease `{lease}` with lineage {lineage}, and \
             the store {found}: it was lost and created again, or it is another store. Use the store that the resource \
             belongs to; if that was lost, stop the job first, then take the lineage back"
        );
        let found = record.lineage.map_or(StoredLineage::Nothing, StoredLineage::Lineage);
        let remedy = Remedy::lost(resource, lease, *epoch, *lineage, found);
        return Some(Error::new(Kind::Regressed, message).with_remedy(remedy));
    }
    let is_other_grant = record.tenure.as_ref().is_some_and(|tenure| tenure.holder.nonce() != high.nonce);
    let is_behind = record.epoch < high.epoch || (record.epoch == high.epoch && is_other_grant);
    is_behind.then(|| guard::regressed(resource, &high.lease, high.epoch))
}

/// A resource's name under a prefix; refused if it is too long for a key.
pub fn named(prefix: &str, resource: &LeaseName) -> Result<LeaseName> {
    LeaseName::new(format!("{prefix}/{resource}"))
        .map_err(|_| Error::invalid("resource", resource, format!("use at most {} bytes", 199 - prefix.len())))
}

#[cfg(test)]
mod tests;
