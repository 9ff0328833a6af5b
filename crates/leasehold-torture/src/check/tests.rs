//! Histories in which one thing is wrong, and in which it only looks so: each verdict is seen to fire, and to hold back.

use super::{Promise, check};
use crate::facts::{Actor, Added, Happened, History, Item, Location, Seen, Slots, What, Work};
use crate::log::{Line, Step};

const TTL: u64 = 6_000;
const JOB: &str = "brisk";
const QUEUE: &str = "mail";

fn work(name: &str, period_ms: u64) -> Work {
    Work { name: name.into(), location: Location::Server, ttl_ms: TTL, period_ms, lanes: 1, backoff_ms: 1_000 }
}

/// Nothing wrong: one slot and one item, which added another.
fn good() -> History {
    let mut history = History {
        works: vec![work(JOB, 4_000), work(QUEUE, 0)],
        healed: 60_000,
        looked: 70_000,
        actors: vec![Actor {
            name: "worker".into(),
            ended: None,
            told: Some(0),
            lanes: Some((2, 2)),
            lost_lanes: Vec::new(),
        }],
        ..History::default()
    };
    let slots = history.slots.entry(JOB.into()).or_default();
    slots.due_to = 11_000;
    seen(slots, 4_000, "succeeded", 1);
    seen(slots, 8_000, "dropped_coalesced", 0);
    ran(&mut history, JOB, "4000", 1, 10_000, 11_000, Some(0));
    add(&mut history, "a", 10_000, true);
    finish(&mut history, "a", "done", 1);
    ran(&mut history, QUEUE, "a", 1, 10_500, 11_000, Some(0));
    finish(&mut history, "b", "done", 1);
    let child = ran(&mut history, QUEUE, "b", 1, 12_000, 12_100, Some(0));
    history.lines[child].payload = "child of a".into();
    history
}

fn seen(slots: &mut Slots, slot: u64, fate: &str, epoch: u64) {
    let epoch = (epoch > 0).then_some(epoch);
    slots.seen.insert(slot, Seen { fate: fate.into(), epoch, tries: 1 });
}

fn add(history: &mut History, id: &str, at: u64, has_child: bool) {
    history.added.push(Added { work: QUEUE.into(), id: id.into(), at, has_child });
}

fn finish(history: &mut History, id: &str, state: &str, epoch: u64) {
    history.items.push(Item { work: QUEUE.into(), id: id.into(), state: state.into(), epoch });
}

/// A run from here to there; gives the place of its first line. Its supervisor's number is 100 and its epoch.
fn ran(history: &mut History, work: &str, id: &str, epoch: u64, from: u64, to: u64, code: Option<i32>) -> usize {
    let pids = [(epoch * 1_000 + from) as i32, 9, 100 + epoch as i32, 7];
    let line = |at, step, code| Line {
        at,
        step,
        work: work.into(),
        id: id.into(),
        epoch,
        attempt: 1,
        pids,
        code,
        payload: String::new(),
    };
    history.lines.push(line(from, Step::Start, None));
    let end = if code.is_some() { Step::End } else { Step::Tick };
    history.lines.push(line(to, end, code));
    history.lines.len() - 2
}

fn happened(history: &mut History, from: u64, to: u64, what: What) {
    history.happened.push(Happened { from, to, what });
}

#[track_caller]
fn broken(history: &History, promises: &[Promise]) {
    let found: Vec<Promise> = check(history).iter().map(|verdict| verdict.promise).collect();
    assert_eq!(found, promises, "{:#?}", check(history));
}

#[test]
fn a_good_history_has_no_verdict() {
    broken(&good(), &[]);
}

#[test]
fn two_accepted_ends_of_a_slot_are_found() {
    let mut history = good();
    ran(&mut history, JOB, "4000", 2, 20_000, 21_000, Some(0));
    happened(&mut history, 10_500, 10_500, What::Killed(101, String::new(), 1));
    let slots = history.slots.get_mut(JOB).unwrap();
    slots.ends.insert((4_000, 1), "succeeded".into());
    slots.ends.insert((4_000, 2), "succeeded".into());
    broken(&history, &[Promise::OneEnd]);
}

#[test]
fn a_run_after_the_end_is_found() {
    let mut history = good();
    // Its supervisor was hit, so that it may not have told; but it is recorded.
    happened(&mut history, 10_500, 10_500, What::Killed(101, String::new(), 1));
    ran(&mut history, QUEUE, "a", 2, 20_000, 20_500, Some(1));
    broken(&history, &[Promise::NoRunAfterTheEnd]);
}

#[test]
fn success_without_a_run_is_found() {
    let mut history = good();
    let slots = history.slots.get_mut(JOB).unwrap();
    seen(slots, 8_000, "succeeded", 2);
    broken(&history, &[Promise::NoEndWithoutARun]);
}

