//! Each rule, shown.

use crate::support::{at, claim, epoch, holder, ttl};
use leasehold_core::codec::{self, MAX_RECORD_BYTES};
use leasehold_core::lease::protocol::{
    AfterFailure, Decision, Order, Refusal, Report, Request, RunRequest, SlotClaim, decide,
};
use leasehold_core::{
    Checkpoint, Claim, Epoch, HolderId, Nonce, Outcome, Ownership, Reason, SLOT_RUNS, Slot, SlotState, TRANSFERS_KEPT,
};
use std::sync::Arc;
use std::time::Duration;

const TTL: u64 = 90;

fn acquire(nonce: u128) -> Request {
    Request::Acquire {
        lineage: leasehold_core::Lineage::from_u128(1),
        holder: holder(nonce),
        ttl: ttl(TTL),
        slot: None,
        spacing: None,
        requested: None,
    }
}

fn acquire_slot(nonce: u128, slot: u64, after_failure: AfterFailure) -> Request {
    acquire_claim(nonce, claim_of(slot, after_failure))
}

fn acquire_claim(nonce: u128, slot: SlotClaim) -> Request {
    let (lineage, slot) = (leasehold_core::Lineage::from_u128(1), Some(slot));
    Request::Acquire { lineage, holder: holder(nonce), ttl: ttl(TTL), slot, spacing: None, requested: None }
}

fn claim_of(slot: u64, after_failure: AfterFailure) -> SlotClaim {
    SlotClaim::new(Slot(at(slot)), after_failure)
}

fn renew(epoch: u64, nonce: u128) -> Request {
    Request::Renew { claim: claim(epoch, nonce), ttl: ttl(TTL), progress: None }
}

fn release(epoch: u64, nonce: u128, outcome: Outcome) -> Request {
    Request::Release { claim: claim(epoch, nonce), outcome }
}

fn complete(epoch: u64, nonce: u128, outcome: Outcome) -> Request {
    Request::Complete { claim: claim(epoch, nonce), outcome }
}

fn operate(nonce: u128, order: Order) -> Request {
    Request::Operate {
        lineage: leasehold_core::Lineage::from_u128(1),
        nonce: Nonce::from_u128(nonce),
        by: "ann".parse().unwrap(),
        why: "drill".parse().unwrap(),
        expected: None,
        order,
    }
}

fn resume(pause: u128) -> Order {
    Order::Resume { pause: Nonce::from_u128(pause) }
}

fn hand_off(to: u128) -> Order {
    Order::HandOff { to: holder(to), ttl: ttl(TTL) }
}

#[track_caller]
fn write(record: &Ownership, request: &Request, now: u64) -> Ownership {
    match decide(record, request, at(now)) {
        Decision::Write(next) => *next,
        other => panic!("{request:?} was not granted: {other:?}"),
    }
}

#[track_caller]
fn refused(record: &Ownership, request: &Request, now: u64) -> Refusal {
    match decide(record, request, at(now)) {
        Decision::Refuse(refusal) => refusal,
        other => panic!("{request:?} was not refused: {other:?}"),
    }
}

fn held_by_1() -> Ownership {
    write(&Ownership::default(), &acquire(1), 0)
}

#[test]
fn the_first_grant_has_epoch_one_and_says_so() {
    let record = held_by_1();
    assert_eq!(record.epoch, epoch(1));
    assert_eq!(record.transfers[0].reason, Reason::First);
    assert_eq!(record.tenure.unwrap().deadline, at(TTL * 1000));
}

#[test]
fn a_held_lease_is_refused_until_the_deadline_and_granted_at_it() {
    let record = held_by_1();
    let last = TTL * 1000 - 1;
    assert!(matches!(refused(&record, &acquire(2), last), Refusal::Held { epoch: e, .. } if e == epoch(1)));
    let next = write(&record, &acquire(2), last + 1);
    assert_eq!((next.epoch, next.transfers[1].reason), (epoch(2), Reason::Expired));
    assert_eq!(next.transfers[1].from, Some(holder(1)));
}

#[test]
fn an_expired_tenure_lasted_until_its_deadline_not_until_somebody_noticed() {
    let next = write(&held_by_1(), &acquire(2), 10 * TTL * 1000);
    assert_eq!(next.transfers[0].held_for_ms, Some(TTL * 1000));
    assert_eq!(next.transfers[0].outcome, Some(Outcome::Expired));
}

#[test]
fn release_keeps_the_epoch() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5);
    assert_eq!((free.epoch, free.tenure.as_ref()), (epoch(1), None));
    assert_eq!(free.transfers[0].held_for_ms, Some(5));
    let next = write(&free, &acquire(2), 6);
    assert_eq!((next.epoch, next.transfers[1].reason), (epoch(2), Reason::Released));
    assert_eq!(next.transfers[1].from, None);
}

#[test]
fn epochs_rise_through_a_thousand_releases_and_expiries() {
    let mut record = Ownership::default();
    for round in 1..=1000_u64 {
        record = write(&record, &acquire(u128::from(round)), round * TTL * 1000);
        assert_eq!(record.epoch, epoch(round));
        if round % 2 == 0 {
            record = write(&record, &release(round, u128::from(round), Outcome::Failed), round * TTL * 1000 + 1);
        }
    }
    assert_eq!(record.transfers.len(), 1000);
}

