//! Stores to try the door on, and an operator.

#![allow(dead_code)]

use leasehold::Leases;
use leasehold_core::Inspection;
use leasehold_core::lease::protocol::Order;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// Every store that needs no server, and the folder that two of them are in.
pub async fn stores() -> (TempDir, Vec<(&'static str, Leases)>) {
    let folder = tempfile::tempdir().unwrap();
    let url = |scheme: &str, name: &str| format!("{scheme}:{}", folder.path().join(name).display());
    let stores = vec![
        ("memory", Leases::on(leasehold::store::memory())),
        ("sqlite", leasehold::connect(&url("sqlite", "leases.db")).await.unwrap()),
        ("dir", leasehold::connect(&url("dir", "leases")).await.unwrap()),
    ];
    (folder, stores)
}

/// What an operator does at the command.
pub async fn revoke(leases: &Leases, name: &str) {
    let (who, why) = ("an operator".parse().unwrap(), "a test".parse().unwrap());
    leases.coordinator().operate(&name.parse().unwrap(), who, why, Order::Revoke).await.unwrap();
}

/// The record of a lease.
pub async fn look(leases: &Leases, name: &str) -> Inspection {
    leases.coordinator().inspect(&name.parse().unwrap()).await.unwrap()
}

/// Says when it was dropped.
#[derive(Debug, Clone, Default)]
pub struct Dropped(Arc<AtomicBool>);

impl Dropped {
    pub fn is_it(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub fn with_me(&self) -> impl Drop + Send {
        struct Teller(Arc<AtomicBool>);
        impl Drop for Teller {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        Teller(self.0.clone())
    }
}
