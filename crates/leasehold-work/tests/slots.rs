//! Slots against golden lists made by another library, against brute force, and catch-up against its promise.

#![allow(clippy::unwrap_used)]

use leasehold_core::{Kind, Slot, Timestamp};
use leasehold_work::schedule::{CatchUp, DropReason, Due, Last, Schedule, Zone, due};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

fn at(text: &str) -> Timestamp {
    let text = if text.len() == 16 { format!("{text}:00Z") } else { text.to_owned() };
    let instant: jiff::Timestamp = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    Timestamp::from_millis(u64::try_from(instant.as_millisecond()).unwrap())
}

fn cron(line: &str, zone: &str) -> Schedule {
    Schedule::new(line, zone.parse().unwrap(), None, None).unwrap()
}

fn texts(slots: impl Iterator<Item = Slot>) -> Vec<String> {
    slots
        .map(|slot| {
            let ms = i64::try_from(slot.0.as_millis()).unwrap();
            jiff::Timestamp::from_millisecond(ms).unwrap().to_string()[..16].to_owned()
        })
        .collect()
}

#[test]
fn golden_lists_across_both_changes_in_nine_zones_and_both_policies() {
    let golden = include_str!("golden/dst.txt");
    let (mut zones, mut policies, mut lines) = (BTreeSet::new(), BTreeSet::new(), 0);
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(" | ").collect();
        let [zone, from, hours, cron, gap, fold, slots] = fields[..] else { panic!("{line}") };
        let schedule =
            Schedule::new(cron, zone.parse().unwrap(), Some(gap.parse().unwrap()), Some(fold.parse().unwrap()))
                .unwrap();
        let from = at(from);
        let until = Timestamp::from_millis(from.as_millis() + hours.parse::<u64>().unwrap() * HOUR);
        let expected: Vec<String> = slots.split(',').filter(|s| !s.is_empty()).map(String::from).collect();
        assert_eq!(texts(schedule.between(from, until)), expected, "forwards: {line}");
        let mut back: Vec<Slot> = std::iter::successors(schedule.latest(until), |slot| schedule.before(*slot))
            .take_while(|slot| slot.0 > from)
            .collect();
        back.reverse();
        assert_eq!(texts(back.into_iter()), expected, "backwards: {line}");
        zones.insert(zone);
        policies.insert((gap, fold));
        lines += 1;
    }
    assert!(zones.len() >= 6 && policies.len() == 4 && lines > 100, "{zones:?} {policies:?} {lines}");
}

#[test]
fn golden_lists_of_days_by_date_by_weekday_and_by_both() {
    let mut lines = 0;
    for line in include_str!("golden/days.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(" | ").collect();
        let [text, from, until, after] = fields[..] else { panic!("{line}") };
        let (schedule, from) = (cron(text, "UTC"), at(&format!("{from}Z")));
        let slots = |list: &str| -> Vec<Slot> { list.split(',').map(|slot| Slot(at(&format!("{slot}Z")))).collect() };
        let next = std::iter::successors(schedule.next_after(from), |slot| schedule.next_after(slot.0));
        assert_eq!(next.take(5).collect::<Vec<_>>(), slots(after), "forwards: {line}");
        let last = std::iter::successors(schedule.latest(from), |slot| schedule.before(*slot));
        let mut last: Vec<Slot> = last.take(3).collect();
        last.reverse();
        assert_eq!(last, slots(until), "backwards: {line}");
        lines += 1;
    }
    assert!(lines > 100, "{lines}");
}

#[test]
fn changes_of_the_clock_are_as_in_debians_cron_unless_the_job_says_otherwise() {
    let fold = |line| texts(cron(line, "Europe/Berlin").between(at("2026-10-24T23:59"), at("2026-10-25T02:00")));
    assert_eq!(fold("30 2 * * *"), ["2026-10-25T00:30"]);
    assert_eq!(fold("30 * * * *"), ["2026-10-25T00:30", "2026-10-25T01:30"]);
    assert_eq!(fold("*/30 2 * * *").len(), 4, "a wildcard minute with a fixed hour goes by the clock too");
    assert_eq!(fold("0-59 2 * * *").len(), 60);
    let gap = |line| texts(cron(line, "Europe/Berlin").between(at("2026-03-29T00:29"), at("2026-03-29T01:30")));
    assert_eq!(gap("30 2 * * *"), ["2026-03-29T01:00"]);
    assert_eq!(gap("30 * * * *"), ["2026-03-29T00:30", "2026-03-29T01:30"], "no run at the end of the gap");
    assert!(gap("*/30 2 * * *").is_empty());
    // The other ways are there for those who name them.
    let named = |line, gap: &str, fold: &str| {
        let zone = "Europe/Berlin".parse().unwrap();
        Schedule::new(line, zone, Some(gap.parse().unwrap()), Some(fold.parse().unwrap())).unwrap()
    };
    let shifted = named("*/30 2 * * *", "shift", "first");
    assert_eq!(texts(shifted.between(at("2026-03-29T00:00"), at("2026-03-29T01:30"))), ["2026-03-29T01:00"]);
    assert_eq!(texts(shifted.between(at("2026-10-24T23:59"), at("2026-10-25T02:00"))).len(), 2);
    // A zone that moves across the date line is not put right: Samoa had no 30 December 2011.
    let samoa = cron("0 12 * * *", "Pacific/Apia");
    let days = samoa.between(at("2011-12-29T00:00"), at("2011-12-31T23:00"));
    assert_eq!(texts(days), ["2011-12-29T22:00", "2011-12-30T22:00", "2011-12-31T22:00"]);
}

