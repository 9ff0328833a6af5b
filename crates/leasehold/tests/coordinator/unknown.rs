//! Answers that are lost: what is found is confirmed, what is forgotten stays unknown, and nothing is applied twice.

use crate::support::faults::{Call, Fault, Gate};
use crate::support::seconds;
use crate::{Bench, TTL, ask, bench, granted, name};
use leasehold::protocol::Order;
use leasehold::relocation::{Address, Relocation, Step};
use leasehold::{Acquired, Kind, Nonce, Operated, Outcome, Released, TRANSFERS_KEPT, residence};

/// So many holders take the lease and give it back, by a coordinator of their own.
async fn others(bench: &Bench, from: u128, count: usize) {
    for turn in 0..count as u128 {
        let grant = bench.grant(from + turn).await;
        bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    }
}

/// An order that is sent, applied or not, and whose answer is held back while others go on.
async fn held_back(order: Order, fault: Fault, transfers: usize) -> (Bench, leasehold::Result<Operated>) {
    let bench = bench();
    others(&bench, 1_000, 3).await;
    if let Order::Resume { .. } = order {
        bench.operate(Order::Pause).await.unwrap();
    }
    let gate = Gate::default();
    bench.store.next(Call::Swap, &[Fault::Held(gate.clone(), Box::new(fault))]);
    let leases = bench.leases.clone();
    let ordering =
        tokio::spawn(
            async move { leases.operate(&name(), "ann".parse().unwrap(), "drill".parse().unwrap(), order).await },
        );
    gate.reached().await;
    bench.store.heal();
    others(&bench, 2_000, transfers).await;
    let innocent = bench.grant(77).await;
    gate.open();
    let answer = ordering.await.unwrap();
    let record = bench.record().await;
    assert!(record.is_held_by(innocent.token().claim()), "the innocent holder was evicted: {answer:?}");
    (bench, answer)
}

#[tokio::test]
async fn an_order_that_was_forgotten_is_unknown_and_evicts_nobody() {
    let (_, answer) = held_back(Order::Revoke, Fault::LostReply, TRANSFERS_KEPT + 4).await;
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
    assert!(error.to_string().contains("remembers no further back"), "{error}");
    // As long as it is remembered, it is known to have been applied, once.
    let (bench, answer) = held_back(Order::Revoke, Fault::LostReply, 4).await;
    assert!(matches!(answer, Ok(Operated::Done(_))), "{answer:?}");
    let revoked = bench.record().await.transfers.iter().filter(|t| t.by.is_some()).count();
    assert_eq!(revoked, 1);
}

#[tokio::test]
async fn a_grant_that_is_only_visible_is_confirmed_by_a_new_write() {
    let bench = bench();
    bench.store.next(Call::Swap, &[Fault::Unsynced]);
    let grant = bench.grant(1).await;
    // Whatever was not durable is gone, and the grant is still there.
    bench.store.crash().await;
    assert!(bench.record().await.is_held_by(grant.token().claim()));

    // If nothing can be confirmed, nothing is granted, and a crash takes the visible one back.
    let bench = self::bench();
    bench.store.plan(|call, _| if call == Call::Swap { Fault::Unsynced } else { Fault::None });
    assert_eq!(bench.acquire(1).await.unwrap_err().kind(), Kind::Indeterminate);
    bench.store.crash().await;
    assert_eq!(bench.record().await.epoch.get(), 0);
}

#[tokio::test]
async fn a_release_that_is_only_visible_is_confirmed_by_a_new_write() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.store.next(Call::Swap, &[Fault::Unsynced]);
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    bench.store.crash().await;
    assert!(bench.record().await.tenure.is_none());
}

/// The store went away in the middle of the release, and comes back.
#[tokio::test]
async fn a_release_that_is_tried_again_confirms_what_an_earlier_attempt_left() {
    for fault in [Fault::Unsynced, Fault::LostRequest, Fault::Fails(Kind::Unavailable)] {
        let bench = bench();
        let grant = bench.grant(1).await;
        let first = fault.clone();
        bench
            .store
            .plan(move |call, _| if call == Call::Swap { first.clone() } else { Fault::Fails(Kind::Unavailable) });
        let mut releasing = bench.leases.releasing(&grant, Outcome::Succeeded);
        for _ in 0..3 {
            let error = releasing.attempt().await.unwrap_err();
            // Once it is unknown it stays so, whatever the later attempts meet.
            let kind = if let Fault::Fails(kind) = fault { kind } else { Kind::Indeterminate };
            assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        }
        bench.store.heal();
        assert_eq!(releasing.attempt().await.unwrap(), Released::Now, "{fault:?}");
        bench.store.crash().await;
        let record = bench.record().await;
        assert!(record.tenure.is_none(), "{fault:?}: what was only visible counted");
        assert_eq!(record.transfers.len(), 1);
    }
}

