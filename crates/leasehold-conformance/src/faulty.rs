//! A wrapper whose answers fail on purpose.
//!
//! Promise: exactly the calls that were chosen fail, and only in ways that the [`Store`] contract allows.
//! Non-promise: it cannot make the store behind it fail inside.

mod gate;
mod volatile;

pub use gate::Gate;
pub use volatile::Volatile;

use async_trait::async_trait;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Error, Key, Kind, Result, Shelf};
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
    /// It is carried out for everybody to see, but is not durable, and no answer says so: [`FaultyStore::crash`] takes it
    /// back.
    Unsynced,
}

impl Fault {
    /// For tests that try each of them.
    pub const ALL: [Fault; 4] = [Fault::Refused, Fault::ReplyLost, Fault::RequestLost, Fault::Unsynced];
}

/// A store whose n-th call fails.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Volatile,
    fault: Fault,
    failing_call: u64,
    calls: AtomicU64,
    gate: Option<Gate>,
}

impl FaultyStore {
    /// Fails the call of this number, counted from one, and no other.
    pub fn new(inner: Arc<dyn Store>, fault: Fault, failing_call: u64) -> Self {
        FaultyStore { inner: Volatile::new(inner), fault, failing_call, calls: AtomicU64::new(0), gate: None }
    }

    /// Holds the failure of that call back until the gate is open. What the call does is done before.
    #[must_use]
    pub fn held_at(self, gate: Gate) -> Self {
        FaultyStore { gate: Some(gate), ..self }
    }

    /// Undoes what is not durable.
    pub async fn crash(&self) {
        self.inner.crash().await;
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn fault(&self) -> Option<Fault> {
        (self.calls.fetch_add(1, Ordering::SeqCst) + 1 == self.failing_call).then_some(self.fault)
    }

    async fn look(&self) -> Result<()> {
        // A read changes nothing, so whatever was lost, the answer is the same.
        if self.fault().is_none() {
            return Ok(());
        }
        self.hold().await;
        Err(Error::new(Kind::Unavailable, "fault: cannot read"))
    }

    async fn hold(&self) {
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.look().await?;
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let Some(fault) = self.fault() else { return self.inner.write(change).await };
        let (kind, what) = match fault {
            Fault::Refused => (Kind::Unavailable, "refused"),
            Fault::RequestLost => (Kind::Indeterminate, "request lost"),
            Fault::ReplyLost => {
                self.inner.write(change).await?;
                (Kind::Indeterminate, "reply lost")
            }
            Fault::Unsynced => {
                self.inner.write_unsynced(change).await?;
                (Kind::Indeterminate, "not synced")
            }
        };
        self.hold().await;
        Err(Error::new(kind, format!("fault: {what}")))
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.look().await?;
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.look().await?;
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.look().await?;
        self.inner.survey().await
    }
}
