//! Many who wait for one lease: each gets its turn, and they do not all look at each release.

use crate::support::faults::{Fault, Faulty};
use crate::support::ttl;
use leasehold::clock::{Clock, ManualClock, SystemClock};
use leasehold::{Acquired, Ask, Coordinator, HolderId, LeaseName, Outcome};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TURNS: usize = 12;

/// How many reads there are for each time that the lease is passed on among so many.
async fn reads_per_turn(waiters: usize) -> usize {
    let store = Arc::new(Faulty::new(ManualClock::default()));
    // Each call lets the others in, as one to a server does.
    store.plan(|_, _| Fault::Yields);
    let lease: LeaseName = "seat".parse().unwrap();
    let mut crowd = Vec::new();
    for _ in 0..waiters {
        // Each is a process of its own: they share the store alone.
        let leases = Coordinator::with_clock(store.clone(), Arc::new(SystemClock));
        let lease = lease.clone();
        crowd.push(tokio::spawn(async move {
            for _ in 0..TURNS {
                let ask = Ask::new(HolderId::new(None), ttl(90));
                match leases.acquire_within(std::slice::from_ref(&lease), &ask, Duration::from_secs(60)).await.unwrap()
                {
                    Acquired::Granted(grant) => {
                        // Some work, or nobody would ever wait.
                        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
                        leases.release(&grant, Outcome::Succeeded).await.unwrap();
                    }
                    refused => panic!("waited in vain: {refused:?}"),
                }
            }
        }));
    }
    for waiter in crowd {
        waiter.await.unwrap();
    }
    store.reads.load(Ordering::SeqCst) / (waiters * TURNS)
}

#[tokio::test]
async fn a_crowd_looks_hardly_more_often_than_the_lease_is_passed_on() {
    let (few, many) = (reads_per_turn(2).await, reads_per_turn(48).await);
    println!("{few} reads for each turn among 2, {many} among 48");
    assert!(many <= 24, "{many} reads for each turn: they all look at each release");
}