#[test]
fn renewing_moves_the_deadline_and_never_the_epoch() {
    let next = write(&held_by_1(), &renew(1, 1), 1_000);
    assert_eq!(next.epoch, epoch(1));
    assert_eq!(next.tenure.unwrap().deadline, at(TTL * 1000 + 1_000));
}

#[test]
fn renewing_at_the_deadline_is_too_late() {
    assert!(matches!(refused(&held_by_1(), &renew(1, 1), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn a_zombie_cannot_renew_its_successors_lease() {
    let record = write(&held_by_1(), &acquire(2), TTL * 1000);
    let refusal = refused(&record, &renew(1, 1), TTL * 1000 + 1);
    let Refusal::Lost { seen, holder: next, last: Some(last) } = refusal else { panic!("{refusal:?}") };
    assert_eq!((seen, next, last.reason), (epoch(2), Some(holder(2)), Reason::Expired));
    // Not even with the right number: a number alone proves nothing.
    assert!(matches!(refused(&record, &renew(2, 1), TTL * 1000 + 1), Refusal::Lost { .. }));
}

#[test]
fn two_runs_with_one_label_are_two_holders() {
    let (old, new) = (holder(1), holder(2));
    assert_eq!((old.label(), old.host(), old.pid()), (new.label(), new.host(), new.pid()));
    let record = write(&held_by_1(), &acquire(2), TTL * 1000);
    for request in [renew(1, 1), release(1, 1, Outcome::Succeeded), complete(1, 1, Outcome::Succeeded)] {
        assert!(matches!(refused(&record, &request, TTL * 1000), Refusal::Lost { .. }));
    }
}

#[test]
fn releasing_twice_changes_nothing_and_says_how_it_ended() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Failed), 5);
    let again = refused(&free, &release(1, 1, Outcome::Succeeded), 6);
    assert_eq!(again, Refusal::AlreadyReleased { outcome: Outcome::Failed });
    let taken = write(&free, &acquire(2), 7);
    let later = refused(&taken, &release(1, 1, Outcome::Succeeded), 8);
    assert_eq!(later, Refusal::AlreadyReleased { outcome: Outcome::Failed });
}

#[test]
fn releasing_after_the_loss_changes_nothing_and_says_so() {
    let record = write(&held_by_1(), &acquire(2), TTL * 1000);
    assert!(matches!(refused(&record, &release(1, 1, Outcome::Succeeded), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn an_expired_holder_may_still_release_while_nobody_else_was_granted() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5 * TTL * 1000);
    assert_eq!(free.tenure, None);
}

#[test]
fn a_release_cannot_pass_itself_off_as_an_expiry_or_an_eviction() {
    for forged in [Outcome::Expired, Outcome::Evicted] {
        let free = write(&held_by_1(), &release(1, 1, forged), 5);
        assert_eq!(free.transfers[0].outcome, Some(Outcome::Lost));
        let again = refused(&free, &release(1, 1, forged), 6);
        assert_eq!(again, Refusal::AlreadyReleased { outcome: Outcome::Lost });
    }
}

#[test]
fn a_lost_reply_is_recognised_by_the_nonce() {
    let record = held_by_1();
    assert_eq!(decide(&record, &acquire(1), at(1)), Decision::AlreadyApplied);
}

#[test]
fn a_nonce_never_serves_two_tenures() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5);
    assert!(matches!(refused(&free, &acquire(1), 6), Refusal::Lost { .. }));
    // Nor does it stand for a grant that has run out.
    assert!(matches!(refused(&held_by_1(), &acquire(1), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn pause_lets_the_present_holder_continue_and_keeps_others_out() {
    let paused = write(&held_by_1(), &operate(50, Order::Pause), 5);
    assert_eq!(paused.epoch, epoch(1));
    let renewed = write(&paused, &renew(1, 1), 6);
    let free = write(&renewed, &release(1, 1, Outcome::Succeeded), 7);
    assert!(matches!(refused(&free, &acquire(2), 8), Refusal::Paused(mark) if mark.why.as_str() == "drill"));
    let resumed = write(&free, &operate(51, resume(50)), 9);
    assert_eq!(resumed.epoch, epoch(1));
    assert_eq!(write(&resumed, &acquire(2), 10).epoch, epoch(2));
}

#[test]
fn a_lease_that_nobody_ever_held_can_be_paused_but_not_revoked() {
    let fresh = Ownership::default();
    assert_eq!(refused(&fresh, &operate(50, Order::Revoke), 5), Refusal::NeverHeld);
    let paused = write(&fresh, &operate(51, Order::Pause), 5);
    assert!(matches!(refused(&paused, &acquire(1), 6), Refusal::Paused(_)));
}

#[test]
fn resuming_what_is_not_paused_is_refused() {
    assert_eq!(refused(&held_by_1(), &operate(50, resume(49)), 5), Refusal::NotPaused);
}

#[test]
fn a_late_resume_leaves_a_later_operators_pause_alone() {
    let first = write(&held_by_1(), &operate(50, Order::Pause), 5);
    let free = write(&first, &operate(51, resume(50)), 6);
    let second = write(&free, &operate(52, Order::Pause), 7);
    // Decided on the first pause, and arrived after the second.
    assert!(
        matches!(refused(&second, &operate(53, resume(50)), 8), Refusal::OtherPause(mark) if mark.nonce.as_u128() == 52)
    );
}

#[test]
fn an_order_that_was_decided_on_another_epoch_is_refused_with_both() {
    let decided = |expected: u64, order: Order| {
        let mut request = operate(50, order);
        if let Request::Operate { expected: on, .. } = &mut request {
            *on = Some(epoch(expected));
        }
        request
    };
    let held = held_by_1();
    let changed = Refusal::Changed { expected: epoch(7), seen: epoch(1) };
    for order in [Order::Revoke, hand_off(2), Order::Advance { past: epoch(3), lineage: None }] {
        assert_eq!(refused(&held, &decided(7, order.clone()), 5), changed);
        assert_eq!(write(&held, &decided(1, order), 5).transfers.len(), 2);
    }
}

#[test]
fn a_second_operators_pause_is_refused_with_the_first_ones_reason() {
    let paused = write(&held_by_1(), &operate(50, Order::Pause), 5);
    let mut other = operate(51, Order::Pause);
    if let Request::Operate { by, .. } = &mut other {
        *by = "bob".parse().unwrap();
    }
    assert!(matches!(refused(&paused, &other, 6), Refusal::Paused(mark) if mark.by.as_str() == "ann"));
}

#[test]
fn revoke_fences_the_holder_and_leaves_the_lease_to_anyone() {
    let revoked = write(&held_by_1(), &operate(50, Order::Revoke), 5);
    assert_eq!((revoked.epoch, revoked.tenure.as_ref()), (epoch(2), None));
    assert_eq!(revoked.transfers[0].outcome, Some(Outcome::Evicted));
    let last = revoked.transfers.last().unwrap();
    assert_eq!((last.by.as_ref().unwrap().as_str(), last.why.as_ref().unwrap().as_str()), ("ann", "drill"));
    for request in [renew(1, 1), release(1, 1, Outcome::Succeeded)] {
        assert!(
            matches!(refused(&revoked, &request, 6), Refusal::Lost { last: Some(last), .. } if last.reason == Reason::Revoked)
        );
    }
    let next = write(&revoked, &acquire(2), 6);
    assert_eq!((next.epoch, next.transfers[2].reason), (epoch(3), Reason::Revoked));
}

#[test]
fn revoke_advances_the_epoch_of_a_free_lease_too() {
    // Whoever released may still have a child running: the operator wants it fenced.
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5);
    let revoked = write(&free, &operate(50, Order::Revoke), 6);
    assert_eq!(revoked.epoch, epoch(2));
    assert_eq!(revoked.transfers[0].outcome, Some(Outcome::Succeeded));
}

#[test]
fn a_hand_off_evicts_and_grants_in_one_step() {
    let record = write(&held_by_1(), &operate(50, hand_off(2)), 5);
    let tenure = record.tenure.clone().unwrap();
    assert_eq!((record.epoch, tenure.holder, tenure.deadline), (epoch(2), holder(2), at(5 + TTL * 1000)));
    let last = record.transfers.last().unwrap();
    assert_eq!(
        (last.reason, last.from.clone(), last.to.clone()),
        (Reason::HandedOff, Some(holder(1)), Some(holder(2)))
    );
    assert!(matches!(refused(&record, &renew(1, 1), 6), Refusal::Lost { .. }));
    write(&record, &renew(2, 2), 6);
    write(&record, &release(2, 2, Outcome::Succeeded), 6);
}

#[test]
fn a_hand_off_takes_the_running_slot_along() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let handed = write(&record, &operate(50, hand_off(2)), 5);
    assert!(matches!(refused(&handed, &complete(1, 1, Outcome::Succeeded), 6), Refusal::Lost { .. }));
    let done = write(&handed, &complete(2, 2, Outcome::Succeeded), 6);
    assert_eq!(done.slot.unwrap().state, SlotState::Done);
}

#[test]
fn a_repeated_hand_off_counts_once_while_its_holder_holds() {
    let record = write(&held_by_1(), &operate(50, hand_off(2)), 5);
    assert_eq!(decide(&record, &operate(50, hand_off(2)), at(6)), Decision::AlreadyApplied);
}

#[test]
fn a_hand_off_to_one_who_has_lost_it_since_is_not_called_applied() {
    let record = write(&held_by_1(), &operate(50, hand_off(2)), 5);
    let moved = write(&record, &acquire(3), 5 + TTL * 1000);
    let refusal = refused(&moved, &operate(50, hand_off(2)), 6 + TTL * 1000);
    assert!(matches!(refusal, Refusal::Lost { seen, .. } if seen == epoch(3)));
}

#[test]
fn advance_goes_past_the_number_and_evicts() {
    let record = write(&held_by_1(), &operate(50, Order::Advance { past: epoch(41), lineage: None }), 5);
    assert_eq!((record.epoch, record.tenure.as_ref()), (epoch(42), None));
    assert_eq!(record.transfers.last().unwrap().epoch, epoch(42));
    assert!(matches!(refused(&record, &renew(1, 1), 6), Refusal::Lost { .. }));
    assert_eq!(write(&record, &acquire(2), 6).epoch, epoch(43));
}

#[test]
fn advance_past_a_lower_number_still_advances() {
    let record = write(&Ownership::default(), &operate(50, Order::Advance { past: epoch(41), lineage: None }), 5);
    assert_eq!(write(&record, &operate(51, Order::Advance { past: epoch(7), lineage: None }), 6).epoch, epoch(43));
}

#[test]
fn the_last_epoch_is_never_passed() {
    let last = Ownership { epoch: Epoch::MAX, ..write(&Ownership::default(), &operate(50, Order::Pause), 5) };
    let last = write(&last, &operate(51, resume(50)), 5);
    assert_eq!(refused(&last, &acquire(1), 6), Refusal::Exhausted);
    assert_eq!(refused(&last, &operate(52, Order::Revoke), 6), Refusal::Exhausted);
    let low = Order::Advance { past: epoch(7), lineage: None };
    assert_eq!(refused(&last, &operate(53, low), 6), Refusal::Exhausted);
}

#[test]
fn an_advance_never_uses_the_epochs_up() {
    let advance = |past| operate(50, Order::Advance { past, lineage: None });
    let most = Epoch::HIGHEST_ADVANCE;
    for past in [most.next().unwrap(), epoch(9_007_199_254_740_989), Epoch::MAX] {
        assert_eq!(refused(&held_by_1(), &advance(past), 5), Refusal::TooFar { most });
    }
    let far = write(&held_by_1(), &advance(most), 5);
    assert_eq!(Epoch::MAX.get() - far.epoch.get(), 1 << 40);
    for past in [epoch(1), most] {
        let again = operate(52, Order::Advance { past, lineage: None });
        assert_eq!(refused(&far, &again, 6), Refusal::TooFar { most }, "a further step leaves fewer than 2^40");
    }
    assert!(write(&far, &operate(51, Order::Revoke), 6).epoch > far.epoch, "its next holder can be had, and evicted");
}

#[test]
fn a_slot_that_is_done_is_not_run_again_nor_is_an_earlier_one() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let done = write(&record, &release(1, 1, Outcome::Succeeded), 5);
    for (slot, after_failure) in [(100, AfterFailure::Leave), (100, AfterFailure::Retry), (99, AfterFailure::Retry)] {
        let refusal = refused(&done, &acquire_slot(2, slot, after_failure), 6);
        assert!(matches!(refusal, Refusal::AlreadyRun(mark) if mark.state == SlotState::Done));
    }
    let next = write(&done, &acquire_slot(2, 101, AfterFailure::Leave), 6);
    assert_eq!(next.transfers.last().unwrap().reason, Reason::Released);
}

#[test]
fn a_slot_whose_run_died_is_recovered_under_a_new_epoch() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    assert!(matches!(refused(&record, &acquire_slot(2, 100, AfterFailure::Leave), 5), Refusal::Held { .. }));
    let again = write(&record, &acquire_slot(2, 100, AfterFailure::Leave), TTL * 1000);
    let last = again.transfers.last().unwrap();
    assert_eq!((again.epoch, last.reason, again.slot.unwrap().epoch), (epoch(2), Reason::Recovered, epoch(2)));
    // The first run wakes up: it can neither complete the slot nor fail it.
    for outcome in [Outcome::Succeeded, Outcome::Failed] {
        assert!(matches!(refused(&again, &complete(1, 1, outcome), TTL * 1000), Refusal::Lost { .. }));
    }
}

#[test]
fn a_slot_that_was_let_go_as_lost_stays_open() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let lost = write(&record, &release(1, 1, Outcome::Lost), 5);
    assert_eq!(lost.slot.unwrap().state, SlotState::Running);
    let again = write(&lost, &acquire_slot(2, 100, AfterFailure::Leave), 6);
    assert_eq!(again.transfers.last().unwrap().reason, Reason::Recovered);
}

