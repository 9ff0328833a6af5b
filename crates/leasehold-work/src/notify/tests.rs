//! Histories of a lease: what is reported when, and what is not.

mod notices;

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

pub(super) fn rule(on: &[Cause]) -> Rule {
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

/// A run that ended with this outcome, at this minute.
fn end(number: u64, slot: Option<Slot>, outcome: Outcome, minute: u64) -> facts::End {
    facts::End { epoch: epoch(number), granted: at(0), slot, outcome, at: at(minute) }
}

/// A lease whose runs end one after the other, one a minute, and the record of what was told.
struct Course {
    subject: Subject,
    rules: Vec<Rule>,
    watched: Watched,
    facts: Facts,
    minute: u64,
    /// The ids of all messages.
    ids: Vec<String>,
}

impl Course {
    fn new(rule: Rule) -> Self {
        let subject = Subject::Job(LeaseName::new("nightly").unwrap());
        Course {
            subject,
            rules: vec![rule],
            watched: Watched::default(),
            facts: Facts::default(),
            minute: 0,
            ids: Vec::new(),
        }
    }

    /// Judges the facts at this minute; returns the kinds of the messages.
    fn judge(&mut self, minute: u64) -> Vec<String> {
        self.minute = minute;
        if let Some(next) = self.watched.judged(&self.subject, &self.rules, &self.facts, at(minute)) {
            self.watched = next;
        }
        let told = self.watched.take_outbox();
        self.ids.extend(told.iter().map(|notice| notice.id.clone()));
        told.iter().map(|notice| notice.kind().trim_start_matches("job.").to_owned()).collect()
    }

    /// One more run ends with this outcome, a minute later.
    fn ends(&mut self, outcome: Outcome) -> Vec<String> {
        let minute = self.minute + 1;
        let number = self.facts.ends.len() as u64 + 1;
        let slot = Some(Slot(at(minute - 1)));
        self.facts.ends.push(end(number, slot, outcome, minute));
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
    course.facts.ends.push(end(7, None, Outcome::Failed, 1));
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
    // Two ends that no machine judged when they came.
    for (number, outcome) in [(2, Outcome::Failed), (3, Outcome::Expired)] {
        course.facts.ends.push(end(number, None, outcome, number));
    }
    assert_eq!(course.judge(5), ["lost"], "a rule that is new to it tells the present");
    assert_eq!(course.ends(Outcome::Succeeded), ["recovered"]);
    for (number, outcome) in [(5, Outcome::Failed), (6, Outcome::Succeeded)] {
        course.facts.ends.push(end(number, None, outcome, number + 2));
    }
    assert_eq!(course.judge(9), ["failed", "recovered"]);
}

#[test]
fn a_failure_that_was_over_before_anybody_judged_it_is_told_unless_it_is_old() {
    const DAY: u64 = 24 * 60;
    for (outcome, told) in [(Outcome::Failed, "failed"), (Outcome::Expired, "lost")] {
        let mut course = Course::new(rule(&[Cause::Failed, Cause::Lost, Cause::Recovered]));
        assert!(course.ends(Outcome::Succeeded).is_empty());
        for (number, outcome) in [(2, outcome), (3, Outcome::Succeeded)] {
            course.facts.ends.push(end(number, None, outcome, number));
        }
        let mut late = Course { facts: course.facts.clone(), ..Course::new(course.rules[0].clone()) };
        assert_eq!(course.judge(5), [told, "recovered"]);
        assert!(course.judge(6).is_empty(), "once");
        assert!(late.judge(3 * DAY).is_empty(), "what is long over is history to a new rule");
    }
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
    for _ in 0..2 {
        assert_eq!(course.ends(Outcome::Failed), ["failed"]);
        assert_eq!(course.ends(Outcome::Succeeded), ["recovered"]);
    }
    assert_eq!(course.ends(Outcome::Failed), ["failed"], "it says that it is quiet from now on");
    assert!(course.ends(Outcome::Succeeded).is_empty(), "and it is");
    for _ in 0..10 {
        assert!(course.ends(Outcome::Failed).is_empty() && course.ends(Outcome::Succeeded).is_empty());
    }
    assert!(course.ends(Outcome::Failed).is_empty());
    assert!(course.judge(60).is_empty() && course.judge(86).is_empty());
    assert_eq!(course.judge(90), ["failed"], "steady, and down");
    assert!(course.judge(91).is_empty());
    assert_eq!(course.ends(Outcome::Succeeded), ["recovered"]);
    // Steady and up.
    for _ in 0..3 {
        course.ends(Outcome::Failed);
        course.ends(Outcome::Succeeded);
    }
    assert!(course.judge(120).is_empty());
    assert_eq!(course.judge(170), ["recovered"]);
    assert!(course.judge(171).is_empty());
}

#[test]
fn what_slows_down_while_it_flaps_is_quiet_until_it_is_over() {
    let mut course = Course::new(rule(&[Cause::Failed, Cause::Recovered]));
    for _ in 0..3 {
        course.ends(Outcome::Failed);
        course.ends(Outcome::Succeeded);
    }
    for _ in 0..5 {
        course.judge(course.minute + 50);
        assert!(course.ends(Outcome::Failed).is_empty() && course.ends(Outcome::Succeeded).is_empty());
    }
}

#[test]
fn each_message_names_the_one_before_it() {
    let mut course = Course::new(rule(&[Cause::Failed, Cause::Recovered]));
    for (number, outcome) in [(1, Outcome::Succeeded), (2, Outcome::Failed)] {
        course.facts.ends.push(end(number, None, outcome, number));
    }
    let judged = |course: &Course| course.watched.judged(&course.subject, &course.rules, &course.facts, at(9)).unwrap();
    course.watched = judged(&course);
    let first = course.watched.take_outbox();
    for (number, outcome) in [(3, Outcome::Succeeded), (4, Outcome::Failed)] {
        course.facts.ends.push(end(number, None, outcome, number));
    }
    course.watched = judged(&course);
    let more = course.watched.take_outbox();
    assert_eq!((first[0].after.as_ref(), more.len()), (None, 2));
    assert_eq!((more[0].after.as_ref(), more[1].after.as_ref()), (Some(&first[0].id), Some(&more[0].id)));
}

#[test]
fn a_clock_that_was_ahead_keeps_nobody_quiet() {
    const YEAR: u64 = 365 * 24 * 60;
    let remind = Some(Duration::from_secs(600));
    let mut course = Course::new(Rule { remind, ..rule(&[Cause::Failed, Cause::Recovered]) });
    course.judge(YEAR);
    for _ in 0..3 {
        course.ends(Outcome::Failed);
        course.ends(Outcome::Succeeded);
    }
    // The clock is set right.
    assert!(course.judge(10).is_empty());
    assert_eq!(course.judge(71), ["recovered"], "steady for an hour since");
    assert_eq!(course.ends(Outcome::Failed), ["failed"]);
    assert_eq!(course.judge(82), ["failed"], "a reminder");
}

#[test]
fn what_nobody_runs_is_told_once_whether_it_is_late_or_missed_and_its_slots_are_counted() {
    let mut course = Course::new(rule(&[Cause::Missed, Cause::Late, Cause::Recovered]));
    let schedule = Arc::new(Schedule::every(Duration::from_secs(60)).unwrap());
    course.facts.schedule = Some(schedule.clone());
    course.facts.claimed = Some(Slot(at(0)));
    assert!(course.judge(1).is_empty());
    course.facts.late = Some(Slot(at(1)));
    assert_eq!(course.judge(2), ["late"]);
    course.facts.dropped = vec![(Slot(at(1)), Slot(at(3)))];
    assert!(course.judge(4).is_empty(), "one cause");
    // The span grows while it is down.
    course.facts.dropped = vec![(Slot(at(1)), Slot(at(5)))];
    assert!(course.judge(6).is_empty());
    course.facts.late = None;
    course.minute = 6;
    course.facts.ends.push(end(2, Some(Slot(at(6))), Outcome::Succeeded, 7));
    course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(7)).unwrap();
    let told = course.watched.take_outbox();
    assert_eq!((told[0].kind(), told[0].body["data"]["missed"].as_u64()), ("job.recovered", Some(5)));
    assert!(course.judge(8).is_empty());
}

#[test]
fn slots_that_were_dropped_while_the_clock_was_ahead_are_missed_when_their_time_comes() {
    let mut course = Course::new(rule(&[Cause::Missed, Cause::Recovered]));
    course.facts.schedule = Some(Arc::new(Schedule::every(Duration::from_secs(60)).unwrap()));
    course.facts.claimed = Some(Slot(at(0)));
    let mut judge = |minute: u64, dropped: &[(u64, u64)]| {
        course.facts.now = Some(at(minute));
        course.facts.dropped = dropped.iter().map(|(first, last)| (Slot(at(*first)), Slot(at(*last)))).collect();
        course.judge(minute)
    };
    assert!(judge(1, &[]).is_empty());
    // The clock is an hour ahead, and then right again.
    assert_eq!(judge(61, &[(2, 60)]), ["missed"]);
    assert!(judge(3, &[(2, 60)]).is_empty(), "they were told");
    assert!(judge(5, &[(2, 60)]).is_empty(), "it is still down");
    course.facts.now = None;
    course.facts.dropped.clear();
    course.minute = 6;
    assert_eq!(course.ends(Outcome::Succeeded), ["recovered"]);
    course.facts.now = Some(at(9));
    course.facts.dropped = vec![(Slot(at(2)), Slot(at(60)))];
    assert_eq!(course.judge(9), ["missed"], "nobody runs it, though its slots are settled");
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
fn a_reminder_has_the_exit_code_and_the_reason_of_the_failure_that_it_reminds_of() {
    let remind = Some(Duration::from_secs(600));
    let mut course = Course::new(Rule { remind, ..rule(&[Cause::Failed]) });
    let why = Some("it ran for longer than 1h".to_owned());
    let known = Detail { epoch: epoch(1), exit_code: Some(124), why, is_kept: true, ..Detail::default() };
    course.facts = course.facts.with_detail(Some(known));
    assert_eq!(course.ends(Outcome::Failed), ["failed"]);
    // Another machine, which knows nothing about the run.
    course.facts.details.clear();
    course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(11)).unwrap();
    let notice = course.watched.take_outbox().remove(0);
    let data = &notice.body["data"];
    assert_eq!((data["reminder"].as_u64(), data["exit_code"].as_u64()), (Some(1), Some(124)));
    assert_eq!(data["why"], "it ran for longer than 1h");
    assert!(
        notice.text().starts_with("nightly is still down: it ran for longer than 1h; down for 10m\n"),
        "{}",
        notice.text()
    );
    assert!(notice.text().contains("look: leasehold logs nightly "), "{}", notice.text());
}

#[test]
fn no_two_messages_of_one_outage_have_one_id() {
    let remind = Some(Duration::from_secs(600));
    let mut course = Course::new(Rule { remind, ..rule(&[Cause::Failed, Cause::Lost, Cause::Recovered]) });
    course.ends(Outcome::Succeeded);
    assert_eq!(course.ends(Outcome::Failed), ["failed"]);
    assert_eq!((course.judge(15).len(), course.judge(30).len()), (1, 1), "it is reminded of");
    assert_eq!(course.ends(Outcome::Expired), ["lost"]);
    assert!(course.ends(Outcome::Failed).is_empty(), "that was told");
    assert_eq!(course.judge(60).len(), 1, "it is reminded of again");
    let mut ids = course.ids.clone();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), course.ids.len(), "{:?}", course.ids);
}

#[test]
fn what_is_told_after_the_quiet_is_another_message_and_a_new_outage_is_told_though_nobody_looked() {
    let flapping = |course: &mut Course| {
        for _ in 0..10 {
            course.ends(Outcome::Failed);
            course.ends(Outcome::Succeeded);
        }
    };
    // In the end it fails and stays down, without any further event.
    let mut course = Course::new(rule(&[Cause::Failed, Cause::Recovered]));
    flapping(&mut course);
    assert!(course.ends(Outcome::Failed).is_empty(), "it is quiet");
    assert_eq!(course.judge(200), ["failed"]);
    let (last, earlier) = course.ids.split_last().unwrap();
    assert!(!earlier.contains(last));
    // It recovers, and no machine judges it until it fails again.
    let mut course = Course::new(rule(&[Cause::Failed, Cause::Recovered]));
    flapping(&mut course);
    course.minute = 300;
    let told = course.ends(Outcome::Failed);
    assert_eq!(told.last().map(String::as_str), Some("failed"), "{told:?}");
}
