//! Courses of a lease: what is told when, and what is not.

use super::board::Watched;
use super::*;
use crate::schedule::Schedule;
use crate::tally::DeadLetter;
use leasehold_core::{Epoch, LeaseName, NamePattern, Outcome, Slot, Timestamp};
use std::sync::Arc;
use std::time::Duration;

const MINUTE: u64 = 60_000;

fn at(minute: u64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + minute * MINUTE)
}

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn rule(on: &[Cause]) -> Rule {
    Rule {
        channel: "ops".parse().unwrap(),
        on: on.iter().copied().collect(),
        jobs: Vec::new(),
        queues: Vec::new(),
        names: Vec::new(),
        after: 1,
        recovered_after: 1,
        remind: None,
    }
}

/// A lease whose runs end one after the other, one a minute, and the record of what was told.
struct Course {
    subject: Subject,
    rules: Vec<Rule>,
    watched: Watched,
    facts: Facts,
    minute: u64,
}

impl Course {
    fn new(rule: Rule) -> Self {
        let subject = Subject::Job(LeaseName::new("nightly").unwrap());
        Course { subject, rules: vec![rule], watched: Watched::default(), facts: Facts::default(), minute: 0 }
    }

    /// Judges what is known, at this minute; gives the types of what is told.
    fn judge(&mut self, minute: u64) -> Vec<String> {
        self.minute = minute;
        if let Some(next) = self.watched.judged(&self.subject, &self.rules, &self.facts, at(minute)) {
            self.watched = next;
        }
        let told = self.watched.take_outbox();
        told.iter().map(|notice| notice.kind().trim_start_matches("job.").to_owned()).collect()
    }

    /// One more run ends so, a minute later.
    fn ends(&mut self, outcome: Outcome) -> Vec<String> {
        let minute = self.minute + 1;
        let number = self.facts.ends.len() as u64 + 1;
        let slot = Some(Slot(at(minute - 1)));
        self.facts.ends.push(facts::End { epoch: epoch(number), slot, outcome, at: at(minute) });
        self.judge(minute)
    }
}

#[test]
fn after_so_many_failures_in_a_row_it_is_told_once_and_so_is_the_recovery() {
    let mut course = Course::new(Rule { after: 3, recovered_after: 2, ..rule(&[Cause::Failed, Cause::Recovered]) });
    let failed = Outcome::Failed;
    assert!(course.ends(failed).is_empty() && course.ends(failed).is_empty());
    assert!(course.ends(Outcome::Succeeded).is_empty(), "two are not three");
    assert!(course.ends(failed).is_empty() && course.ends(failed).is_empty());
    assert_eq!(course.ends(failed), ["failed"]);
    assert!(course.ends(failed).is_empty() && course.judge(9).is_empty(), "once");
    assert!(course.ends(Outcome::Succeeded).is_empty() && course.ends(failed).is_empty(), "one success is not two");
    assert!(course.ends(Outcome::Succeeded).is_empty());
    assert_eq!(course.ends(Outcome::Succeeded), ["recovered"]);
    assert!(course.ends(Outcome::Succeeded).is_empty());
}

#[test]
fn the_same_facts_judged_twice_or_by_two_machines_change_nothing_and_have_one_id() {
    let mut course = Course::new(rule(&[Cause::Failed]));
    course.facts.ends.push(facts::End { epoch: epoch(7), slot: None, outcome: Outcome::Failed, at: at(1) });
    let judge = |watched: &Watched, minute| watched.judged(&course.subject, &course.rules, &course.facts, at(minute));
    let mut here = judge(&Watched::default(), 2).unwrap();
    let mut there = judge(&Watched::default(), 3).unwrap();
    assert!(judge(&here, 4).is_none());
    let (here, there) = (here.take_outbox(), there.take_outbox());
    assert_eq!((here.len(), &here[0].id), (1, &there[0].id));
}