#[test]
fn a_slot_that_was_not_started_has_used_up_none_of_its_runs() {
    let mut record = Ownership::default();
    for run in 1..=u64::from(SLOT_RUNS) * 2 {
        record = write(&record, &acquire_slot(u128::from(run), 100, AfterFailure::Leave), run);
        assert_eq!(record.slot.unwrap().runs, 1);
        record = write(&record, &release(run, u128::from(run), Outcome::NotStarted), run);
        let (mark, last) = (record.slot.unwrap(), record.transfers.last().unwrap());
        assert_eq!((mark.state, mark.runs, last.outcome), (SlotState::Running, 0, Some(Outcome::NotStarted)));
        let again = refused(&record, &release(run, u128::from(run), Outcome::NotStarted), run);
        assert_eq!(again, Refusal::AlreadyReleased { outcome: Outcome::NotStarted });
    }
    // It is still the first that is to be run.
    let refusal = refused(&record, &acquire_slot(90, 200, AfterFailure::Leave), 50);
    assert_eq!(refusal, Refusal::Interrupted(record.slot.unwrap()));
    // One that has died before has used up the runs that it had.
    let died = write(&record, &acquire_slot(91, 100, AfterFailure::Leave), 50);
    let again = write(&died, &acquire_slot(92, 100, AfterFailure::Leave), 50 + TTL * 1000);
    let epoch = again.epoch.get();
    let given_back = write(&again, &release(epoch, 92, Outcome::NotStarted), 51 + TTL * 1000);
    assert_eq!((again.slot.unwrap().runs, given_back.slot.unwrap().runs), (2, 1));
}

