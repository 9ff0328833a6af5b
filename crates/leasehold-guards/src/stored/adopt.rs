//! A resource whose fence is kept in the store, as an operator sees it: `http:NAME` and `mcp:NAME`.
//!
//! Promise: when an adoption returns, the store and the files of this machine have it. A proxy that answers for the
//! resource finds its tenure gone from the fence, and can send nothing after the horizon; the call waits for that.
//! Other machines' files are updated when they read the fence. Non-promise: an MCP gate of the former lease learns of
//! it when it next reads the store.

use super::high_water::LocalCopy;
use super::{Adoption, FenceDocument, FenceRecord, FenceSnapshot, MAX_ADOPTIONS, named};
use crate::succession;
use async_trait::async_trait;
use leasehold_core::guard::{self, Adopt, Guard, HighWater, Strength};
use leasehold_core::{Coordinator, Error, Kind, LeaseName, Resolver, Result, Token, Who, Why};
use std::path::Path;
use std::sync::Arc;

const MAX_ATTEMPTS: u32 = 16;

/// What checks the tokens of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// `leasehold proxy --resource NAME`; the resource is `http:NAME`.
    Proxies,
    /// `leasehold mcp-gate --guard NAME`; the resource is `mcp:NAME`.
    Gates,
}

/// A resource behind proxies or gates.
#[derive(Debug)]
pub struct StoreFence {
    coordinator: Coordinator,
    /// Finds the record of a token, whatever it is of.
    known: Arc<dyn Resolver>,
    resource: String,
    strength: Strength,
    document: FenceDocument,
    files: LocalCopy,
}

impl StoreFence {
    /// The resource of this name behind these boundaries, whose files on this machine are in `state`.
    pub fn new(
        coordinator: Coordinator,
        known: Arc<dyn Resolver>,
        behind: Behind,
        name: &LeaseName,
        state: Option<&Path>,
    ) -> Result<Self> {
        let (scheme, strength) = match behind {
            Behind::Proxies => ("http", Strength::Atomic),
            Behind::Gates => ("mcp", crate::mcp::STRENGTH),
        };
        let resource = format!("{scheme}:{name}");
        let document = FenceDocument::new(&coordinator, &named(scheme, name)?);
        let files = LocalCopy::open(state, &resource)?;
        Ok(StoreFence { coordinator, known, resource, strength, document, files })
    }

    /// The high water. If store and files name different leases, the files count: a store may have been lost.
    async fn current(&self, seen: &FenceRecord) -> Result<(Option<HighWater>, Option<HighWater>)> {
        let filed = self.files.high().await?;
        let high = match seen.merged(&self.resource, filed.as_ref()) {
            Ok(merged) => merged.high,
            Err(_) => filed.clone(),
        };
        Ok((high, filed))
    }

    /// The fence is not moved on a client's word alone: the store must have granted the token, and no newer one.
    async fn confirm(&self, token: &Token) -> Result<()> {
        let found = self.known.resolve(token).await?;
        if found.is_newest() {
            return Ok(());
        }
        let refusal = found.refusal(token);
        Err(Error::new(refusal.kind(), format!("resource=`{}` was left as it is: {refusal}", self.resource)))
    }

    /// Puts a new high water into the store and the files, and waits until no older request can be running.
    async fn put_high_water(&self, seen: &FenceSnapshot, filed: Option<HighWater>, next: FenceRecord) -> Result<bool> {
        let answered = self.coordinator.clock().now();
        let Some(high) = next.high.clone() else { return Ok(false) };
        if self.document.put(seen, next).await?.is_none() {
            return Ok(false);
        }
        self.files.replace(filed, &high).await?;
        self.coordinator.clock().sleep_until(answered + seen.record.horizon_left(seen.anchor.now)).await;
        Ok(true)
    }

    fn contended(&self) -> Error {
        Error::new(
            Kind::Contended,
            format!("the fence of resource=`{}` has changed meanwhile; look again", self.resource),
        )
    }
}

#[async_trait]
impl Guard for StoreFence {
    fn resource(&self) -> String {
        self.resource.clone()
    }

    fn strength(&self) -> Strength {
        self.strength
    }

    async fn seal(&self, token: &Token) -> Result<HighWater> {
        self.confirm(token).await?;
        // Not `Document::change`: each attempt also reads this machine's files, and what is decided goes into them after the
        // store's answer. A decision in that loop sees the record alone.
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.document.look().await?;
            let filed = self.files.high().await?;
            let high = seen.record.merged(&self.resource, filed.as_ref())?.high;
            let next = guard::seal(high.as_ref(), token).map_err(|rejection| rejection.into_error(&self.resource))?;
            let is_filed = self.files.path().is_none() || filed == Some(HighWater { seq: 0, ..next.clone() });
            if is_filed && seen.record.high.as_ref() == Some(&next) {
                return Ok(next);
            }
            let record = FenceRecord { high: Some(next.clone()), by: None, ..seen.record.clone() };
            if self.put_high_water(&seen, filed, record).await? {
                return Ok(next);
            }
        }
        Err(self.contended())
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        Ok(self.current(&self.document.look().await?.record).await?.0)
    }
}

