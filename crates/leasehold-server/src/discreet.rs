//! A store whose troubles are told to the log, and not to those who ask through the server.
//!
//! Promise: what kind of failure it was is kept, because programs decide by it. Where the store is, and what its driver says, is
//! in the log alone. Non-promise: what leasehold itself says about a record, such as that it is damaged, is passed on.

use async_trait::async_trait;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Error, Key, Kind, Result, Shelf};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct Discreet(Arc<dyn Store>);

impl Discreet {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Discreet(store)
    }
}

/// The same failure without its text, which goes to the log.
pub fn discreet(error: Error) -> Error {
    let neutral = match error.kind() {
        Kind::Unavailable => "this server cannot reach its store now; nothing was done",
        Kind::Indeterminate => "this server's store did not answer in time; perhaps it was done, perhaps not",
        Kind::Unsupported => "this server's store cannot do that, or does not let the server do it; its log says more",
        Kind::Corrupt => "this server's store is damaged; its log says more",
        // What a file system or a driver refuses was not wrong in the request.
        Kind::Invalid if std::error::Error::source(&error).is_some() => return unopened(error),
        _ => return error,
    };
    tracing::warn!(error = error.kind().as_str(), "the store failed: {error}");
    Error::new(error.kind(), neutral)
}

/// The same for a store that cannot be opened. Whatever is wrong with its address is not the request's fault.
pub fn unopened(error: Error) -> Error {
    if error.kind() != Kind::Invalid {
        return discreet(error);
    }
    tracing::warn!(error = error.kind().as_str(), "the store cannot be used: {error}");
    Error::new(Kind::Unavailable, "this server cannot use its store now; nothing was done")
}

#[async_trait]
impl Store for Discreet {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.0.read(key).await.map_err(discreet)
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        self.0.write(change).await.map_err(discreet)
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.0.list(shelf, range).await.map_err(discreet)
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.0.watch(key).await.map_err(discreet)
    }

    async fn survey(&self) -> Result<Survey> {
        self.0.survey().await.map_err(discreet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_failure_is_kept_and_the_address_of_the_store_is_not() {
        for kind in [Kind::Unavailable, Kind::Indeterminate, Kind::Unsupported, Kind::Corrupt] {
            let told = discreet(Error::new(kind, "cannot reach `10.0.0.7:5432`").with_source("/var/lib/leases.db"));
            assert_eq!(told.kind(), kind);
            let all = format!("{told} {told:?}");
            assert!(!all.contains("10.0.0.7") && !all.contains("leases.db"), "{all}");
        }
        let own = discreet(Error::new(Kind::Invalid, "the value is too long"));
        assert_eq!(own.to_string(), "the value is too long");
        let wrong = Error::new(Kind::Invalid, "/var/lib/leases.db is not a file");
        let below = Error::new(Kind::Invalid, "cannot list /var/lib/leases.db").with_source("not a directory");
        for wrong in [unopened(wrong), discreet(below)] {
            assert_eq!(wrong.kind(), Kind::Unavailable);
            assert!(!wrong.to_string().contains("leases.db"), "{wrong}");
        }
    }
}
