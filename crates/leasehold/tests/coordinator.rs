//! The coordinator over a store that fails, delays, loses answers and forgets to answer at all.
//!
//! Whatever the store does, an error is never a grant, a grant is never made twice, and nobody trusts a grant for
//! longer than the store keeps others out.

#![allow(clippy::unwrap_used)]

mod support;

use leasehold::clock::{Clock, ManualClock, Moment};
use leasehold::protocol::{AfterFailure, Decision, Order, Refusal, Report, Request, SlotClaim, decide};
use leasehold::{
    Acquired, Ask, Checkpoint, Coordinator, Event, Grant, Key, Kind, LeaseName, Nonce, Operated, Outcome, Ownership,
    Reason, Released, Shelf, Slot, SlotState, Store, Timestamp, codec,
};
use proptest::prelude::*;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use support::faults::{Call, Fault, Faulty, Hasty};
use support::{CASES, at, holder, millis, property, seconds, ttl};

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
    async fn acquire(&self, nonce: u128) -> leasehold::Result<Acquired> {
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

    async fn operate(&self, order: Order) -> leasehold::Result<Operated> {
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
fn granted(answer: leasehold::Result<Acquired>) -> Grant {
    match answer {
        Ok(Acquired::Granted(grant)) => *grant,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
fn refused(answer: leasehold::Result<Acquired>) -> Refusal {
    match answer {
        Ok(Acquired::Refused { refusal, .. }) => *refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn acquiring_costs_a_read_and_a_swap_renewing_and_releasing_a_swap() {
    let bench = bench();
    let mut grant = bench.grant(1).await;
    assert_eq!(bench.store.round_trips(), (1, 1));
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
    // As another process, which has to read it.
    let bench = Bench { leases: Coordinator::with_clock(bench.store.clone(), bench.leases.clock().clone()), ..bench };
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
    assert_eq!(bench.store.round_trips(), (2, 1));
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
    assert_eq!(bench.store.round_trips(), (3, 3));
}

#[tokio::test]
async fn a_lost_reply_that_cannot_be_read_back_stays_indeterminate() {
    let bench = bench();
    bench.store.plan(|_, n| match n {
        2 => Fault::LostReply,
        3 => Fault::Fails(Kind::Unavailable),
        _ => Fault::None,
    });
    // "Unavailable" would say that surely nothing was applied, and it was.
    assert_eq!(bench.acquire(1).await.unwrap_err().kind(), Kind::Indeterminate);
    assert_eq!(bench.record().await.epoch.get(), 1);
    // Asking again as the same holder finds the grant.
    assert_eq!(bench.grant(1).await.token().epoch.get(), 1);
}

#[tokio::test]
async fn a_lost_reply_whose_grant_ran_out_before_the_reread_is_no_grant() {
    let bench = bench();
    let clock = bench.clock.clone();
    bench.store.plan(move |_, n| match n {
        2 => Fault::LostReply,
        3 => {
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
        let slot = SlotClaim { slot: Slot(at(5)), after_failure: AfterFailure::Leave };
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
    for order in [Order::Revoke, Order::Advance { past: support::epoch(9) }, Order::Pause] {
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
    match order.await {
        Ok(Operated::Refused(refusal)) => assert!(matches!(*refusal, Refusal::Lost { .. })),
        other => panic!("a grant that is gone was given: {other:?}"),
    }
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
async fn a_grant_whose_answer_outlived_it_is_no_grant() {
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
async fn a_renewal_whose_answer_outlived_it_is_no_renewal() {
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
    assert_eq!(reads, swaps);
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
        bench.store.plan(|_, n| if n == 2 { Fault::LostReply } else { Fault::Yields });
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

/// One thing a holder does, and how long the store takes over it.
#[derive(Debug, Clone)]
enum Deed {
    Wait(u64),
    Renew,
    Checkpoint,
    Adopt,
    /// Release, and acquire again from memory.
    ComeBack,
}

#[test]
fn nobody_can_be_granted_a_lease_that_is_still_trusted() {
    let delays = || prop_oneof![3 => 0..5_u64, 2 => 0..900_u64, 1 => 900..4_000_u64];
    let grains = prop_oneof![Just(1_u64), Just(10), Just(1_000), 1..1_500_u64];
    let deed = prop_oneof![
        3 => (0..3_000_u64).prop_map(Deed::Wait),
        4 => Just(Deed::Renew),
        1 => Just(Deed::Checkpoint),
        1 => Just(Deed::Adopt),
        2 => Just(Deed::ComeBack),
    ];
    let script = (
        grains,
        4..12_u64,
        0..2_000_000_000_u64,
        prop::collection::vec((delays(), delays()), 1..12),
        prop::collection::vec(deed, 0..12),
    );
    let trusted_for = std::cell::Cell::new((0_u32, 0_u32));
    property(5 * CASES, script, |(grain_ms, ttl_s, start_ns, delays, deeds)| {
        let clock = ManualClock::default();
        clock.advance(Duration::from_nanos(start_ns));
        let store = Arc::new(Faulty::new(clock.clone()).with_grain(millis(grain_ms)));
        let leases = Coordinator::with_clock(store.clone(), Arc::new(Hasty(clock.clone())));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tries: Result<(), TestCaseError> = runtime.block_on(async {
            let slow = delays.clone();
            store.plan(move |_, n| {
                let (before, after) = slow[n % slow.len()];
                Fault::Slow(millis(before), millis(after))
            });
            let ask = Ask::new(holder(1), ttl(ttl_s));
            let mut grant = match leases.acquire(&name(), &ask).await {
                Ok(Acquired::Granted(grant)) => *grant,
                Ok(other) => return Err(TestCaseError::fail(format!("a free lease was refused: {other:?}"))),
                Err(error) => {
                    prop_assert!(matches!(error.kind(), Kind::Lost | Kind::Invalid), "{error}");
                    let (kept, not) = trusted_for.get();
                    trusted_for.set((kept, not + 1));
                    return Ok(());
                }
            };
            prop_assert!(clock.now() < grant.trust_until(), "a grant that is over was given");
            check_window(&store, &clock, grant.trust_until()).await?;
            for (nonce, deed) in (10..).zip(deeds) {
                let sent = clock.now();
                match deed {
                    Deed::Wait(ms) => clock.advance(millis(ms)),
                    Deed::Renew => match leases.renew(&mut grant, None).await {
                        Ok(()) => {
                            prop_assert!(clock.now() < grant.trust_until(), "a renewal that is over was given");
                            let slack = slack(&delays, grain_ms);
                            prop_assert!(grant.trust_until() <= clock.now() + seconds(ttl_s) + millis(1));
                            prop_assert!(grant.trust_until() + slack >= sent + seconds(ttl_s), "needlessly short");
                        }
                        Err(error) => {
                            prop_assert_eq!(error.kind(), Kind::Lost);
                            return Ok(());
                        }
                    },
                    Deed::Checkpoint => leases.checkpoint(&mut grant, Report::default()).await.unwrap(),
                    Deed::ComeBack => {
                        if leases.release(&grant, Outcome::Succeeded).await.unwrap() != Released::Now {
                            return Ok(());
                        }
                        match leases.acquire(&name(), &Ask::new(holder(nonce), ttl(ttl_s))).await {
                            Ok(Acquired::Granted(next)) => grant = *next,
                            Ok(other) => return Err(TestCaseError::fail(format!("its own was refused: {other:?}"))),
                            Err(error) => {
                                prop_assert_eq!(error.kind(), Kind::Lost);
                                return Ok(());
                            }
                        }
                        prop_assert!(clock.now() < grant.trust_until(), "a grant that is over was given");
                    }
                    Deed::Adopt => match leases.adopt(grant.token()).await {
                        Ok(adopted) => grant = adopted,
                        Err(error) => {
                            prop_assert_eq!(error.kind(), Kind::Lost);
                            return Ok(());
                        }
                    },
                }
                check_window(&store, &clock, grant.trust_until()).await?;
            }
            let (kept, not) = trusted_for.get();
            trusted_for.set((kept + 1, not));
            Ok(())
        });
        tries
    });
    let (kept, not) = trusted_for.get();
    assert!(kept >= 20 && not >= 5, "{kept} histories ended held and {not} were granted too late: too one-sided");
}

/// How much shorter than a TTL a window may be: the grain at both ends, and what the exchanges took.
fn slack(delays: &[(u64, u64)], grain_ms: u64) -> Duration {
    let longest = delays.iter().map(|(before, after)| before + after).max().unwrap_or(0);
    millis(2 * longest + 2 * grain_ms + 2)
}

/// At the last trusted nanosecond, the store must refuse everybody else, whatever the time it tells.
async fn check_window(store: &Faulty, clock: &ManualClock, trust_until: Moment) -> Result<(), TestCaseError> {
    let reading = store.inner.read(&Key::new(Shelf::Lease, &name())).await.unwrap();
    let record: Ownership = codec::decode("ownership", &reading.value.unwrap().bytes, "x").unwrap();
    // The store's true clock runs with ours, a fixed distance apart; it tells at most the true time.
    let ahead_ms = reading.now.as_millis() - clock.now().as_nanos() / 1_000_000;
    let last = (trust_until - Duration::from_nanos(1)).max(clock.now());
    if last >= trust_until {
        return Ok(());
    }
    let then = Timestamp::from_millis(ahead_ms + last.as_nanos() / 1_000_000);
    let other = Request::Acquire { holder: holder(2), ttl: ttl(TTL), slot: None };
    let decision = decide(&record, &other, then);
    prop_assert!(matches!(decision, Decision::Refuse(Refusal::Held { .. })), "granted at {then:?}: {decision:?}");
    Ok(())
}

#[tokio::test]
async fn acquire_any_takes_the_first_that_can_be_had() {
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
    bench.operate(Order::Resume).await.unwrap();
    let mut grant = granted(waiter.await.unwrap());
    let slot = Some(SlotClaim { slot: Slot(at(5)), after_failure: AfterFailure::Leave });
    let error = bench.leases.complete(&mut grant, Outcome::Succeeded).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "there is no slot to complete");
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let grant = granted(bench.leases.acquire(&name(), &Ask { slot, ..ask(2) }).await);
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let refusal = refused(bench.leases.acquire_within(&[name()], &Ask { slot, ..ask(3) }, seconds(60)).await);
    assert!(matches!(refusal, Refusal::AlreadyRun(_)));
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
        Ok(Acquired::Refused { .. }) | Err(_) => {}
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

#[tokio::test]
async fn every_event_has_its_own_counter() {
    let bench = bench();
    for (times, event) in Event::ALL.into_iter().enumerate() {
        for _ in 0..times {
            bench.leases.count(&name(), event).await.unwrap();
        }
    }
    let counters = bench.leases.counters(&name()).await.unwrap();
    for (times, event) in Event::ALL.into_iter().enumerate() {
        assert_eq!(counters.get(event), times as u64, "{}", event.as_str());
    }
    let (all, more) = bench.leases.list_counters(None, 10).await.unwrap();
    let all: Vec<_> = all.into_iter().map(|(lease, counters)| (lease, counters.unwrap())).collect();
    assert_eq!((all, more), (vec![(name(), counters)], false));
    assert_eq!(bench.record().await, Ownership::default(), "counting must not touch the lease");
}

#[tokio::test]
async fn counting_survives_contention_and_reports_an_absent_store() {
    let bench = bench();
    bench.store.next(Call::Swap, &[Fault::Mismatch, Fault::Mismatch]);
    bench.leases.count(&name(), Event::Granted).await.unwrap();
    assert_eq!(bench.leases.counters(&name()).await.unwrap().get(Event::Granted), 1);
    bench.store.plan(|_, _| Fault::Fails(Kind::Unavailable));
    assert_eq!(bench.leases.count(&name(), Event::Granted).await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_full_counter_stays_full() {
    let bench = bench();
    let key = Key::new(Shelf::Counters, &name());
    let full = std::collections::BTreeMap::from([("granted", u64::MAX)]);
    bench.store.inner.swap(&key, None, &codec::encode("counters", &full).unwrap()).await.unwrap();
    bench.leases.count(&name(), Event::Granted).await.unwrap();
    assert_eq!(bench.leases.counters(&name()).await.unwrap().get(Event::Granted), u64::MAX);
}

#[tokio::test]
async fn one_damaged_record_does_not_hide_the_others() {
    let bench = bench();
    granted(bench.leases.acquire(&"a".parse().unwrap(), &ask(1)).await);
    let key = Key::new(Shelf::Lease, &"b".parse().unwrap());
    bench.store.inner.swap(&key, None, b"rubbish").await.unwrap();
    granted(bench.leases.acquire(&"c".parse().unwrap(), &ask(2)).await);
    let listing = bench.leases.list(None, 10).await.unwrap();
    let kinds: Vec<_> =
        listing.entries.iter().map(|(name, r)| (name.as_str(), r.as_ref().err().map(|e| e.kind()))).collect();
    assert_eq!(kinds, [("a", None), ("b", Some(Kind::Corrupt)), ("c", None)]);
    let page = bench.leases.list(Some(&"a".parse().unwrap()), 1).await.unwrap();
    assert_eq!((page.entries[0].0.as_str(), page.more), ("b", true));
}

/// Lets every other task of this runtime run until all of them wait.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// A store whose clock is set back by an hour between a read and the swap that follows it.
#[derive(Debug)]
struct SetBack(leasehold::MemoryStore);

#[async_trait::async_trait]
impl Store for SetBack {
    fn capabilities(&self) -> leasehold::Capabilities {
        self.0.capabilities()
    }

    async fn read(&self, key: &Key) -> leasehold::Result<leasehold::store::Reading> {
        self.0.read(key).await
    }

    async fn swap_parts(
        &self,
        key: &Key,
        expected: Option<&leasehold::Revision>,
        next: leasehold::store::Parts<'_>,
    ) -> leasehold::Result<leasehold::store::Swap> {
        use leasehold::store::Swap;
        Ok(match self.0.swap_parts(key, expected, next).await? {
            Swap::Done { revision, now } => {
                Swap::Done { revision, now: Timestamp::from_millis(now.as_millis() - 3_600_000) }
            }
            Swap::Mismatch => Swap::Mismatch,
        })
    }

    async fn list(
        &self,
        shelf: Shelf,
        after: Option<&LeaseName>,
        limit: usize,
    ) -> leasehold::Result<leasehold::store::Page> {
        self.0.list(shelf, after, limit).await
    }

    async fn erase(&self, key: &Key, expected: &leasehold::Revision) -> leasehold::Result<leasehold::store::Swap> {
        self.0.erase(key, expected).await
    }

    async fn watch(&self, key: &Key) -> leasehold::Result<leasehold::store::Watch> {
        self.0.watch(key).await
    }

    async fn survey(&self) -> leasehold::Result<leasehold::store::Survey> {
        self.0.survey().await
    }
}

#[tokio::test]
async fn a_store_whose_clock_is_set_back_is_not_trusted_for_longer_than_a_ttl() {
    let clock = ManualClock::default();
    let store = SetBack(leasehold::MemoryStore::with_clock(Arc::new(clock.clone())));
    let leases = Coordinator::with_clock(Arc::new(store), Arc::new(clock.clone()));
    let asked = clock.now();
    let ask = Ask::new(holder(1), ttl(TTL));
    let Acquired::Granted(grant) = leases.acquire(&name(), &ask).await.unwrap() else { panic!("it is free") };
    assert!(grant.trust_until() <= asked + Duration::from_secs(TTL));
}
