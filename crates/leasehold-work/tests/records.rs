//! Records of items and journals as bytes: golden files, and damage that must be noticed.
//!
//! A golden file is never rewritten. When a format changes, a new version gets new files and the old ones stay.
#![allow(clippy::unwrap_used)]

use leasehold_core::clock::ManualClock;
use leasehold_core::codec::{decode, encode};
use leasehold_core::store::{Range, Store};
use leasehold_core::{Claim, Epoch, HolderId, Kind, MemoryStore, Nonce, Shelf, Slot, Timestamp, Ttl};
use leasehold_work::output::{RunOutput, Usage};
use leasehold_work::queue::protocol::{Decision, Order, Request, decide};
use leasehold_work::queue::{
    Attempts, Claimed, Claimer, FollowUp, Item, ItemId, ItemName, NewItem, Payload, Priority, Queue,
};
use leasehold_work::schedule::{EndReason, Entry, Fate, Journal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

const NEW: &str = include_str!("golden/v1-item-new.record");
const CLAIMED: &str = include_str!("golden/v1-item-claimed.record");
const FULL: &str = include_str!("golden/v1-item-full.record");
const RUNS: &str = include_str!("golden/v1-runs.record");
const KEPT_RUN: &str = include_str!("golden/v1-runs-output.record");
const OUTPUT: &str = include_str!("golden/v1-output.record");

const IN_LINE: &str = include_str!("golden/v1-line-copied.record");
const ASIDE: &str = include_str!("golden/v1-line.record");
const WAKE: &str = include_str!("golden/v1-wake.record");

const T0: u64 = 1_700_000_000_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(T0 + ms)
}

fn holder(nonce: u128) -> HolderId {
    HolderId::of("a.example", 77, Nonce::from_u128(nonce), "worker-1".parse().unwrap())
}

fn ttl() -> Ttl {
    Ttl::new(Duration::from_secs(90)).unwrap()
}

fn next(item: &Item, request: Request, ms: u64) -> Item {
    match decide(item, &request, at(ms)) {
        Decision::Write(next) => *next,
        other => panic!("{request:?} gave {other:?}"),
    }
}

fn new() -> Item {
    let payload = Payload::new("to: ada \\ \"naïve\"\n").unwrap();
    Item::new(
        leasehold_core::Lineage::from_u128(1),
        payload,
        Priority::try_from(7).unwrap(),
        Attempts { most: 3, backoff_ms: 250 },
        at(0),
        Some(at(5)),
    )
}

fn claimed() -> Item {
    next(&new(), Request::Claim { holder: holder(1), ttl: ttl() }, 10)
}

fn claim(epoch: u64, nonce: u128) -> Claim {
    Claim { epoch: Epoch::new(epoch).unwrap(), nonce: Nonce::from_u128(nonce) }
}

/// A life in which everything happened that a record can tell.
fn full() -> Item {
    let report = serde_report();
    let item = next(&claimed(), Request::Progress { claim: claim(1, 1), report }, 20);
    let why = "no route".parse().unwrap();
    let item = next(&item, Request::Fail { claim: claim(1, 1), why, retry_in: None, is_final: false }, 30);
    let operate = |order| Request::Operate {
        nonce: Nonce::from_u128(9),
        by: "ada".parse().unwrap(),
        why: "by hand".parse().unwrap(),
        expected: None,
        order,
    };
    let mut item = next(&item, operate(Order::HandOff { to: holder(2), ttl: ttl() }), 40);
    item.origin = Some("mail/k.parent@4".into());
    let follow_ups = vec![FollowUp {
        name: ItemName { queue: "next".parse().unwrap(), id: ItemId::keyed(&"child".parse().unwrap()) },
        payload: Payload::new([0_u8, 159, 146, 150]).unwrap(),
        priority: Priority::default(),
        delay_ms: 1_500,
        attempts: Attempts::default(),
    }];
    let result = Some(Payload::result("sent").unwrap());
    next(&item, Request::Complete { claim: claim(2, 2), result, follow_ups }, 50)
}

fn serde_report() -> leasehold_core::lease::protocol::Report {
    leasehold_core::lease::protocol::Report {
        marker: Some("page 3".parse().unwrap()),
        checkpoint: Some(leasehold_core::Checkpoint::new("{\"page\":3}").unwrap()),
    }
}

/// One entry of every fate, and every field used but those of a run's output.
fn runs() -> Journal {
    let fates = [
        Fate::Running,
        Fate::Succeeded,
        Fate::Failed,
        Fate::Lost,
        Fate::SkippedOverlap,
        Fate::DroppedTooOld,
        Fate::DroppedCoalesced,
        Fate::Paused,
        Fate::DroppedClockAhead,
        Fate::Died,
    ];
    let entries = (0..).zip(fates).map(|(n, fate)| Entry {
        slot: Slot(at(n * 60_000)),
        last: (n > 4).then(|| Slot(at(n * 60_000 + 30_000))),
        count: (n > 4).then_some(n),
        more: n == 5,
        fate,
        at: at(n * 60_000 + 12),
        host: "a.example".into(),
        epoch: (n < 4).then(|| Epoch::new(n + 1).unwrap()),
        attempts: if n < 4 { 2 } else { 0 },
        exit: (n == 2).then_some(137),
        ran_for_ms: (n == 1 || n == 2).then_some(4_321),
        usage: None,
        output: None,
        why: None,
    });
    Journal {
        since: Some(at(0)),
        settled_to: Some(Slot(at(420_000))),
        forgotten_to: Some(Slot(at(0))),
        entries: entries.collect(),
    }
}

