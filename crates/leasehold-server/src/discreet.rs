//! A store whose error details go to the log, and not to the server's clients.
//!
//! Promise: clients see the kind of a failure, because programs decide by it. The store's address and its driver's message are only
//! in the log. Non-promise: what leasehold itself says about a record, such as that it is damaged, is passed on.

use crate::outage::Outage;
use async_trait::async_trait;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Error, Key, Kind, Result, Shelf};
use std::sync::Arc;

/// A store that hides its error details from clients.
#[derive(Debug)]
pub struct Discreet {
    store: Arc<dyn Store>,
    outage: Outage,
}

impl Discreet {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Discreet { store, outage: Outage::default() }
    }

    fn told<T>(&self, answer: Result<T>) -> Result<T> {
        match answer {
            Ok(answer) => {
                self.outage.over();
                Ok(answer)
            }
            Err(error) => Err(discreet(error, &self.outage)),
        }
    }
}

/// The message in place of the driver's, by kind.
const NEUTRAL: [(Kind, &str); 4] = [
    (Kind::Unavailable, "this server cannot reach its store now; nothing was done"),
    (Kind::Indeterminate, "this server's store did not answer in time; perhaps it was done, perhaps not"),
    (Kind::Unsupported, "this server's store cannot do that, or does not let the server do it; its log says more"),
    (Kind::Corrupt, "this server's store is damaged; its log says more"),
];
const UNUSABLE: &str = "this server cannot use its store now; nothing was done";

/// Whether the driver's message is already in the log, because this failure has one of our messages instead.
pub fn is_logged(error: &Error) -> bool {
    let said = error.to_string();
    said == UNUSABLE || NEUTRAL.iter().any(|(_, neutral)| said == *neutral)
}

/// The same failure without its message, which goes to the log.
pub fn discreet(error: Error, outage: &Outage) -> Error {
    let neutral = NEUTRAL.iter().find(|(kind, _)| *kind == error.kind());
    match (error.kind(), neutral) {
        // What a file system or a driver refuses was not wrong in the request.
        (Kind::Invalid, _) if std::error::Error::source(&error).is_some() => unopened(error, outage),
        (kind, Some((_, neutral))) => {
            outage.failed("the store failed", &error);
            Error::new(kind, *neutral)
        }
        (_, None) => error,
    }
}

/// The same for a store that cannot be opened. Whatever is wrong with its address is not the request's fault.
pub fn unopened(error: Error, outage: &Outage) -> Error {
    if error.kind() != Kind::Invalid {
        return discreet(error, outage);
    }
    outage.failed("the store cannot be used", &error);
    Error::new(Kind::Unavailable, UNUSABLE)
}

#[async_trait]
impl Store for Discreet {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.told(self.store.read(key).await)
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        self.told(self.store.write(change).await)
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.told(self.store.list(shelf, range).await)
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.told(self.store.watch(key).await)
    }

    async fn survey(&self) -> Result<Survey> {
        self.told(self.store.survey().await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_failure_is_kept_and_the_address_of_the_store_is_not() {
        let outage = Outage::default();
        for kind in [Kind::Unavailable, Kind::Indeterminate, Kind::Unsupported, Kind::Corrupt] {
            let told =
                discreet(Error::new(kind, "cannot reach `10.0.0.7:5432`").with_source("/var/lib/leases.db"), &outage);
            assert_eq!(told.kind(), kind);
            assert!(is_logged(&told));
            let all = format!("{told} {told:?}");
            assert!(!all.contains("10.0.0.7") && !all.contains("leases.db"), "{all}");
        }
        let own = discreet(Error::new(Kind::Invalid, "the value is too long"), &outage);
        assert_eq!(own.to_string(), "the value is too long");
        let wrong = Error::new(Kind::Invalid, "/var/lib/leases.db is not a file");
        let below = Error::new(Kind::Invalid, "cannot list /var/lib/leases.db").with_source("not a directory");
        for wrong in [unopened(wrong, &outage), discreet(below, &outage)] {
            assert_eq!(wrong.kind(), Kind::Unavailable);
            assert!(!wrong.to_string().contains("leases.db"), "{wrong}");
        }
    }
}
