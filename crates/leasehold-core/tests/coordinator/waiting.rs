//! Waiting for one of several leases.

use crate::support::faults::{Call, Fault};
use crate::support::{at, holder, millis, seconds};
use crate::{TTL, ask, bench, granted, name, names, patient_bench, poll_once, refused, settle};
use leasehold_core::clock::Clock;
use leasehold_core::lease::protocol::{AfterFailure, Order, Refusal, SlotClaim};
use leasehold_core::{Acquired, Ask, Kind, Nonce, Outcome, Reason, Slot};
use std::pin::pin;
use std::time::Duration;

#[tokio::test]
async fn acquire_any_takes_the_first_that_can_be_acquired() {
    let bench = bench();
    let all = names(&["a", "b", "c"]);
    for (nonce, expected) in [(1, "a"), (2, "b"), (3, "c")] {
        let grant = granted(bench.leases.acquire_any(&all, &ask(nonce)).await);
        assert_eq!(grant.token().lease.as_str(), expected);
        bench.clock.advance(seconds(1));
    }
    // All are held: the answer is about the one that comes free first.
    match bench.leases.acquire_any(&all, &ask(4)).await.unwrap() {
        Acquired::Refused { lease, .. } => assert_eq!(lease.as_str(), "a"),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.leases.acquire_any(&[], &ask(5)).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn acquire_any_never_asks_for_two_leases_under_one_nonce() {
    let bench = bench();
    granted(bench.leases.acquire(&"a".parse().unwrap(), &ask(1)).await);
    let grant = granted(bench.leases.acquire_any(&names(&["a", "b"]), &ask(2)).await);
    assert_eq!(grant.token().lease.as_str(), "b");
    assert_ne!(grant.token().nonce, Nonce::from_u128(2));
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_release_without_the_clock_moving() {
    let bench = patient_bench();
    let grant = bench.grant(1).await;
    let leases = bench.leases.clone();
    let waiter = tokio::spawn(async move { leases.acquire_within(&[name()], &ask(2), seconds(60)).await });
    // The waiter watches, looks again and then sleeps: three reads with the first look.
    settle().await;
    assert!(!waiter.is_finished());
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let second = granted(waiter.await.unwrap());
    assert_eq!(second.token().epoch.get(), 2);
}

#[tokio::test]
async fn a_waiter_gets_a_lease_whose_holder_died() {
    let bench = bench();
    bench.grant(1).await;
    let begun = bench.clock.now();
    let second = granted(bench.leases.acquire_within(&[name()], &ask(2), seconds(10 * TTL)).await);
    assert_eq!(second.record().transfers.last().unwrap().reason, Reason::Expired);
    let waited = bench.clock.now().saturating_since(begun);
    assert!(waited >= seconds(TTL) - millis(1) && waited <= seconds(TTL + 2), "{waited:?}");
}

#[tokio::test]
async fn a_waiter_gives_up_at_the_limit_and_says_who_holds() {
    let bench = bench();
    bench.grant(1).await;
    let begun = bench.clock.now();
    let refusal = refused(bench.leases.acquire_within(&[name()], &ask(2), seconds(10)).await);
    assert!(matches!(refusal, Refusal::Held { tenure, .. } if tenure.holder == holder(1)));
    assert_eq!(bench.clock.now().saturating_since(begun), seconds(10));
    // No limit at all is one look.
    bench.store.round_trips();
    refused(bench.leases.acquire_within(&[name()], &ask(3), Duration::ZERO).await);
    assert_eq!(bench.store.round_trips(), (1, 0));
}

#[tokio::test]
async fn a_waiter_outlasts_a_pause_but_not_a_slot_that_was_run() {
    let bench = patient_bench();
    bench.operate(Order::Pause).await.unwrap();
    let leases = bench.leases.clone();
    let waiter = tokio::spawn(async move { leases.acquire_within(&[name()], &ask(1), seconds(60)).await });
    settle().await;
    assert!(!waiter.is_finished());
    let pause = bench.record().await.paused.unwrap().nonce;
    bench.operate(Order::Resume { pause }).await.unwrap();
    let mut grant = granted(waiter.await.unwrap());
    let slot = Some(SlotClaim::new(Slot(at(5)), AfterFailure::Leave));
    let error = bench.leases.complete(&mut grant, Outcome::Succeeded).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "there is no slot to complete");
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let grant = granted(bench.leases.acquire(&name(), &Ask { slot, ..ask(2) }).await);
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let refusal = refused(bench.leases.acquire_within(&[name()], &Ask { slot, ..ask(3) }, seconds(60)).await);
    assert!(matches!(refusal, Refusal::AlreadyRun(_)));
}

#[tokio::test]
async fn a_pause_that_is_ordered_during_the_wait_holds_for_every_seat() {
    let bench = patient_bench();
    let seats = [name(), name().seat(2).unwrap()];
    bench.grant(1).await;
    let second = granted(bench.leases.acquire(&seats[1], &ask(2)).await);
    let (leases, wanted) = (bench.leases.clone(), seats.clone());
    let waiter = tokio::spawn(async move { leases.acquire_seat(&wanted, &ask(3), seconds(60)).await });
    settle().await;
    bench.operate(Order::Pause).await.unwrap();
    bench.leases.release(&second, Outcome::Succeeded).await.unwrap();
    settle().await;
    assert!(!waiter.is_finished(), "a seat was taken while the lease is paused");
    let pause = bench.record().await.paused.unwrap().nonce;
    bench.operate(Order::Resume { pause }).await.unwrap();
    assert_eq!(granted(waiter.await.unwrap()).token().lease, seats[1]);
}

#[tokio::test]
async fn a_pause_between_the_look_and_the_grant_gives_the_seat_back() {
    let bench = patient_bench();
    let seats = [name(), name().seat(2).unwrap()];
    bench.grant(1).await;
    bench.store.next(Call::Swap, &[Fault::Yields]);
    let asked = ask(2);
    let mut taking = pin!(bench.leases.acquire_seat(&seats, &asked, seconds(60)));
    assert!(poll_once(taking.as_mut()).is_pending(), "it is about to be granted the seat");
    bench.operate(Order::Pause).await.unwrap();
    assert!(matches!(refused(taking.await), Refusal::Paused(_)));
    let seat = bench.leases.inspect(&seats[1]).await.unwrap().record;
    assert!(seat.tenure.is_none(), "{seat:?}");
    // Whoever waits on asks under a fresh nonce.
    let pause = bench.record().await.paused.unwrap().nonce;
    bench.operate(Order::Resume { pause }).await.unwrap();
    granted(bench.leases.acquire_seat(&seats, &ask(3), seconds(60)).await);
}

/// From the first look on: it was answered, if only that there is no room.
#[tokio::test]
async fn a_waiter_comes_back_to_a_store_that_has_no_room() {
    let bench = bench();
    bench.store.plan(|_, n| if n < 20 { Fault::Fails(Kind::Contended) } else { Fault::None });
    let begun = bench.clock.now();
    granted(bench.leases.acquire_within(&[name()], &ask(2), seconds(600)).await);
    let waited = bench.clock.now().saturating_since(begun);
    assert!(waited > seconds(30) && waited < seconds(100), "19 times {waited:?}");
    // Who does not wait does not come back.
    bench.store.plan(|_, _| Fault::Fails(Kind::Contended));
    let error = bench.leases.acquire_within(&[name()], &ask(3), Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Contended);
    let error = bench.leases.acquire_within(&[name()], &ask(3), seconds(9)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Contended);
}

/// A grant whose answer was lost is found again, and not taken a second time.
#[tokio::test]
async fn a_waiter_outlasts_requests_without_an_answer() {
    for fault in [Fault::LostReply, Fault::LostRequest, Fault::Unsynced] {
        let bench = bench();
        bench.grant(1).await;
        bench.clock.advance(seconds(TTL - 1));
        let mut lost = 0;
        bench.store.plan(move |call, n| {
            lost += usize::from(call == Call::Swap);
            match call {
                Call::Swap if lost == 1 => fault.clone(),
                // What became of it cannot be looked at either, for a while.
                Call::Read if lost == 1 && n < 12 => Fault::Fails(Kind::Unavailable),
                _ => Fault::None,
            }
        });
        let grant = granted(bench.leases.acquire_within(&[name()], &ask(2), seconds(600)).await);
        assert_eq!(grant.token().epoch.get(), 2);
        bench.store.crash().await;
        assert!(bench.record().await.is_held_by(grant.token().claim()));
    }
}

#[tokio::test]
async fn a_waiter_recovers_when_the_store_does() {
    let bench = bench();
    bench.grant(1).await;
    bench.store.plan(|_, n| if (3..12).contains(&n) { Fault::Fails(Kind::Unavailable) } else { Fault::None });
    granted(bench.leases.acquire_within(&[name()], &ask(2), seconds(2 * TTL)).await);
    // One that is away from the start, or to the end, is an error or the last that was known, never a grant.
    let bench = self::bench();
    bench.grant(1).await;
    bench.store.plan(|_, _| Fault::Fails(Kind::Unavailable));
    let error = bench.leases.acquire_within(&[name()], &ask(2), seconds(9)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    bench.store.plan(|_, n| if n > 1 { Fault::Fails(Kind::Unavailable) } else { Fault::None });
    match bench.leases.acquire_within(&[name()], &ask(2), seconds(9)).await {
        Ok(Acquired::Granted(grant)) => panic!("granted by a store that was away: {grant:?}"),
        Ok(Acquired::Refused { .. }) => {}
        Err(error) => assert_eq!(error.kind(), Kind::Unavailable, "{error}"),
    }
}

#[tokio::test]
async fn a_waiter_dropped_at_any_point_leaves_nothing_held_or_what_expires() {
    for polls in 0..12 {
        let bench = bench();
        bench.grant(1).await;
        bench.clock.advance(seconds(TTL) - millis(1));
        bench.store.plan(|_, _| Fault::Yields);
        {
            let (names, ask) = ([name()], ask(2));
            let mut waiter = pin!(bench.leases.acquire_within(&names, &ask, seconds(60)));
            let _ = (0..polls).any(|_| poll_once(waiter.as_mut()).is_ready());
        }
        bench.store.heal();
        bench.clock.advance(seconds(TTL));
        bench.grant(3).await;
    }
}
