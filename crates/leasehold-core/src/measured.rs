//! A wrapper around a store that measures how long its answers take.
//!
//! Promise: every call is passed on unchanged to the inner store, and its duration is counted, whatever the answer.
//! Non-promise: a call that is dropped before its answer is not counted.

use crate::distribution::{Distribution, REQUESTS};
use crate::error::{Kind, Result};
use crate::name::{Key, Shelf};
use crate::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use async_trait::async_trait;
use leasehold_system::clock::now;
use leasehold_system::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long a store took to answer, by operation, and how its last call failed. Clones share it all.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    times: Arc<Mutex<BTreeMap<&'static str, Distribution>>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Requests {
    /// Every operation that is measured.
    pub const OPERATIONS: [&'static str; 4] = ["read", "write", "list", "watch"];

    /// How long one operation took, so far.
    pub fn of(&self, operation: &str) -> Distribution {
        self.times.lock().get(operation).cloned().unwrap_or_default()
    }

    /// The error of the last failed call, if the store could not be reached or did not answer. It shows whether an error that
    /// somebody has came from the store.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    async fn measure<T>(&self, operation: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let asked = now();
        let answer = call.await;
        let took = now().saturating_since(asked);
        self.times.lock().entry(operation).or_default().add(REQUESTS, took);
        if let Err(error) = &answer
            && matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate)
        {
            *self.failure.lock() = Some(error.to_string());
        }
        answer
    }
}

/// A store whose answers are timed.
#[derive(Debug)]
pub struct Measured {
    inner: Arc<dyn Store>,
    requests: Requests,
}

impl Measured {
    /// Times the answers of `inner`.
    pub fn new(inner: Arc<dyn Store>, requests: Requests) -> Self {
        Measured { inner, requests }
    }
}

#[async_trait]
impl Store for Measured {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.requests.measure("read", self.inner.read(key)).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        self.requests.measure("write", self.inner.write(change)).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.requests.measure("list", self.inner.list(shelf, range)).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.requests.measure("watch", self.inner.watch(key)).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}
