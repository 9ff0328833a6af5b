//! Unit tests of the protocol: moves, lineages, and the fate of requests whose answers were lost.

use super::*;
use crate::lease::record::Slot;
use crate::nonce::Lineage;
use crate::relocation::{Address, Relocation, Step};
use crate::text::{Who, Why};

fn holder(nonce: u128) -> HolderId {
    HolderId { host: "h".into(), pid: 1, nonce: Nonce::from_u128(nonce), label: crate::text::Label::lossy("x", "x") }
}

fn written(decision: Decision) -> Ownership {
    match decision {
        Decision::Write(next) => *next,
        other => panic!("nothing to write: {other:?}"),
    }
}

#[test]
fn a_hand_off_whose_reply_was_lost_claims_no_later_epoch() {
    let (start, late) = (Timestamp::from_millis(0), Timestamp::from_millis(5_000));
    let hand_off = Request::Operate {
        nonce: Nonce::from_u128(9),
        lineage: Lineage::from_u128(1),
        by: Who::lossy("ops", "ops"),
        why: Why::lossy("drill", "drill"),
        expected: None,
        order: Order::HandOff { to: holder(1), ttl: Ttl::MIN },
    };
    let handed = written(decide(&Ownership::default(), &hand_off, start));
    assert_eq!(decide(&handed, &hand_off, start), Decision::AlreadyApplied);
    let acquire = Request::Acquire {
        lineage: Lineage::from_u128(1),
        holder: holder(2),
        ttl: Ttl::MIN,
        slot: None,
        spacing: None,
        requested: None,
    };
    let taken = written(decide(&handed, &acquire, late));
    assert!(matches!(decide(&taken, &hand_off, late), Decision::Refuse(Refusal::Lost { .. })));
}

const START: Timestamp = Timestamp::from_millis(0);
const LATE: Timestamp = Timestamp::from_millis(5_000);

fn acquire(nonce: u128) -> Request {
    acquire_in(nonce, 1)
}

fn acquire_in(nonce: u128, lineage: u128) -> Request {
    Request::Acquire {
        lineage: Lineage::from_u128(lineage),
        holder: holder(nonce),
        ttl: Ttl::MIN,
        slot: None,
        spacing: None,
        requested: None,
    }
}

fn operate(nonce: u128, order: Order) -> Request {
    Request::Operate {
        nonce: Nonce::from_u128(nonce),
        lineage: Lineage::from_u128(1),
        by: Who::lossy("ops", "ops"),
        why: Why::lossy("drill", "drill"),
        expected: None,
        order,
    }
}

fn step(migration: u128, step: Step, holder: Holder) -> Request {
    let number = [Step::Stay, Step::Depart, Step::Settle, Step::Withdraw].iter().position(|known| *known == step);
    let nonce = 1_000 * migration + number.map_or(0, |at| at as u128 + 1);
    operate(nonce, Order::Relocate { migration: Nonce::from_u128(migration), step, holder })
}

fn leave(migration: u128, holder: Holder) -> Request {
    step(migration, Step::Leave { to: Address::lossy("dir:/b", "-") }, holder)
}

fn arrive(migration: u128, record: &Ownership) -> Request {
    let (migration, from) = (Nonce::from_u128(migration), Address::lossy("dir:/a", "-"));
    operate(2, Order::Arrive { migration, from, record: Box::new(record.clone()), newborn: Newborn::Keep })
}

fn after(record: &Ownership, request: &Request, now: Timestamp) -> Ownership {
    written(decide(record, request, now))
}

#[test]
fn a_moved_lease_refuses_everything_and_says_where_it_went() {
    let held = after(&Ownership::default(), &acquire(1), START);
    let moving = after(&held, &leave(1, Holder::Evicted), START);
    let moved = after(&moving, &step(1, Step::Depart, Holder::Stays), START);
    let claim = Claim { epoch: held.epoch, nonce: Nonce::from_u128(1) };
    let requests = [
        acquire(1),
        acquire(2),
        Request::Renew { claim, ttl: Ttl::MIN, progress: None },
        Request::Release { claim, outcome: Outcome::Succeeded },
        Request::Complete { claim, outcome: Outcome::Succeeded },
        Request::Checkpoint { claim, report: Report::default() },
        operate(9, Order::Revoke),
        operate(9, Order::HandOff { to: holder(3), ttl: Ttl::MIN }),
        operate(9, Order::Drain { within: Ttl::MIN }),
        operate(9, Order::Forget { idle: std::time::Duration::ZERO }),
        operate(9, Order::Pause),
        operate(9, Order::Resume { pause: Nonce::from_u128(8) }),
        operate(9, Order::Advance { past: Epoch::new(99).unwrap(), lineage: None }),
        leave(2, Holder::Evicted),
        step(2, Step::Stay, Holder::Stays),
        step(1, Step::Settle, Holder::Stays),
    ];
    for record in [&moving, &moved] {
        for request in &requests {
            let answer = decide(record, request, LATE);
            assert!(matches!(answer, Decision::Refuse(Refusal::Elsewhere(_))), "{request:?}: {answer:?}");
        }
    }
    assert_eq!(decide(&moved, &step(1, Step::Stay, Holder::Stays), LATE), Decision::Refuse(moving::elsewhere(&moved)));
}

