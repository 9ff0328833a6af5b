//! Stores: the contract, for those who write one.
//!
//! Implement [`Store`]; its documentation has the contract. Give it to [`Leases::on`](crate::Leases::on). The crate
//! `leasehold-conformance` has every promise of a store as a function, so yours can run the suite that ours run.
//!
//! This module may change with any release that changes the contract.

pub use leasehold_core::store::*;
pub use leasehold_core::{Key, LeaseName, MemoryStore, Shelf, Timestamp, Ttl};
pub use leasehold_stores::{Namespace, StoreUrl, open};

use std::sync::Arc;

/// A store in memory, for tests and for work within one process. It is gone when the process ends.
pub fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}
