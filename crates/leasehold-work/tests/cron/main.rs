//! Cron lines against cron: a minute-by-minute daemon written from Debian's crontab(5) and what its cron does when clocks
//! are changed, and against another implementation, `cronsim` from PyPI, as far as that is right.
//!
//! Five thousand random lines in each of seven zones, around the changes of a year. Replayed from the printed seed.

#![allow(clippy::unwrap_used)]

mod daemon;

use daemon::{Line, Minute};
use leasehold_core::{Nonce, Slot, Timestamp};
use leasehold_work::schedule::{Schedule, Zone};
use std::io::Write;
use std::process::{Command, Stdio};

/// Half-hour zones and half-hour changes, changes at midnight and of two hours.
const ZONES: [&str; 7] = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Santiago",
    "America/St_Johns",
    "Africa/Cairo",
    "Antarctica/Troll",
];
/// Whole hours, and no midnight that does not exist: `cronsim` ticks whole hours through a change of half an hour, and loses
/// the first hour of a day that begins at one.
const SIMPLE_ZONES: [&str; 7] = [
    "Europe/Berlin",
    "America/New_York",
    "Antarctica/Troll",
    "Europe/London",
    "Australia/Sydney",
    "America/Chicago",
    "Pacific/Auckland",
];
/// How many lines in each zone, half of them around each of its changes.
const LINES: usize = 5_000;
/// How many lines `cronsim` is asked about in all: it takes a millisecond for each.
const ASKED: usize = 5_000;
/// How far before and after a change of the clock slots are compared.
const AROUND: i64 = 5 * 3_600;

/// Splitmix64.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let seed = std::env::var("LEASEHOLD_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let seed = seed.unwrap_or_else(|| Nonce::random().as_u128() as u64);
        println!("replay: LEASEHOLD_TEST_SEED={seed} cargo test -p leasehold-work --test cron");
        Random(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A field as people write it, more often than not near `near`, where something happens.
    fn field(&mut self, low: u64, high: u64, near: u64) -> String {
        let one = |random: &mut Self| {
            if random.below(2) == 0 { near.clamp(low, high) } else { random.between(low, high) }
        };
        match self.below(10) {
            0..=2 => "*".into(),
            3 | 4 => one(self).to_string(),
            5 => format!("*/{}", self.between(1, (high - low).min(12))),
            6 => format!("{},{}", one(self), one(self)),
            7 => {
                let (a, b) = (one(self), one(self));
                format!("{}-{}", a.min(b), a.max(b))
            }
            8 => {
                let (a, b) = (one(self), one(self));
                format!("{}-{}/{}", a.min(b), a.max(b), self.between(1, 5))
            }
            _ => format!("{low}-{high}"),
        }
    }

    /// A line whose hour is near this one, on days near this one.
    fn line(&mut self, near: &Minute) -> String {
        let edge = [0, 30, 59][self.below(3) as usize];
        let minute = self.field(0, 59, edge);
        let hour = self.field(0, 23, u64::from(near.hour));
        // Most lines are due on most days: one that names another month is never seen.
        let day = if self.below(2) == 0 { "*".into() } else { self.field(1, 31, u64::from(near.day)) };
        let month = if self.below(8) == 0 { self.field(1, 12, u64::from(near.month)) } else { "*".into() };
        let weekday = if self.below(2) == 0 { "*".into() } else { self.field(0, 7, u64::from(near.weekday)) };
        format!("{minute} {hour} {day} {month} {weekday}")
    }
}

/// A change of a zone's clock, and every minute around it.
struct Change {
    zone: &'static str,
    from: i64,
    until: i64,
    minutes: Vec<Minute>,
    /// The minute before the change.
    last: Minute,
}