#[test]
fn a_machine_that_died_before_it_told_leaves_it_to_whoever_looks_next() {
    let mut course = Course::new(rule(&[Cause::Failed, Cause::Lost, Cause::Recovered]));
    course.ends(Outcome::Succeeded);
    // Two ends that nobody judged when they came.
    for (number, outcome) in [(2, Outcome::Failed), (3, Outcome::Expired)] {
        course.facts.ends.push(facts::End { epoch: epoch(number), slot: None, outcome, at: at(number) });
    }
    assert_eq!(course.judge(5), ["lost"], "a rule that is new to it tells the present");
    assert_eq!(course.ends(Outcome::Succeeded), ["recovered"]);
    for (number, outcome) in [(5, Outcome::Failed), (6, Outcome::Succeeded)] {
        course.facts.ends.push(facts::End { epoch: epoch(number), slot: None, outcome, at: at(number + 2) });
    }
    assert_eq!(course.judge(9), ["failed", "recovered"]);
}

#[test]
fn while_it_is_down_people_are_reminded() {
    let remind = Some(Duration::from_secs(600));
    let mut course = Course::new(Rule { remind, ..rule(&[Cause::Failed]) });
    assert_eq!(course.ends(Outcome::Failed), ["failed"]);
    assert!(course.judge(10).is_empty());
    let notice = {
        course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(11)).unwrap();
        course.watched.take_outbox().remove(0)
    };
    assert_eq!(
        (notice.body["data"]["reminder"].as_u64(), notice.body["data"]["down_for_ms"].as_u64()),
        (Some(1), Some(600_000))
    );
    assert!(notice.text().contains("nightly is still down; down for 10m"), "{}", notice.text());
    assert!(course.judge(20).is_empty());
    assert_eq!(course.judge(21), ["failed"]);
    course.ends(Outcome::Succeeded);
    assert!(course.judge(60).is_empty());
}

#[test]
fn what_goes_up_and_down_is_quiet_until_it_is_steady() {
    let mut course = Course::new(rule(&[Cause::Failed, Cause::Recovered]));
    for _ in 0..3 {
        assert_eq!(course.ends(Outcome::Failed), ["failed"]);
        assert_eq!(course.ends(Outcome::Succeeded), ["recovered"]);
    }
    for _ in 0..10 {
        assert!(course.ends(Outcome::Failed).is_empty() && course.ends(Outcome::Succeeded).is_empty());
    }
    assert!(course.ends(Outcome::Failed).is_empty());
    assert!(course.judge(60).is_empty());
    assert_eq!(course.judge(90), ["failed"], "steady, and down");
}

#[test]
fn missed_slots_are_counted_and_told_once_and_late_ones_too() {
    let mut course = Course::new(rule(&[Cause::Missed, Cause::Late, Cause::Recovered]));
    let schedule = Arc::new(Schedule::every(Duration::from_secs(60)).unwrap());
    course.facts.schedule = Some(schedule.clone());
    course.facts.claimed = Some(Slot(at(0)));
    assert!(course.judge(1).is_empty());
    course.facts.late = Some(Slot(at(1)));
    assert_eq!(course.judge(2), ["late"]);
    course.facts.dropped = vec![(Slot(at(1)), Slot(at(3)))];
    assert_eq!(course.judge(4), ["missed"]);
    // The span grows while it is down.
    course.facts.dropped = vec![(Slot(at(1)), Slot(at(5)))];
    assert!(course.judge(6).is_empty());
    course.facts.late = None;
    course.minute = 6;
    course.facts.ends.push(facts::End {
        epoch: epoch(2),
        slot: Some(Slot(at(6))),
        outcome: Outcome::Succeeded,
        at: at(7),
    });
    course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(7)).unwrap();
    let told = course.watched.take_outbox();
    assert_eq!((told[0].kind(), told[0].body["data"]["missed"].as_u64()), ("job.recovered", Some(5)));
    assert!(course.judge(8).is_empty());
}

