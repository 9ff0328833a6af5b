//! The archive of old transfers: nothing is lost between a record and its archive, whatever fails, and what is archived still
//! answers.

use crate::support::faults::{Call, Fault, Gate};
use crate::support::holder;
use crate::{Bench, bench, name};
use leasehold_core::lease::protocol::Order;
use leasehold_core::store::Range;
use leasehold_core::{
    Acquired, Ask, Claim, Coordinator, Epoch, Key, Kind, MemoryStore, Operated, Outcome, Ownership, Released, Resolver,
    Retention, Shelf, Store, TRANSFERS_KEPT, Token, TokenState, Ttl,
};
use std::sync::Arc;

/// So many holders take the lease and give it back.
pub async fn tenures(leases: &Coordinator, from: u128, count: usize) {
    for turn in 0..count as u128 {
        let ask = Ask::new(holder(from + turn), Ttl::MAX);
        let Acquired::Granted(grant) = leases.acquire(&name(), &ask).await.unwrap() else { panic!("nobody holds it") };
        leases.release(&grant, Outcome::Succeeded).await.unwrap();
    }
}

pub async fn record(leases: &Coordinator) -> Ownership {
    leases.inspect(&name()).await.unwrap().record
}

pub async fn epochs(leases: &Coordinator) -> Vec<u64> {
    let record = record(leases).await;
    leases.history(&name(), &record).await.unwrap().transfers.iter().map(|transfer| transfer.epoch.get()).collect()
}

#[tokio::test]
async fn every_transfer_is_in_the_record_or_in_the_archive() {
    let bench = bench();
    for turn in 1..=200 {
        tenures(&bench.leases, 1_000 * turn, 1).await;
        let record = bench.record().await;
        assert!(record.transfers.len() <= TRANSFERS_KEPT + 1, "{}", record.transfers.len());
        assert_eq!(epochs(&bench.leases).await, (1..=turn as u64).collect::<Vec<_>>());
    }
    assert!(bench.record().await.archived.get() > 160);
}

#[tokio::test]
async fn a_holder_archives_while_nobody_waits() {
    let leases = Coordinator::new(Arc::new(MemoryStore::default()));
    for turn in 1..=100_u64 {
        let ask = Ask::new(holder(u128::from(turn)), Ttl::MAX);
        let Acquired::Granted(grant) = leases.acquire(&name(), &ask).await.unwrap() else { panic!("nobody holds it") };
        assert!(grant.record().transfers.len() < TRANSFERS_KEPT, "nobody had to wait for the archive");
        // Its task has its turn here.
        tokio::task::yield_now().await;
        leases.release(&grant, Outcome::Succeeded).await.unwrap();
        assert_eq!(epochs(&leases).await, (1..=turn).collect::<Vec<_>>());
    }
    assert!(record(&leases).await.transfers.len() <= 20);
}

/// A process that dies between the segment and the record has written the segment; what a crash takes back was not answered.
#[tokio::test]
async fn whichever_write_fails_nothing_is_lost() {
    let faults = [
        Fault::LostReply,
        Fault::LostRequest,
        Fault::Unsynced,
        Fault::Fails(Kind::Unavailable),
        Fault::Fails(Kind::Contended),
    ];
    for fault in faults {
        // The writes around the one that archives.
        for failing in 60..75 {
            let bench = bench();
            let fails = fault.clone();
            let mut writes = 0;
            bench.store.plan(move |call, _| {
                writes += usize::from(call != Call::Read);
                if call != Call::Read && writes == failing { fails.clone() } else { Fault::None }
            });
            let mut turn = 0;
            while bench.record().await.epoch.get() < 70 {
                turn += 1;
                assert!(turn < 200, "{fault:?} at write {failing}: no way on");
                if let Ok(Acquired::Granted(grant)) = bench.acquire(1_000 + turn).await {
                    let _ = bench.leases.release(&grant, Outcome::Succeeded).await;
                }
                if bench.record().await.tenure.is_some() {
                    bench.operate(Order::Revoke).await.unwrap();
                }
            }
            bench.store.crash().await;
            bench.store.heal();
            let known = epochs(&bench.leases).await;
            let last = bench.record().await.epoch.get();
            assert_eq!(known, (1..=last).collect::<Vec<_>>(), "{fault:?} at write {failing}");
        }
    }
}

/// An order whose answer is held back while so many others have the lease.
pub async fn held_back(transfers: usize, meanwhile: impl AsyncFnOnce(&Bench)) -> leasehold_core::Result<Operated> {
    let bench = bench();
    tenures(&bench.leases, 1_000, 3).await;
    let gate = Gate::default();
    bench.store.next(Call::Swap, &[Fault::Held(gate.clone(), Box::new(Fault::LostReply))]);
    let leases = bench.leases.clone();
    let ordering = tokio::spawn(async move {
        leases.operate(&name(), "ann".parse().unwrap(), "drill".parse().unwrap(), Order::Revoke).await
    });
    gate.reached().await;
    bench.store.heal();
    tenures(&bench.leases, 2_000, transfers).await;
    meanwhile(&bench).await;
    gate.open();
    ordering.await.unwrap()
}

