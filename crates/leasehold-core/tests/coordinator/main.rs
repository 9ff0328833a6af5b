//! The coordinator over a store that fails, delays, loses answers and forgets to answer at all.
//!
//! Whatever the store does, an error is never a grant, a grant is never made twice, and nobody trusts a grant for
//! longer than the store keeps others out.

#![allow(clippy::unwrap_used)]

mod busy;
mod calls;
mod counting;
mod damaged_history;
mod draining;
mod history;
mod moving;
#[path = "../support/mod.rs"]
mod support;
mod trust;
mod unknown;
mod waiting;

use crate::support::faults::{Faulty, Hasty};
use crate::support::{holder, ttl};
use leasehold_core::clock::ManualClock;
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::{
    Acquired, Ask, Coordinator, Grant, Key, Kind, LeaseName, Operated, Ownership, Shelf, Store, codec,
};
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const TTL: u64 = 90;
const ERRORS: [Kind; 6] =
    [Kind::Unavailable, Kind::Contended, Kind::Indeterminate, Kind::Corrupt, Kind::Invalid, Kind::Unsupported];

struct Bench {
    store: Arc<Faulty>,
    clock: ManualClock,
    leases: Coordinator,
}

/// A coordinator whose pauses take no time.
fn bench() -> Bench {
    let clock = ManualClock::default();
    let store = Arc::new(Faulty::new(clock.clone()));
    let leases = Coordinator::with_clock(store.clone(), Arc::new(Hasty(clock.clone())));
    Bench { store, clock, leases }
}

/// A coordinator that waits for the clock to be turned.
fn patient_bench() -> Bench {
    let bench = bench();
    let leases = Coordinator::with_clock(bench.store.clone(), Arc::new(bench.clock.clone()));
    Bench { leases, ..bench }
}

impl Bench {
    async fn acquire(&self, nonce: u128) -> leasehold_core::Result<Acquired> {
        self.leases.acquire(&name(), &ask(nonce)).await
    }

    async fn grant(&self, nonce: u128) -> Grant {
        granted(self.acquire(nonce).await)
    }

    /// What is really stored, past all faults.
    async fn record(&self) -> Ownership {
        match self.store.inner.read(&Key::new(Shelf::Lease, &name())).await.unwrap().value {
            Some(value) => codec::decode("ownership", &value.bytes, "x").unwrap(),
            None => Ownership::default(),
        }
    }

    async fn operate(&self, order: Order) -> leasehold_core::Result<Operated> {
        self.leases.operate(&name(), "ann".parse().unwrap(), "drill".parse().unwrap(), order).await
    }
}

fn name() -> LeaseName {
    "daily".parse().unwrap()
}

fn names(names: &[&str]) -> Vec<LeaseName> {
    names.iter().map(|n| n.parse().unwrap()).collect()
}

fn ask(nonce: u128) -> Ask {
    Ask::new(holder(nonce), ttl(TTL))
}

#[track_caller]
fn granted(answer: leasehold_core::Result<Acquired>) -> Grant {
    match answer {
        Ok(Acquired::Granted(grant)) => *grant,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
fn refused(answer: leasehold_core::Result<Acquired>) -> Refusal {
    match answer {
        Ok(Acquired::Refused { refusal, .. }) => *refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets every other task of this runtime run until all of them wait.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
