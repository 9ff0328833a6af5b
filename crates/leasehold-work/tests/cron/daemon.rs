//! Debian's cron as a program that wakes up every minute: what it matches, and what it does when the clock was changed.
//!
//! It keeps a clock of its own, in minutes of the wall clock. In a usual minute that goes on by one, and every line that
//! matches is run. When the wall clock has jumped ahead by less than three hours, lines with a wildcard in the minute or
//! the hour are run for the time that it shows now, and the others for each minute that was left out. When it has been set
//! back by up to three hours, only wildcard lines are run until the own clock is reached again. Other jumps are taken as
//! they are.

use jiff::tz::TimeZone;
use std::collections::BTreeSet;
use std::str::FromStr;

const THREE_HOURS: i64 = 180;

/// A minute, as the clock on the wall shows it.
#[derive(Debug, Clone, Copy)]
pub struct Minute {
    /// Seconds since 1970.
    pub at: i64,
    /// Minutes since 1970 on that wall.
    pub wall: i64,
    pub minute: u32,
    pub hour: u32,
    pub day: u32,
    pub month: u32,
    /// Sunday is 0.
    pub weekday: u32,
}

impl Minute {
    pub fn of(tz: &TimeZone, at: i64) -> Self {
        let instant = jiff::Timestamp::from_second(at).unwrap();
        Minute { at, ..Minute::on_wall((at + i64::from(tz.to_offset(instant).seconds())).div_euclid(60)) }
    }

    fn on_wall(wall: i64) -> Self {
        let civil = TimeZone::UTC.to_datetime(jiff::Timestamp::from_second(wall * 60).unwrap());
        Minute {
            at: 0,
            wall,
            minute: civil.minute() as u32,
            hour: civil.hour() as u32,
            day: civil.day() as u32,
            month: civil.month() as u32,
            weekday: civil.weekday().to_sunday_zero_offset() as u32,
        }
    }
}

/// A line of a crontab.
#[derive(Debug)]
pub struct Line {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// The minute or the hour begins with `*`.
    wildcard: bool,
    /// One of the fields for the day begins with `*`.
    both_days: bool,
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split(' ').collect();
        let [minute, hour, day, month, weekday] = fields[..] else { return Err(text.into()) };
        let mut weekdays = set(weekday, 0, 7)?;
        // 0 and 7 are Sunday.
        weekdays |= (weekdays >> 7) & 1;
        Ok(Line {
            minutes: set(minute, 0, 59)?,
            hours: set(hour, 0, 23)?,
            days: set(day, 1, 31)?,
            months: set(month, 1, 12)?,
            weekdays,
            wildcard: minute.starts_with('*') || hour.starts_with('*'),
            both_days: day.starts_with('*') || weekday.starts_with('*'),
        })
    }
}

/// A list of `*`, numbers and ranges, the first and the last with a step.
fn set(field: &str, low: u32, high: u32) -> Result<u64, String> {
    let mut set = 0;
    for part in field.split(',') {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let number = |text: &str| text.parse::<u32>().map_err(|e| format!("{part}: {e}"));
        let (first, last) = match (range, range.split_once('-')) {
            ("*", _) => (low, high),
            (_, Some((first, last))) => (number(first)?, number(last)?),
            (one, None) => (number(one)?, number(one)?),
        };
        if first < low || last > high || first > last {
            return Err(part.into());
        }
        for value in (first..=last).step_by(number(step)? as usize) {
            set |= 1 << value;
        }
    }
    Ok(set)
}

impl Line {
    pub fn matches(&self, minute: &Minute) -> bool {
        let has = |set: u64, value: u32| set & (1 << value) != 0;
        let (day, weekday) = (has(self.days, minute.day), has(self.weekdays, minute.weekday));
        let is_day = if self.both_days { day && weekday } else { day || weekday };
        has(self.minutes, minute.minute) && has(self.hours, minute.hour) && has(self.months, minute.month) && is_day
    }

    /// When the daemon runs it, if it was up for all of these minutes.
    pub fn runs(&self, minutes: &[Minute]) -> BTreeSet<i64> {
        let mut found = BTreeSet::new();
        let Some(first) = minutes.first() else { return found };
        let mut own = first.wall - 1;
        for now in minutes {
            let ahead = now.wall - own;
            let runs = match ahead {
                1 => {
                    own = now.wall;
                    self.matches(now)
                }
                // Set forward: what was left out is made up for.
                2..=THREE_HOURS => {
                    let left_out = own + 1..=now.wall;
                    own = now.wall;
                    if self.wildcard {
                        self.matches(now)
                    } else {
                        left_out.into_iter().any(|wall| self.matches(&Minute::on_wall(wall)))
                    }
                }
                // Set back: the others have run already.
                _ if ahead <= 0 && ahead > -THREE_HOURS => self.wildcard && self.matches(now),
                _ => {
                    own = now.wall;
                    self.matches(now)
                }
            };
            if runs {
                found.insert(now.at);
            }
        }
        found
    }
}