#[test]
fn a_held_lease_leaves_only_when_its_holder_is_evicted_in_that_step() {
    let held = after(&Ownership::default(), &acquire(1), START);
    assert!(matches!(decide(&held, &leave(1, Holder::Stays), START), Decision::Refuse(Refusal::Held { .. })));
    let left = after(&held, &leave(1, Holder::Evicted), START);
    assert!(left.tenure.is_none() && left.epoch > held.epoch);
    // An expired tenure does not stop the lease from leaving, and is over if the migration is given up.
    let left = after(&held, &leave(1, Holder::Stays), LATE);
    let back = after(&left, &step(1, Step::Stay, Holder::Stays), LATE);
    assert!(back.tenure.is_none() && back.relocation.is_none() && back.epoch == held.epoch);
}

#[test]
fn a_copy_is_not_granted_before_it_is_settled_and_then_above_every_epoch() {
    let held = after(&Ownership::default(), &acquire(1), START);
    let left = after(&held, &leave(1, Holder::Evicted), START);
    let copy = after(&Ownership::default(), &arrive(1, &left), START);
    assert_eq!((copy.epoch, copy.lineage), (left.epoch, left.lineage));
    assert!(matches!(
        decide(&copy, &acquire(2), LATE),
        Decision::Refuse(Refusal::Elsewhere(Relocation::Arriving { .. }))
    ));
    assert_eq!(decide(&copy, &arrive(1, &left), LATE), Decision::AlreadyApplied);
    let settled = after(&copy, &step(1, Step::Settle, Holder::Stays), LATE);
    assert!(settled.epoch > left.epoch && settled.relocation.is_none());
    assert_eq!(after(&settled, &acquire(2), LATE).lineage, held.lineage);
}

#[test]
fn a_lease_comes_home_and_a_stranger_does_not() {
    let here = after(&Ownership::default(), &acquire(1), START);
    let moving = after(&here, &leave(1, Holder::Evicted), START);
    let gone = after(&moving, &step(1, Step::Depart, Holder::Stays), START);
    let copy = after(&Ownership::default(), &arrive(1, &moving), START);
    let there = after(&copy, &step(1, Step::Settle, Holder::Stays), START);
    let leaving = after(&after(&there, &acquire(2), LATE), &leave(2, Holder::Evicted), LATE);
    let home = after(&gone, &arrive(2, &leaving), LATE);
    assert_eq!(home.epoch, leaving.epoch);

    let stranger = after(&Ownership::default(), &acquire_in(7, 2), START);
    let left = after(&stranger, &leave(3, Holder::Evicted), START);
    assert!(matches!(decide(&gone, &arrive(3, &left), LATE), Decision::Refuse(Refusal::Elsewhere(_))));
    assert!(matches!(decide(&here, &arrive(3, &left), LATE), Decision::Refuse(Refusal::OtherLineage { .. })));
    // A copy of a store that is still in use.
    assert!(matches!(decide(&here, &arrive(1, &moving), LATE), Decision::Refuse(Refusal::NotMoving { .. })));
}

#[test]
fn what_came_up_where_everybody_had_left_gives_way_to_what_comes_home() {
    let ghost = after(&Ownership::default(), &acquire_in(7, 2), START);
    let there = after(&Ownership::default(), &acquire(1), START);
    let left = after(&there, &leave(3, Holder::Evicted), START);
    let arriving = |newborn| {
        let (migration, from) = (Nonce::from_u128(3), Address::lossy("dir:/a", "-"));
        operate(2, Order::Arrive { migration, from, record: Box::new(left.clone()), newborn })
    };
    assert!(matches!(decide(&ghost, &arriving(Newborn::Keep), LATE), Decision::Refuse(Refusal::OtherLineage { .. })));
    let home = after(&ghost, &arriving(Newborn::Discard), LATE);
    assert_eq!((home.epoch, home.lineage, home.newborn), (left.epoch, left.lineage, false));
    // This holder did more than acquire, so it had passed the check of the namespace: its lease counts.
    let claim = Claim { epoch: ghost.epoch, nonce: Nonce::from_u128(7) };
    let proved = after(&ghost, &Request::Renew { claim, ttl: Ttl::MIN, progress: None }, START);
    assert!(matches!(
        decide(&proved, &arriving(Newborn::Discard), LATE),
        Decision::Refuse(Refusal::OtherLineage { .. })
    ));
}