#[test]
fn refused_writes_and_dead_letters_are_gathered() {
    let mut course = Course::new(rule(&[Cause::Fenced]));
    course.facts = Facts::default().with_fenced(5, 0);
    assert!(course.judge(1).is_empty(), "what was before the rule is not told");
    course.facts = Facts::default().with_fenced(6, 1);
    assert_eq!(course.judge(2), ["fenced"]);
    course.facts = Facts::default().with_fenced(9, 1);
    assert!(course.judge(3).is_empty());
    course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(8)).unwrap();
    assert_eq!(course.watched.take_outbox()[0].body["data"]["count"], 3);
    let mut queue = Course::new(rule(&[Cause::DeadLetter]));
    queue.subject = Subject::Queue("mail".parse().unwrap());
    let letter = |key: &str, minute| DeadLetter {
        id: format!("k.{key}").parse().unwrap(),
        epoch: epoch(1),
        why: Some("exit code 1".parse().unwrap()),
        at: at(minute),
        tail: Some("no such address\n".into()),
    };
    queue.facts = Facts::of_survey(vec![letter("old", 1)]);
    assert!(queue.judge(2).is_empty(), "old ones are not told");
    queue.facts = Facts::of_queue(vec![letter("a", 3)]);
    assert_eq!(queue.judge(3), ["queue.dead_letter"]);
    queue.facts = Facts::of_survey(vec![letter("old", 1), letter("a", 3), letter("b", 4)]);
    assert!(queue.judge(4).is_empty(), "gathered");
    queue.watched = queue.watched.judged(&queue.subject, &queue.rules, &queue.facts, at(9)).unwrap();
    assert_eq!(queue.watched.take_outbox()[0].body["data"]["count"], 1);
    assert!(queue.judge(20).is_empty());
}

#[test]
fn a_rule_is_about_what_its_patterns_say() {
    let pattern = |text: &str| vec![text.parse::<NamePattern>().unwrap()];
    let (job, lease) = (LeaseName::new("a/job").unwrap(), LeaseName::new("a/lease").unwrap());
    let subjects = [Subject::Job(job), Subject::Lease(lease), Subject::Queue("a".parse().unwrap())];
    let about = |rule: &Rule| subjects.each_ref().map(|subject| rule.is_about(subject));
    let all = rule(&[Cause::Failed]);
    assert_eq!(about(&all), [true, true, true]);
    assert_eq!(about(&Rule { jobs: pattern("a/*"), ..all.clone() }), [true, false, false]);
    assert_eq!(about(&Rule { names: pattern("a/*"), ..all.clone() }), [true, true, false]);
    assert_eq!(about(&Rule { queues: pattern("*"), ..all.clone() }), [false, false, true]);
    assert_eq!(about(&Rule { jobs: pattern("b"), queues: pattern("a"), ..all }), [false, false, true]);
}

#[test]
fn a_notice_says_what_happened_and_where_to_look() {
    let mut course = Course::new(rule(&[Cause::Failed]));
    let tail = Some("line 1\n```\nlast line\n".to_owned());
    course.facts.detail = Some(Detail { epoch: epoch(1), exit_code: Some(3), ran_for_ms: Some(1), tail });
    let slot = Slot(at(0));
    course.facts.ends.push(facts::End { epoch: epoch(1), slot: Some(slot), outcome: Outcome::Failed, at: at(1) });
    course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(1)).unwrap();
    let notice = course.watched.take_outbox().remove(0);
    let slot = crate::schedule::slot_text(slot);
    let text = format!(
        "nightly failed with exit code 3 for slot {slot}\n```\nline 1\n'''\nlast line\n```\nlook: leasehold logs nightly \
         {slot}\nlook: leasehold runs nightly"
    );
    assert_eq!(notice.text(), text);
    assert_eq!(
        (notice.kind(), notice.name(), notice.body["data"]["exit_code"].as_u64()),
        ("job.failed", "nightly", Some(3))
    );
}
