//! Whatever is dropped, wherever it waits: nothing is held for longer than a TTL, and no work goes on.
//!
//! The store is one in memory that gives the runtime control before and after each call, so that a future can be dropped
//! between what the store did and what we knew of it.

#![allow(clippy::unwrap_used)]

#[path = "../../leasehold-core/tests/support/faults.rs"]
#[allow(dead_code)]
mod faults;
mod support;

use faults::{Fault, Faulty};
use leasehold::{Leases, Outcome, Run};
use leasehold_core::Coordinator;
use leasehold_core::clock::ManualClock;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use support::{Dropped, look};

/// So many polls are enough for each of these futures to end.
const POLLS: usize = 200;

/// Polls so many times, then drops; gives what it ended with, if it did.
async fn polled<F: Future>(most: usize, future: F) -> Option<F::Output> {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|context| {
        if polls == most {
            return Poll::Ready(None);
        }
        polls += 1;
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled.map(Some)
    })
    .await
}

/// A store that is left and entered at every call, and the clock that it and we go by.
fn yielding() -> (ManualClock, Leases) {
    let clock = ManualClock::default();
    let store = Faulty::new(clock.clone());
    store.plan(|_, _| Fault::Yields);
    (clock.clone(), Coordinator::with_clock(Arc::new(store), Arc::new(clock)).into())
}

/// Lets every task come as far as it can.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// Moves the clock on in steps in which whoever still renews would renew, past a TTL.
async fn pass_a_ttl(clock: &ManualClock) {
    for _ in 0..91 {
        settle().await;
        clock.advance(Duration::from_secs(1));
    }
}

/// After a TTL in which nobody renews, the lease can be had.
async fn is_free_after_its_ttl(clock: &ManualClock, leases: &Leases, at: usize) {
    pass_a_ttl(clock).await;
    let held = leases.lease("nightly").acquire().await;
    let held = held.unwrap_or_else(|error| panic!("dropped at poll {at}: {error}"));
    held.release(Outcome::Succeeded).await.unwrap();
}

/// How many of the futures ended before they were dropped: some, and not all.
fn check(ends: usize) {
    assert!((1..POLLS).contains(&ends), "{ends} of {POLLS} came to their end");
}

#[tokio::test]
async fn a_run_can_be_dropped_at_every_await() {
    let mut ends = 0;
    for at in 0..POLLS {
        let (clock, leases) = yielding();
        let (begun, dropped) = (Dropped::default(), Dropped::default());
        let run = leases.lease("nightly").run(async |held| {
            let _tells = dropped.with_me();
            drop(begun.with_me());
            held.progress("begun").await?;
            Ok::<_, leasehold::Error>(())
        });
        let ended = polled(at, run).await;
        assert_eq!(begun.is_it(), dropped.is_it(), "dropped at poll {at}");
        if let Some(ran) = ended {
            assert!(matches!(ran.unwrap(), Run::Ran(())));
            assert!(look(&leases, "nightly").await.record.tenure.is_none());
            ends += 1;
        }
        is_free_after_its_ttl(&clock, &leases, at).await;
    }
    check(ends);
}

#[tokio::test]
async fn acquiring_can_be_dropped_at_every_await() {
    let mut ends = 0;
    for at in 0..POLLS {
        let (clock, leases) = yielding();
        let held = polled(at, leases.lease("nightly").acquire()).await;
        ends += usize::from(held.is_some());
        drop(held);
        is_free_after_its_ttl(&clock, &leases, at).await;
    }
    check(ends);
}

#[tokio::test]
async fn releasing_can_be_dropped_at_every_await() {
    let mut ends = 0;
    for at in 0..POLLS {
        let (clock, leases) = yielding();
        let held = leases.lease("nightly").acquire().await.unwrap();
        let released = polled(at, held.release(Outcome::Succeeded)).await;
        let is_free = look(&leases, "nightly").await.record.tenure.is_none();
        if let Some(released) = released {
            released.unwrap();
            assert!(is_free);
            ends += 1;
        }
        is_free_after_its_ttl(&clock, &leases, at).await;
    }
    check(ends);
}

#[tokio::test]
async fn a_lease_can_be_dropped_while_it_is_renewed() {
    for polls in 0..POLLS {
        let (clock, leases) = yielding();
        let held = leases.lease("nightly").acquire().await.unwrap();
        settle().await;
        clock.advance(Duration::from_secs(30));
        for _ in 0..polls % 20 {
            tokio::task::yield_now().await;
        }
        drop(held);
        is_free_after_its_ttl(&clock, &leases, polls).await;
    }
}

#[tokio::test]
async fn working_on_an_item_can_be_dropped_at_every_await() {
    let mut ends = 0;
    for at in 0..POLLS {
        let (clock, leases) = yielding();
        let queue = leases.queue("emails").unwrap();
        let added = queue.add("to: ada").await.unwrap();
        let (begun, dropped) = (Dropped::default(), Dropped::default());
        let mut worker = queue.worker().unwrap();
        let run = worker.run(async |item| {
            let _tells = dropped.with_me();
            drop(begun.with_me());
            item.progress("begun").await?;
            Ok::<_, leasehold::Error>(())
        });
        let ended = polled(at, run).await;
        assert_eq!(begun.is_it(), dropped.is_it(), "dropped at poll {at}");
        pass_a_ttl(&clock).await;
        let again = queue.claim().await.unwrap();
        match ended {
            Some(ran) => {
                assert!(matches!(ran.unwrap(), Run::Ran(())) && again.is_none());
                ends += 1;
            }
            None => match again {
                Some(item) => item.complete().await.unwrap(),
                // It was completed all the same, and the answer did not arrive.
                None => assert!(is_done(&leases, added.id()).await, "dropped at poll {at}"),
            },
        }
    }
    check(ends);
}

async fn is_done(leases: &Leases, id: &str) -> bool {
    let queue = leasehold_work::queue::Queue::new(leases.store().clone(), "emails".parse().unwrap());
    queue.inspect(&id.parse().unwrap()).await.unwrap().item.state.as_str() == "done"
}

#[tokio::test]
async fn releasing_after_the_ttl_is_told_that_the_lease_was_lost() {
    let clock = ManualClock::default();
    let store = Arc::new(Faulty::new(clock.clone()));
    let leases: Leases = Coordinator::with_clock(store.clone(), Arc::new(clock.clone())).into();
    let held = leases.lease("nightly").acquire().await.unwrap();
    store.plan(|_, _| Fault::Hangs);
    settle().await;
    clock.advance(Duration::from_secs(91));
    settle().await;
    assert_eq!(held.release(Outcome::Succeeded).await.unwrap_err().kind(), leasehold::Kind::Lost);
}