const USAGE: Usage = Usage { cpu_ms: 1_234, peak_memory_bytes: 5_678_901 };

/// A run whose output is kept.
fn kept_run() -> Journal {
    let (epoch, output) = (Epoch::new(42).ok(), "000102030405060708090a0b0c0d0e0f/00042".parse().ok());
    let why = Some(EndReason::lossy("it ran for longer than --max-runtime", "-"));
    let entry = Entry::new(Slot(at(0)), Fate::Failed, at(12), "a.example");
    let run =
        Entry { epoch, attempts: 1, exit: Some(3), ran_for_ms: Some(4_321), usage: Some(USAGE), output, why, ..entry };
    Journal { entries: vec![run], ..Journal::default() }
}

/// Every field used.
fn output() -> RunOutput {
    RunOutput {
        lease: "nightly".parse().unwrap(),
        epoch: Epoch::new(42).unwrap(),
        slot: Some(Slot(at(0))),
        host: "a.example".into(),
        at: at(7_000),
        exit: Some(3),
        why: None,
        usage: Some(USAGE),
        bytes: 12_345,
        file: Some("a.example-1000/nightly/42-000102030405060708090a0b0c0d0e0f.log.gz".into()),
        is_cut: true,
        tail: "no space left\n".into(),
    }
}

#[track_caller]
fn pinned<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(kind: &str, golden: &str, record: &T) {
    assert_eq!(String::from_utf8(encode(kind, record).unwrap()).unwrap(), golden, "golden files are never rewritten");
    assert_eq!(&decode::<T>(kind, golden.as_bytes(), "golden").unwrap(), record);
}

#[test]
fn a_new_item_is_pinned() {
    pinned("item", NEW, &new());
}

#[test]
fn a_claimed_item_is_pinned() {
    pinned("item", CLAIMED, &claimed());
}

#[test]
fn an_item_whose_worker_is_asked_to_finish_is_pinned() {
    let (by, why) = ("ada".parse().unwrap(), "node 7 goes down".parse().unwrap());
    let order = Order::Drain { within: ttl() };
    let asked = Request::Operate { nonce: Nonce::from_u128(9), by, why, expected: None, order };
    pinned("item", include_str!("golden/v1-item-draining.record"), &next(&claimed(), asked, 20));
}

#[test]
fn an_item_with_everything_is_pinned() {
    pinned("item", FULL, &full());
}

#[test]
fn a_journal_with_everything_is_pinned() {
    pinned("runs", RUNS, &runs());
}

#[test]
fn the_end_of_a_runs_output_and_the_entry_that_names_it_are_pinned() {
    pinned("output", OUTPUT, &output());
    pinned("runs", KEPT_RUN, &kept_run());
}

#[test]
fn every_flipped_bit_and_every_cut_of_an_item_and_a_journal_is_noticed() {
    for at in 0..FULL.len() {
        for bit in 0..8 {
            let mut bad = FULL.as_bytes().to_vec();
            bad[at] ^= 1 << bit;
            let error = Item::decode(&bad, "x").unwrap_err();
            assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "byte {at} bit {bit}: {error}");
        }
        assert_eq!(Item::decode(&FULL.as_bytes()[..at], "x").unwrap_err().kind(), Kind::Corrupt);
    }
    for at in 0..RUNS.len() {
        let mut bad = RUNS.as_bytes().to_vec();
        bad[at] ^= 4;
        let error = decode::<Journal>("runs", &bad, "x").unwrap_err();
        assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "byte {at}: {error}");
    }
    assert_eq!(Item::decode(RUNS.as_bytes(), "x").unwrap_err().kind(), Kind::Corrupt);
}

/// An entry in line, the one aside while the item is claimed, and the wake record, as they are stored.
#[tokio::test]
async fn positions_in_line_and_wake_records_are_pinned() {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    let queue = Queue::with_clock(store.clone(), "mail".parse().unwrap(), clock);
    let key = Some("a".parse().unwrap());
    queue.add(NewItem { payload: Payload::new("to: ada").unwrap(), key, ..NewItem::default() }).await.unwrap();
    let on = async |shelf| {
        let mut entries = store.list(shelf, Range::new(None, 9)).await.unwrap().entries;
        assert_eq!(entries.len(), 1, "on {shelf:?}");
        let (name, value) = entries.remove(0);
        (name.to_string(), String::from_utf8(value.bytes).unwrap())
    };
    let began = T0 + 1_000;
    // Its lineage is another each time, and so is the checksum.
    let (name, entry) = on(Shelf::Line).await;
    let at = entry.find("lineage").unwrap() + "lineage\":\"".len();
    let same = entry.replacen(&entry[at..at + 32], &format!("{:032x}", 1), 1);
    let body = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!((name, body(&same)), (format!("mail/4/{began:015}/k.a/0"), body(IN_LINE)));
    let mut claimer = Claimer::new(queue.clone(), None, ttl()).unwrap();
    assert!(matches!(claimer.claim().await.unwrap(), Claimed::Item(_)));
    let deadline = began + 90_000;
    assert_eq!(on(Shelf::Line).await, (format!("mail/-/{deadline:015}/k.a/1"), ASIDE.to_owned()));
    // Its nonce is another each time; each wake replaces it.
    let (name, woken) = on(Shelf::Queue).await;
    assert_eq!((name.as_str(), woken.len(), woken == WAKE), ("mail", WAKE.len(), false));
    let shape = |text: &str| text.split(['"', ' ']).map(|word| word.len()).collect::<Vec<_>>();
    assert_eq!((shape(&woken), &woken[..17]), (shape(WAKE), &WAKE[..17]));
}