/// Others had the lease in the meantime: it was released once, and nobody is evicted.
#[tokio::test]
async fn a_release_that_is_tried_again_after_others_had_it_harms_nobody() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.store.plan(|call, _| if call == Call::Swap { Fault::LostReply } else { Fault::Fails(Kind::Unavailable) });
    let mut releasing = bench.leases.releasing(&grant, Outcome::Succeeded);
    assert_eq!(releasing.attempt().await.unwrap_err().kind(), Kind::Indeterminate);
    bench.store.heal();
    others(&bench, 2_000, 3).await;
    let innocent = bench.grant(77).await;
    assert_eq!(releasing.attempt().await.unwrap(), Released::Now);
    assert!(bench.record().await.is_held_by(innocent.token().claim()));
}

#[tokio::test]
async fn a_retry_under_the_same_nonce_confirms_what_an_earlier_call_left() {
    let bench = bench();
    bench.store.plan(|call, n| match (call, n) {
        (Call::Swap, _) => Fault::Unsynced,
        (Call::Read, 1) => Fault::None,
        _ => Fault::Fails(Kind::Unavailable),
    });
    assert_eq!(bench.acquire(1).await.unwrap_err().kind(), Kind::Indeterminate);
    bench.store.heal();
    let grant = bench.grant(1).await;
    bench.store.crash().await;
    assert!(bench.record().await.is_held_by(grant.token().claim()));
}

#[tokio::test]
async fn a_name_that_comes_up_while_its_namespace_leaves_is_not_granted() {
    let bench = bench();
    let migration = Nonce::from_u128(5);
    let to: Address = "dir:/new".parse().unwrap();
    // The look at the mark comes after the record was written, so a mark that came in between is seen.
    let gate = Gate::default();
    bench.store.next(Call::Swap, &[Fault::Held(gate.clone(), Box::new(Fault::None))]);
    let leases = bench.leases.clone();
    let acquiring = tokio::spawn(async move { leases.acquire(&name(), &ask(1)).await });
    gate.reached().await;
    bench.store.heal();
    residence::leave(bench.store.as_ref(), &Step::Leave { to }, migration).await.unwrap();
    gate.open();
    let error = acquiring.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    residence::leave(bench.store.as_ref(), &Step::Depart, migration).await.unwrap();
    // Nor is it granted to anybody later, though its record is there.
    bench.clock.advance(seconds(TTL));
    let error = bench.acquire(2).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Moved, "{error}");
    assert!(error.to_string().contains("dir:/new"), "{error}");
}

#[tokio::test]
async fn a_namespace_is_moved_by_one_migration_at_a_time() {
    let bench = bench();
    let store = bench.store.as_ref();
    let leave = |to: &str| Step::Leave { to: to.parse().unwrap() };
    let (one, two) = (Nonce::from_u128(1), Nonce::from_u128(2));
    residence::leave(store, &leave("dir:/b"), one).await.unwrap();
    assert_eq!(residence::leave(store, &leave("dir:/c"), two).await.unwrap_err().kind(), Kind::Invalid);
    residence::leave(store, &leave("dir:/b"), one).await.unwrap();
    let arriving = Relocation::Arriving { from: "dir:/z".parse().unwrap(), migration: two };
    assert_eq!(residence::arrive(store, &arriving).await.unwrap_err().kind(), Kind::Invalid, "it is leaving");
    residence::leave(store, &Step::Stay, one).await.unwrap();
    residence::arrive(store, &arriving).await.unwrap();
    let other = Relocation::Arriving { from: "dir:/y".parse().unwrap(), migration: one };
    assert_eq!(residence::arrive(store, &other).await.unwrap_err().kind(), Kind::Invalid);
    residence::arrived(store, two, residence::Came::ToStay).await.unwrap();
    let Acquired::Granted(_) = bench.acquire(1).await.unwrap() else { panic!("not granted") };
    drop(granted(bench.leases.acquire(&"other".parse().unwrap(), &ask(2)).await));
}
