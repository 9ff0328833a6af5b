//! systemd's `OnCalendar=` as a cron line: `Mon..Fri *-*-* 09:00:00` is `0 9 * * Mon-Fri`.
//!
//! Promise: a line that comes out names the same times. What cron lines cannot name is refused, with the reason.

use leasehold_work::schedule::Zone;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// A cron line, and the zone if one was named.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    pub cron: String,
    pub zone: Option<String>,
}

/// Reads a calendar expression; says what cannot be carried over.
pub fn cron_of(text: &str) -> Result<Line, String> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let zone = words.last().and_then(|word| word.parse::<Zone>().ok()).map(|zone| zone.to_string());
    if zone.is_some() {
        words.pop();
    }
    if let [word] = words[..]
        && let Some(full) = shorthand(&word.to_ascii_lowercase())
    {
        return cron_of(full).map(|line| Line { zone, ..line });
    }
    let weekdays = match words.first().filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())) {
        Some(word) => Some(weekdays(word)?),
        None => None,
    };
    let rest = &words[usize::from(weekdays.is_some())..];
    if words.is_empty() {
        return Err("it names no time".into());
    }
    let (date, time) = match rest {
        [] => ("*-*-*", "00:00:00"),
        [word] if word.contains(':') => ("*-*-*", *word),
        [word] => (*word, "00:00:00"),
        [date, time] => (*date, *time),
        _ => return Err("it has more parts than weekdays, date, time and zone".into()),
    };
    let (month, day) = date_fields(date)?;
    let time: Vec<&str> = time.split(':').collect();
    let (hour, minute, second) = match time[..] {
        [hour, minute] => (hour, minute, "0"),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err("its time is not hours:minutes:seconds".into()),
    };
    let [hour, minute, second] = [field(hour, 0, 23)?, field(minute, 0, 59)?, field(second, 0, 59)?];
    let (day, weekday) = both(day, weekdays)?;
    let line = format!("{minute} {hour} {day} {month} {weekday}");
    Ok(Line { cron: if second == "0" { line } else { format!("{second} {line}") }, zone })
}

fn shorthand(word: &str) -> Option<&'static str> {
    Some(match word {
        "minutely" => "*-*-* *:*:00",
        "hourly" => "*-*-* *:00:00",
        "daily" => "*-*-* 00:00:00",
        "weekly" => "Mon *-*-* 00:00:00",
        "monthly" => "*-*-01 00:00:00",
        "quarterly" => "*-01,04,07,10-01 00:00:00",
        "semiannually" => "*-01,07-01 00:00:00",
        "yearly" | "annually" => "*-01-01 00:00:00",
        _ => return None,
    })
}

/// systemd wants both a weekday and a date to match, cron lines either of them, unless one is any.
fn both(day: String, weekdays: Option<String>) -> Result<(String, String), String> {
    let Some(weekdays) = weekdays else { return Ok((day, "*".into())) };
    let nth = match day.as_str() {
        "*" => return Ok((day, weekdays)),
        "1-7" => 1,
        "8-14" => 2,
        "15-21" => 3,
        "22-28" => 4,
        _ => return Err("both a weekday and a day of the month must match, which a cron line cannot say".into()),
    };
    if weekdays.contains([',', '-']) {
        return Err("both weekdays and days of the month must match, which a cron line cannot say".into());
    }
    Ok(("*".into(), format!("{weekdays}#{nth}")))
}

fn weekdays(word: &str) -> Result<String, String> {
    let day = |text: &str| {
        let known = DAYS.iter().find(|day| text.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(day)));
        known.filter(|_| text.chars().all(|c| c.is_ascii_alphabetic())).copied()
    };
    let unknown = || format!("`{}` is not a list of weekdays", leasehold_core::printable(word));
    let mut parts = Vec::new();
    for part in word.trim_end_matches(',').split(',') {
        let ends = part.split_once("..").or_else(|| part.split_once('-'));
        match ends {
            None => parts.push(day(part).ok_or_else(unknown)?.to_owned()),
            Some((from, to)) => {
                let (from, to) = (day(from).ok_or_else(unknown)?, day(to).ok_or_else(unknown)?);
                let at = |day: &str| DAYS.iter().position(|known| *known == day).unwrap_or(0);
                // Sunday is the last day of a range here, and cron takes it so too.
                match at(from) <= at(to) {
                    true => parts.push(format!("{from}-{to}")),
                    false => return Err(unknown()),
                }
            }
        }
    }
    Ok(parts.join(","))
}

fn date_fields(date: &str) -> Result<(String, String), String> {
    // `~` counts from the end of the month.
    if let Some((head, day)) = date.split_once('~') {
        let month = head.rsplit('-').next().unwrap_or("*");
        check_year(head, 2)?;
        return match day.trim_start_matches('0') {
            "1" => Ok((field(month, 1, 12)?, "L".into())),
            _ => Err("it counts days from the end of the month, of which a cron line can only name the last".into()),
        };
    }
    let parts: Vec<&str> = date.split('-').collect();
    match parts[..] {
        [month, day] => Ok((field(month, 1, 12)?, field(day, 1, 31)?)),
        ["*", month, day] => Ok((field(month, 1, 12)?, field(day, 1, 31)?)),
        [_, _, _] => Err("it names a year, which a cron line cannot".into()),
        _ => Err("its date is not year-month-day".into()),
    }
}

