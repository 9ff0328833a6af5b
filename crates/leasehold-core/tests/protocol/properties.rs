//! What holds of every history.

use crate::histories::{answer, each_write, ops, play};
use crate::support::{CASES, property};
use leasehold_core::codec;
use leasehold_core::lease::protocol::{Decision, Order, Refusal, Request, decide};
use leasehold_core::relocation;
use leasehold_core::{Epoch, Outcome, Ownership, Reason, SlotMark, SlotState, TRANSFERS_KEPT};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[test]
fn every_answer_is_the_specifications() {
    property(CASES, ops(), |ops| {
        play(&ops, |step, expected, spec| {
            prop_assert_eq!(answer(&step.decision), expected, "{:?} on {:?}", step.request, step.before);
            let Decision::Write(next) = &step.decision else { return Ok(()) };
            prop_assert_eq!(next.epoch.get(), spec.epoch);
            let holder = next.tenure.as_ref().map(|t| (t.holder.nonce().as_u128(), t.deadline.as_millis()));
            prop_assert_eq!(holder, spec.holder);
            prop_assert_eq!(next.paused.is_some(), spec.paused.is_some());
            let drain = next.drain.as_ref();
            let drain = drain.map(|d| (d.asked().nonce.as_u128(), d.epoch().get(), d.until().as_millis()));
            prop_assert_eq!(drain, spec.drain);
            prop_assert_eq!(next.forgotten.as_ref().map(|mark| mark.nonce.as_u128()), spec.forgotten);
            prop_assert_eq!(next.last_run.map(|at| at.as_millis()), spec.last_run);
            let slot = next.slot.map(|m| (m.slot.0.as_millis(), m.state, m.epoch.get()));
            prop_assert_eq!(slot, spec.slot);
            prop_assert_eq!(next.slot.map_or(0, |m| m.runs), spec.runs);
            Ok(())
        })
    });
}

#[test]
fn histories_reach_every_answer() {
    // The twin of the test above: a generator that never got anywhere would agree with everything.
    let seen = std::cell::RefCell::new(BTreeMap::<String, u32>::new());
    let longest = std::cell::Cell::new(0);
    property(CASES, ops(), |ops| {
        play(&ops, |step, _, _| {
            let kind = match &step.request {
                Request::Acquire { .. } => "acquire",
                Request::Renew { .. } => "renew",
                Request::Release { .. } => "release",
                Request::Checkpoint { .. } => "checkpoint",
                Request::Complete { .. } => "complete",
                Request::Operate { order, .. } => match order {
                    Order::Revoke => "revoke",
                    Order::HandOff { .. } => "hand off",
                    Order::Drain { .. } => "drain",
                    Order::Forget { .. } => "forget",
                    Order::Pause => "pause",
                    Order::Resume { .. } => "resume",
                    Order::Advance { .. } => "advance",
                    Order::Rewind => "rewind",
                    Order::Relocate { .. } => "relocate",
                    Order::Arrive { .. } => "arrive",
                },
            };
            *seen.borrow_mut().entry(format!("{kind} {:?}", answer(&step.decision))).or_default() += 1;
            longest.set(longest.get().max(step.before.transfers.len()));
            Ok(())
        })
    });
    let seen = seen.into_inner();
    for wanted in [
        "acquire Write",
        "acquire Already",
        "acquire No(\"held\")",
        "acquire No(\"lost\")",
        "acquire No(\"paused\")",
        "acquire No(\"draining\")",
        "acquire No(\"too soon\")",
        "forget Write",
        "forget Already",
        "forget No(\"forgotten\")",
        "forget No(\"never held\")",
        "forget No(\"held\")",
        "forget No(\"paused\")",
        "forget No(\"draining\")",
        "forget No(\"recent\")",
        "drain Write",
        "drain Already",
        "drain No(\"not held\")",
        "acquire No(\"already run\")",
        "acquire No(\"interrupted\")",
        "rewind Write",
        "rewind No(\"never held\")",
        "renew Write",
        "renew No(\"lost\")",
        "release Write",
        "release No(\"lost\")",
        "release No(\"already released\")",
        "checkpoint Write",
        "checkpoint No(\"lost\")",
        "complete Write",
        "complete Already",
        "complete No(\"lost\")",
        "complete No(\"no slot\")",
        "complete No(\"already run\")",
        "revoke Write",
        "revoke Already",
        "revoke No(\"never held\")",
        "hand off Write",
        "hand off Already",
        "hand off No(\"lost\")",
        "pause Write",
        "pause Already",
        "pause No(\"paused\")",
        "resume Write",
        "resume Already",
        "resume No(\"not paused\")",
        "resume No(\"other pause\")",
        "advance Write",
        "relocate Write",
        "relocate Already",
        "relocate No(\"held\")",
        "relocate No(\"elsewhere\")",
        "acquire No(\"elsewhere\")",
    ] {
        assert!(seen.contains_key(wanted), "no history got the answer: {wanted}; there were {seen:#?}");
    }
    assert!(longest.get() >= TRANSFERS_KEPT, "no history filled the list of transfers");
}

