//! An item's record fits into a store, whatever the item carries within the documented limits and whatever is done to it.
#![allow(clippy::unwrap_used)]

use leasehold_core::codec::MAX_RECORD_BYTES;
use leasehold_core::lease::protocol::{Holder, Report};
use leasehold_core::relocation::{Address, Step};
use leasehold_core::{Checkpoint, Claim, HolderId, Label, Lineage, Marker, Nonce, Timestamp, Ttl, Who, Why};
use leasehold_work::queue::protocol::{Decision, Order, Refusal, Request, arriving, decide};
use leasehold_work::queue::{
    Attempts, FollowUp, Item, ItemId, ItemName, Payload, Priority, QueueName, Reason, State, What,
};
use proptest::prelude::*;
use std::time::Duration;

const T0: u64 = u64::MAX / 4;

/// Bytes that grow most in one encoding or the other.
#[derive(Debug, Clone, Copy)]
enum Fill {
    Binary,
    Control,
    Quotes,
    Letters,
    Wide,
}

const FILLS: [Fill; 5] = [Fill::Binary, Fill::Control, Fill::Quotes, Fill::Letters, Fill::Wide];

impl Fill {
    fn text(self, len: usize) -> String {
        match self {
            Fill::Binary | Fill::Control => "\u{1}".repeat(len),
            Fill::Quotes => "\"".repeat(len),
            Fill::Letters => "x".repeat(len),
            Fill::Wide => "é".repeat(len / 2),
        }
    }

    fn bytes(self, len: usize) -> Vec<u8> {
        if let Fill::Binary = self { vec![0xff; len] } else { self.text(len).into_bytes() }
    }

    fn line<const MAX: usize>(self) -> leasehold_core::Line<MAX> {
        // Control characters have no place in a line.
        let text = if let Fill::Binary | Fill::Control = self { "\\".repeat(MAX) } else { self.text(MAX) };
        leasehold_core::Line::new(text).unwrap()
    }
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Claim,
    Renew,
    Progress,
    Complete { follow_ups: usize },
    Fail,
    Return,
    Reap,
    Settle,
    Retry,
    Cancel,
    HandOff,
    Drain,
    Leave,
    Stay,
}

const OPS: [Op; 16] = [
    Op::Claim,
    Op::Claim,
    Op::Renew,
    Op::Progress,
    Op::Complete { follow_ups: 0 },
    Op::Complete { follow_ups: 1 },
    Op::Complete { follow_ups: 400 },
    Op::Fail,
    Op::Return,
    Op::Reap,
    Op::Settle,
    Op::Retry,
    Op::Cancel,
    Op::HandOff,
    Op::Drain,
    Op::Leave,
];

fn name() -> ItemName {
    let queue: QueueName = "q".repeat(64).parse().unwrap();
    ItemName { queue, id: ItemId::keyed(&"k".repeat(64).parse().unwrap()) }
}

fn holder(fill: Fill, nonce: u128) -> HolderId {
    let label: Label = fill.line();
    HolderId::of("h".repeat(64), u32::MAX, Nonce::from_u128(nonce), label)
}

fn request(op: Op, item: &Item, fill: Fill, nonce: u128) -> Request {
    let ttl = Ttl::new(Duration::from_secs(90)).unwrap();
    let held = item.tenure().map_or(Nonce::from_u128(1), |t| t.holder.nonce());
    let claim = Claim { epoch: item.epoch, nonce: held };
    let (by, why): (Who, Why) = (fill.line(), fill.line());
    let operate = |order| Request::Operate {
        nonce: Nonce::from_u128(nonce),
        by: by.clone(),
        why: why.clone(),
        expected: None,
        order,
    };
    let migrate = |step| operate(Order::Relocate { migration: Nonce::from_u128(7), step, holder: Holder::Evicted });
    let follow_up = |n: usize| FollowUp {
        name: ItemName { id: ItemId::keyed(&format!("{n:064}").parse().unwrap()), ..name() },
        payload: Payload::new(fill.bytes(if n == 0 { 20_000 } else { 10 })).unwrap(),
        priority: Priority::default(),
        delay_ms: u64::MAX,
        attempts: Attempts::default(),
    };
    match op {
        Op::Claim => Request::Claim { holder: holder(fill, nonce), ttl },
        Op::Renew => Request::Renew { claim, ttl },
        Op::Progress => {
            let marker: Marker = fill.line();
            let checkpoint = Checkpoint::new(fill.text(Checkpoint::MAX_BYTES)).unwrap();
            Request::Progress { claim, report: Report { marker: Some(marker), checkpoint: Some(checkpoint) } }
        }
        Op::Complete { follow_ups } => Request::Complete {
            claim,
            result: Some(Payload::result(fill.bytes(Payload::MAX_RESULT_BYTES)).unwrap()),
            follow_ups: (0..follow_ups).map(follow_up).collect(),
        },
        Op::Fail => {
            let why: Reason = fill.line();
            Request::Fail { claim, why, retry_in: Some(Duration::ZERO), is_final: false }
        }
        Op::Return => Request::Return { claim, wait: None },
        Op::Reap => Request::Reap,
        Op::Settle => Request::Settle,
        Op::Retry => operate(Order::Retry { past: None }),
        Op::Cancel => operate(Order::Cancel),
        Op::HandOff => operate(Order::HandOff { to: holder(fill, nonce), ttl }),
        Op::Drain => operate(Order::Drain { within: Ttl::MAX }),
        Op::Leave => migrate(Step::Leave { to: fill.line() }),
        Op::Stay => migrate(Step::Stay),
    }
}