#[tokio::test]
async fn an_order_that_the_record_has_dropped_is_found_in_the_archive() {
    let answer = held_back(3 * TRANSFERS_KEPT, async |_| {}).await;
    assert!(matches!(answer, Ok(Operated::Done(_))), "{answer:?}");
}

#[tokio::test]
async fn an_order_that_the_archive_has_dropped_too_is_unknown() {
    let answer = held_back(3 * TRANSFERS_KEPT, async |bench| {
        let page = bench.store.inner.list(Shelf::History, Range::new(None, 100)).await.unwrap();
        let (name, value) = &page.entries[0];
        let store: &dyn Store = &bench.store.inner;
        store.erase(&Key::new(Shelf::History, name), &value.revision).await.unwrap();
    })
    .await;
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
    assert!(error.to_string().contains("remembers no further back"), "{error}");
}

#[tokio::test]
async fn a_second_release_long_after_the_first_is_known() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.leases.release(&grant, Outcome::Failed).await.unwrap();
    tenures(&bench.leases, 2_000, 100).await;
    let again = bench.leases.release_by_token(grant.token(), Outcome::Succeeded).await.unwrap();
    assert_eq!(again, Released::Already(Outcome::Failed));
}

#[tokio::test]
async fn a_token_that_was_never_granted_is_distinguished_from_one_of_long_ago() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    tenures(&bench.leases, 2_000, 100).await;
    let state = async |token: &Token| bench.leases.resolve(token).await.unwrap().state;
    let token = grant.token();
    assert!(matches!(state(token).await, TokenState::Superseded { .. }));
    let made_up = Token { nonce: leasehold_core::Nonce::from_u128(99), ..token.clone() };
    assert_eq!(state(&made_up).await, TokenState::NeverGranted);
    assert_eq!(made_up.claim(), Claim { epoch: Epoch::new(1).unwrap(), nonce: made_up.nonce });
}

#[tokio::test]
async fn no_more_history_is_kept_than_is_asked_for() {
    let bench = bench();
    let leases = bench.leases.clone().with_retention(Retention { transfers: 64, age: None });
    tenures(&leases, 1_000, 400).await;
    let known = epochs(&leases).await;
    assert!((64..=64 + 64).contains(&known.len()), "{}", known.len());
    assert_eq!(known.last(), Some(&400));
    assert!(known.windows(2).all(|pair| pair[0] + 1 == pair[1]), "the oldest go first: {known:?}");
}

#[tokio::test]
async fn what_is_too_old_is_not_kept() {
    let bench = bench();
    let age = Some(std::time::Duration::from_secs(3_600));
    let leases = bench.leases.clone().with_retention(Retention { transfers: 10_000, age });
    tenures(&leases, 1_000, 100).await;
    bench.clock.advance(std::time::Duration::from_secs(7_200));
    tenures(&leases, 2_000, 100).await;
    let known = epochs(&leases).await;
    assert!(known[0] > 60, "{known:?}");
    assert_eq!(known.last(), Some(&200));
}

#[tokio::test]
async fn an_archive_that_cannot_be_written_stops_acquirers_and_no_operator() {
    let bench = bench();
    bench.store.plan(|call, _| if call == Call::Archive { Fault::Fails(Kind::Unavailable) } else { Fault::None });
    tenures(&bench.leases, 1_000, TRANSFERS_KEPT + 8).await;
    let error = bench.acquire(1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("its history is to be archived first"), "{error}");
    for _ in 0..4 {
        assert!(matches!(bench.operate(Order::Revoke).await, Ok(Operated::Done(_))));
    }
    bench.store.heal();
    tenures(&bench.leases, 5_000, 1).await;
    assert_eq!(epochs(&bench.leases).await.len(), TRANSFERS_KEPT + 8 + 4 + 1);
}

#[tokio::test]
async fn a_history_that_is_damaged_stops_nobody() {
    let bench = bench();
    bench.store.plan(|call, _| if call == Call::Archive { Fault::Fails(Kind::Corrupt) } else { Fault::None });
    tenures(&bench.leases, 1_000, 3 * TRANSFERS_KEPT).await;
    assert_eq!(bench.record().await.transfers.len(), 3 * TRANSFERS_KEPT, "nothing was dropped that is not archived");
}

#[tokio::test]
async fn a_token_of_long_ago_costs_one_read_more() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    tenures(&bench.leases, 2_000, 400).await;
    bench.store.round_trips();
    let resolved = bench.leases.resolve(grant.token()).await.unwrap();
    assert!(matches!(resolved.state, TokenState::Superseded { .. }));
    assert_eq!(bench.store.round_trips(), (2, 0));
}

#[tokio::test]
async fn a_moved_lease_takes_its_history_along() {
    let (here, there) = (bench(), bench());
    tenures(&here.leases, 1_000, 100).await;
    let record = here.record().await;
    for _ in 0..2 {
        let left = here.leases.copy_history(&name(), &record, &there.leases).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
        let known = there.leases.history(&name(), &record).await.unwrap();
        assert_eq!((known.transfers.len(), known.damaged.len()), (100, 0));
    }
}
