//! Keepers over verbs alone: a stand-in for a client that has no store, and grants that are renewed together.

#![allow(clippy::unwrap_used)]

mod support;

use async_trait::async_trait;
use leasehold_core::cell::Snapshot;
use leasehold_core::clock::{Clock, ManualClock};
use leasehold_core::hints::Opening;
use leasehold_core::lease::protocol::Order;
use leasehold_core::{
    Acquired, Ask, Coordinator, Event, Grant, Inspection, Keeper, Kind, LeaseName, LeaseVerbs, Listing, Loss,
    MemoryStore, Outcome, Released, Result, Timestamp,
};
use std::sync::Arc;
use std::time::Duration;
use support::{holder, seconds, ttl};

const TTL: u64 = 90;

/// Everything is done by a coordinator elsewhere, which knows a grant by its token. What comes back has no revision.
#[derive(Debug)]
struct Remote(Coordinator);

impl Remote {
    fn without_revision(&self, grant: &Grant) -> Grant {
        let seen = Snapshot::new(grant.record().clone(), None, grant.seen().anchor);
        Grant::unchecked(grant.token().clone(), grant.ttl(), seen, self.grain())
    }
}

#[async_trait]
impl LeaseVerbs for Remote {
    fn clock(&self) -> &Arc<dyn Clock> {
        self.0.clock()
    }

    fn grain(&self) -> Duration {
        LeaseVerbs::grain(&self.0)
    }

    async fn now(&self) -> Result<Timestamp> {
        self.0.now().await
    }

    async fn acquire(&self, lease: &LeaseName, ask: &Ask) -> Result<Acquired> {
        Ok(match self.0.acquire(lease, ask).await? {
            Acquired::Granted(grant) => Acquired::Granted(Box::new(self.without_revision(&grant))),
            refused @ Acquired::Refused { .. } => refused,
        })
    }

    async fn renew(&self, grants: &mut [&mut Grant]) -> Vec<Result<()>> {
        let mut answers = Vec::new();
        for grant in grants {
            let renewed = async {
                let mut there = self.0.adopt(grant.token()).await?;
                self.0.renew(&mut there, None).await?;
                **grant = self.without_revision(&there);
                Ok(())
            };
            answers.push(renewed.await);
        }
        answers
    }

    async fn release(&self, grant: &Grant, outcome: Outcome) -> Result<Released> {
        self.0.release_by_token(grant.token(), outcome).await
    }

    async fn inspect(&self, lease: &LeaseName) -> Result<Inspection> {
        self.0.inspect(lease).await
    }

    async fn list(&self, after: Option<&LeaseName>, limit: usize) -> Result<Listing> {
        self.0.list(after, limit).await
    }

    async fn count_many(&self, lease: &LeaseName, event: Event, times: u64) -> Result<()> {
        self.0.count_many(lease, event, times).await
    }

    fn watch(&self, _: &LeaseName) -> Opening {
        Box::pin(std::future::ready(None))
    }
}

async fn grant(leases: &dyn LeaseVerbs, lease: &str, nonce: u128) -> Grant {
    match leases.acquire(&lease.parse().unwrap(), &Ask::new(holder(nonce), ttl(TTL))).await.unwrap() {
        Acquired::Granted(grant) => *grant,
        refused @ Acquired::Refused { .. } => panic!("{refused:?}"),
    }
}

async fn revoke(leases: &Coordinator, lease: &str) {
    let (by, why) = ("ann".parse().unwrap(), "drill".parse().unwrap());
    leases.operate(&lease.parse().unwrap(), by, why, Order::Revoke).await.unwrap();
}

fn leases() -> (ManualClock, Coordinator) {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    (clock.clone(), Coordinator::with_clock(store, Arc::new(clock)))
}

/// Turns the clock, and lets every other task of this runtime run until all of them wait.
async fn pass(clock: &ManualClock, time: Duration) {
    for advance in [Duration::ZERO, time] {
        clock.advance(advance);
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn grants_that_are_renewed_together_have_an_answer_each() {
    let (clock, near) = leases();
    let far = Remote(near.clone());
    for (nonce, leases) in [(1, &near as &dyn LeaseVerbs), (11, &far)] {
        let mut kept = grant(leases, "kept", nonce).await;
        let mut lost = grant(leases, "lost", nonce + 1).await;
        let mut other = grant(leases, "other", nonce + 2).await;
        revoke(&near, "lost").await;
        clock.advance(seconds(TTL / 3));
        let answers = leases.renew(&mut [&mut kept, &mut lost, &mut other]).await;
        let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(|error| error.kind())).collect();
        assert_eq!(kinds, [None, Some(Kind::Lost), None]);
        for grant in [kept, other] {
            assert!(grant.trust_until() > clock.now() + seconds(TTL / 2));
            assert_eq!(leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
        }
    }
}

#[tokio::test]
async fn a_keeper_needs_no_store() {
    let (clock, near) = leases();
    let far: Arc<dyn LeaseVerbs> = Arc::new(Remote(near.clone()));
    let first = grant(&*far, "daily", 1).await;
    let keeper = Keeper::start(far.clone(), first);
    // Far past its TTL, and it is still held.
    for _ in 0..10 {
        pass(&clock, seconds(TTL / 3)).await;
    }
    let refused = near.acquire(&"daily".parse().unwrap(), &Ask::new(holder(2), ttl(TTL))).await.unwrap();
    assert!(matches!(refused, Acquired::Refused { .. }), "{refused:?}");
    revoke(&near, "daily").await;
    pass(&clock, seconds(TTL / 3)).await;
    assert!(matches!(keeper.lost().await, Loss::Moved(_)));
}