#[test]
fn a_second_and_a_missing_follow_up_are_found() {
    let mut history = good();
    finish(&mut history, "c", "done", 1);
    let child = ran(&mut history, QUEUE, "c", 1, 13_000, 13_100, Some(0));
    history.lines[child].payload = "child of a".into();
    broken(&history, &[Promise::OneFollowUp]);
    let mut history = good();
    history.lines.iter_mut().for_each(|line| line.payload.clear());
    broken(&history, &[Promise::OneFollowUp]);
}

#[test]
fn a_stale_write_is_found() {
    let mut history = good();
    ran(&mut history, JOB, "8000", 2, 12_000, 13_000, Some(0));
    seen(history.slots.get_mut(JOB).unwrap(), 8_000, "succeeded", 2);
    let lines = history.lines.clone();
    let mut write = |epoch, step, at, code| {
        let of = lines.iter().find(|line| line.work == JOB && line.epoch == epoch).unwrap();
        history.lines.push(Line { at, step, code, ..of.clone() });
    };
    write(2, Step::Writing, 12_100, None);
    write(2, Step::Wrote, 12_200, Some(0));
    write(1, Step::Writing, 12_150, None);
    write(1, Step::Wrote, 12_210, Some(0));
    assert!(!check(&history).iter().any(|verdict| verdict.promise == Promise::NoStaleWrite));
    history.lines.iter_mut().filter(|line| line.at == 12_150).for_each(|line| line.at = 12_205);
    assert!(check(&history).iter().any(|verdict| verdict.promise == Promise::NoStaleWrite));
}

#[test]
fn an_overlap_is_found_unless_the_clock_has_just_stepped() {
    let mut history = good();
    ran(&mut history, JOB, "8000", 2, 10_000, 12_000, Some(0));
    seen(history.slots.get_mut(JOB).unwrap(), 8_000, "succeeded", 2);
    broken(&history, &[Promise::NoOverlap]);
    happened(&mut history, 9_900, 9_900, What::Forward(30_000));
    broken(&history, &[]);
    // A renewal that came after the step was trusted for a whole TTL.
    history.lines[1].at = 20_000;
    broken(&history, &[Promise::NoOverlap]);
}

#[test]
fn an_end_that_could_have_been_told_is_missed() {
    let mut history = good();
    seen(history.slots.get_mut(JOB).unwrap(), 4_000, "succeeded", 2);
    ran(&mut history, JOB, "4000", 2, 18_000, 19_000, Some(0));
    broken(&history, &[Promise::TheEndIsTold]);
    // A short absence is no excuse, a long one is.
    happened(&mut history, 10_900, 11_500, What::Away);
    broken(&history, &[Promise::TheEndIsTold]);
    happened(&mut history, 11_500, 16_000, What::Away);
    broken(&history, &[]);
    let mut history = good();
    seen(history.slots.get_mut(JOB).unwrap(), 4_000, "succeeded", 2);
    ran(&mut history, JOB, "4000", 2, 18_000, 19_000, Some(0));
    happened(&mut history, 10_500, 10_500, What::Killed(101, String::new(), 1));
    broken(&history, &[]);
}

#[test]
fn a_slot_without_a_fate_and_one_that_stays_open_are_found() {
    let mut history = good();
    history.slots.get_mut(JOB).unwrap().seen.remove(&8_000);
    broken(&history, &[Promise::EverySlotHasAFate]);
    history.slots.get_mut(JOB).unwrap().due_to = 16_000;
    seen(history.slots.get_mut(JOB).unwrap(), 16_000, "skipped_overlap", 0);
    broken(&history, &[Promise::EverySlotHasAFate, Promise::EverySlotHasAFate]);
    let mut history = good();
    seen(history.slots.get_mut(JOB).unwrap(), 8_000, "died", 2);
    broken(&history, &[Promise::EverySlotHasAFate]);
    history.slots.get_mut(JOB).unwrap().seen.get_mut(&8_000).unwrap().tries = 3;
    broken(&history, &[]);
    history.slots.clear();
    broken(&history, &[Promise::EverySlotHasAFate]);
    history.damaged.push(JOB.into());
    broken(&history, &[]);
}

#[test]
fn an_item_that_is_gone_and_one_that_never_ends_are_found() {
    let mut history = good();
    add(&mut history, "gone", 65_000, false);
    broken(&history, &[Promise::EveryItemEnds]);
    let mut history = good();
    add(&mut history, "slow", 68_000, false);
    finish(&mut history, "slow", "ready", 0);
    broken(&history, &[Promise::EveryItemEnds]);
    history.damaged.push(format!("{QUEUE}/slow"));
    broken(&history, &[]);
}