#[test]
fn the_epoch_rises_on_every_transfer_and_on_nothing_else() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |taken, next| {
            let transfers = match &taken.request {
                Request::Acquire { .. } => true,
                Request::Operate { order: Order::Relocate { step, .. }, .. } => {
                    matches!(step, relocation::Step::Leave { .. }) && taken.before.live_tenure(taken.now).is_some()
                }
                Request::Operate { order, .. } => {
                    !matches!(order, Order::Drain { .. } | Order::Forget { .. } | Order::Pause | Order::Resume { .. })
                }
                _ => false,
            };
            if transfers {
                prop_assert!(next.epoch > taken.before.epoch, "{:?}", taken.request);
                let last = next.transfers.last().unwrap();
                prop_assert_eq!((last.epoch, last.at), (next.epoch, taken.now));
            } else {
                prop_assert_eq!(next.epoch, taken.before.epoch, "{:?}", taken.request);
            }
            Ok(())
        })
    });
}

#[test]
fn only_the_holder_renews_releases_reports_and_completes() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, _| {
            let asked = match &step.request {
                Request::Renew { claim, .. }
                | Request::Release { claim, .. }
                | Request::Checkpoint { claim, .. }
                | Request::Complete { claim, .. } => *claim,
                _ => return Ok(()),
            };
            let holds = step.before.tenure.as_ref().map(|t| (step.before.epoch, t.holder.nonce()));
            prop_assert_eq!(holds, Some((asked.epoch, asked.nonce)));
            Ok(())
        })
    });
}

#[test]
fn only_a_renewal_or_a_grant_sets_a_deadline() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, next| {
            let (Some(old), Some(new)) = (&step.before.tenure, &next.tenure) else { return Ok(()) };
            if old.deadline != new.deadline || old.granted_at != new.granted_at {
                let allowed = matches!(
                    &step.request,
                    Request::Acquire { .. }
                        | Request::Renew { .. }
                        | Request::Operate { order: Order::HandOff { .. }, .. }
                );
                prop_assert!(allowed, "{:?}", step.request);
            }
            Ok(())
        })
    });
}

#[test]
fn a_request_that_is_sent_twice_counts_once() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, next| {
            match (&step.request, decide(next, &step.request, step.now)) {
                (Request::Acquire { .. } | Request::Operate { .. } | Request::Complete { .. }, second) => {
                    prop_assert_eq!(second, Decision::AlreadyApplied, "{:?}", step.request);
                }
                (Request::Release { outcome, .. }, second) => {
                    prop_assert_eq!(second, Decision::Refuse(Refusal::AlreadyReleased { outcome: *outcome }));
                }
                (Request::Renew { .. } | Request::Checkpoint { .. }, second) => {
                    prop_assert_eq!(second, Decision::Write(Box::new(next.clone())));
                }
            }
            Ok(())
        })
    });
}

