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
struct LeaseHistory {
    subject: Subject,
    rules: Vec<Rule>,
    watched: Watched,
    facts: Facts,
    minute: u64,
    /// The ids of all messages.
    ids: Vec<String>,
}

impl LeaseHistory {
    fn new(rule: Rule) -> Self {
        let subject = Subject::Job(LeaseName::new("nightly").unwrap());
        LeaseHistory {
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
fn after_so_many_failures_in_a_row_it_is_reported_once_and_so_is_the_recovery() {
    let mut history =
        LeaseHistory::new(Rule { after: 3, recovered_after: 2, ..rule(&[Cause::Failed, Cause::Recovered]) });
    let failed = Outcome::Failed;
    assert!(history.ends(failed).is_empty() && history.ends(failed).is_empty());
    assert!(history.ends(Outcome::Succeeded).is_empty(), "two are not three");
    assert!(history.ends(failed).is_empty() && history.ends(failed).is_empty());
    assert_eq!(history.ends(failed), ["failed"]);
    assert!(history.ends(failed).is_empty() && history.judge(9).is_empty(), "once");
    assert!(history.ends(Outcome::Succeeded).is_empty() && history.ends(failed).is_empty(), "one success is not two");
    assert!(history.ends(Outcome::Succeeded).is_empty());
    assert_eq!(history.ends(Outcome::Succeeded), ["recovered"]);
    assert!(history.ends(Outcome::Succeeded).is_empty());
}

#[test]
fn the_same_facts_judged_twice_or_by_two_machines_change_nothing_and_have_one_id() {
    let mut history = LeaseHistory::new(rule(&[Cause::Failed]));
    history.facts.ends.push(end(7, None, Outcome::Failed, 1));
    let judge =
        |watched: &Watched, minute| watched.judged(&history.subject, &history.rules, &history.facts, at(minute));
    let mut here = judge(&Watched::default(), 2).unwrap();
    let mut there = judge(&Watched::default(), 3).unwrap();
    assert!(judge(&here, 4).is_none());
    let (here, there) = (here.take_outbox(), there.take_outbox());
    assert_eq!((here.len(), &here[0].id), (1, &there[0].id));
}

#[test]
fn a_machine_that_died_before_it_told_leaves_it_to_whoever_looks_next() {
    let mut history = LeaseHistory::new(rule(&[Cause::Failed, Cause::Lost, Cause::Recovered]));
    history.ends(Outcome::Succeeded);
    // Two ends that no machine judged when they came.
    for (number, outcome) in [(2, Outcome::Failed), (3, Outcome::Expired)] {
        history.facts.ends.push(end(number, None, outcome, number));
    }
    assert_eq!(history.judge(5), ["lost"], "a rule that is new to it tells the present");
    assert_eq!(history.ends(Outcome::Succeeded), ["recovered"]);
    for (number, outcome) in [(5, Outcome::Failed), (6, Outcome::Succeeded)] {
        history.facts.ends.push(end(number, None, outcome, number + 2));
    }
    assert_eq!(history.judge(9), ["failed", "recovered"]);
}

#[test]
fn a_failure_that_was_over_before_anybody_judged_it_is_reported_unless_it_is_old() {
    const DAY: u64 = 24 * 60;
    for (outcome, told) in [(Outcome::Failed, "failed"), (Outcome::Expired, "lost")] {
        let mut history = LeaseHistory::new(rule(&[Cause::Failed, Cause::Lost, Cause::Recovered]));
        assert!(history.ends(Outcome::Succeeded).is_empty());
        for (number, outcome) in [(2, outcome), (3, Outcome::Succeeded)] {
            history.facts.ends.push(end(number, None, outcome, number));
        }
        let mut late = LeaseHistory { facts: history.facts.clone(), ..LeaseHistory::new(history.rules[0].clone()) };
        assert_eq!(history.judge(5), [told, "recovered"]);
        assert!(history.judge(6).is_empty(), "once");
        assert!(late.judge(3 * DAY).is_empty(), "what is long over is history to a new rule");
    }
}

#[test]
fn while_it_is_down_people_are_reminded() {
    let remind = Some(Duration::from_secs(600));
    let mut history = LeaseHistory::new(Rule { remind, ..rule(&[Cause::Failed]) });
    assert_eq!(history.ends(Outcome::Failed), ["failed"]);
    assert!(history.judge(10).is_empty());
    let notice = {
        history.watched = history.watched.judged(&history.subject, &history.rules, &history.facts, at(11)).unwrap();
        history.watched.take_outbox().remove(0)
    };
    assert_eq!(
        (notice.body["data"]["reminder"].as_u64(), notice.body["data"]["down_for_ms"].as_u64()),
        (Some(1), Some(600_000))
    );
    assert!(notice.text().contains("nightly is still down; down for 10m"), "{}", notice.text());
    assert!(history.judge(20).is_empty());
    assert_eq!(history.judge(21), ["failed"]);
    history.ends(Outcome::Succeeded);
    assert!(history.judge(60).is_empty());
}

#[test]
fn what_goes_up_and_down_is_quiet_until_it_is_steady() {
    let mut history = LeaseHistory::new(rule(&[Cause::Failed, Cause::Recovered]));
    for _ in 0..2 {
        assert_eq!(history.ends(Outcome::Failed), ["failed"]);
        assert_eq!(history.ends(Outcome::Succeeded), ["recovered"]);
    }
    assert_eq!(history.ends(Outcome::Failed), ["failed"], "it says that it is quiet from now on");
    assert!(history.ends(Outcome::Succeeded).is_empty(), "and it is");
    for _ in 0..10 {
        assert!(history.ends(Outcome::Failed).is_empty() && history.ends(Outcome::Succeeded).is_empty());
    }
    assert!(history.ends(Outcome::Failed).is_empty());
    assert!(history.judge(60).is_empty() && history.judge(86).is_empty());
    assert_eq!(history.judge(90), ["failed"], "steady, and down");
    assert!(history.judge(91).is_empty());
    assert_eq!(history.ends(Outcome::Succeeded), ["recovered"]);
    // Steady and up.
    for _ in 0..3 {
        history.ends(Outcome::Failed);
        history.ends(Outcome::Succeeded);
    }
    assert!(history.judge(120).is_empty());
    assert_eq!(history.judge(170), ["recovered"]);
    assert!(history.judge(171).is_empty());
}

#[test]
fn what_slows_down_while_it_flaps_is_quiet_until_it_is_over() {
    let mut history = LeaseHistory::new(rule(&[Cause::Failed, Cause::Recovered]));
    for _ in 0..3 {
        history.ends(Outcome::Failed);
        history.ends(Outcome::Succeeded);
    }
    for _ in 0..5 {
        history.judge(history.minute + 50);
        assert!(history.ends(Outcome::Failed).is_empty() && history.ends(Outcome::Succeeded).is_empty());
    }
}

#[test]
fn each_message_names_the_one_before_it() {
    let mut history = LeaseHistory::new(rule(&[Cause::Failed, Cause::Recovered]));
    for (number, outcome) in [(1, Outcome::Succeeded), (2, Outcome::Failed)] {
        history.facts.ends.push(end(number, None, outcome, number));
    }
    let judged = |history: &LeaseHistory| {
        history.watched.judged(&history.subject, &history.rules, &history.facts, at(9)).unwrap()
    };
    history.watched = judged(&history);
    let first = history.watched.take_outbox();
    for (number, outcome) in [(3, Outcome::Succeeded), (4, Outcome::Failed)] {
        history.facts.ends.push(end(number, None, outcome, number));
    }
    history.watched = judged(&history);
    let more = history.watched.take_outbox();
    assert_eq!((first[0].after.as_ref(), more.len()), (None, 2));
    assert_eq!((more[0].after.as_ref(), more[1].after.as_ref()), (Some(&first[0].id), Some(&more[0].id)));
}

#[test]
fn a_clock_that_was_ahead_keeps_nobody_quiet() {
    const YEAR: u64 = 365 * 24 * 60;
    let remind = Some(Duration::from_secs(600));
    let mut history = LeaseHistory::new(Rule { remind, ..rule(&[Cause::Failed, Cause::Recovered]) });
    history.judge(YEAR);
    for _ in 0..3 {
        history.ends(Outcome::Failed);
        history.ends(Outcome::Succeeded);
    }
    // The clock is set right.
    assert!(history.judge(10).is_empty());
    assert_eq!(history.judge(71), ["recovered"], "steady for an hour since");
    assert_eq!(history.ends(Outcome::Failed), ["failed"]);
    assert_eq!(history.judge(82), ["failed"], "a reminder");
}

#[test]
fn what_nobody_runs_is_reported_once_whether_it_is_late_or_missed_and_its_slots_are_counted() {
    let mut history = LeaseHistory::new(rule(&[Cause::Missed, Cause::Late, Cause::Recovered]));
    let schedule = Arc::new(Schedule::every(Duration::from_secs(60)).unwrap());
    history.facts.schedule = Some(schedule.clone());
    history.facts.claimed = Some(Slot(at(0)));
    assert!(history.judge(1).is_empty());
    history.facts.late = Some(Slot(at(1)));
    assert_eq!(history.judge(2), ["late"]);
    history.facts.dropped = vec![(Slot(at(1)), Slot(at(3)))];
    assert!(history.judge(4).is_empty(), "one cause");
    // The span grows while it is down.
    history.facts.dropped = vec![(Slot(at(1)), Slot(at(5)))];
    assert!(history.judge(6).is_empty());
    history.facts.late = None;
    history.minute = 6;
    history.facts.ends.push(end(2, Some(Slot(at(6))), Outcome::Succeeded, 7));
    history.watched = history.watched.judged(&history.subject, &history.rules, &history.facts, at(7)).unwrap();
    let told = history.watched.take_outbox();
    assert_eq!((told[0].kind(), told[0].body["data"]["missed"].as_u64()), ("job.recovered", Some(5)));
    assert!(history.judge(8).is_empty());
}

#[test]
fn slots_that_were_dropped_while_the_clock_was_ahead_are_missed_when_their_time_comes() {
    let mut history = LeaseHistory::new(rule(&[Cause::Missed, Cause::Recovered]));
    history.facts.schedule = Some(Arc::new(Schedule::every(Duration::from_secs(60)).unwrap()));
    history.facts.claimed = Some(Slot(at(0)));
    let mut judge = |minute: u64, dropped: &[(u64, u64)]| {
        history.facts.now = Some(at(minute));
        history.facts.dropped = dropped.iter().map(|(first, last)| (Slot(at(*first)), Slot(at(*last)))).collect();
        history.judge(minute)
    };
    assert!(judge(1, &[]).is_empty());
    // The clock is an hour ahead, and then right again.
    assert_eq!(judge(61, &[(2, 60)]), ["missed"]);
    assert!(judge(3, &[(2, 60)]).is_empty(), "they were told");
    assert!(judge(5, &[(2, 60)]).is_empty(), "it is still down");
    history.facts.now = None;
    history.facts.dropped.clear();
    history.minute = 6;
    assert_eq!(history.ends(Outcome::Succeeded), ["recovered"]);
    history.facts.now = Some(at(9));
    history.facts.dropped = vec![(Slot(at(2)), Slot(at(60)))];
    assert_eq!(history.judge(9), ["missed"], "nobody runs it, though its slots are settled");
}

#[test]
fn refused_writes_and_dead_letters_are_gathered() {
    let mut history = LeaseHistory::new(rule(&[Cause::Fenced]));
    history.facts = Facts::default().with_fenced(5, 0);
    assert!(history.judge(1).is_empty(), "what was before the rule is not told");
    history.facts = Facts::default().with_fenced(6, 1);
    assert_eq!(history.judge(2), ["fenced"]);
    history.facts = Facts::default().with_fenced(9, 1);
    assert!(history.judge(3).is_empty());
    history.watched = history.watched.judged(&history.subject, &history.rules, &history.facts, at(8)).unwrap();
    assert_eq!(history.watched.take_outbox()[0].body["data"]["count"], 3);
    let mut queue = LeaseHistory::new(rule(&[Cause::DeadLetter]));
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
    let mut history = LeaseHistory::new(Rule { remind, ..rule(&[Cause::Failed]) });
    let why = Some("it ran for longer than 1h".to_owned());
    let known = Detail { epoch: epoch(1), exit_code: Some(124), why, is_kept: true, ..Detail::default() };
    history.facts = history.facts.with_detail(Some(known));
    assert_eq!(history.ends(Outcome::Failed), ["failed"]);
    // Another machine, which knows nothing about the run.
    history.facts.details.clear();
    history.watched = history.watched.judged(&history.subject, &history.rules, &history.facts, at(11)).unwrap();
    let notice = history.watched.take_outbox().remove(0);
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
    let mut history = LeaseHistory::new(Rule { remind, ..rule(&[Cause::Failed, Cause::Lost, Cause::Recovered]) });
    history.ends(Outcome::Succeeded);
    assert_eq!(history.ends(Outcome::Failed), ["failed"]);
    assert_eq!((history.judge(15).len(), history.judge(30).len()), (1, 1), "it is reminded of");
    assert_eq!(history.ends(Outcome::Expired), ["lost"]);
    assert!(history.ends(Outcome::Failed).is_empty(), "that was told");
    assert_eq!(history.judge(60).len(), 1, "it is reminded of again");
    let mut ids = history.ids.clone();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), history.ids.len(), "{:?}", history.ids);
}

#[test]
fn a_report_after_the_quiet_is_another_message_and_a_new_outage_is_reported_though_nobody_looked() {
    let flapping = |history: &mut LeaseHistory| {
        for _ in 0..10 {
            history.ends(Outcome::Failed);
            history.ends(Outcome::Succeeded);
        }
    };
    // In the end it fails and stays down, without any further event.
    let mut history = LeaseHistory::new(rule(&[Cause::Failed, Cause::Recovered]));
    flapping(&mut history);
    assert!(history.ends(Outcome::Failed).is_empty(), "it is quiet");
    assert_eq!(history.judge(200), ["failed"]);
    let (last, earlier) = history.ids.split_last().unwrap();
    assert!(!earlier.contains(last));
    // It recovers, and no machine judges it until it fails again.
    let mut history = LeaseHistory::new(rule(&[Cause::Failed, Cause::Recovered]));
    flapping(&mut history);
    history.minute = 300;
    let told = history.ends(Outcome::Failed);
    assert_eq!(told.last().map(String::as_str), Some("failed"), "{told:?}");
}
