//! Answers that are lost: what is found is confirmed, what is forgotten stays unknown, and nothing is applied twice.

use crate::support::faults::{Call, Fault, Gate};
use crate::support::{epoch, holder, ttl};
use crate::{Bench, TTL, bench, name};
use leasehold_core::lease::protocol::Order;
use leasehold_core::{Kind, Operated, Outcome, Ownership, Released, TRANSFERS_KEPT, Token};
use std::time::Duration;

/// So many holders take the lease and give it back, by a coordinator of their own.
async fn others(bench: &Bench, from: u128, count: usize) {
    for turn in 0..count as u128 {
        let grant = bench.grant(from + turn).await;
        bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    }
}

/// An order that is sent, applied or not, and whose answer is held back while others go on.
async fn held_back(order: Order, fault: Fault, transfers: usize) -> (Bench, leasehold_core::Result<Operated>) {
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
    // What the archive has forgotten, too, is in `history`. As long as it is remembered, it is known to have been applied, once.
    let (bench, answer) = held_back(Order::Revoke, Fault::LostReply, 4).await;
    let Ok(Operated::Done(carried)) = answer else { panic!("{answer:?}") };
    // Its own epoch is told, not that of the innocent.
    assert_eq!((carried.epoch().get(), carried.record.epoch.get()), (4, 9));
    let revoked = bench.record().await.transfers.iter().filter(|t| t.by.is_some()).count();
    assert_eq!(revoked, 1);
}

/// An order that is decided on the present epoch and applied, and what `meanwhile` does before its answer is lost.
async fn overtaken(
    order: Order,
    meanwhile: impl AsyncFnOnce(&Bench, Ownership),
) -> (Bench, leasehold_core::Result<Operated>) {
    let bench = bench();
    others(&bench, 1_000, 3).await;
    let gate = Gate::default();
    bench.store.next(Call::Swap, &[Fault::Held(gate.clone(), Box::new(Fault::LostReply))]);
    let (leases, expected) = (bench.leases.clone(), Some(bench.record().await.epoch));
    // A release is dated by the latest time that it can be.
    bench.clock.advance(Duration::from_secs(1));
    let (ann, why) = ("ann".parse().unwrap(), "drill".parse().unwrap());
    let mut ordering = tokio::spawn(async move { leases.operate_if(&name(), ann, why, expected, order).await });
    tokio::select! {
        () = gate.reached() => {}
        answer = &mut ordering => panic!("it was not written: {answer:?}"),
    }
    bench.store.heal();
    let record = bench.record().await;
    meanwhile(&bench, record).await;
    gate.open();
    let answer = ordering.await.unwrap();
    (bench, answer)
}

#[tokio::test]
async fn an_order_that_was_overtaken_is_recognized_by_its_own_epoch() {
    for (order, epoch) in
        [(Order::Revoke, 4), (Order::Rewind, 4), (Order::Advance { past: epoch(20), lineage: None }, 21)]
    {
        for transfers in [0, 4, 3 * TRANSFERS_KEPT] {
            let (_, answer) = overtaken(order.clone(), async |bench, _| others(bench, 2_000, transfers).await).await;
            let Ok(Operated::Done(carried)) = answer else { panic!("{answer:?}") };
            assert_eq!((carried.epoch().get(), carried.record.epoch.get()), (epoch, epoch + transfers as u64));
        }
    }
}

#[tokio::test]
async fn a_hand_off_that_is_over_when_it_is_known_was_carried_out_all_the_same() {
    for transfers in [0, 4, 3 * TRANSFERS_KEPT] {
        let order = Order::HandOff { to: holder(7), ttl: ttl(TTL) };
        let (bench, answer) = overtaken(order, async |bench, record| {
            let token = Token {
                lease: name(),
                lineage: record.lineage.unwrap(),
                epoch: record.epoch,
                nonce: holder(7).nonce(),
                seq: 0,
            };
            bench.leases.release_by_token(&token, Outcome::Failed).await.unwrap();
            others(bench, 2_000, transfers).await;
        })
        .await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), Kind::Lost, "{error}");
        let seen = 4 + transfers;
        let text = error.to_string();
        assert!(text.contains("under epoch 4") && text.contains("(failed)"), "{text}");
        assert!(text.contains(&format!("it is at epoch {seen} now, free")), "{text}");
        assert_eq!(bench.record().await.epoch.get(), seen as u64);
    }
}

#[tokio::test]
async fn a_pause_that_is_in_force_is_not_called_refused_because_the_epoch_has_moved_on() {
    let (bench, answer) = overtaken(Order::Pause, async |bench, _| {
        bench.operate(Order::Revoke).await.unwrap();
    })
    .await;
    assert!(matches!(answer, Ok(Operated::Done(_))), "{answer:?}");
    assert!(bench.record().await.paused.is_some());
    // One that was ended since is not known.
    let (bench, answer) = overtaken(Order::Pause, async |bench, record| {
        bench.operate(Order::Resume { pause: record.paused.unwrap().nonce }).await.unwrap();
    })
    .await;
    assert_eq!(answer.unwrap_err().kind(), Kind::Indeterminate);
    assert!(bench.record().await.paused.is_none());
}

#[tokio::test]
async fn a_lease_that_was_forgotten_and_used_again_is_not_called_unforgotten() {
    let forget = || Order::Forget { idle: Duration::ZERO };
    let (_, answer) = overtaken(forget(), async |_, _| {}).await;
    assert!(matches!(answer, Ok(Operated::Done(_))), "{answer:?}");
    let (bench, answer) = overtaken(forget(), async |bench, _| others(bench, 2_000, 2).await).await;
    assert_eq!(answer.unwrap_err().kind(), Kind::Indeterminate);
    assert_eq!(bench.record().await.transfers.len(), 2);
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
        // The record, and the namespace's mark.
        (Call::Read, 1 | 2) => Fault::None,
        _ => Fault::Fails(Kind::Unavailable),
    });
    assert_eq!(bench.acquire(1).await.unwrap_err().kind(), Kind::Indeterminate);
    bench.store.heal();
    let grant = bench.grant(1).await;
    bench.store.crash().await;
    assert!(bench.record().await.is_held_by(grant.token().claim()));
}
