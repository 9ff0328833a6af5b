//! Where a job stands: interrupted slots, journals that forget, clocks that were ahead. All of it is pure.

#![allow(clippy::unwrap_used)]

use leasehold_core::lease::protocol::{AfterFailure, Decision, Request, SlotClaim, decide};
use leasehold_core::{Claim, HolderId, Label, Lineage, Nonce, Outcome, Ownership, SLOT_RUNS, Slot, Timestamp, Ttl};
use leasehold_work::schedule::{
    CatchUp, DropReason, ENTRIES_KEPT, Fate, Interrupted, Journal, Last, Plan, RunEnd, Schedule, due,
};
use std::time::Duration;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
/// Some hour, on the hour.
const T0: u64 = 1_800_000_000_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn slot(hour: u64) -> Slot {
    Slot(at(T0 + hour * HOUR))
}

fn hourly() -> Schedule {
    Schedule::every(Duration::from_secs(3_600)).unwrap()
}

/// Claims a slot at a time, for a second; nobody ends the run.
fn claim(record: &Ownership, nonce: u128, claim: SlotClaim, now: Timestamp) -> Ownership {
    let holder = HolderId::of("h", 1, Nonce::from_u128(nonce), Label::lossy("x", "x"));
    let lineage = Lineage::from_u128(1);
    let request =
        Request::Acquire { lineage, holder, ttl: Ttl::MIN, slot: Some(claim), spacing: None, requested: None };
    match decide(record, &request, now) {
        Decision::Write(next) => *next,
        other => panic!("{other:?}"),
    }
}

fn on(slot: Slot) -> SlotClaim {
    SlotClaim::new(slot, AfterFailure::Leave)
}

fn look(record: &Ownership, journal: &Journal, policy: CatchUp, now: u64) -> Plan {
    Plan::of(&hourly(), record, journal, policy, at(now))
}

#[test]
fn an_interrupted_slot_stands_outside_the_count_and_comes_first() {
    let record = claim(&Ownership::default(), 1, on(slot(1)), slot(1).0);
    let now = T0 + 4 * HOUR + 60_000;
    let found = look(&record, &Journal::default(), CatchUp::default(), now);
    assert_eq!(found.interrupted, Some(Interrupted::Again(slot(1))));
    assert_eq!((found.due.run.as_slice(), found.gives_up()), (&[slot(4)][..], None));
    assert_eq!((found.due.dropped.len(), found.due.dropped[0].count), (1, 2));
    // What was dropped since does not hide it.
    let mut journal = Journal::default();
    journal.drop_slots(&found.due.dropped, at(now), "a");
    assert_eq!(look(&record, &journal, CatchUp::default(), now).interrupted, found.interrupted);
}

#[test]
fn a_slot_that_was_dropped_ahead_of_its_time_and_run_in_it_is_run_again_if_that_run_dies() {
    // The store's clock was four hours ahead: the slots on the way there were dropped.
    let mut journal = Journal::default();
    let record = claim(&Ownership::default(), 1, on(slot(0)), slot(0).0);
    let ahead = look(&record, &journal, CatchUp::default(), T0 + 4 * HOUR);
    journal.drop_slots(&ahead.due.dropped, at(T0 + 4 * HOUR), "a");
    assert!(journal.is_settled(slot(2)));
    // It was set back, and one of them came due and was begun by somebody who had not read the journal.
    let record = claim(&Ownership::default(), 2, on(slot(2)), slot(2).0);
    journal.begin(slot(2), record.epoch, slot(2).0, "a");
    let now = T0 + 4 * HOUR + 60_000;
    assert_eq!(look(&record, &journal, CatchUp::default(), now).interrupted, Some(Interrupted::Again(slot(2))));
    assert_eq!(journal.give_up(slot(2), at(now), "a"), Some(Fate::Died));
    assert_eq!(look(&record, &journal, CatchUp::default(), now).interrupted, Some(Interrupted::Settled(slot(2))));
}