#[test]
fn transfers_are_strictly_rising() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |_, next| {
            prop_assert!(next.transfers.windows(2).all(|w| w[0].epoch < w[1].epoch));
            prop_assert!(next.transfers.iter().all(|t| t.outcome.is_some() == t.held_for_ms.is_some()));
            // Only the newest tenure can be open, and it is open exactly while somebody holds.
            let open: Vec<Epoch> =
                next.transfers.iter().filter(|t| t.to.is_some() && t.outcome.is_none()).map(|t| t.epoch).collect();
            prop_assert_eq!(open, Vec::from_iter(next.tenure.as_ref().map(|_| next.epoch)));
            Ok(())
        })
    });
}

#[test]
fn a_write_changes_only_what_its_request_allows() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, next| {
            let before = &step.before;
            let mut allowed = before.clone();
            (allowed.newborn, allowed.lineage) = (next.newborn, next.lineage);
            // A tenure that ends leaves when it began; a request to finish ends with its epoch.
            if before.tenure.is_some() && (next.epoch > before.epoch || next.tenure.is_none()) {
                let untried = matches!(&step.request, Request::Release { outcome: Outcome::NotStarted, .. });
                let began = before.tenure.as_ref().map(|tenure| tenure.granted_at);
                allowed.last_run = if untried { before.last_run } else { began };
            }
            if next.epoch > before.epoch {
                (allowed.drain, allowed.forgotten) = (None, None);
            }
            let is_order = matches!(step.request, Request::Operate { .. }) && next.epoch > before.epoch;
            let is_at_work = |mark: &&mut SlotMark| mark.state == SlotState::Running && mark.epoch == before.epoch;
            if let Some(mark) = allowed.slot.as_mut().filter(is_at_work).filter(|_| is_order) {
                // What an operator ends is no run of the slot; what it was handed off to is one.
                let is_evicted = before.live_tenure(step.now).is_some();
                let is_passed_on = matches!(&step.request, Request::Operate { order: Order::HandOff { .. }, .. });
                mark.runs = mark.runs.saturating_sub(u32::from(is_evicted)) + u32::from(is_passed_on);
            }
            match &step.request {
                Request::Renew { progress, .. } => {
                    let (old, new) = (allowed.tenure.as_mut().unwrap(), next.tenure.as_ref().unwrap());
                    (old.deadline, old.ttl) = (new.deadline, new.ttl);
                    if progress.is_some() {
                        allowed.progress = next.progress.clone();
                    }
                }
                Request::Checkpoint { .. } => allowed.progress = next.progress.clone(),
                Request::Complete { .. } => {
                    allowed.slot.as_mut().unwrap().state = next.slot.unwrap().state;
                }
                Request::Release { outcome, .. } => {
                    allowed.tenure = None;
                    if let Some(mark) = allowed.slot.as_mut().filter(|m| m.epoch == before.epoch) {
                        mark.state = next.slot.unwrap().state;
                        let is_no_run = matches!(outcome, Outcome::NotStarted | Outcome::Drained);
                        if is_no_run && mark.state == SlotState::Running {
                            mark.runs = mark.runs.saturating_sub(1);
                        }
                    }
                }
                Request::Operate { order: Order::Forget { .. }, .. } => {
                    // All but what keeps numbers and slots from coming twice.
                    let kept = Ownership {
                        epoch: before.epoch,
                        lineage: before.lineage,
                        healed: before.healed,
                        slot: before.slot,
                        last_run: before.last_run_began(),
                        archived: before.epoch,
                        dropped: before.epoch,
                        forgotten: next.forgotten.clone(),
                        ..Ownership::default()
                    };
                    prop_assert!(next.forgotten.is_some());
                    prop_assert_eq!(next, &kept);
                    return Ok(());
                }
                Request::Operate { order: Order::Drain { .. }, .. } => allowed.drain = next.drain.clone(),
                Request::Operate { order: Order::Pause, .. } => {
                    (allowed.paused, allowed.forgotten) = (next.paused.clone(), None);
                }
                Request::Operate { order: Order::Resume { .. }, .. } => {
                    prop_assert!(next.paused.is_none());
                    (allowed.paused, allowed.resumed) = (None, next.resumed.clone());
                }
                Request::Operate { order: Order::Revoke | Order::Advance { .. } | Order::Arrive { .. }, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, None);
                }
                Request::Operate { order: Order::Rewind, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, None);
                    if allowed.slot.is_some_and(|mark| mark.slot.0 > step.now) {
                        allowed.slot = next.slot;
                    }
                }
                Request::Operate { order: Order::Relocate { .. }, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, None);
                    (allowed.relocation, allowed.drain) = (next.relocation.clone(), None);
                }
                Request::Operate { order: Order::HandOff { .. }, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, next.tenure.clone());
                    if let Some(mark) = allowed.slot.as_mut().filter(|m| m.state == SlotState::Running) {
                        mark.epoch = next.slot.unwrap().epoch;
                    }
                }
                Request::Acquire { slot, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, next.tenure.clone());
                    if slot.is_some() {
                        allowed.slot = next.slot;
                    }
                }
            }
            // Of the transfers, one may be new at the end, and the one that began the tenure before may have got its end
            // written. None is dropped: that is for whoever knows it to be archived.
            let grown = usize::from(next.epoch > before.epoch);
            prop_assert_eq!(next.transfers.len(), before.transfers.len() + grown);
            let ends = next.tenure.as_ref() != before.tenure.as_ref() && before.tenure.is_some();
            for (old, new) in before.transfers.iter().zip(&next.transfers) {
                let mut old = old.clone();
                if ends && old.epoch == before.epoch && !matches!(step.request, Request::Renew { .. }) {
                    let old = Arc::make_mut(&mut old);
                    (old.outcome, old.held_for_ms) = (new.outcome, new.held_for_ms);
                    prop_assert!(new.outcome.is_some());
                }
                prop_assert_eq!(&old, new);
            }
            allowed.transfers.clone_from(&next.transfers);
            prop_assert_eq!(&allowed, next, "{:?}", step.request);
            Ok(())
        })
    });
}