#[test]
fn a_wait_is_found_unless_something_was_in_the_way() {
    // Added at 10,000 and run at 18,000.
    let late = |what: Option<(u64, u64, What)>| {
        let mut history = good();
        add(&mut history, "late", 20_000, false);
        finish(&mut history, "late", "done", 1);
        ran(&mut history, QUEUE, "late", 1, 28_000, 28_100, Some(0));
        if let Some((from, to, what)) = what {
            happened(&mut history, from, to, what);
        }
        history
    };
    broken(&late(None), &[Promise::NothingIsStuck]);
    // An item without a delay does not care for a clock that is set back.
    broken(&late(Some((21_000, 21_000, What::Back(30_000)))), &[Promise::NothingIsStuck]);
    broken(&late(Some((21_000, 24_000, What::Away))), &[]);
    broken(&late(Some((22_000, 23_000, What::Stall))), &[]);
    broken(&late(Some((22_000, 22_000, What::Killed(5, QUEUE.into(), 1)))), &[]);
    broken(&late(Some((22_000, 22_000, What::Killed(5, "post".into(), 1)))), &[Promise::NothingIsStuck]);
    let mut history = late(None);
    finish(&mut history, "x", "done", 1);
    ran(&mut history, QUEUE, "x", 1, 21_000, 26_000, Some(0));
    broken(&history, &[]);
}

#[test]
fn a_dead_workers_item_waits_no_longer_than_its_deadline() {
    let died = |next: u64| {
        let mut history = good();
        add(&mut history, "again", 20_000, false);
        finish(&mut history, "again", "done", 2);
        ran(&mut history, QUEUE, "again", 1, 20_500, 22_000, None);
        happened(&mut history, 22_000, 22_000, What::Killed(101, String::new(), 1));
        ran(&mut history, QUEUE, "again", 2, next, next + 100, Some(0));
        history
    };
    broken(&died(22_000 + TTL + 2_000), &[]);
    broken(&died(22_000 + TTL + 20_000), &[Promise::NothingIsStuck]);
    // Set back before the last renewal: the renewal has shortened the deadline. After it, nothing could.
    let mut history = died(22_000 + TTL + 20_000);
    happened(&mut history, 15_000, 15_000, What::Back(30_000));
    broken(&history, &[Promise::NothingIsStuck]);
    happened(&mut history, 21_000, 21_000, What::Back(30_000));
    broken(&history, &[]);
}

#[test]
fn a_command_that_is_stopped_without_a_fault_is_found() {
    let mut history = good();
    finish(&mut history, "long", "done", 2);
    ran(&mut history, QUEUE, "long", 1, 20_000, 26_000, None);
    ran(&mut history, QUEUE, "long", 2, 30_000, 36_000, Some(0));
    broken(&history, &[Promise::NoRunIsStopped]);
    happened(&mut history, 25_000, 25_000, What::Killed(101, String::new(), 1));
    broken(&history, &[]);
}

#[test]
fn who_stops_without_a_fault_is_found() {
    let with = |ended, told, lanes| {
        let mut history = good();
        history.actors[0] = Actor { name: "worker".into(), ended, told, lanes, lost_lanes: Vec::new() };
        history
    };
    broken(&with(Some((5_000, 64)), Some(0), None), &[Promise::NobodyElseStops]);
    broken(&with(None, None, None), &[Promise::NobodyElseStops]);
    broken(&with(None, Some(69), None), &[Promise::NobodyElseStops]);
    broken(&with(None, Some(0), Some((2, 1))), &[Promise::NobodyElseStops]);
    broken(&with(None, Some(0), Some((2, 2))), &[]);
    let mut history = good();
    history.actors[0].lost_lanes.push(69);
    broken(&history, &[Promise::NobodyElseStops]);
}

#[test]
fn excuses_that_overlap_do_not_add_up() {
    let mut history = good();
    add(&mut history, "late", 20_000, false);
    finish(&mut history, "late", "done", 1);
    ran(&mut history, QUEUE, "late", 1, 40_000, 40_100, Some(0));
    for _ in 0..5 {
        happened(&mut history, 21_000, 22_000, What::Away);
    }
    broken(&history, &[Promise::NothingIsStuck]);
}

#[test]
fn a_run_that_was_killed_before_it_was_written_down_counts_as_a_try() {
    let mut history = good();
    let slots = history.slots.get_mut(JOB).unwrap();
    slots.seen.insert(8_000, Seen { fate: "died".into(), epoch: Some(4), tries: 2 });
    slots.ends.extend((2..4).map(|epoch| ((8_000, epoch), "expired".into())));
    broken(&history, &[Promise::EverySlotHasAFate]);
    history.slots.get_mut(JOB).unwrap().ends.insert((8_000, 4), "expired".into());
    broken(&history, &[]);
}
