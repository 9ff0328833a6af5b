//! Whether the server lives, and whether it can do anything.
//!
//! Promise: however often and by however many it is asked, and however soon they hang up, the store is asked once at a time, and
//! once a second at most: no key is needed to ask. Non-promise: an answer may be [`COUNTS`] old.

use super::problem::Problem;
use super::site::Site;
use crate::access::Keys;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use leasehold_core::Error;
use leasehold_core::clock::Moment;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// How long the store may take to answer before the server counts as not ready.
const PATIENCE: Duration = Duration::from_secs(5);
/// For how long an answer of the store counts.
const COUNTS: Duration = Duration::from_secs(1);

pub fn routes() -> Router<Site> {
    Router::new().route("/livez", get(|| async { "alive\n" })).route("/readyz", get(readyz))
}

/// What the store answered when it was last asked.
#[derive(Debug, Default)]
pub struct Readiness(Arc<Mutex<Option<(Moment, Answer)>>>);

#[derive(Debug)]
enum Answer {
    Ready,
    Failed(Error),
    Silent,
}

impl Answer {
    async fn of(keys: &Keys) -> Self {
        match tokio::time::timeout(PATIENCE, keys.check()).await {
            Ok(Ok(())) => Answer::Ready,
            Ok(Err(error)) => Answer::Failed(error),
            Err(_) => Answer::Silent,
        }
    }

    fn told(&self) -> Result<(), Problem> {
        match self {
            Answer::Ready => Ok(()),
            Answer::Failed(error) => Err(Problem::away(error)),
            Answer::Silent => Err(silent()),
        }
    }
}

fn silent() -> Problem {
    Problem::overloaded("the store did not answer in time")
}

impl Readiness {
    /// Whether the store answers. Whoever asks while it is asked waits for the same answer.
    async fn check(&self, keys: &Keys) -> Result<(), Problem> {
        let mut last = self.0.clone().lock_owned().await;
        if let Some((at, answer)) = last.as_ref()
            && keys.clock().now().saturating_since(*at) < COUNTS
        {
            return answer.told();
        }
        let keys = keys.clone();
        // In a task of its own: a client that hangs up must not make the store be asked again.
        let asking = tokio::spawn(async move {
            let answer = Answer::of(&keys).await;
            let told = answer.told();
            *last = Some((keys.clock().now(), answer));
            told
        });
        asking.await.unwrap_or_else(|_| Err(silent()))
    }
}

async fn readyz(State(site): State<Site>) -> Result<&'static str, Problem> {
    if *site.ending().borrow() {
        return Err(Problem::overloaded("this server is ending"));
    }
    site.readiness().check(site.keys().keys()).await.map(|()| "ready\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use futures_util::future::join_all;
    use leasehold_core::clock::ManualClock;
    use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
    use leasehold_core::{Key, MemoryStore, Result, Shelf};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts its reads, which take a while.
    #[derive(Debug, Default)]
    struct Counted {
        store: MemoryStore,
        reads: AtomicUsize,
    }

    #[async_trait]
    impl Store for Counted {
        fn capabilities(&self) -> Capabilities {
            self.store.capabilities()
        }

        async fn read(&self, key: &Key) -> Result<Reading> {
            self.reads.fetch_add(1, Ordering::AcqRel);
            tokio::task::yield_now().await;
            self.store.read(key).await
        }

        async fn write(&self, change: &Change<'_>) -> Result<Swap> {
            self.store.write(change).await
        }

        async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
            self.store.list(shelf, range).await
        }

        async fn watch(&self, key: &Key) -> Result<Watch> {
            self.store.watch(key).await
        }

        async fn survey(&self) -> Result<Survey> {
            self.store.survey().await
        }
    }

    #[tokio::test]
    async fn however_many_ask_whether_it_is_ready_the_store_is_asked_once_a_second() {
        let (store, clock) = (Arc::new(Counted::default()), ManualClock::default());
        let keys = Keys::new(store.clone()).with_clock(Arc::new(clock.clone()));
        let readiness = Readiness::default();
        for asked in 1..=3 {
            for answer in join_all((0..100).map(|_| readiness.check(&keys))).await {
                answer.unwrap();
            }
            assert_eq!(store.reads.load(Ordering::Acquire), asked);
            clock.advance(COUNTS);
        }
    }

    #[tokio::test]
    async fn whoever_hangs_up_before_the_answer_does_not_make_the_store_be_asked_again() {
        let (store, clock) = (Arc::new(Counted::default()), ManualClock::default());
        let keys = Keys::new(store.clone()).with_clock(Arc::new(clock.clone()));
        let readiness = Readiness::default();
        for _ in 0..10 {
            let asking = readiness.check(&keys);
            // The store is asked, and has not answered.
            tokio::select! {
                biased;
                _ = asking => {}
                () = async { while store.reads.load(Ordering::Acquire) == 0 { tokio::task::yield_now().await } } => {}
            }
        }
        readiness.check(&keys).await.unwrap();
        assert_eq!(store.reads.load(Ordering::Acquire), 1);
    }
}
