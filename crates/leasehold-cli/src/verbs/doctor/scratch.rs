//! The scratch namespace in which the doctor tries a store out, emptied afterwards.
//!
//! Ownership records are never erased, so the doctor's leases are kept on the shelf for scratch records instead. One
//! doctor at a time: it holds a lease on that namespace.

use async_trait::async_trait;
use leasehold_core::store::{Along, Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{
    Acquired, Ask, Coordinator, Error, Grant, HolderId, Key, Kind, LeaseName, Result, Shelf, Ttl, format_duration,
};
use leasehold_stores::{Namespace, StoreUrl, open};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const NAMESPACE: &str = "doctor";
const LEASE: &str = "doctor";
/// How long a doctor that died blocks the next one.
const TTL: Duration = Duration::from_secs(300);
const PAGE: usize = 200;

/// A scratch namespace in the user's store.
#[derive(Debug, Clone)]
pub struct Scratch {
    pub url: StoreUrl,
    folder: Option<PathBuf>,
    pub store: Arc<dyn Store>,
    grant: Arc<Grant>,
}

impl Scratch {
    /// Opens it, and makes sure that no other doctor uses it.
    pub async fn set_up(url: &StoreUrl) -> Result<Self> {
        let (url, folder) = url.scratch(Namespace::new(NAMESPACE)?);
        let store = on_probe_shelf(&url).await?;
        // The doctor leaves none there, so somebody else lives in it, and would lose counts when it is emptied.
        if !store.list(Shelf::Lease, Range::new(None, 1)).await?.entries.is_empty() {
            let message =
                format!("the namespace `{NAMESPACE}` is for the doctor, but has leases; move them to another");
            return Err(Error::new(Kind::Unsupported, message));
        }
        let ask = Ask::new(HolderId::new(None), Ttl::new(TTL)?);
        match Coordinator::new(store.clone()).acquire(&LeaseName::new(LEASE)?, &ask).await? {
            Acquired::Granted(grant) => Ok(Scratch { url, folder, store, grant: Arc::new(*grant) }),
            Acquired::Refused { .. } => {
                let patience = format_duration(TTL);
                let message =
                    format!("another doctor is running on this store; try again, at the latest in {patience}");
                Err(Error::new(Kind::Contended, message))
            }
        }
    }

    /// One more handle.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        on_probe_shelf(&self.url).await
    }

    /// Takes everything away, the doctor's own lease last.
    pub async fn clear(self) -> Result<()> {
        if let Some(folder) = &self.folder {
            return std::fs::remove_dir_all(folder)
                .map_err(|e| Error::unavailable(format!("cannot remove {}", folder.display()), e));
        }
        let own = &self.grant.token().lease;
        for shelf in Shelf::ALL.into_iter().filter(|shelf| !shelf.is_permanent()) {
            let mut after = None;
            loop {
                let page = self.store.list(shelf, Range::new(after.as_ref(), PAGE)).await?;
                after = page.entries.last().map(|(name, _)| name.clone());
                for (name, value) in page.entries.iter().filter(|(name, _)| name != own) {
                    self.store.erase(&Key::new(shelf, name), &value.revision).await?;
                }
                if !page.more {
                    break;
                }
            }
        }
        let key = Key::new(Shelf::Probe, own);
        if let Some(value) = self.store.read(&key).await?.value {
            self.store.erase(&key, &value.revision).await?;
        }
        Ok(())
    }
}

async fn on_probe_shelf(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(OnProbeShelf(open(url).await?)))
}

/// Keeps leases on the shelf for scratch records. Their names never meet: each carries a nonce.
#[derive(Debug)]
struct OnProbeShelf(Arc<dyn Store>);

fn moved(key: &Key) -> Key {
    if key.shelf.is_permanent() { Key::new(Shelf::Probe, &key.name) } else { key.clone() }
}

#[async_trait]
impl Store for OnProbeShelf {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.0.read(&moved(key)).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        // By the shelf that was meant: what is never erased is not erased here either.
        change.check(&self.capabilities())?;
        let (key, put) = (moved(change.key), change.along.put.map(|(key, bytes)| (moved(key), bytes)));
        let along = Along { put: put.as_ref().map(|(key, bytes)| (key, *bytes)), ..change.along };
        self.0.write(&Change { key: &key, along, ..*change }).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.0.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.0.watch(&moved(key)).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.0.survey().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_conformance::counting::{CountingStore, Counts};
    use leasehold_conformance::{Bench, Effort, exercise};
    use leasehold_core::MemoryStore;

    #[tokio::test]
    async fn the_doctor_tries_every_call_of_the_store_itself() {
        let (store, counts) = (MemoryStore::default(), Counts::default());
        let counted = counts.clone();
        let effort = Effort { clients: 2, swaps_each: 4, tenures: 4 };
        let bench = Bench::new(effort, move || {
            let handle = CountingStore::new(Arc::new(store.clone()), &counted);
            async move { Ok(Arc::new(OnProbeShelf(Arc::new(handle))) as _) }
        });
        exercise(&bench).await.assert_kept();
        bench.open().await.unwrap().survey().await.unwrap();
        assert_eq!(counts.missed(), [""; 0]);
        assert!(counts.of("put, along") > 3 && counts.of("list, skipping") > 3, "{counts:?}");
    }
}
