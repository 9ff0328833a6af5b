//! What each call does, costs and comes to when the store fails.

use crate::support::faults::{Call, Fault, Faulty, Hasty};
use crate::support::{at, holder, seconds, ttl};
use crate::{Bench, ERRORS, TTL, ask, bench, granted, name, poll_once, refused};
use leasehold_core::clock::{Clock, ManualClock};
use leasehold_core::lease::protocol::{AfterFailure, Order, Refusal, Report, SlotClaim};
use leasehold_core::{
    Acquired, Ask, Checkpoint, Coordinator, Kind, Operated, Outcome, Ownership, Released, Slot, SlotState,
};
use std::pin::pin;
use std::sync::Arc;

#[tokio::test]
async fn acquiring_costs_a_read_and_a_swap_renewing_and_releasing_a_swap() {
    let bench = bench();
    let mut grant = bench.grant(1).await;
    // The first of a name also asks whether the namespace is being moved, before the write and after it.
    assert_eq!(bench.store.round_trips(), (3, 1));
    for _ in 0..5 {
        bench.clock.advance(seconds(TTL / 3));
        bench.leases.renew(&mut grant, None).await.unwrap();
        assert_eq!(bench.store.round_trips(), (0, 1));
    }
    let report = Report { marker: None, checkpoint: Some(Checkpoint::new("7").unwrap()) };
    bench.leases.checkpoint(&mut grant, report).await.unwrap();
    assert_eq!(bench.store.round_trips(), (0, 1));
    assert_eq!(bench.leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
    assert_eq!(bench.store.round_trips(), (0, 1));
    bench.grant(2).await;
    assert_eq!(bench.store.round_trips(), (1, 1), "whoever held it before reads it again");
}

#[tokio::test]
async fn refusing_costs_a_read_and_leaves_the_store_as_it_is() {
    let bench = bench();
    bench.grant(1).await;
    let before = bench.record().await;
    bench.store.round_trips();
    assert!(matches!(refused(bench.acquire(2).await), Refusal::Held { .. }));
    assert_eq!(bench.store.round_trips(), (1, 0));
    bench.leases.inspect(&name()).await.unwrap();
    bench.leases.list(None, 10).await.unwrap();
    assert_eq!(bench.store.round_trips(), (1, 0));
    assert_eq!(bench.record().await, before);
}

#[tokio::test]
async fn a_store_error_is_never_a_grant() {
    for call in [Call::Read, Call::Swap] {
        for kind in ERRORS {
            let bench = bench();
            bench.store.plan(move |c, _| if c == call { Fault::Fails(kind) } else { Fault::None });
            let error = bench.acquire(1).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{call:?} failed");
            assert_eq!(bench.record().await, Ownership::default());
        }
    }
}

#[tokio::test]
async fn a_damaged_record_is_never_a_grant_and_never_overwritten() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.leases.release_by_token(grant.token(), Outcome::Succeeded).await.unwrap();
    let before = bench.record().await;
    bench.store.plan(|call, _| if call == Call::Read { Fault::Damaged } else { Fault::None });
    assert_eq!(bench.acquire(2).await.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(bench.operate(Order::Revoke).await.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(bench.record().await, before);
}

#[tokio::test]
async fn an_error_at_any_call_leaves_a_grant_only_where_the_record_shows_it() {
    // Every fault at every k-th call, and at every k-th and all later calls.
    let mut faults: Vec<Fault> = ERRORS.map(Fault::Fails).to_vec();
    faults.extend([Fault::LostReply, Fault::LostRequest]);
    for fault in faults {
        for k in 1..=6 {
            for for_ever in [false, true] {
                let bench = bench();
                let chosen = fault.clone();
                bench.store.plan(move |_, n| if n == k || (for_ever && n > k) { chosen.clone() } else { Fault::None });
                let answer = bench.acquire(1).await;
                let record = bench.record().await;
                match answer {
                    Ok(Acquired::Granted(grant)) => {
                        assert!(record.is_held_by(grant.token().claim()), "{fault:?} at {k}");
                    }
                    Ok(Acquired::Refused { refusal, .. }) => panic!("{fault:?} at {k} was a refusal: {refusal:?}"),
                    Err(error) if error.kind() == Kind::Indeterminate => {}
                    Err(error) => assert_eq!(record, Ownership::default(), "{fault:?} at {k} gave {error}"),
                }
                assert!(record.epoch.get() <= 1, "{fault:?} at {k} advanced the epoch twice");
            }
        }
    }
}

#[tokio::test]
async fn a_lost_reply_on_acquire_is_resolved_without_a_second_bump() {
    let bench = bench();
    bench.store.next(Call::Swap, &[Fault::LostReply]);
    let mut grant = bench.grant(1).await;
    // Read back, confirmed by a new write, and the namespace twice.
    assert_eq!(bench.store.round_trips(), (4, 2));
    let record = bench.record().await;
    assert_eq!((record.epoch.get(), record.transfers.len()), (1, 1));
    assert_eq!(grant.token().epoch, record.epoch);
    // What was read back serves for the next swap.
    bench.leases.renew(&mut grant, None).await.unwrap();
    assert_eq!(bench.store.round_trips(), (0, 1));
}

#[tokio::test]
async fn a_lost_request_on_acquire_is_sent_again() {
    let bench = bench();
    bench.store.next(Call::Swap, &[Fault::LostRequest, Fault::LostRequest]);
    assert_eq!(bench.grant(1).await.token().epoch.get(), 1);
    assert_eq!(bench.store.round_trips(), (5, 3));
}

#[tokio::test]
async fn a_lost_reply_that_cannot_be_read_back_stays_indeterminate() {
    let bench = bench();
    bench.store.plan(|_, n| match n {
        3 => Fault::LostReply,
        4 => Fault::Fails(Kind::Unavailable),
        _ => Fault::None,
    });
    // "Unavailable" would say that surely nothing was applied, and it was.
    assert_eq!(bench.acquire(1).await.unwrap_err().kind(), Kind::Indeterminate);
    assert_eq!(bench.record().await.epoch.get(), 1);
    // Asking again as the same holder finds the grant.
    assert_eq!(bench.grant(1).await.token().epoch.get(), 1);
}

#[tokio::test]
async fn a_lost_reply_whose_grant_expired_before_the_reread_is_not_a_grant() {
    let bench = bench();
    let clock = bench.clock.clone();
    bench.store.plan(move |_, n| match n {
        3 => Fault::LostReply,
        4 => {
            clock.advance(seconds(TTL + 1));
            Fault::None
        }
        _ => Fault::None,
    });
    assert!(matches!(refused(bench.acquire(1).await), Refusal::Lost { .. }));
}

#[tokio::test]
async fn a_lost_reply_on_release_is_recognised() {
    for fault in [Fault::LostReply, Fault::LostRequest] {
        let bench = bench();
        let grant = bench.grant(1).await;
        bench.store.next(Call::Swap, std::slice::from_ref(&fault));
        assert_eq!(bench.leases.release(&grant, Outcome::Failed).await.unwrap(), Released::Now, "{fault:?}");
        assert_eq!(bench.leases.release(&grant, Outcome::Failed).await.unwrap(), Released::Already(Outcome::Failed));
    }
}

#[tokio::test]
async fn a_lost_reply_on_release_is_recognised_even_after_somebody_else_acquired() {
    let bench = bench();
    let grant = bench.grant(1).await;
    let other = Coordinator::with_clock(Arc::new(bench.store.inner.clone()), Arc::new(bench.clock.clone()));
    bench.store.next(Call::Swap, &[Fault::LostReply]);
    let mut release = pin!(bench.leases.release(&grant, Outcome::Succeeded));
    bench.store.plan(|call, n| match (call, n) {
        (Call::Swap, 1) => Fault::LostReply,
        (Call::Read, 2) => Fault::Yields,
        _ => Fault::None,
    });
    assert!(poll_once(release.as_mut()).is_pending());
    granted(other.acquire(&name(), &ask(2)).await);
    assert_eq!(release.await.unwrap(), Released::Now);
    assert_eq!(bench.record().await.epoch.get(), 2);
}

#[tokio::test]
async fn a_lost_reply_on_renewal_checkpoint_and_completion_is_resolved() {
    for fault in [Fault::LostReply, Fault::LostRequest] {
        let bench = bench();
        let slot = SlotClaim::new(Slot(at(5)), AfterFailure::Leave);
        let mut grant = granted(bench.leases.acquire(&name(), &Ask { slot: Some(slot), ..ask(1) }).await);
        bench.clock.advance(seconds(30));
        let again = || bench.store.next(Call::Swap, std::slice::from_ref(&fault));
        again();
        bench.leases.renew(&mut grant, None).await.unwrap();
        again();
        bench.leases.checkpoint(&mut grant, Report::default()).await.unwrap();
        again();
        bench.leases.complete(&mut grant, Outcome::Succeeded).await.unwrap();
        let record = bench.record().await;
        assert_eq!(record.slot.unwrap().state, SlotState::Done);
        assert_eq!(record.epoch.get(), 1);
        assert_eq!(&record, grant.record());
        assert!(grant.trust_until() <= bench.clock.now() + seconds(TTL));
    }
}

#[tokio::test]
async fn a_lost_reply_on_an_order_applies_it_once() {
    for order in [Order::Revoke, Order::Advance { past: crate::support::epoch(9), lineage: None }, Order::Pause] {
        let bench = bench();
        bench.grant(1).await;
        bench.store.next(Call::Swap, &[Fault::LostReply]);
        assert!(matches!(bench.operate(order.clone()).await.unwrap(), Operated::Done(_)));
        let expected = match order {
            Order::Revoke => 2,
            Order::Advance { .. } => 10,
            _ => 1,
        };
        assert_eq!(bench.record().await.epoch.get(), expected, "{order:?}");
    }
}

#[tokio::test]
async fn a_lost_reply_on_a_hand_off_never_forges_a_token() {
    let bench = bench();
    bench.grant(1).await;
    let other = Coordinator::with_clock(Arc::new(bench.store.inner.clone()), Arc::new(bench.clock.clone()));
    bench.store.plan(|call, n| match (call, n) {
        (Call::Swap, _) => Fault::LostReply,
        (Call::Read, n) if n > 1 => Fault::Yields,
        _ => Fault::None,
    });
    let mut order = pin!(bench.operate(Order::HandOff { to: holder(2), ttl: ttl(TTL) }));
    while bench.record().await.epoch.get() < 2 {
        assert!(poll_once(order.as_mut()).is_pending());
    }
    // Handed off, but before the answer is read back an operator gives it to a third one.
    let (bob, order_3) = ("bob".parse().unwrap(), Order::HandOff { to: holder(3), ttl: ttl(TTL) });
    let second = other.operate(&name(), bob, "mine".parse().unwrap(), order_3).await;
    let Ok(Operated::HandedOff(third)) = second else { panic!("not handed off: {second:?}") };
    assert_eq!(third.token().epoch.get(), 3);
    bench.store.heal();
    let error = order.await.unwrap_err();
    assert_eq!((error.kind(), error.epochs().map(|(held, _)| held.get())), (Kind::Lost, Some(2)), "{error}");
}

#[tokio::test]
async fn a_hand_off_gives_the_new_holder_a_grant_and_fences_the_old() {
    let bench = bench();
    let mut old = bench.grant(1).await;
    let handed = bench.operate(Order::HandOff { to: holder(2), ttl: ttl(TTL) }).await.unwrap();
    let Operated::HandedOff(mut grant) = handed else { panic!("{handed:?}") };
    assert_eq!(grant.token().epoch.get(), 2);
    let error = bench.leases.renew(&mut old, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Lost);
    assert!(error.to_string().contains("held=1 seen=2"), "{error}");
    assert!(matches!(bench.leases.release(&old, Outcome::Succeeded).await.unwrap(), Released::Lost(_)));
    bench.leases.renew(&mut grant, None).await.unwrap();
    assert_eq!(bench.leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
}

#[tokio::test]
async fn a_hand_off_too_short_for_the_stores_clock_evicts_nobody() {
    let clock = ManualClock::default();
    let store = Arc::new(Faulty::new(clock.clone()).with_grain(seconds(1)));
    let leases = Coordinator::with_clock(store.clone(), Arc::new(Hasty(clock.clone())));
    let bench = Bench { store, clock, leases };
    let mut grant = bench.grant(1).await;
    let error = bench.operate(Order::HandOff { to: holder(2), ttl: ttl(2) }).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("ttl"), "{error}");
    bench.leases.renew(&mut grant, None).await.unwrap();
    let short = Ask::new(holder(3), ttl(2));
    assert_eq!(bench.leases.acquire(&name(), &short).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn a_grant_whose_answer_outlived_it_is_not_a_grant() {
    for (before, after) in [(0, TTL), (0, 2 * TTL), (TTL, 0), (TTL / 2, TTL / 2)] {
        let bench = bench();
        bench.store.next(Call::Swap, &[Fault::Slow(seconds(before), seconds(after))]);
        let error = bench.acquire(1).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Lost, "{before} s there, {after} s back");
    }
    // One that arrives while it lasts is one.
    let bench = bench();
    bench.store.next(Call::Swap, &[Fault::Slow(seconds(1), seconds(TTL - 5))]);
    bench.grant(1).await;
}

#[tokio::test]
async fn a_renewal_whose_answer_outlived_it_is_not_a_renewal() {
    let bench = bench();
    let mut grant = bench.grant(1).await;
    bench.store.next(Call::Swap, &[Fault::Slow(seconds(0), seconds(TTL + 1))]);
    assert_eq!(bench.leases.renew(&mut grant, None).await.unwrap_err().kind(), Kind::Lost);
    assert!(grant.trust_until() <= bench.clock.now());
}

#[tokio::test]
async fn a_swap_that_others_keep_overtaking_is_given_up_as_contended() {
    let bench = bench();
    bench.store.plan(|call, _| if call == Call::Swap { Fault::Mismatch } else { Fault::None });
    assert_eq!(bench.acquire(1).await.unwrap_err().kind(), Kind::Contended);
    let (reads, swaps) = bench.store.round_trips();
    // The record each time, and the namespace once.
    assert_eq!(reads, swaps + 1);
    assert!((10..=100).contains(&swaps), "{swaps} attempts");
    bench.store.next(Call::Swap, &[Fault::Mismatch, Fault::Mismatch]);
    bench.grant(1).await;
}

#[tokio::test]
async fn a_holder_whose_record_an_operator_paused_still_renews_and_releases() {
    let bench = bench();
    let mut grant = bench.grant(1).await;
    bench.operate(Order::Pause).await.unwrap();
    bench.store.round_trips();
    bench.leases.renew(&mut grant, None).await.unwrap();
    assert_eq!(bench.store.round_trips(), (1, 2), "the stale revision costs a read and a second swap");
    assert!(bench.record().await.paused.is_some(), "the renewal must not undo the pause");
    assert_eq!(bench.leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
    assert!(bench.record().await.paused.is_some());
}

#[tokio::test]
async fn a_zombie_changes_nothing() {
    let bench = bench();
    let mut zombie = bench.grant(1).await;
    bench.clock.advance(seconds(TTL));
    bench.grant(2).await;
    let before = bench.record().await;
    assert_eq!(bench.leases.renew(&mut zombie, None).await.unwrap_err().kind(), Kind::Lost);
    assert_eq!(bench.leases.checkpoint(&mut zombie, Report::default()).await.unwrap_err().kind(), Kind::Lost);
    assert_eq!(bench.leases.complete(&mut zombie, Outcome::Succeeded).await.unwrap_err().kind(), Kind::Lost);
    assert!(matches!(bench.leases.release(&zombie, Outcome::Succeeded).await.unwrap(), Released::Lost(_)));
    let by_token = bench.leases.release_by_token(zombie.token(), Outcome::Succeeded).await.unwrap();
    assert!(matches!(by_token, Released::Lost(_)));
    assert_eq!(bench.leases.adopt(zombie.token()).await.unwrap_err().kind(), Kind::Lost);
    assert_eq!(bench.record().await, before);
}

#[tokio::test]
async fn a_token_can_be_adopted_while_it_stands() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.clock.advance(seconds(40));
    let mut adopted = bench.leases.adopt(&grant.token().wire().parse().unwrap()).await.unwrap();
    assert_eq!(adopted.token(), grant.token());
    assert!(adopted.trust_until() <= grant.trust_until(), "adopting is not renewing");
    bench.leases.renew(&mut adopted, None).await.unwrap();
    assert!(adopted.trust_until() > grant.trust_until());
    bench.clock.advance(seconds(TTL));
    assert_eq!(bench.leases.adopt(grant.token()).await.unwrap_err().kind(), Kind::Lost);
}

#[tokio::test]
async fn a_message_of_loss_says_how() {
    let bench = bench();
    let mut grant = bench.grant(1).await;
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let error = bench.leases.renew(&mut grant, None).await.unwrap_err().to_string();
    assert!(error.contains("released"), "{error}");
    let mut grant = bench.grant(2).await;
    bench.clock.advance(seconds(TTL + 1));
    let error = bench.leases.renew(&mut grant, None).await.unwrap_err().to_string();
    assert!(error.contains("ran out"), "{error}");
}

#[tokio::test]
async fn a_future_dropped_at_any_point_leaves_nothing_held_or_what_expires() {
    let mut dropped_while_held = 0;
    let mut polls = 0;
    loop {
        let bench = bench();
        bench.store.plan(|_, n| if n == 3 { Fault::LostReply } else { Fault::Yields });
        let finished = {
            let ask = ask(1);
            let name = name();
            let mut acquire = pin!(bench.leases.acquire(&name, &ask));
            (0..polls).any(|_| poll_once(acquire.as_mut()).is_ready())
        };
        bench.store.heal();
        if let Some(tenure) = bench.record().await.tenure {
            dropped_while_held += u32::from(!finished);
            assert_eq!(tenure.holder, holder(1));
            assert!(matches!(refused(bench.acquire(2).await), Refusal::Held { .. }));
            bench.clock.advance(seconds(TTL));
        }
        let before = bench.record().await.epoch.get();
        assert_eq!(bench.grant(2).await.token().epoch.get(), before + 1);
        if finished {
            break;
        }
        polls += 1;
    }
    assert!(polls >= 4 && dropped_while_held >= 1, "{polls} polls, {dropped_while_held} while held");
}

#[tokio::test]
async fn a_renewal_or_release_dropped_at_any_point_can_be_done_again() {
    for polls in 0..8 {
        let bench = bench();
        let mut grant = bench.grant(1).await;
        bench.store.plan(|_, n| if n == 1 { Fault::LostReply } else { Fault::Yields });
        {
            let mut renewal = pin!(bench.leases.renew(&mut grant, None));
            let _ = (0..polls).any(|_| poll_once(renewal.as_mut()).is_ready());
        }
        bench.store.heal();
        bench.clock.advance(seconds(1));
        bench.leases.renew(&mut grant, None).await.unwrap();
        assert_eq!(&bench.record().await, grant.record());
        bench.store.plan(|_, n| if n == 1 { Fault::LostReply } else { Fault::Yields });
        {
            let mut release = pin!(bench.leases.release(&grant, Outcome::Succeeded));
            let _ = (0..polls).any(|_| poll_once(release.as_mut()).is_ready());
        }
        bench.store.heal();
        let again = bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
        assert!(matches!(again, Released::Now | Released::Already(Outcome::Succeeded)), "{again:?}");
        assert_eq!(bench.record().await.tenure, None);
    }
}