#[test]
fn it_dies_of_age_or_of_too_many_runs_and_is_then_given_up() {
    let policy = CatchUp::new(1, Duration::from_secs(2 * 3_600)).unwrap();
    let mut journal = Journal::default();
    let mut record = claim(&Ownership::default(), 1, on(slot(1)), slot(1).0);
    let old = look(&record, &journal, policy, T0 + 4 * HOUR);
    assert_eq!((old.interrupted, old.gives_up()), (Some(Interrupted::Died(slot(1))), Some(slot(1))));
    for run in 2..=SLOT_RUNS {
        let now = T0 + HOUR + u64::from(run) * 60_000;
        assert_eq!(look(&record, &journal, policy, now).interrupted, Some(Interrupted::Again(slot(1))));
        record = claim(&record, u128::from(run), on(slot(1)), at(now));
        journal.begin(slot(1), record.epoch, at(now), "a");
    }
    let now = T0 + HOUR + 30 * 60_000;
    assert_eq!(look(&record, &journal, policy, now).interrupted, Some(Interrupted::Died(slot(1))));
    assert_eq!(journal.give_up(slot(1), at(now), "b"), Some(Fate::Died));
    assert_eq!(journal.give_up(slot(1), at(now), "c"), None);
    assert_eq!((journal.entries[0].fate, journal.entries[0].host.as_str()), (Fate::Died, "a"));
    let next = look(&record, &journal, policy, T0 + 2 * HOUR);
    assert_eq!(next.interrupted, Some(Interrupted::Settled(slot(1))));
    assert_eq!(next.due.run, [slot(2)]);
    record = claim(&record, 9, SlotClaim { gives_up: next.gives_up(), ..on(slot(2)) }, slot(2).0);
    assert_eq!(record.slot.unwrap().slot, slot(2));
}

#[test]
fn what_could_not_be_started_is_open_until_it_is_too_old_and_has_not_died() {
    let policy = CatchUp::new(1, Duration::from_secs(2 * 3_600)).unwrap();
    let (mut record, mut journal) = (Ownership::default(), Journal::default());
    for n in 1..=SLOT_RUNS + 1 {
        let now = at(T0 + HOUR + u64::from(n));
        record = claim(&record, u128::from(n), on(slot(1)), now);
        let claim = Claim { epoch: record.epoch, nonce: Nonce::from_u128(u128::from(n)) };
        let release = Request::Release { claim, outcome: Outcome::NotStarted };
        let Decision::Write(next) = decide(&record, &release, now) else { panic!("it is held") };
        record = *next;
        journal.begin(slot(1), record.epoch, now, "a");
        journal.end(slot(1), record.epoch, RunEnd::NOT_STARTED, now, "a");
        assert_eq!((journal.entries[0].fate, journal.entries[0].attempts), (Fate::NotStarted, n));
        let found = look(&record, &journal, policy, T0 + HOUR + 60_000);
        assert_eq!(found.interrupted, Some(Interrupted::Again(slot(1))));
    }
    let now = T0 + 4 * HOUR;
    assert_eq!(look(&record, &journal, policy, now).interrupted, Some(Interrupted::Died(slot(1))));
    assert_eq!(journal.give_up(slot(1), at(now), "b"), Some(Fate::DroppedTooOld));
    let settled = look(&record, &journal, policy, now);
    assert_eq!(
        (settled.interrupted, settled.due.run.as_slice()),
        (Some(Interrupted::Settled(slot(1))), &[slot(4)][..])
    );
}

#[test]
fn slots_that_are_skipped_one_after_the_other_share_an_entry_and_are_counted_once() {
    let mut journal = Journal::default();
    let record = claim(&Ownership::default(), 1, on(slot(0)), slot(0).0);
    journal.begin(slot(0), record.epoch, slot(0).0, "a");
    let mut counted = 0;
    for n in 1..=131 {
        counted += u64::from(journal.skip(slot(n), Some(slot(n - 1)), Fate::SkippedOverlap, slot(n).0, "a"));
        counted += u64::from(journal.skip(slot(n), Some(slot(n - 1)), Fate::SkippedOverlap, slot(n).0, "b"));
    }
    assert_eq!(counted, 131);
    assert_eq!(journal.entries.len(), 2);
    let span = &journal.entries[1];
    assert_eq!((span.slot, span.end(), span.count), (slot(1), slot(131), Some(131)));
    let found =
        look(&record, &journal, CatchUp::new(5, Duration::from_secs(30 * 86_400)).unwrap(), T0 + 131 * HOUR + 1);
    assert!(found.due.run.is_empty() && found.due.dropped.is_empty(), "{:?}", found.due);
}

