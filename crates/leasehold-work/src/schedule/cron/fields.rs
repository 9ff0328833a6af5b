//! The fields of a cron line as sets of bits: 48 bytes, where the parser's own form is 6 KB.
//!
//! A look at a job searches several times, and a thousand jobs come due at once: the parser's own search takes around a
//! microsecond where this one takes a fraction of that, and parsed lines would have to be shared between jobs.
//!
//! Promise: it finds the same wall-clock times as the parser's own search, which the tests hold it against, with Debian's
//! rule for the two fields of the day. Non-promise: it knows no zone, and no line that the parser did not read.

use croner::CronComponent;
use jiff::civil::{Date, DateTime};

/// The parser's marks on a value; see `component.rs` in croner, which keeps their names to itself.
const ALL: u8 = 1;
const LAST: u8 = 1 << 6;
const NEAREST: u8 = 1 << 7;
/// The first of its weekday in a month; the further ones are the bits above it.
const FIRST: u8 = 1 << 1;

/// The calendar repeats itself after so many months.
const MONTHS: usize = 400 * 12;

/// The fields of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fields {
    seconds: u64,
    minutes: u64,
    hours: u32,
    days: u32,
    /// Days that stand for the nearest from Monday to Friday.
    nearest: u32,
    months: u16,
    /// For each weekday from Sunday on, which of a month's.
    weekdays: [u8; 7],
    ends: Ends,
    any_day: bool,
    any_weekday: bool,
    /// Whether a day must be named by both fields: Debian's cron wants that when one of them begins with `*`.
    both: bool,
}

/// What a line says of the end of a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Nothing,
    LastDay,
    LastWeekday,
}

/// A time of day.
type Time = (u32, u32, u32);

impl Fields {
    /// The fields as they were read, and the two for the day as they were written.
    pub(super) fn new(pattern: &croner::CronPattern, day: &str, weekday: &str) -> Self {
        let days = &pattern.days;
        let ends = match (days.is_feature_enabled(LAST), days.is_feature_enabled(NEAREST)) {
            (false, _) => Ends::Nothing,
            (true, false) => Ends::LastDay,
            (true, true) => Ends::LastWeekday,
        };
        let marks = |weekday: u16| {
            let is_set = |bit: &u8| pattern.days_of_week.is_bit_set(weekday, *bit).unwrap_or(false);
            (0..8).map(|n| 1u8 << n).filter(is_set).fold(0, |marks, bit| marks | bit)
        };
        let mut weekdays = [0, 1, 2, 3, 4, 5, 6].map(marks);
        // 7 is Sunday too, with whatever stands behind it: the parser forgets that of `7L`.
        weekdays[0] |= marks(7);
        Fields {
            seconds: bits(&pattern.seconds, ALL),
            minutes: bits(&pattern.minutes, ALL),
            hours: bits(&pattern.hours, ALL) as u32,
            days: bits(days, ALL) as u32,
            nearest: bits(days, NEAREST) as u32,
            months: bits(&pattern.months, ALL) as u16,
            weekdays,
            ends,
            any_day: pattern.is_dom_wildcard(),
            any_weekday: pattern.is_dow_wildcard(),
            both: [day, weekday].iter().any(|field| field.starts_with(['*', '?'])),
        }
    }
}

fn bits(component: &CronComponent, bit: u8) -> u64 {
    component.get_set_values(bit).into_iter().fold(0, |bits, value| bits | 1 << value)
}

fn lowest_from(bits: u64, from: u32) -> Option<u32> {
    let rest = bits.checked_shr(from)?;
    (rest != 0).then(|| from + rest.trailing_zeros())
}

fn highest_to(bits: u64, to: u32) -> Option<u32> {
    let rest = bits & (u64::MAX >> (63 - to.min(63)));
    rest.checked_ilog2()
}