#[test]
fn an_operators_order_uses_up_none_of_a_slots_runs() {
    let mut record = Ownership::default();
    for run in 1..=u128::from(SLOT_RUNS) * 2 {
        record = write(&record, &acquire_slot(run, 100, AfterFailure::Leave), 5);
        assert_eq!(record.slot.unwrap().runs, 1);
        let order = if run % 2 == 0 { Order::Revoke } else { Order::Advance { past: record.epoch, lineage: None } };
        record = write(&record, &operate(1_000 + run, order), 6);
        assert_eq!((record.slot.unwrap().state, record.slot.unwrap().runs), (SlotState::Running, 0));
    }
    // Whoever it is handed off to runs it in the place of the other.
    record = write(&record, &acquire_slot(90, 100, AfterFailure::Leave), 7);
    for to in 91..=u128::from(SLOT_RUNS) + 91 {
        record = write(&record, &operate(2_000 + to, hand_off(to)), 8);
        assert_eq!((record.slot.unwrap().epoch, record.slot.unwrap().runs), (record.epoch, 1));
    }
    // A run that had died by then has died.
    let dead = 8 + TTL * 1000;
    assert_eq!(write(&record, &operate(3_000, Order::Revoke), dead).slot.unwrap().runs, 1);
    assert_eq!(write(&record, &operate(3_001, hand_off(99)), dead).slot.unwrap().runs, 2);
}