#[test]
fn a_day_field_that_begins_with_a_star_narrows_the_other_one() {
    let days = |line| texts(cron(line, "UTC").between(at("2026-11-01T00:01"), at("2026-11-30T23:59")));
    assert_eq!(days("0 0 */2 * MON"), ["2026-11-09T00:00", "2026-11-23T00:00"]);
    assert_eq!(days("0 0 1-31/2 * MON").len(), 14 + 5 - 2, "without the star, either field suffices");
    assert_eq!(days("0 0 9 * */3"), Vec::<String>::new());
    assert_eq!(days("0 0 11 * */3"), ["2026-11-11T00:00"]);
}

#[test]
fn an_interval_is_anchored_and_does_not_drift() {
    let every = Schedule::every(Duration::from_secs(45 * 60)).unwrap();
    let day = texts(every.between(at("2026-11-15T00:00"), at("2026-11-16T00:00")));
    assert_eq!((day.len(), day[0].as_str(), day[31].as_str()), (32, "2026-11-15T00:45", "2026-11-16T00:00"));
    // Whenever one asks, the slots are the same.
    for minute in 0..45 {
        let asked = Timestamp::from_millis(at("2026-11-15T00:00").as_millis() + minute * MINUTE);
        assert_eq!(texts(every.next_after(asked).into_iter()), ["2026-11-15T00:45"]);
    }
    for bad in [Duration::from_millis(1_500), Duration::ZERO] {
        assert_eq!(Schedule::every(bad).unwrap_err().kind(), Kind::Invalid, "{bad:?}");
    }
}

#[test]
fn zones_are_iana_names_only() {
    for bad in [
        "Europe/Berlim",
        "",
        "/etc/localtime",
        ":Europe/Berlin",
        "../UTC",
        "EST5EDT,M3.2.0,M11.1.0",
        "Mars/Base",
        "localtime",
        "posixrules",
        "LocalTime",
        "Etc/Unknown",
        "posix/Europe/Berlin",
        "right/Europe/Berlin",
    ] {
        let error = bad.parse::<Zone>().unwrap_err().to_string();
        assert!(error.contains("Europe/Berlin, America/New_York or UTC"), "{bad}: {error}");
    }
    assert_eq!("Europe/Berlin".parse::<Zone>().unwrap().to_string(), "Europe/Berlin");
}

fn all(schedule: &Schedule, now: Timestamp, last: Last, policy: CatchUp) -> Due {
    due(schedule, now, last, policy, |_| false)
}

#[test]
fn a_day_off_is_caught_up_on_within_bounds_and_the_rest_is_named() {
    let every = Schedule::every(Duration::from_secs(45 * 60)).unwrap();
    let (last, now) = (at("2026-11-14T00:00"), at("2026-11-15T00:10"));
    let one = all(&every, now, Last::Settled(last), CatchUp::default());
    assert_eq!(texts(one.run.iter().copied()), ["2026-11-15T00:00"]);
    assert_eq!(one.dropped.len(), 2 - 1, "{one:?}");
    assert_eq!((one.dropped[0].count, one.dropped[0].reason), (31, DropReason::Coalesced));

    let policy = CatchUp::new(3, Duration::from_secs(3_600)).unwrap();
    let three = all(&every, now, Last::Settled(last), policy);
    assert_eq!(texts(three.run.iter().copied()), ["2026-11-14T23:15", "2026-11-15T00:00"]);
    assert_eq!((three.dropped[0].count, three.dropped[0].reason), (30, DropReason::TooOld));
}

#[test]
fn a_year_forwards_runs_one_slot_and_a_year_backwards_runs_none() {
    let daily = cron("0 3 * * *", "Europe/Berlin");
    let last = at("2026-11-15T02:00");
    let forwards = all(&daily, at("2027-11-15T10:00"), Last::Settled(last), CatchUp::default());
    assert_eq!(texts(forwards.run.iter().copied()), ["2027-11-15T02:00"]);
    assert_eq!(forwards.dropped.iter().map(|d| d.count).sum::<u64>(), 364);
    let backwards = all(&daily, at("2025-11-15T10:00"), Last::Settled(last), CatchUp::default());
    assert_eq!(backwards, Due::default());
    // And once time has come back to where it was, the next slot is due as ever.
    let again = all(&daily, at("2026-11-16T02:30"), Last::Settled(last), CatchUp::default());
    assert_eq!(texts(again.run.iter().copied()), ["2026-11-16T02:00"]);
    assert!(again.dropped.is_empty());

    // Thirty million slots: counted up to a bound, and that is said.
    let every_second = cron("* * * * * *", "UTC");
    let many = all(&every_second, at("2027-11-15T10:00"), Last::Settled(last), CatchUp::default());
    assert_eq!(many.run.len(), 1);
    assert_eq!(many.dropped.iter().map(|d| d.count).sum::<u64>(), leasehold_work::schedule::COUNTED);
    assert!(many.dropped[0].more);
}

