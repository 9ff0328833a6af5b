//! A wrapper that counts the calls to the store behind it.
//!
//! Promise: every call goes to the same call of the store behind it, and is counted under its name. It shows that a wrapper, or
//! a suite, reaches the store's own code.

use async_trait::async_trait;
use leasehold_core::store::{Capabilities, Change, Next, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Key, Result, Shelf};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Every call of a [`Store`], by the name under which it is counted. A `write` is counted by what it is asked to do.
pub const CALLS: [&str; 9] =
    ["capabilities", "erase", "list", "list, skipping", "put", "put, along", "read", "survey", "watch"];

/// How often each call was reached. Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Counts {
    /// How often this call was reached.
    pub fn of(&self, call: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(call).copied().unwrap_or(0)
    }

    /// The calls that were never reached.
    pub fn missed(&self) -> Vec<&'static str> {
        CALLS.into_iter().filter(|call| self.of(call) == 0).collect()
    }

    fn count(&self, call: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(call).or_default() += 1;
    }
}

/// A store whose calls are counted.
#[derive(Debug)]
pub struct CountingStore {
    inner: Arc<dyn Store>,
    counts: Counts,
}

impl CountingStore {
    /// Counts the calls to `inner` in `counts`, which several stores may share.
    pub fn new(inner: Arc<dyn Store>, counts: &Counts) -> Self {
        CountingStore { inner, counts: counts.clone() }
    }
}

#[async_trait]
impl Store for CountingStore {
    fn capabilities(&self) -> Capabilities {
        self.counts.count("capabilities");
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.counts.count("read");
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        self.counts.count(match change.next {
            Next::Erase => "erase",
            Next::Put(_) if change.along.is_some() => "put, along",
            Next::Put(_) => "put",
        });
        self.inner.write(change).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.counts.count(if range.skip > 0 { "list, skipping" } else { "list" });
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.counts.count("watch");
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.counts.count("survey");
        self.inner.survey().await
    }
}