#[async_trait]
impl Adopt for StoreFence {
    async fn adopt(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
        self.confirm(token).await?;
        let seen = self.document.look().await?;
        let (high, filed) = self.current(&seen.record).await?;
        if high.as_ref() != Some(from) {
            return Err(self.contended());
        }
        let next = HighWater::of(token, 0);
        let mut adopted = seen.record.adopted.clone();
        // If the store was restored from an old copy, the files know more.
        let before = adopted.iter().filter_map(|adoption| adoption.seen(token)).max();
        succession::returning(&self.resource, before.max(self.files.seen(token).await?), token)?;
        let latest = Adoption::new(from, by, why);
        adopted.retain(|adoption| !adoption.is_covered_by(&latest));
        adopted.push(latest);
        if adopted.len() > MAX_ADOPTIONS {
            let message = format!(
                "not adopted: the fence of resource=`{}` remembers {MAX_ADOPTIONS} leases, and has no room for one more; \
                 nothing was changed. Give it to one of those, with a higher epoch, or use another resource name",
                self.resource
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        // The proxy's tenure is removed: the proxy notices before it sends anything more.
        let record = FenceRecord { high: Some(next.clone()), by: None, adopted, ..seen.record.clone() };
        if self.put_high_water(&seen, filed, record).await? { Ok(next) } else { Err(self.contended()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Acquired, Ask, HolderId, MemoryStore};

    async fn grant(leases: &Coordinator, lease: &str) -> Token {
        let ask = Ask::new(HolderId::new(None), "10m".parse().unwrap());
        match leases.acquire(&lease.parse().unwrap(), &ask).await.unwrap() {
            Acquired::Granted(grant) => grant.token().clone(),
            Acquired::Refused { refusal, .. } => panic!("refused: {refusal:?}"),
        }
    }

    #[tokio::test]
    async fn a_resource_is_given_to_another_lease_and_every_machine_follows() {
        let leases = Coordinator::new(Arc::new(MemoryStore::default()));
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |folder: &tempfile::TempDir| {
            StoreFence::new(
                leases.clone(),
                Arc::new(leases.clone()),
                Behind::Gates,
                &"repo".parse().unwrap(),
                Some(folder.path()),
            )
            .unwrap()
        };
        let (old, new) = (grant(&leases, "old").await, grant(&leases, "new").await);
        for folder in [&here, &there] {
            open(folder).seal(&old).await.unwrap();
        }
        let fence = open(&here);
        let from = fence.high_water().await.unwrap().unwrap();
        let error = fence.seal(&new).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        let (by, why) = ("me".parse().unwrap(), "moved".parse().unwrap());
        let stale = HighWater { nonce: new.nonce, ..from.clone() };
        assert_eq!(fence.adopt(&stale, &new, &by, &why).await.unwrap_err().kind(), Kind::Contended);
        let unknown = Token { nonce: old.nonce, ..new.clone() };
        assert_eq!(fence.adopt(&from, &unknown, &by, &why).await.unwrap_err().kind(), Kind::Regressed);
        assert_eq!(fence.adopt(&from, &new, &by, &why).await.unwrap(), HighWater::of(&new, 0));
        for folder in [&here, &there] {
            let fence = open(folder);
            assert_eq!(fence.high_water().await.unwrap(), Some(HighWater::of(&new, 0)));
            assert_eq!(fence.seal(&old).await.unwrap_err().kind(), Kind::Invalid);
            fence.seal(&new).await.unwrap();
        }
        // The former lease comes back with a higher epoch only.
        let given = fence.high_water().await.unwrap().unwrap();
        let refused = fence.adopt(&given, &old, &by, &why).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Fenced, "{refused}");
        leases.release_by_token(&old, leasehold_core::Outcome::Succeeded).await.unwrap();
        let later = grant(&leases, "old").await;
        assert_eq!(fence.adopt(&given, &later, &by, &why).await.unwrap(), HighWater::of(&later, 0));
        leases.release_by_token(&new, leasehold_core::Outcome::Succeeded).await.unwrap();
        let new = grant(&leases, "new").await;
        fence.adopt(&HighWater::of(&later, 0), &new, &by, &why).await.unwrap();
        // The former lease's number does not come back with a store that was lost.
        let empty = Coordinator::new(Arc::new(MemoryStore::default()));
        let lost = StoreFence::new(
            empty.clone(),
            Arc::new(empty.clone()),
            Behind::Gates,
            &"repo".parse().unwrap(),
            Some(here.path()),
        )
        .unwrap();
        let again = grant(&empty, "new").await;
        let error = lost.seal(&again).await.unwrap_err();
        assert!(error.to_string().starts_with("not this lease") && error.remedy().is_some(), "{error}");
    }
}