fn check_year(head: &str, parts: usize) -> Result<(), String> {
    match head.split('-').collect::<Vec<_>>()[..] {
        [year, _] if parts == 2 && year != "*" => Err("it names a year, which a cron line cannot".into()),
        _ => Ok(()),
    }
}

/// A component as a field of a cron line.
fn field(text: &str, low: u32, high: u32) -> Result<String, String> {
    let number = |text: &str| {
        let wrong = || format!("`{}` is not a whole number from {low} to {high}", leasehold_core::printable(text));
        // `00.5`, and `60`.
        text.parse::<u32>().ok().filter(|number| (low..=high).contains(number)).ok_or_else(wrong)
    };
    let seconds = |text: &str| text.strip_suffix(".000000").unwrap_or(text).to_owned();
    let mut parts = Vec::new();
    for part in text.split(',') {
        let part = seconds(part);
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                (range.to_owned(), Some(step.parse::<u32>().map_err(|_| "a step is no whole number")?))
            }
            None => (part.clone(), None),
        };
        let ends = match (range.as_str(), range.split_once("..")) {
            ("*", _) => None,
            (_, Some((from, to))) => Some((number(from)?, number(to)?)),
            (from, None) => Some((number(from)?, if step.is_some() { high } else { number(from)? })),
        };
        parts.push(match (ends, step) {
            (_, Some(0)) => return Err("a step of 0 names no time".into()),
            (None, None) => "*".to_owned(),
            (None, Some(step)) if step > high - low + 1 => low.to_string(),
            (None, Some(step)) => format!("*/{step}"),
            // A day that begins with `*` would narrow the weekdays, and so it may.
            (Some((from, to)), Some(step)) if from == low && to == high && step <= high - low + 1 => {
                format!("*/{step}")
            }
            (Some((from, to)), Some(step)) if step > to - from => from.to_string(),
            (Some((from, to)), Some(step)) => format!("{from}-{to}/{step}"),
            (Some((from, to)), None) if from == to => from.to_string(),
            (Some((from, to)), None) => format!("{from}-{to}"),
        });
    }
    Ok(parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendars_that_people_write_become_cron_lines() {
        for (calendar, cron) in [
            ("daily", "0 0 * * *"),
            ("hourly", "0 * * * *"),
            ("minutely", "* * * * *"),
            ("weekly", "0 0 * * Mon"),
            ("monthly", "0 0 1 * *"),
            ("quarterly", "0 0 1 1,4,7,10 *"),
            ("Mon..Fri *-*-* 09:00:00", "0 9 * * Mon-Fri"),
            ("Mon-Fri 09:00", "0 9 * * Mon-Fri"),
            ("Sat,Sun 12:30", "30 12 * * Sat,Sun"),
            ("*-*-* 03:00:00", "0 3 * * *"),
            ("*:0/15", "*/15 * * * *"),
            ("*-*-* *:05/20:00", "5-59/20 * * * *"),
            ("*-*-1,15 04:00", "0 4 1,15 * *"),
            ("*-*~01 23:00", "0 23 L * *"),
            ("*-02~01", "0 0 L 2 *"),
            ("Mon *-*-1..7 06:00", "0 6 * * Mon#1"),
            ("*-*-* 00/6:10:00", "10 */6 * * *"),
            ("*-*-* 08..18:00:30", "30 0 8-18 * * *"),
            ("Wed", "0 0 * * Wed"),
            ("*-12-24", "0 0 24 12 *"),
        ] {
            let line = cron_of(calendar).unwrap_or_else(|e| panic!("{calendar}: {e}"));
            assert_eq!((line.cron.as_str(), line.zone), (cron, None), "{calendar}");
            line.cron.parse::<leasehold_work::schedule::Cron>().unwrap_or_else(|e| panic!("{calendar}: {e}"));
        }
        let zoned = Line { cron: "0 9 * * Mon-Fri".into(), zone: Some("Europe/Berlin".into()) };
        assert_eq!(cron_of("Mon..Fri 09:00 Europe/Berlin"), Ok(zoned));
        assert_eq!(cron_of("daily UTC").unwrap().zone, Some("UTC".into()));
    }

    #[test]
    fn what_a_cron_line_cannot_say_is_refused() {
        for calendar in [
            "2026-*-* 03:00",
            "Mon *-*-13 09:00",
            "Mon,Tue *-*-1..7 09:00",
            "*-*~03 09:00",
            "*-*-* 03:00:00.5",
            "*-*-* 25:00",
            "Someday 09:00",
            "Fri..Mon 09:00",
            "*-*-* 09:00 09:00 09:00",
            "*:0/0",
            "",
        ] {
            let refused = cron_of(calendar);
            assert!(refused.is_err(), "{calendar}: {refused:?}");
        }
    }
}