impl Fields {
    /// The first wall-clock time at or after this one.
    pub(super) fn at_or_after(&self, civil: DateTime) -> Option<DateTime> {
        let now = (civil.hour() as u32, civil.minute() as u32, civil.second() as u32);
        let (mut year, mut month) = (civil.year(), civil.month());
        let mut day = civil.day() as u32;
        if self.has(civil.date())
            && let Some(time) = self.time_from(now)
        {
            return at(year, month, day, time);
        }
        day += 1;
        for _ in 0..=MONTHS {
            if let Some(day) = lowest_from(u64::from(self.days_of(year, month)?), day) {
                return at(year, month, day, self.time_from((0, 0, 0))?);
            }
            (year, month) = if month == 12 { (year.checked_add(1)?, 1) } else { (year, month + 1) };
            day = 1;
        }
        None
    }

    /// The last wall-clock time at or before this one.
    pub(super) fn at_or_before(&self, civil: DateTime) -> Option<DateTime> {
        let now = (civil.hour() as u32, civil.minute() as u32, civil.second() as u32);
        let (mut year, mut month) = (civil.year(), civil.month());
        let mut day = civil.day() as u32;
        if self.has(civil.date())
            && let Some(time) = self.time_until(now)
        {
            return at(year, month, day, time);
        }
        day -= 1;
        for _ in 0..=MONTHS {
            if let Some(day) = highest_to(u64::from(self.days_of(year, month)?), day) {
                return at(year, month, day, self.time_until((23, 59, 59))?);
            }
            (year, month) = if month == 1 { (year.checked_sub(1)?, 12) } else { (year, month - 1) };
            day = 31;
        }
        None
    }

    fn has(&self, date: Date) -> bool {
        self.days_of(date.year(), date.month()).is_some_and(|days| days & 1 << date.day() != 0)
    }

    /// The days of this month, bit 1 for the first; none if there is no such month.
    fn days_of(&self, year: i16, month: i8) -> Option<u32> {
        let first = Date::new(year, month, 1).ok()?;
        if self.months & 1 << month == 0 {
            return Some(0);
        }
        let length = first.days_in_month() as u32;
        let opening = first.weekday().to_sunday_zero_offset() as u32;
        let weekday = |day: u32| (opening + day - 1) % 7;
        let every = (1..=length).fold(0u32, |days, day| days | 1 << day);
        let by_date = || {
            let mut days = self.days & every;
            for day in (1..=length).filter(|day| self.nearest & 1 << day != 0) {
                days |= 1 << nearest(day, weekday(day), length);
            }
            match self.ends {
                Ends::Nothing => days,
                Ends::LastDay => days | 1 << length,
                Ends::LastWeekday => days | 1 << nearest(length, weekday(length), length),
            }
        };
        let by_weekday = || {
            let is_meant = |day: &u32| {
                let last = if day + 7 > length { LAST } else { 0 };
                self.weekdays[weekday(*day) as usize] & (ALL | FIRST << ((day - 1) / 7) | last) != 0
            };
            (1..=length).filter(is_meant).fold(0u32, |days, day| days | 1 << day)
        };
        Some(match (self.any_day, self.any_weekday) {
            (true, true) => every,
            (true, false) => by_weekday(),
            (false, true) => by_date(),
            (false, false) if self.both => by_date() & by_weekday(),
            // As cron always had it: a day that either field names.
            (false, false) => by_date() | by_weekday(),
        })
    }

    fn time_from(&self, (hour, minute, second): Time) -> Option<Time> {
        let (hours, minutes, seconds) = (u64::from(self.hours), self.minutes, self.seconds);
        let (first_minute, first_second) = (lowest_from(minutes, 0)?, lowest_from(seconds, 0)?);
        let found = lowest_from(hours, hour)?;
        if found > hour {
            return Some((found, first_minute, first_second));
        }
        match lowest_from(minutes, minute) {
            Some(found) if found > minute => return Some((hour, found, first_second)),
            Some(_) => {
                if let Some(second) = lowest_from(seconds, second) {
                    return Some((hour, minute, second));
                }
                if let Some(minute) = lowest_from(minutes, minute + 1) {
                    return Some((hour, minute, first_second));
                }
            }
            None => {}
        }
        Some((lowest_from(hours, hour + 1)?, first_minute, first_second))
    }