#[test]
fn an_interrupted_slot_comes_before_newer_ones_unless_it_is_given_up() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let newer = |gives_up: Option<u64>| {
        let claim = SlotClaim { gives_up: gives_up.map(|slot| Slot(at(slot))), ..claim_of(200, AfterFailure::Leave) };
        acquire_claim(2, claim)
    };
    // As long as it goes on, it is waited for.
    assert!(matches!(refused(&record, &newer(None), 5), Refusal::Held { .. }));
    let dead = TTL * 1000;
    for gives_up in [None, Some(99), Some(200)] {
        assert_eq!(refused(&record, &newer(gives_up), dead), Refusal::Interrupted(record.slot.unwrap()));
    }
    let next = write(&record, &newer(Some(100)), dead);
    assert_eq!((next.slot.unwrap().slot, next.slot.unwrap().runs), (Slot(at(200)), 1));
    // A lease that is taken without a slot in between changes nothing about that.
    let between = write(&record, &acquire(3), dead);
    assert_eq!(between.interrupted_slot(at(dead + 1)), record.slot);
    let between = write(&between, &release(2, 3, Outcome::Succeeded), dead + 1);
    assert_eq!(refused(&between, &newer(None), dead + 2), Refusal::Interrupted(record.slot.unwrap()));
}

#[test]
fn a_slot_is_recovered_so_often_and_by_name_as_often_as_somebody_likes() {
    let mut record = Ownership::default();
    let mut now = 0;
    for run in 1..=u128::from(SLOT_RUNS) {
        record = write(&record, &acquire_slot(run, 100, AfterFailure::Leave), now);
        assert_eq!(u128::from(record.slot.unwrap().runs), run);
        now += TTL * 1000;
    }
    let refusal = refused(&record, &acquire_slot(9, 100, AfterFailure::Leave), now);
    assert_eq!(refusal, Refusal::Interrupted(record.slot.unwrap()));
    assert_eq!(write(&record, &acquire_slot(9, 100, AfterFailure::Retry), now).slot.unwrap().runs, SLOT_RUNS + 1);
}

#[test]
fn an_order_sets_a_mark_that_is_ahead_back_to_the_stores_time() {
    let ahead = write(&Ownership::default(), &acquire_slot(1, 9_000_000, AfterFailure::Leave), 5);
    let rewound = write(&ahead, &operate(50, Order::Rewind), 7_000);
    let mark = rewound.slot.unwrap();
    assert_eq!((mark.slot, mark.state, mark.epoch), (Slot(at(7_000)), SlotState::Rewound, epoch(2)));
    let last = rewound.transfers.last().unwrap();
    assert_eq!((last.reason, last.by.is_some(), last.why.is_some()), (Reason::Rewound, true, true));
    assert!(rewound.tenure.is_none(), "whoever held it is fenced");
    // Nothing up to that time is run again; what comes after it is.
    for slot in [6_999, 7_000] {
        assert!(matches!(
            refused(&rewound, &acquire_slot(2, slot, AfterFailure::Retry), 7_001),
            Refusal::AlreadyRun(_)
        ));
    }
    assert_eq!(write(&rewound, &acquire_slot(2, 7_001, AfterFailure::Leave), 7_001).epoch, epoch(3));
    // A mark that is not ahead stays.
    let done = write(
        &write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 100),
        &release(1, 1, Outcome::Succeeded),
        101,
    );
    assert_eq!(write(&done, &operate(50, Order::Rewind), 200).slot, done.slot);
    assert_eq!(refused(&Ownership::default(), &operate(50, Order::Rewind), 200), Refusal::NeverHeld);
}

#[test]
fn a_failed_slot_is_run_again_only_if_asked() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let failed = write(&record, &release(1, 1, Outcome::Failed), 5);
    assert!(matches!(refused(&failed, &acquire_slot(2, 100, AfterFailure::Leave), 6), Refusal::AlreadyRun(_)));
    assert_eq!(write(&failed, &acquire_slot(2, 100, AfterFailure::Retry), 6).epoch, epoch(2));
}

#[test]
fn completing_ends_the_slot_and_keeps_the_lease() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let done = write(&record, &complete(1, 1, Outcome::Succeeded), 5);
    assert_eq!((done.slot.unwrap().state, done.tenure.as_ref()), (SlotState::Done, record.tenure.as_ref()));
    assert_eq!(decide(&done, &complete(1, 1, Outcome::Succeeded), at(6)), Decision::AlreadyApplied);
    assert_eq!(refused(&held_by_1(), &complete(1, 1, Outcome::Succeeded), 5), Refusal::NoSlot);
}

