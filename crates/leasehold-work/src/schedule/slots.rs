//! Slots: the nominal instants at which a job is due.
//!
//! Promise: a pure function of the schedule. Every caller, at any time, on any machine with
//! the same time zone data, gets the same instants, each once and in order. An hour that does
//! not exist and an hour that comes twice are treated as the schedule says. Non-promise: when
//! governments change clock rules, machines with older data disagree until they are updated.

use crate::schedule::cron::Cron;
use jiff::Timestamp as Instant;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use leasehold_core::{Error, Result, Slot, Timestamp, format_duration, parse_duration};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How many clock changes of a zone a search for a slot passes. 29 February can
/// be eight years away, and with a day of the week forty.
const MAX_CHANGES: usize = 400;

/// The length of a date.
const DATE: usize = "2026-11-15".len();

/// From this many seconds on, a gap, or a longer fold, is no change to or from
/// summer time: a zone has moved, perhaps by a day.
const MOVED: i64 = 3 * 3_600;

/// What to do with a slot whose local time does not exist, because the clock is set forward past it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gap {
    /// It is due at the first instant after the gap.
    Shift,
    /// As in Debian's cron: like `Shift` if the gap is shorter than three hours, otherwise it is not due.
    ShiftBriefly,
    /// It is not due that day.
    Skip,
}

/// What to do with a slot whose local time comes twice, because the clock is set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fold {
    /// It is due the first time only.
    First,
    /// As in Debian's cron: like `First` in a fold of up to three hours, otherwise it is due both times.
    FirstBriefly,
    /// It is due both times, as two slots.
    Both,
}

impl FromStr for Gap {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "shift" => Ok(Gap::Shift),
            "skip" => Ok(Gap::Skip),
            _ => Err(Error::invalid("dst", text, "use shift (run when the gap ends) or skip (not that day)")),
        }
    }
}

impl FromStr for Fold {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "first" => Ok(Fold::First),
            "both" => Ok(Fold::Both),
            _ => Err(Error::invalid("dst_fold", text, "use first (once) or both (each time the hour comes)")),
        }
    }
}

/// A time zone by its IANA name.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time, where no hour repeats or is missing.
    pub const UTC: Zone = Zone(TimeZone::UTC);

    /// Parses an instant. A time without an offset is local time in this zone,
    /// and a date alone means the midnight at which that day begins there.
    pub fn parse_instant(&self, field: &str, text: &str) -> Result<Slot> {
        let is_shaped = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b"-:T ".contains(&b));
        let civil = || match text.len() {
            DATE => text.parse::<jiff::civil::Date>().ok().map(|date| date.at(0, 0, 0, 0)),
            _ => text.parse::<DateTime>().ok(),
        };
        let there = Some(text).filter(|text| is_shaped(text)).and_then(|_| civil()?.to_zoned(self.0.clone()).ok());
        match there {
            Some(there) => crate::schedule::parse_instant(field, &there.timestamp().to_string()),
            None if text.parse::<jiff::Timestamp>().is_ok() => crate::schedule::parse_instant(field, text),
            None => {
                let form = format!(
                    "use RFC 3339, such as 2026-11-15T03:00:00Z, or a time without an offset or a date alone, in time zone {self}"
                );
                Err(Error::invalid(field, text, form))
            }
        }
    }

    /// The slots that a day has, if the text is a date alone.
    pub fn day(&self, text: &str) -> Option<(Slot, Slot)> {
        let date: jiff::civil::Date = Some(text).filter(|text| text.len() == DATE)?.parse().ok()?;
        let midnight = |date: jiff::civil::Date| self.parse_instant("date", &date.to_string()).ok();
        let (first, next) = (midnight(date)?, midnight(date.tomorrow().ok()?)?);
        Some((first, Slot(Timestamp::from_millis(next.0.as_millis().saturating_sub(1)))))
    }

    /// Local time in this zone, for display.
    pub fn show(&self, at: Timestamp) -> String {
        match instant(at) {
            Some(instant) => {
                let zoned = instant.to_zoned(self.0.clone());
                zoned.strftime("%a %Y-%m-%d %H:%M:%S %Z").to_string()
            }
            None => format!("{}ms", at.as_millis()),
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.iana_name().unwrap_or("UTC"))
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({self})")
    }
}