    fn time_until(&self, (hour, minute, second): Time) -> Option<Time> {
        let (hours, minutes, seconds) = (u64::from(self.hours), self.minutes, self.seconds);
        let (last_minute, last_second) = (highest_to(minutes, 59)?, highest_to(seconds, 59)?);
        let found = highest_to(hours, hour)?;
        if found < hour {
            return Some((found, last_minute, last_second));
        }
        match highest_to(minutes, minute) {
            Some(found) if found < minute => return Some((hour, found, last_second)),
            Some(_) => {
                if let Some(second) = highest_to(seconds, second) {
                    return Some((hour, minute, second));
                }
                if let Some(minute) = minute.checked_sub(1).and_then(|minute| highest_to(minutes, minute)) {
                    return Some((hour, minute, last_second));
                }
            }
            None => {}
        }
        Some((highest_to(hours, hour.checked_sub(1)?)?, last_minute, last_second))
    }
}

fn at(year: i16, month: i8, day: u32, (hour, minute, second): Time) -> Option<DateTime> {
    DateTime::new(year, month, day as i8, hour as i8, minute as i8, second as i8, 0).ok()
}

/// The day from Monday to Friday that is nearest to this one, in the same month. Sunday is weekday 0.
fn nearest(day: u32, weekday: u32, length: u32) -> u32 {
    match weekday {
        6 if day > 1 => day - 1,
        6 => day + 2,
        0 if day < length => day + 1,
        0 => day - 2,
        _ => day,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::cron::read;
    use croner::parser::{CronParser, Year};
    use proptest::prelude::*;

    /// A field as people write it: all, one, a list, a range, a step.
    fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
        prop_oneof![
            2 => Just("*".to_owned()),
            2 => (low..=high).prop_map(|n| n.to_string()),
            1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{a},{b}")),
            1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
            1 => (1..=high).prop_map(|n| format!("*/{n}")),
        ]
    }

    fn day() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => field(1, 31),
            1 => Just("L".to_owned()),
            1 => Just("LW".to_owned()),
            1 => (1u32..=31).prop_map(|n| format!("{n}W")),
            1 => (1u32..=31, 1u32..=31).prop_map(|(a, b)| format!("{a}W,{b},L")),
        ]
    }

    fn weekday() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => field(0, 7),
            1 => (0u32..=7, 1u32..=5).prop_map(|(day, n)| format!("{day}#{n}")),
            // Not 7L, which the parser forgets.
            1 => (0u32..=6).prop_map(|day| format!("{day}L")),
            1 => (0u32..=6, 0u32..=7, 1u32..=5).prop_map(|(a, b, n)| format!("{a}L,{b}#{n}")),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_finds_what_the_parsers_own_search_finds(
            second in field(0, 59), minute in field(0, 59), hour in field(0, 23), day in day(), month in field(1, 12),
            weekday in weekday(), from in 0i64..5_000_000_000,
        ) {
            let line = format!("{second} {minute} {hour} {day} {month} {weekday}");
            let both = day.starts_with('*') || weekday.starts_with('*');
            let parser = CronParser::builder().year(Year::Disallowed).dom_and_dow(both).build();
            let Ok(parsed) = parser.parse(&line) else { return Ok(()) };
            let fields = Fields::new(&parsed.pattern, &day, &weekday);
            let from = jiff::tz::TimeZone::UTC.to_datetime(jiff::Timestamp::from_second(from).unwrap());
            let next = parsed.find_next_occurrence(&from, true).ok();
            prop_assert_eq!(fields.at_or_after(from), next, "{} after {}", &line, from);
            let last = parsed.find_previous_occurrence(&from, true).ok();
            prop_assert_eq!(fields.at_or_before(from), last, "{} before {}", &line, from);
        }
    }

    #[test]
    fn seven_is_sunday_also_behind_a_last() {
        let fields = |weekday| Fields::new(&read(&format!("0 0 * * {weekday}")).unwrap().pattern, "*", weekday);
        assert_eq!(fields("7L"), fields("0L"));
        let found = fields("7L").at_or_after(DateTime::constant(2026, 11, 1, 0, 0, 0, 0));
        assert_eq!(found, Some(DateTime::constant(2026, 11, 29, 0, 0, 0, 0)));
    }

    #[test]
    fn it_stays_small() {
        assert!(size_of::<Fields>() <= 48, "{}", size_of::<Fields>());
    }
}