#[test]
fn what_a_journal_has_forgotten_is_neither_run_nor_counted_again() {
    let policy = CatchUp::new(5, Duration::from_secs(30 * 86_400)).unwrap();
    let record = claim(&Ownership::default(), 1, on(slot(0)), slot(0).0);
    let mut journal = Journal::default();
    // Skipped and paused in turn, so that none share an entry.
    let fate = |n: u64| if n.is_multiple_of(2) { Fate::SkippedOverlap } else { Fate::Paused };
    let mut counted = 0;
    for n in 1..=200 {
        counted += u64::from(journal.skip(slot(n), Some(slot(n - 1)), fate(n), slot(n).0, "a"));
        let found = look(&record, &journal, policy, T0 + n * HOUR + 1);
        assert!(found.due.run.is_empty() && found.due.dropped.is_empty(), "{n}: {:?}", found.due);
        for again in 1..=n {
            counted += u64::from(journal.skip(slot(again), Some(slot(again - 1)), fate(again), slot(n).0, "b"));
        }
    }
    assert_eq!((counted, journal.entries.len()), (200, ENTRIES_KEPT));
    assert!(journal.has_forgotten(slot(5)) && !journal.has_forgotten(slot(150)) && !journal.has_forgotten(slot(300)));
    // An old slot that is run after all is not forgotten in the same breath.
    journal.begin(slot(3), record.epoch, slot(200).0, "a");
    assert_eq!(journal.entries[0].slot, slot(3));
    assert_eq!(journal.entries.len(), ENTRIES_KEPT);
}

#[test]
fn a_mark_that_is_ahead_runs_nothing_names_what_comes_due_and_can_be_set_back() {
    let year = 365 * 24;
    let mut journal = Journal { since: Some(slot(0).0), ..Journal::default() };
    let normal = claim(&Ownership::default(), 1, on(slot(1)), slot(1).0);
    journal.begin(slot(1), normal.epoch, slot(1).0, "a");
    // The clock jumps: the year is dropped, its last slot claimed.
    let ahead = look(&normal, &journal, CatchUp::default(), slot(year).0.as_millis());
    journal.drop_slots(&ahead.due.dropped, slot(year).0, "a");
    journal.give_up(slot(1), slot(year).0, "a");
    let record = claim(&normal, 2, SlotClaim { gives_up: Some(slot(1)), ..on(slot(year)) }, slot(year).0);
    journal.begin(slot(year), record.epoch, slot(year).0, "a");
    // And back. What comes due is named, once, whoever looks.
    let mut told = 0;
    for hour in 3..=5 {
        let now = T0 + hour * HOUR + 1;
        for _ in 0..2 {
            let found = look(&record, &journal, CatchUp::default(), now);
            assert_eq!((found.ahead, found.interrupted, found.due.run.len()), (Some(slot(year)), None, 0));
            assert!(found.due.dropped.iter().all(|d| d.reason == DropReason::ClockAhead), "{found:?}");
            told += journal.drop_slots(&found.due.dropped, at(now), "a").iter().map(|d| d.count).sum::<u64>();
        }
    }
    assert!((2..=5).all(|hour| journal.is_settled(slot(hour))), "every due slot has a fate: {journal:?}");
    assert!(told <= 4, "{told}");
    let now = T0 + 5 * HOUR + 2;
    journal.rewind(at(now));
    assert!(journal.settled_until().unwrap().0 <= at(now), "{journal:?}");
    let order = Request::Operate {
        nonce: Nonce::from_u128(77),
        lineage: Lineage::from_u128(1),
        by: "ann".parse().unwrap(),
        why: "the clock was ahead".parse().unwrap(),
        expected: None,
        order: leasehold_core::lease::protocol::Order::Rewind,
    };
    let Decision::Write(rewound) = decide(&record, &order, at(now)) else { panic!() };
    assert_eq!(look(&rewound, &journal, CatchUp::default(), now).due.run, []);
    let next = look(&rewound, &journal, CatchUp::default(), T0 + 6 * HOUR + 1);
    assert_eq!((next.due.run.as_slice(), next.ahead, next.due.dropped.len()), (&[slot(6)][..], None, 0));
}

#[test]
fn slots_that_come_due_while_the_mark_is_ahead_are_all_named() {
    let daily = due(&hourly(), at(T0 + DAY), Last::Ahead(at(T0)), CatchUp::default(), |_| false);
    assert_eq!((daily.run.len(), daily.dropped.len(), daily.dropped[0].count), (0, 1, 24));
    assert_eq!((daily.dropped[0].reason, daily.dropped[0].before), (DropReason::ClockAhead, Some(slot(0))));
}
