//! Waiting for a holder that was asked to finish.

use crate::support::faults::{Call, Fault};
use crate::support::{epoch, seconds, ttl};
use crate::{TTL, bench, name, patient_bench, settle};
use leasehold_core::clock::Clock;
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::{Kind, Operated, Outcome};

const DRAIN: Order = Order::Drain { within: leasehold_core::Ttl::MAX };

#[tokio::test]
async fn an_operator_is_woken_by_the_release_without_the_clock_moving() {
    let bench = patient_bench();
    let grant = bench.grant(1).await;
    assert!(matches!(bench.operate(DRAIN).await, Ok(Operated::Done(_))));
    let leases = bench.leases.clone();
    let waiting = tokio::spawn(async move { leases.drained(&name(), epoch(1), seconds(60)).await });
    settle().await;
    assert!(!waiting.is_finished());
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let seen = waiting.await.unwrap().unwrap();
    assert!(seen.record.tenure.is_none() && seen.record.drain.is_some());
}

#[tokio::test]
async fn an_expired_holder_is_waited_for_no_longer_and_one_that_continues_until_the_limit() {
    let bench = bench();
    bench.grant(1).await;
    let begun = bench.clock.now();
    let waited = |since| bench.clock.now().saturating_since(since);
    let seen = bench.leases.drained(&name(), epoch(1), seconds(10 * TTL)).await.unwrap();
    assert!(seen.record.live_tenure(seen.now).is_none());
    assert!(waited(begun) >= seconds(TTL) && waited(begun) <= seconds(TTL + 2), "{:?}", waited(begun));
    // Another epoch is none of ours.
    bench.grant(2).await;
    let begun = bench.clock.now();
    assert_eq!(bench.leases.drained(&name(), epoch(1), seconds(TTL)).await.unwrap().record.epoch, epoch(2));
    assert_eq!(waited(begun), seconds(0));
    let seen = bench.leases.drained(&name(), epoch(2), seconds(3)).await.unwrap();
    assert!(seen.record.live_tenure(seen.now).is_some());
    assert_eq!(waited(begun), seconds(3));
}

#[tokio::test]
async fn a_store_that_is_away_is_waited_for_and_one_that_stays_away_is_reported() {
    let bench = bench();
    let grant = bench.grant(1).await;
    bench.leases.release(&grant, Outcome::Succeeded).await.unwrap();
    bench.store.next(Call::Read, &[Fault::Fails(Kind::Unavailable), Fault::Fails(Kind::Unavailable)]);
    bench.leases.drained(&name(), epoch(1), seconds(60)).await.unwrap();
    bench.store.plan(|call, _| if call == Call::Read { Fault::Fails(Kind::Unavailable) } else { Fault::None });
    let error = bench.leases.drained(&name(), epoch(1), seconds(5)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_request_whose_answer_was_lost_is_made_once_and_an_epoch_that_has_moved_on_refuses_it() {
    let bench = bench();
    bench.grant(1).await;
    bench.store.next(Call::Swap, &[Fault::LostReply]);
    assert!(matches!(bench.operate(DRAIN).await, Ok(Operated::Done(_))));
    let drain = bench.record().await.drain.unwrap();
    assert_eq!((drain.epoch(), drain.asked().by.as_str()), (epoch(1), "ann"));
    let (by, why) = ("bob".parse().unwrap(), "late".parse().unwrap());
    let order = Order::Drain { within: ttl(TTL) };
    let late = bench.leases.operate_if(&name(), by, why, Some(epoch(9)), order).await.unwrap();
    assert!(matches!(late, Operated::Refused(refusal) if matches!(*refusal, Refusal::Changed { .. })));
    assert_eq!(bench.record().await.drain, Some(drain));
}