#[test]
fn a_completion_that_contradicts_the_first_is_refused_not_called_applied() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let done = write(&record, &complete(1, 1, Outcome::Succeeded), 5);
    assert_eq!(refused(&done, &complete(1, 1, Outcome::Failed), 6), Refusal::AlreadyRun(done.slot.unwrap()));
    let failed = write(&record, &complete(1, 1, Outcome::Failed), 5);
    assert_eq!(refused(&failed, &complete(1, 1, Outcome::Succeeded), 6), Refusal::AlreadyRun(failed.slot.unwrap()));
}

#[test]
fn a_stale_completion_is_refused_even_without_a_successor_slot() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let other = write(&record, &acquire(2), TTL * 1000);
    assert!(matches!(refused(&other, &complete(1, 1, Outcome::Succeeded), TTL * 1000), Refusal::Lost { .. }));
    assert_eq!(refused(&other, &complete(2, 2, Outcome::Succeeded), TTL * 1000), Refusal::NoSlot);
}

#[test]
fn a_checkpoint_outlives_its_tenure_and_stays_until_a_new_one_comes() {
    let report = |checkpoint: Option<&str>| Report {
        marker: Some("row 5".parse().unwrap()),
        checkpoint: checkpoint.map(|c| Checkpoint::new(c).unwrap()),
    };
    let request = |epoch, nonce, c| Request::Checkpoint { claim: claim(epoch, nonce), report: report(c) };
    let first = write(&held_by_1(), &request(1, 1, Some("5")), 5);
    let next = write(&first, &acquire(2), TTL * 1000);
    let kept = write(&next, &request(2, 2, None), TTL * 1000);
    let progress = kept.progress.unwrap();
    assert_eq!((progress.checkpoint.unwrap().as_str(), progress.epoch), ("5", epoch(2)));
    assert!(matches!(refused(&next, &request(1, 1, Some("6")), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn the_largest_possible_record_still_encodes() {
    // Every text at its bound, in the characters that JSON makes longest: a quote doubles in a printable line, and a
    // control character, which a checkpoint may have, grows sixfold. Every number at its longest too.
    let worst = |n: u128| {
        let quotes = "\"".repeat(64);
        HolderId::of(quotes.clone(), u32::MAX, Nonce::from_u128(u128::MAX - n), quotes.parse().unwrap())
    };
    let order = |nonce: u128, order: Order| Request::Operate {
        lineage: leasehold_core::Lineage::from_u128(1),
        nonce: Nonce::from_u128(u128::MAX / 2 - nonce),
        by: "\\".repeat(100).parse().unwrap(),
        why: "\"".repeat(500).parse().unwrap(),
        expected: None,
        order,
    };
    let long = u64::MAX - 90_000_000_000;
    let slot = SlotClaim::new(Slot(at(u64::MAX)), AfterFailure::Retry);
    let request = Request::Acquire {
        lineage: leasehold_core::Lineage::from_u128(1),
        holder: worst(1000),
        ttl: leasehold_core::Ttl::MAX,
        slot: Some(slot),
        spacing: None,
        requested: None,
    };
    let past = Epoch::HIGHEST_ADVANCE;
    let mut record = write(&Ownership::default(), &order(0, Order::Advance { past, lineage: None }), long);
    record = write(&record, &request, long);
    // More are archived before the record is written.
    for n in 1..=TRANSFERS_KEPT as u128 + 8 {
        record = write(&record, &order(n, Order::HandOff { to: worst(n), ttl: leasehold_core::Ttl::MAX }), long + 9);
    }
    let held = Claim { epoch: record.epoch, nonce: record.tenure.as_ref().unwrap().holder.nonce() };
    let report = Report {
        marker: Some("\"".repeat(200).parse().unwrap()),
        checkpoint: Some(Checkpoint::new("\u{1}".repeat(Checkpoint::MAX_BYTES)).unwrap()),
    };
    record = write(&record, &Request::Checkpoint { claim: held, report }, long + 9);
    record = write(&record, &order(900, Order::Pause), long);
    record = write(&record, &order(901, Order::Resume { pause: Nonce::from_u128(u128::MAX / 2 - 900) }), long);
    record = write(&record, &order(902, Order::Pause), long);
    record.transfers.drain(..2);
    // What no request can set to its longest, set by hand.
    for transfer in &mut record.transfers {
        let transfer = Arc::make_mut(transfer);
        (transfer.held_for_ms, transfer.outcome) = (Some(u64::MAX), Some(Outcome::Succeeded));
        (transfer.reason, transfer.slot) = (Reason::HandedOff, Some(Slot(at(u64::MAX))));
        assert!(transfer.from.is_some() && transfer.to.is_some() && transfer.by.is_some() && transfer.why.is_some());
    }
    assert_eq!(record.transfers.len(), TRANSFERS_KEPT + 8);
    assert!(record.slot.is_some() && record.paused.is_some() && record.resumed.is_some());
    let bytes = codec::encode("ownership", &record).unwrap();
    println!("the largest record has {} of {MAX_RECORD_BYTES} bytes", bytes.len());
    assert!(bytes.len() > MAX_RECORD_BYTES / 2, "the bound is so far off that this test shows nothing");
    assert_eq!(codec::decode::<Ownership>("ownership", &bytes, "x").unwrap(), record);
}

fn drain(within: u64) -> Order {
    Order::Drain { within: ttl(within) }
}

fn spaced(nonce: u128, seconds: u64) -> Request {
    let mut request = acquire(nonce);
    if let Request::Acquire { spacing, .. } = &mut request {
        *spacing = Some(Duration::from_secs(seconds));
    }
    request
}

#[test]
fn a_holder_that_is_asked_to_finish_continues_to_renew_and_nobody_new_gets_the_lease() {
    let draining = write(&held_by_1(), &operate(9, drain(30)), 1_000);
    assert_eq!(draining.epoch, epoch(1), "asking moves no epoch");
    let asked = draining.drain.clone().unwrap();
    assert_eq!((asked.epoch(), asked.until(), asked.asked().by.as_str()), (epoch(1), at(31_000), "ann"));
    let renewed = write(&draining, &renew(1, 1), 2_000);
    assert_eq!(renewed.drain, draining.drain, "a renewal does not end it");
    let free = write(&renewed, &release(1, 1, Outcome::Succeeded), 3_000);
    assert!(matches!(refused(&free, &acquire(2), 30_999), Refusal::Draining(found) if found == asked));
    // It runs out by itself.
    assert_eq!(write(&free, &acquire(2), 31_000).drain, None);
    // The one who asked takes it, on the epoch that was seen.
    let taken = write(&free, &operate(10, hand_off(3)), 4_000);
    assert_eq!((taken.epoch, taken.drain.as_ref()), (epoch(2), None));
}

#[test]
fn a_second_request_to_finish_takes_the_place_of_the_first_and_a_revocation_ends_both() {
    let first = write(&held_by_1(), &operate(9, drain(30)), 1_000);
    assert_eq!(decide(&first, &operate(9, drain(30)), at(2_000)), Decision::AlreadyApplied);
    let second = write(&first, &operate(10, drain(60)), 2_000);
    assert_eq!(second.drain.as_ref().map(|drain| drain.until()), Some(at(62_000)));
    // A shorter one does not let others in within the time of the first.
    let shorter = write(&first, &operate(12, drain(1)), 2_000);
    assert_eq!(shorter.drain.as_ref().map(|drain| drain.until()), Some(at(31_000)));
    assert_eq!(write(&second, &operate(11, Order::Revoke), 3_000).drain, None);
}

#[test]
fn nobody_is_asked_to_finish_where_nobody_holds() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5);
    for record in [Ownership::default(), free] {
        assert_eq!(refused(&record, &operate(9, drain(30)), 6), Refusal::NotHeld);
    }
    assert_eq!(refused(&held_by_1(), &operate(9, drain(30)), TTL * 1000), Refusal::NotHeld, "it has run out");
    // Nor on an epoch that nobody has seen.
    let mut order = operate(9, drain(30));
    if let Request::Operate { expected, .. } = &mut order {
        *expected = Some(epoch(7));
    }
    assert!(matches!(refused(&held_by_1(), &order, 6), Refusal::Changed { .. }));
}

#[test]
fn a_paused_lease_is_drained_and_stays_paused() {
    let paused = write(&held_by_1(), &operate(50, Order::Pause), 1);
    let drained = write(&paused, &operate(9, drain(30)), 2);
    let free = write(&drained, &release(1, 1, Outcome::Succeeded), 3);
    assert!(matches!(refused(&free, &acquire(2), 4), Refusal::Paused(_)));
    let revoked = write(&free, &operate(10, Order::Revoke), 5);
    assert!(revoked.paused.is_some() && revoked.drain.is_none());
}

#[test]
fn a_run_keeps_its_distance_from_the_last_one_whoever_ran_it_and_however_it_ended() {
    for outcome in [Outcome::Succeeded, Outcome::Failed, Outcome::Lost] {
        let over = write(&held_by_1(), &release(1, 1, outcome), 5_000);
        assert_eq!(refused(&over, &spaced(2, 600), 599_999), Refusal::TooSoon { began: at(0), until: at(600_000) });
        assert_eq!(write(&over, &spaced(2, 600), 600_000).epoch, epoch(2));
        assert_eq!(write(&over, &acquire(2), 5_001).epoch, epoch(2), "who does not ask for it is not held up");
    }
    // A run that died counts from when it began.
    let died = held_by_1();
    assert!(matches!(refused(&died, &spaced(2, 600), TTL * 1000), Refusal::TooSoon { .. }));
    assert_eq!(write(&died, &spaced(2, 600), 600_000).epoch, epoch(2));
    // One that is at it is told as that.
    assert!(matches!(refused(&died, &spaced(2, 600), 1), Refusal::Held { .. }));
}

#[test]
fn what_was_never_started_keeps_nobody_away_and_does_not_hide_the_run_before_it() {
    let untried = write(&held_by_1(), &release(1, 1, Outcome::NotStarted), 5_000);
    assert_eq!(write(&untried, &spaced(2, 600), 5_001).epoch, epoch(2));
    let mut record = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5_000);
    for turn in 2..60 {
        record = write(&record, &acquire(u128::from(turn)), 5_000 + turn);
        record = write(&record, &release(turn, u128::from(turn), Outcome::NotStarted), 5_000 + turn);
        record.transfers.drain(..record.transfers.len() - 1);
    }
    assert!(matches!(refused(&record, &spaced(99, 600), 6_000), Refusal::TooSoon { began, .. } if began == at(0)));
}

#[test]
fn a_clock_that_was_set_back_keeps_nobody_away_for_ever() {
    let day = 86_400_000;
    let ahead = write(&Ownership::default(), &acquire(1), 365 * day);
    let over = write(&ahead, &release(1, 1, Outcome::Succeeded), 365 * day);
    assert_eq!(write(&over, &spaced(2, 600), day).epoch, epoch(2));
    // A little ahead is what two servers may differ by.
    assert!(matches!(refused(&over, &spaced(2, 600), 365 * day - 1_000), Refusal::TooSoon { .. }));
}

#[test]
fn a_drain_from_before_the_clock_was_set_back_keeps_nobody_away_and_lends_its_end_to_no_other() {
    let hours = 2 * 3_600_000;
    let asked = write(&write(&Ownership::default(), &acquire(1), hours), &operate(9, drain(4)), hours);
    let free = write(&asked, &release(1, 1, Outcome::Succeeded), 1_000);
    assert_eq!((free.live_drain(at(1_000)), free.epoch), (None, epoch(1)));
    assert_eq!(write(&free, &acquire(2), 1_000).epoch, epoch(2));
    let again = write(&asked, &operate(10, drain(4)), 2_000);
    assert_eq!(again.live_drain(at(2_000)).map(|drain| drain.until()), Some(at(6_000)));
    // A little ahead is what two servers may differ by.
    assert!(matches!(refused(&free, &acquire(2), hours - 60_000), Refusal::Draining(_)));
    assert_eq!(write(&free, &acquire(2), hours - 60_001).epoch, epoch(2));
}

#[test]
fn a_forgotten_lease_leaves_a_tombstone_and_continues_from_its_epoch() {
    let day = Duration::from_secs(86_400);
    let forget = |nonce| operate(nonce, Order::Forget { idle: day });
    let over = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5_000);
    let old = 5_000 + 86_400_000;
    assert!(matches!(refused(&held_by_1(), &forget(9), 1), Refusal::Held { .. }));
    assert_eq!(refused(&over, &forget(9), old - 1), Refusal::Recent { since: at(5_000) });
    let tombstone = write(&over, &forget(9), old);
    assert_eq!((tombstone.epoch, tombstone.lineage), (over.epoch, over.lineage));
    assert!(tombstone.transfers.is_empty() && !tombstone.is_unknown());
    assert_eq!(decide(&tombstone, &forget(9), at(old)), Decision::AlreadyApplied);
    assert!(matches!(refused(&tombstone, &forget(10), old), Refusal::Forgotten(_)));
    let again = write(&tombstone, &acquire(2), old + 1);
    assert_eq!((again.epoch, again.lineage, again.forgotten.as_ref()), (epoch(2), over.lineage, None));
    // A holder from before is as lost as ever.
    assert!(matches!(refused(&again, &release(1, 1, Outcome::Succeeded), old + 2), Refusal::Lost { .. }));
}