impl FromStr for Zone {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = "use an IANA name such as Europe/Berlin, America/New_York or UTC";
        // A POSIX rule or a path would be accepted too, and mean something else on another machine.
        if text.starts_with(['/', ':']) || text.contains("..") || text.contains(',') {
            return Err(Error::invalid("time zone", text, form));
        }
        // So would files beside the zones that are this machine's own choice, or count leap seconds.
        let lower = text.to_ascii_lowercase();
        let is_foreign = |name: &&&str| lower == **name || lower.starts_with(&format!("{name}/"));
        if let Some(name) = ["localtime", "posixrules", "posix", "right", "etc/unknown"].iter().find(is_foreign) {
            return Err(Error::invalid("time zone", text, format!("`{name}` is no name of IANA's; {form}")));
        }
        match jiff::tz::db().get(text) {
            Ok(zone) => Ok(Zone(zone)),
            Err(_) => Err(Error::invalid("time zone", text, format!("it is not known here; {form}"))),
        }
    }
}

/// When a job is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// By a cron line in a zone.
    Cron {
        /// The parsed line.
        cron: Cron,
        /// The zone that its hours are in.
        zone: Zone,
        /// What to do with an hour that does not exist.
        gap: Gap,
        /// What to do with an hour that comes twice.
        fold: Fold,
    },
    /// At every multiple of an interval since 1970 in UTC: it never drifts, whenever a run starts or ends.
    Every(Duration),
}

impl Schedule {
    /// Parses a cron line, or `@every 45m`. The default for clock changes is that of Debian's
    /// cron: a line with a fixed time of day is due once, at the end of a gap or the first
    /// time in a fold; a line whose minute or hour begins with `*` follows local time.
    pub fn new(text: &str, zone: Zone, gap: Option<Gap>, fold: Option<Fold>) -> Result<Self> {
        if let Some(interval) = text.trim().strip_prefix("@every ") {
            if zone != Zone::UTC || gap.is_some() || fold.is_some() {
                let form = "it is counted in elapsed time: a time zone and rules for its changes go with a cron line";
                return Err(Error::invalid("cron", text, form));
            }
            return Schedule::every(parse_duration(interval.trim())?);
        }
        let cron: Cron = text.parse()?;
        let usual = if cron.is_wildcard() { (Gap::Skip, Fold::Both) } else { (Gap::ShiftBriefly, Fold::FirstBriefly) };
        Ok(Schedule::Cron { cron, zone, gap: gap.unwrap_or(usual.0), fold: fold.unwrap_or(usual.1) })
    }

    /// Due at every multiple of this interval: whole seconds, from one second to a year.
    pub fn every(interval: Duration) -> Result<Self> {
        let whole = interval.subsec_nanos() == 0;
        if !whole || interval.is_zero() || interval > Duration::from_secs(366 * 86_400) {
            return Err(Error::invalid("every", format_duration(interval), "use whole seconds, from 1s to 366d"));
        }
        Ok(Schedule::Every(interval))
    }

    /// The zone in which its slots are shown.
    pub fn zone(&self) -> Zone {
        match self {
            Schedule::Cron { zone, .. } => zone.clone(),
            Schedule::Every(_) => Zone::UTC,
        }
    }

    /// When it is due, in words: `at 03:00 every day, Europe/Berlin`.
    pub fn words(&self) -> String {
        match self {
            Schedule::Cron { cron, zone, .. } => format!("{}, {zone}", cron.words()),
            Schedule::Every(interval) => format!("every {} of elapsed time", format_duration(*interval)),
        }
    }

    /// The first slot after this time.
    pub fn next_after(&self, at: Timestamp) -> Option<Slot> {
        match self {
            Schedule::Every(interval) => {
                let ms = u64::try_from(interval.as_millis()).ok()?;
                let next = (at.as_millis() / ms).checked_add(1)?.checked_mul(ms)?;
                Some(Slot(Timestamp::from_millis(next)))
            }
            Schedule::Cron { cron, zone, gap, fold } => {
                let from = instant(at)?.as_second() + 1;
                Search { cron, zone: &zone.0, gap: *gap, fold: *fold }.forwards(from).and_then(slot)
            }
        }
    }

    /// The last slot at or before this time.
    pub fn latest(&self, at: Timestamp) -> Option<Slot> {
        match self {
            Schedule::Every(interval) => {
                let ms = u64::try_from(interval.as_millis()).ok()?;
                Some(Slot(Timestamp::from_millis(at.as_millis() / ms * ms)))
            }
            Schedule::Cron { cron, zone, gap, fold } => {
                let from = instant(at)?.as_second();
                Search { cron, zone: &zone.0, gap: *gap, fold: *fold }.backwards(from).and_then(slot)
            }
        }
    }

    /// The last slot before this one.
    pub fn before(&self, slot: Slot) -> Option<Slot> {
        self.latest(Timestamp::from_millis(slot.0.as_millis().checked_sub(1)?))
    }