/// Both changes of 2026 in each zone.
fn changes(zones: [&'static str; 7]) -> Vec<Change> {
    let start: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut found = Vec::new();
    for zone in zones {
        let tz = jiff::tz::db().get(zone).unwrap();
        for change in tz.following(start).take(2) {
            let at = change.timestamp().as_second();
            let (from, until) = (at - AROUND, at + AROUND);
            let minutes: Vec<Minute> = (from / 60..=until / 60).map(|m| Minute::of(&tz, m * 60)).collect();
            found.push(Change { zone, from, until, minutes, last: Minute::of(&tz, at - 60) });
        }
    }
    assert_eq!(found.len(), 2 * zones.len());
    found
}

fn ours(line: &str, change: &Change) -> (Schedule, Vec<i64>) {
    let zone: Zone = change.zone.parse().unwrap();
    let schedule = Schedule::new(line, zone, None, None).unwrap_or_else(|e| panic!("{line}: {e}"));
    let at = |second: i64| Timestamp::from_millis(second as u64 * 1000);
    let slots = schedule.between(at(change.from), at(change.until)).map(second).collect();
    (schedule, slots)
}

fn second(slot: Slot) -> i64 {
    (slot.0.as_millis() / 1000) as i64
}

#[test]
fn five_thousand_lines_in_seven_zones_run_when_debians_cron_runs_them() {
    let mut random = Random::seeded();
    let changes = changes(ZONES);
    let (mut compared, mut slots) = (0u64, 0u64);
    for change in &changes {
        let mut lines = 0;
        while lines < LINES / 2 {
            let text = random.line(&change.last);
            // A day that never comes is refused by us and never run by cron.
            let Ok(line) = text.parse::<Line>() else { continue };
            if text.parse::<leasehold_work::schedule::Cron>().is_err() {
                assert!(!change.minutes.iter().any(|minute| line.matches(minute)), "{text} is refused");
                continue;
            }
            lines += 1;
            let expected = line.runs(&change.minutes);
            let expected: Vec<i64> = expected.into_iter().filter(|at| *at > change.from).collect();
            let (schedule, found) = ours(&text, change);
            assert_eq!(found, expected, "{text} in {} around its change", change.zone);
            compared += 1;
            slots += found.len() as u64;
            // Backwards they are the same.
            if !lines.is_multiple_of(4) {
                continue;
            }
            let last = schedule.latest(Timestamp::from_millis(change.until as u64 * 1000));
            let back = std::iter::successors(last, |slot| schedule.before(*slot)).map(second);
            let mut back: Vec<i64> = back.take_while(|at| *at > change.from).collect();
            back.reverse();
            assert_eq!(back, expected, "{text} in {}, backwards", change.zone);
        }
    }
    println!("{compared} lines and changes, {slots} slots");
    assert!(slots * 2 > compared, "hardly any line was due");
}

#[test]
fn the_daemon_itself_has_the_three_rules_that_were_once_wrong_here() {
    let changes = changes(ZONES);
    let runs = |text: &str, change: &Change| text.parse::<Line>().unwrap().runs(&change.minutes).len();
    let (spring, autumn) = (&changes[0], &changes[1]);
    assert_eq!((spring.zone, runs("30 2 29 3 *", spring)), ("Europe/Berlin", 1), "fixed: once, after the gap");
    assert_eq!(runs("*/30 2 29 3 *", spring), 0, "a wildcard minute: not at all");
    assert_eq!(runs("30 2 25 10 *", autumn), 1, "fixed: the first time only");
    assert_eq!(runs("* 2 25 10 *", autumn), 120, "a wildcard minute: both times");
    assert_eq!(runs("0 5 */2 * 1", autumn), 0, "a star in a day field narrows: the 25th is no Monday");
    assert_eq!(runs("0 5 1-31/2 * 1", autumn), 1);
}

/// Reads `ZONE|FROM|UNTIL|LINE`, prints the seconds of the slots.
const CRONSIM: &str = "
import sys
from datetime import datetime, timezone
from zoneinfo import ZoneInfo
from cronsim import CronSim, CronSimError
for text in sys.stdin:
    zone, start, until, line = text.rstrip('\\n').split('|')
    found = []
    try:
        for at in CronSim(line, datetime.fromtimestamp(int(start), timezone.utc).astimezone(ZoneInfo(zone))):
            second = int(at.timestamp())
            if second > int(until):
                break
            found.append(str(second))
        print(','.join(found))
    except CronSimError as error:
        print('refused', error)
";

/// `7-7/2`, which cronsim takes for `7-59/2`.
fn has_a_step_of_one(line: &str) -> bool {
    let parts = line.split([' ', ',']).filter_map(|part| part.split_once('/'));
    parts.filter_map(|(range, _)| range.split_once('-')).any(|(first, last)| first == last)
}

#[test]
fn cronsim_agrees_where_it_is_right() {
    let mut random = Random::seeded();
    let changes = changes(SIMPLE_ZONES);
    let mut asked: Vec<(String, &Change)> = Vec::new();
    while asked.len() < ASKED {
        let change = &changes[asked.len() % changes.len()];
        let text = random.line(&change.last);
        if text.parse::<leasehold_work::schedule::Cron>().is_ok() && !has_a_step_of_one(&text) {
            asked.push((text, change));
        }
    }
    let python = leasehold_testbed::python_program("python3");
    let mut child =
        Command::new(python).args(["-c", CRONSIM]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: Vec<String> = asked
        .iter()
        .map(|(text, change)| format!("{}|{}|{}|{text}\n", change.zone, change.from, change.until))
        .collect();
    let writer = std::thread::spawn(move || lines.iter().try_for_each(|line| input.write_all(line.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "is cronsim here? install it with: cargo xtask servers");
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().count(), asked.len());
    let mut compared = 0;
    for (answer, (text, change)) in answers.lines().zip(&asked) {
        if answer.starts_with("refused") {
            continue;
        }
        let expected: Vec<i64> = answer.split(',').filter(|s| !s.is_empty()).map(|s| s.parse().unwrap()).collect();
        assert_eq!(ours(text, change).1, expected, "{text} in {} around its change", change.zone);
        compared += 1;
    }
    assert!(compared * 100 > ASKED * 95, "{compared} of {ASKED}");
}