#[test]
fn a_slot_of_a_forgotten_job_is_not_run_again() {
    let done = write(&Ownership::default(), &acquire_slot(1, 1_000, AfterFailure::Leave), 1_000);
    let done = write(&done, &release(1, 1, Outcome::Succeeded), 2_000);
    let tombstone = write(&done, &operate(9, Order::Forget { idle: Duration::ZERO }), 3_000);
    assert!(matches!(refused(&tombstone, &acquire_slot(2, 1_000, AfterFailure::Retry), 3_001), Refusal::AlreadyRun(_)));
}

/// Carries out a request for a run that was made on this epoch, until this second.
fn requested(nonce: u128, expected: u64, until: u64) -> Request {
    let mut request = acquire(nonce);
    if let Request::Acquire { requested, .. } = &mut request {
        let (by, why) = ("ann".parse().unwrap(), "the report was wrong".parse().unwrap());
        *requested = Some(RunRequest { by, why, expected: epoch(expected), until: at(until * 1_000) });
    }
    request
}

#[test]
fn a_requested_run_is_granted_once_on_the_epoch_that_was_seen_and_says_who_asked() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 1_000);
    let granted = write(&free, &requested(2, 1, 60), 2_000);
    let last = granted.transfers.last().unwrap();
    let (by, why) = (last.by.as_ref().unwrap().as_str(), last.why.as_ref().unwrap().as_str());
    assert_eq!((granted.epoch, last.reason, by, why), (epoch(2), Reason::Triggered, "ann", "the report was wrong"));
    assert_eq!(granted.slot, free.slot, "it claims no slot");
    // Another scheduler that has read the same request, now and when the run is over.
    let changed = Refusal::Changed { expected: epoch(1), seen: epoch(2) };
    assert_eq!(refused(&granted, &requested(3, 1, 60), 2_001), changed);
    let over = write(&granted, &release(2, 2, Outcome::Succeeded), 3_000);
    assert_eq!(refused(&over, &requested(3, 1, 60), 3_001), changed);
    // The one that was granted it and got no answer finds its grant.
    assert_eq!(decide(&granted, &requested(2, 1, 60), at(2_002)), Decision::AlreadyApplied);
}

#[test]
fn a_requested_run_waits_for_nobody_and_ends_with_its_time() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 1_000);
    assert_eq!(refused(&free, &requested(2, 1, 60), 60_000), Refusal::RequestExpired { until: at(60_000) });
    assert_eq!(write(&free, &requested(2, 1, 60), 59_999).epoch, epoch(2));
    assert!(matches!(refused(&held_by_1(), &requested(2, 1, 60), 1), Refusal::Held { .. }));
    let paused = write(&free, &operate(9, Order::Pause), 2_000);
    assert!(matches!(refused(&paused, &requested(2, 1, 60), 3_000), Refusal::Paused(_)));
    // A job that never ran.
    assert_eq!(write(&Ownership::default(), &requested(2, 0, 60), 1_000).epoch, epoch(1));
}