#[test]
fn a_slot_is_done_at_most_once_and_never_goes_back() {
    property(CASES, ops(), |ops| {
        let done = std::cell::RefCell::new(Vec::new());
        each_write(&ops, |step, next| {
            if matches!(step.request, Request::Operate { order: Order::Rewind, .. }) {
                // What an operator sets back, and only what was still to come, may be run when its time has come.
                let kept = |mark: SlotMark| (mark.slot, mark.state, mark.epoch);
                let is_kept = next.slot.map(kept) == step.before.slot.map(kept);
                prop_assert!(is_kept || next.slot.is_some_and(|mark| mark.slot.0 == step.now));
                done.borrow_mut().retain(|slot: &leasehold_core::Slot| slot.0 <= step.now);
                return Ok(());
            }
            if let (Some(old), Some(new)) = (step.before.slot, next.slot) {
                prop_assert!(new.slot >= old.slot);
                prop_assert!(old.state != SlotState::Done || new.slot > old.slot || new == old);
                let claimed_again = new.slot == old.slot && new.epoch != old.epoch;
                if claimed_again && matches!(step.request, Request::Acquire { .. }) {
                    let last = next.transfers.last().unwrap();
                    prop_assert!(new.epoch > old.epoch);
                    prop_assert_eq!(last.slot, Some(new.slot));
                    // What was never started is not recovered: it is run for the first time.
                    prop_assert_eq!(last.reason == Reason::Recovered, old.runs > 0);
                }
            }
            let was_done = step.before.slot.is_some_and(|m| m.state == SlotState::Done);
            if let Some(mark) = next.slot.filter(|m| m.state == SlotState::Done)
                && !(was_done && step.before.slot == next.slot)
            {
                prop_assert!(!done.borrow().contains(&mark.slot), "slot {:?} was done twice", mark.slot);
                done.borrow_mut().push(mark.slot);
            }
            Ok(())
        })
    });
}

#[test]
fn every_decided_record_survives_the_codec() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |_, next| {
            let bytes = codec::encode("ownership", next).unwrap();
            prop_assert_eq!(&codec::decode::<Ownership>("ownership", &bytes, "x").unwrap(), next);
            Ok(())
        })
    });
}