#[test]
fn a_withdrawn_copy_belongs_to_the_store_that_it_came_from() {
    let held = after(&Ownership::default(), &acquire(1), START);
    let left = after(&held, &leave(1, Holder::Evicted), START);
    let copy = after(&Ownership::default(), &arrive(1, &left), START);
    let withdrawn = after(&copy, &step(1, Step::Withdraw, Holder::Stays), LATE);
    let Some(Relocation::Moved { to, .. }) = &withdrawn.relocation else { panic!("{withdrawn:?}") };
    assert_eq!(to.as_str(), "dir:/a");
    // The next migration copies it again, at the same epoch if nobody held it meanwhile.
    let back = after(&left, &step(1, Step::Stay, Holder::Stays), LATE);
    let again = after(&back, &leave(2, Holder::Stays), LATE);
    assert_eq!(after(&withdrawn, &arrive(2, &again), LATE).epoch, again.epoch);
}

#[test]
fn a_slot_that_ran_before_the_move_does_not_run_again_after_it() {
    let at = Timestamp::from_millis;
    let claim = |slot| SlotClaim::new(Slot(at(slot)), AfterFailure::Retry);
    let ask = |nonce, slot| Request::Acquire {
        lineage: Lineage::from_u128(1),
        holder: holder(nonce),
        ttl: Ttl::MIN,
        slot: Some(claim(slot)),
        spacing: None,
        requested: None,
    };
    let held = after(&Ownership::default(), &ask(1, 9_000), at(9_000));
    let done = Request::Release {
        claim: Claim { epoch: held.epoch, nonce: Nonce::from_u128(1) },
        outcome: Outcome::Succeeded,
    };
    let left = after(&after(&held, &done, at(9_000)), &leave(1, Holder::Stays), at(9_100));
    let copy = after(&Ownership::default(), &arrive(1, &left), at(9_200));
    let here = after(&copy, &step(1, Step::Settle, Holder::Stays), at(9_300));
    let again = decide(&here, &ask(4, 9_000), at(9_600));
    assert!(matches!(again, Decision::Refuse(Refusal::AlreadyRun(_))), "{again:?}");
}

#[test]
fn a_lineage_is_made_by_the_first_write_and_healed_once() {
    let held = after(&Ownership::default(), &acquire_in(1, 5), START);
    assert_eq!(held.lineage, Some(Lineage::from_u128(5)));
    let heal = |nonce, lineage| {
        operate(nonce, Order::Advance { past: Epoch::new(40).unwrap(), lineage: Some(Lineage::from_u128(lineage)) })
    };
    let healed = after(&held, &heal(9, 7), LATE);
    assert_eq!((healed.lineage, healed.epoch.get()), (Some(Lineage::from_u128(7)), 41));
    assert!(matches!(decide(&healed, &heal(10, 8), LATE), Decision::Refuse(Refusal::LineageFixed { .. })));
    assert_eq!(after(&healed, &heal(11, 7), LATE).lineage, healed.lineage, "advancing it further is no second healing");
}

#[test]
fn what_is_not_remembered_is_unknown() {
    let base = after(&Ownership::default(), &acquire(1), START);
    let revoke = operate(9, Order::Revoke);
    let applied = after(&base, &revoke, START);
    assert_eq!(fate(&base, &applied, &revoke), Fate::Applied);
    let mut others = base.clone();
    for turn in 0..10 {
        assert_eq!(fate(&base, &others, &revoke), Fate::NotApplied, "{turn} transfers are all remembered");
        others = after(&others, &acquire(100 + turn), Timestamp::from_millis(10_000 * (turn as u64 + 1)));
    }
    others.drop_archived();
    assert_eq!(fate(&base, &others, &revoke), Fate::NotApplied, "nothing is dropped that is not archived");
    others.archived = others.epoch;
    others.drop_archived();
    assert_eq!(others.transfers.len(), 4);
    assert_eq!(fate(&base, &others, &revoke), Fate::Unknown);
    assert_eq!(fate(&applied, &base, &revoke), Fate::Unknown, "a store that went back remembers nothing");

    let pause = operate(20, Order::Pause);
    let paused = after(&base, &pause, START);
    assert_eq!(fate(&base, &paused, &pause), Fate::Applied);
    assert_eq!(fate(&base, &after(&base, &operate(21, Order::Pause), START), &pause), Fate::NotApplied);
    let resume = operate(22, Order::Resume { pause: Nonce::from_u128(20) });
    let resumed = after(&paused, &resume, START);
    assert_eq!(fate(&base, &resumed, &pause), Fate::Unknown, "a pause that was ended leaves no trace");
    assert_eq!(fate(&paused, &resumed, &resume), Fate::Applied);
    assert_eq!(fate(&paused, &paused, &resume), Fate::NotApplied);
    let later = after(&resumed, &operate(23, Order::Pause), START);
    let later = after(&later, &operate(24, Order::Resume { pause: Nonce::from_u128(23) }), START);
    assert_eq!(fate(&paused, &later, &resume), Fate::Unknown);
}
