//! A store in front of another, whose answers fail on purpose.
//!
//! Promise: exactly the calls that were chosen fail, and only in ways that the [`Store`] contract allows.
//! Non-promise: it cannot make the store behind it fail inside.

use async_trait::async_trait;
use leasehold::store::{Beside, Capabilities, Page, Parts, Reading, Store, Survey, Swap, Watch};
use leasehold::{Error, Key, Kind, LeaseName, Result, Revision, Shelf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is not carried out, and the answer says so.
    Refused,
    /// It is carried out, and the answer is lost.
    ReplyLost,
    /// It is not carried out, and no answer says so.
    RequestLost,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 3] = [Fault::Refused, Fault::ReplyLost, Fault::RequestLost];
}

/// A store whose n-th call fails.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    fault: Fault,
    failing_call: u64,
    calls: AtomicU64,
}

impl FaultyStore {
    /// Fails the call of this number, counted from one, and no other.
    pub fn new(inner: Arc<dyn Store>, fault: Fault, failing_call: u64) -> Self {
        FaultyStore { inner, fault, failing_call, calls: AtomicU64::new(0) }
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn fault(&self) -> Option<Fault> {
        (self.calls.fetch_add(1, Ordering::SeqCst) + 1 == self.failing_call).then_some(self.fault)
    }

    async fn write(&self, call: impl Future<Output = Result<Swap>> + Send) -> Result<Swap> {
        match self.fault() {
            None => call.await,
            Some(Fault::Refused) => Err(Error::new(Kind::Unavailable, "fault: refused")),
            Some(Fault::RequestLost) => Err(Error::new(Kind::Indeterminate, "fault: request lost")),
            Some(Fault::ReplyLost) => {
                call.await?;
                Err(Error::new(Kind::Indeterminate, "fault: reply lost"))
            }
        }
    }

    fn look(&self) -> Result<()> {
        // A read changes nothing, so whatever was lost, the answer is the same.
        match self.fault() {
            None => Ok(()),
            Some(_) => Err(Error::new(Kind::Unavailable, "fault: cannot read")),
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.look()?;
        self.inner.read(key).await
    }

    async fn swap_parts(&self, key: &Key, expected: Option<&Revision>, next: Parts<'_>) -> Result<Swap> {
        self.write(self.inner.swap_parts(key, expected, next)).await
    }

    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        self.look()?;
        self.inner.list(shelf, after, limit).await
    }

    fn writes_beside(&self) -> bool {
        self.inner.writes_beside()
    }

    async fn swap_beside(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        next: &[u8],
        beside: Beside<'_>,
    ) -> Result<Swap> {
        self.write(self.inner.swap_beside(key, expected, next, beside)).await
    }

    async fn list_skipping(&self, shelf: Shelf, after: Option<&LeaseName>, skip: usize, limit: usize) -> Result<Page> {
        self.look()?;
        self.inner.list_skipping(shelf, after, skip, limit).await
    }

    async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        self.write(self.inner.erase(key, expected)).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.look()?;
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.look()?;
        self.inner.survey().await
    }
}