/// What must hold of every record that is written.
fn check(item: &Item, fill: Fill) {
    let bytes = item.encode().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(&Item::decode(&bytes, "x").unwrap(), item);
    // Wherever it is taken to.
    let from: Address = fill.line();
    arriving(item, Nonce::from_u128(7), &from).encode().unwrap_or_else(|e| panic!("it cannot be moved: {e}"));
    if item.relocation.is_some() {
        let Decision::Write(_) = decide(item, &request(Op::Stay, item, fill, 3), Timestamp::from_millis(T0)) else {
            panic!("a migration of it cannot be given up")
        };
        return;
    }
    let is_over = matches!(item.state, State::Done { .. } | State::Cancelled { .. });
    match decide(item, &request(Op::Cancel, item, fill, u128::MAX), Timestamp::from_millis(T0)) {
        Decision::Write(next) => assert!(next.encode().is_ok(), "what was cancelled is too large"),
        Decision::Refuse(Refusal::Finished { .. }) if is_over => {}
        other => panic!("it cannot be cancelled: {other:?}"),
    }
}

fn new(payload: Vec<u8>, most: u32) -> Item {
    let attempts = Attempts { most, backoff_ms: u64::MAX };
    let payload = Payload::new(payload).unwrap();
    let at = Timestamp::from_millis(T0);
    let mut item = Item::new(Lineage::from_u128(u128::MAX), payload, Priority::default(), attempts, at, Some(at));
    item.origin = Some(format!("{}@{}", name(), u64::MAX));
    item
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_history_makes_a_record_too_large_or_keeps_it_from_being_cancelled(
        history in prop::collection::vec((prop::sample::select(&OPS[..]), prop::sample::select(&FILLS[..])), 1..50),
        len in prop_oneof![Just(Payload::MAX_BYTES), 0..=Payload::MAX_BYTES],
        fill in prop::sample::select(&FILLS[..]),
        most in prop_oneof![Just(1_u32), Just(1_000)],
    ) {
        let mut item = new(fill.bytes(len), most);
        for (n, (op, fill)) in (100..).zip(history) {
            let decision = decide(&item, &request(op, &item, fill, n), Timestamp::from_millis(T0 + n as u64));
            match decision {
                Decision::Write(next) => {
                    prop_assert_eq!(&next.payload, &item.payload);
                    item = *next;
                    check(&item, fill);
                }
                Decision::Refuse(Refusal::TooLarge { bytes, most }) => {
                    // Only follow-ups have no limit of their own.
                    let adds = matches!(op, Op::Complete { follow_ups } if follow_ups > 0);
                    prop_assert!(adds && bytes > most, "{:?} was refused with {} bytes", op, bytes);
                }
                Decision::AlreadyApplied | Decision::Refuse(_) => {}
            }
        }
    }
}

/// Everything at its limit at once, and the longest reasons, until the end.
#[test]
fn the_largest_parts_live_together_through_a_whole_life() {
    for fill in FILLS {
        let mut item = new(fill.bytes(Payload::MAX_BYTES), 1_000);
        let mut nonce = 10;
        let mut step = |item: &mut Item, op| {
            nonce += 1;
            match decide(item, &request(op, item, fill, nonce), Timestamp::from_millis(T0 + nonce as u64)) {
                Decision::Write(next) => *item = *next,
                other => panic!("{op:?} with {fill:?} gave {other:?}"),
            }
            check(item, fill);
        };
        for _ in 0..30 {
            for op in [
                Op::Claim,
                Op::Progress,
                Op::Renew,
                Op::Fail,
                Op::Retry,
                Op::HandOff,
                Op::Drain,
                Op::Return,
                Op::Leave,
                Op::Stay,
            ] {
                step(&mut item, op);
            }
        }
        // The newest are kept.
        assert!(item.history.len() > 2 && item.history.last().is_some_and(|e| e.what == What::Moved), "{fill:?}");
        step(&mut item, Op::Cancel);
        step(&mut item, Op::Retry);
        step(&mut item, Op::Claim);
        let reason: Reason = fill.line();
        assert!(item.history.iter().any(|e| e.why.as_ref() == Some(&reason)));
        step(&mut item, Op::Complete { follow_ups: 0 });
        assert_eq!(item.result.as_ref().unwrap().bytes().len(), fill.bytes(Payload::MAX_RESULT_BYTES).len());
        let bytes = item.encode().unwrap().len();
        assert!(bytes <= MAX_RECORD_BYTES, "{bytes}");
        step(&mut item, Op::Leave);
    }
}

/// The old events go first, and only when there is no room.
#[test]
fn an_ordinary_item_keeps_its_events() {
    let mut item = new(b"to: ada".to_vec(), 1_000);
    for n in 0..12 {
        for op in [Op::Claim, Op::Fail] {
            match decide(&item, &request(op, &item, Fill::Letters, 50 + n), Timestamp::from_millis(T0 + n as u64)) {
                Decision::Write(next) => item = *next,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(item.history.len(), 24);
}