#[test]
fn a_job_that_is_new_has_its_newest_slot_at_most() {
    let hourly = cron("@hourly", "UTC");
    let now = at("2026-11-15T03:20");
    assert_eq!(texts(all(&hourly, now, Last::Never, CatchUp::default()).run.into_iter()), ["2026-11-15T03:00"]);
    assert_eq!(all(&hourly, now, Last::Settled(now), CatchUp::default()), Due::default());
}

const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata"];
const LINES: [&str; 8] = [
    "30 2 * * *",
    "*/30 * * * *",
    "0 0 1 * *",
    "15 1,2,3 * * *",
    "0 3 L * *",
    "0 12 * * MON#1",
    "59 23 * * *",
    "0 */7 * * *",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every minute of four days looked at one by one.
    #[test]
    fn slots_are_what_brute_force_finds(
        line in 0..LINES.len(), zone in 0..ZONES.len(), day in 0u64..730, skip in any::<bool>(), both in any::<bool>(),
    ) {
        let zone: Zone = ZONES[zone].parse().unwrap();
        let tz = jiff::tz::db().get(&zone.to_string()).unwrap();
        let pattern: croner::Cron = croner::parser::CronParser::new().parse(LINES[line]).unwrap();
        let gap = if skip { "skip" } else { "shift" }.parse().unwrap();
        let fold = if both { "both" } else { "first" }.parse().unwrap();
        let schedule = Schedule::new(LINES[line], zone, Some(gap), Some(fold)).unwrap();
        let start = at("2025-12-01T00:00").as_millis() + day * DAY;
        let mut expected = Vec::new();
        for minute in 1..=4 * 24 * 60 {
            let ms = start + minute * MINUTE;
            let instant = jiff::Timestamp::from_millisecond(ms as i64).unwrap();
            let (here, before) = (tz.to_datetime(instant), tz.to_datetime(instant - Duration::from_secs(60)));
            let again = tz.to_ambiguous_timestamp(here).compatible().unwrap() != instant;
            let mut hit = pattern.is_time_matching(&here).unwrap() && (both || !again);
            let mut missing = before.checked_add(Duration::from_secs(60)).unwrap();
            while !skip && missing < here {
                hit |= pattern.is_time_matching(&missing).unwrap();
                missing = missing.checked_add(Duration::from_secs(60)).unwrap();
            }
            if hit {
                expected.push(Slot(Timestamp::from_millis(ms)));
            }
        }
        let until = Timestamp::from_millis(start + 4 * DAY);
        let found: Vec<Slot> = schedule.between(Timestamp::from_millis(start), until).collect();
        prop_assert_eq!(&found, &expected);
        for slot in &found {
            prop_assert_eq!(schedule.latest(slot.0), Some(*slot), "a slot is the latest at its own instant");
        }
    }

    /// Every due slot is run or named, within the bounds, whatever the clock does.
    #[test]
    fn nothing_due_is_lost_and_nothing_is_beyond_the_bounds(
        line in 0..LINES.len(), zone in 0..ZONES.len(), now in 0u64..60 * 24 * 30, back in -1_000i64..60 * 24 * 20,
        count in 1u32..6, age in 1u64..60 * 24 * 10, done in 0usize..5,
    ) {
        let schedule = cron(LINES[line], ZONES[zone]);
        let now = Timestamp::from_millis(at("2026-03-15T00:00").as_millis() + now * MINUTE);
        let since = Timestamp::from_millis((now.as_millis() as i64 - back * MINUTE as i64) as u64);
        let policy = CatchUp::new(count, Duration::from_secs(age * 60)).unwrap();
        let last = Last::Settled(since);
        let every: Vec<Slot> = schedule.between(since, now).filter(|slot| slot.0 <= now).collect();
        let settled: BTreeSet<u64> = every.iter().rev().step_by(3).take(done).map(|s| s.0.as_millis()).collect();
        let found = due(&schedule, now, last, policy, |slot| settled.contains(&slot.0.as_millis()));
        prop_assert!(found.run.len() <= count as usize);
        prop_assert!(found.run.is_sorted());
        for slot in &found.run {
            prop_assert!(now.saturating_since(slot.0) <= policy.max_age());
        }
        let open = every.iter().filter(|slot| !settled.contains(&slot.0.as_millis())).count() as u64;
        prop_assert_eq!(open, found.run.len() as u64 + found.dropped.iter().map(|d| d.count).sum::<u64>());
        for dropped in &found.dropped {
            prop_assert!(!dropped.more);
            prop_assert!(every.contains(&dropped.first) && every.contains(&dropped.last));
            prop_assert!(found.run.iter().all(|slot| *slot > dropped.last), "what is dropped is older than what is run");
        }
    }
}