    /// The slots after `after`, up to and including `until`, in order.
    pub fn between(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = Slot> + '_ {
        let first = self.next_after(after);
        std::iter::successors(first, |slot| self.next_after(slot.0)).take_while(move |slot| slot.0 <= until)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Cron { cron, zone, .. } => write!(f, "{cron} {zone}"),
            Schedule::Every(interval) => write!(f, "@every {}", format_duration(*interval)),
        }
    }
}

fn instant(at: Timestamp) -> Option<Instant> {
    Instant::from_millisecond(i64::try_from(at.as_millis()).ok()?).ok()
}

fn slot(second: i64) -> Option<Slot> {
    Some(Slot(Timestamp::from_millis(u64::try_from(second).ok()?.checked_mul(1000)?)))
}

/// Between two clock changes of the zone, local times and instants differ by a fixed offset, so the search goes from
/// stretch to stretch. All times are whole seconds since 1970.
struct Search<'a> {
    cron: &'a Cron,
    zone: &'a TimeZone,
    gap: Gap,
    fold: Fold,
}

/// A change of the clock at an instant.
struct Change {
    at: i64,
    before: i64,
    after: i64,
}

impl Change {
    /// Where a stretch that begins with this change begins to count: after the
    /// hour that comes a second time, if only the first time counts.
    fn counts_from(&self, fold: Fold) -> i64 {
        let length = (self.before - self.after).max(0);
        match fold {
            Fold::First => self.at + length,
            Fold::FirstBriefly if length <= MOVED => self.at + length,
            Fold::FirstBriefly | Fold::Both => self.at,
        }
    }

    /// Whether this local time never comes because of the change, and is due at the end of the gap instead.
    fn shifts(&self, wall: i64, gap: Gap) -> bool {
        let is_missing = wall >= self.at + self.before && wall < self.at + self.after;
        is_missing
            && match gap {
                Gap::Shift => true,
                Gap::ShiftBriefly => self.after - self.before < MOVED,
                Gap::Skip => false,
            }
    }
}

impl Search<'_> {
    fn forwards(&self, from: i64) -> Option<i64> {
        let mut from = match self.change_until(from) {
            Some(change) => from.max(change.counts_from(self.fold)),
            None => from,
        };
        for _ in 0..MAX_CHANGES {
            let offset = self.offset(from)?;
            let wall = self.cron.at_or_after(civil(from + offset)?)?;
            let wall = seconds(wall)?;
            let Some(change) = self.change_after(from - 1, from) else { return Some(wall - offset) };
            if wall - offset < change.at {
                return Some(wall - offset);
            }
            // The local clock jumps from `at + before` to `at + after`: a time in between never comes.
            if change.shifts(wall, self.gap) {
                return Some(change.at);
            }
            from = change.counts_from(self.fold);
        }
        None
    }

    fn backwards(&self, mut until: i64) -> Option<i64> {
        for _ in 0..MAX_CHANGES {
            let offset = self.offset(until)?;
            let wall = seconds(self.cron.at_or_before(civil(until + offset)?)?)?;
            let Some(change) = self.change_until(until) else { return Some(wall - offset) };
            if wall - offset >= change.counts_from(self.fold) {
                return Some(wall - offset);
            }
            if change.shifts(wall, self.gap) {
                return Some(change.at);
            }
            until = change.at - 1;
        }
        None
    }

    fn offset(&self, at: i64) -> Option<i64> {
        Some(seconds_of(self.zone.to_offset(Instant::from_second(at).ok()?)))
    }

    /// The last change at or before this second.
    fn change_until(&self, at: i64) -> Option<Change> {
        let change = self.zone.preceding(Instant::from_second(at + 1).ok()?).next()?.timestamp().as_second();
        self.change(change)
    }

    /// The first change after `past` that is not at `from`, where the stretch begins.
    fn change_after(&self, past: i64, from: i64) -> Option<Change> {
        let mut changes = self.zone.following(Instant::from_second(past).ok()?).map(|t| t.timestamp().as_second());
        self.change(changes.find(|at| *at > from)?)
    }

    fn change(&self, at: i64) -> Option<Change> {
        Some(Change { at, before: self.offset(at - 1)?, after: self.offset(at)? })
    }
}

fn seconds_of(offset: Offset) -> i64 {
    i64::from(offset.seconds())
}

/// A local time in seconds since 1970, as if it were UTC.
fn seconds(wall: DateTime) -> Option<i64> {
    Some(TimeZone::UTC.to_timestamp(wall).ok()?.as_second())
}

fn civil(seconds: i64) -> Option<DateTime> {
    Some(TimeZone::UTC.to_datetime(Instant::from_second(seconds).ok()?))
}
