//! What a promise is tested on: a way to open handles to one store, and how hard to try.

use leasehold_core::store::{Store, Swap};
use leasehold_core::{Coordinator, Error, Key, LeaseName, Nonce, Result, Revision, Shelf, Timestamp};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>>> + Send>>;

/// How hard to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// How many clients contend for one key.
    pub clients: usize,
    /// How many swaps each of them tries.
    pub swaps_each: usize,
    /// How many tenures follow each other on one lease.
    pub tenures: u64,
}

impl Effort {
    /// For stores that answer in microseconds.
    pub const FULL: Effort = Effort { clients: 16, swaps_each: 2_000, tenures: 1_000 };
    /// For stores that wait for a disk or a network.
    pub const LIGHT: Effort = Effort { clients: 16, swaps_each: 125, tenures: 100 };
}

/// A store to be tried. Every handle it opens leads to the same records.
#[derive(Clone)]
pub struct Bench {
    opener: Arc<dyn Fn() -> Opening + Send + Sync>,
    /// The store behind a server, where records can be written.
    behind: Option<Arc<dyn Store>>,
    /// How hard to try.
    pub effort: Effort,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").field("effort", &self.effort).finish_non_exhaustive()
    }
}

impl Bench {
    /// A bench around a function that opens one more handle to the store.
    pub fn new<F, Opened>(effort: Effort, opener: F) -> Self
    where
        F: Fn() -> Opened + Send + Sync + 'static,
        Opened: Future<Output = Result<Arc<dyn Store>>> + Send + 'static,
    {
        Bench { opener: Arc::new(move || Box::pin(opener())), behind: None, effort }
    }

    /// The same for the client of a server, which cannot write records; this is the store behind it.
    #[must_use]
    pub fn in_front_of(self, behind: Arc<dyn Store>) -> Self {
        Bench { behind: Some(behind), ..self }
    }

    /// A handle by which records can be written.
    pub(crate) async fn direct(&self) -> Result<Arc<dyn Store>> {
        match &self.behind {
            Some(behind) => Ok(behind.clone()),
            None => self.open().await,
        }
    }

    /// One more handle.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        (self.opener)().await
    }

    pub(crate) async fn coordinator(&self) -> Result<Coordinator> {
        Ok(Coordinator::new(self.open().await?))
    }
}

/// How a promise was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Broken(format!("a call failed ({}): {error}", error.kind().as_str()))
    }
}

/// Kept, or broken and how.
pub type Verdict = Result<(), Broken>;

/// Breaks the promise with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Broken(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// A name that no other run uses.
pub(crate) fn fresh_name(topic: &str) -> Result<LeaseName> {
    LeaseName::new(format!("conformance/{topic}/{}", Nonce::random()))
}

/// A key for scratch records that no other run uses.
pub(crate) fn fresh_key(topic: &str) -> Result<Key> {
    Ok(Key::new(Shelf::Probe, &fresh_name(topic)?))
}

/// The revision and time of a swap that must be done.
pub(crate) fn done(swap: Swap, what: &str) -> Result<(Revision, Timestamp), Broken> {
    match swap {
        Swap::Done { revision, now } => Ok((revision, now)),
        Swap::Mismatch => Err(Broken(format!("{what} was refused as a mismatch"))),
    }
}
