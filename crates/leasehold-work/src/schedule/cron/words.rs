//! A cron line in words, for people who check what they wrote.
//!
//! Promise: the words say what the parsed line matches, and nothing else: they are made
//! from the sets of values that the search uses. A line without a short form is described
//! field by field. Non-promise: two lines with the same meaning may have different words.

use super::{Cron, expand};

/// The parser's bits of a field: the nth of a weekday, the last, the weekday nearest a day.
const NTH: [(u8, &str); 5] =
    [(1 << 1, "first"), (1 << 2, "second"), (1 << 3, "third"), (1 << 4, "fourth"), (1 << 5, "fifth")];
const LAST: u8 = 1 << 6;
const NEAREST: u8 = 1 << 7;
/// How many times of day are named one by one.
const MAX_NAMED: usize = 4;

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl Cron {
    /// When it is due, in words and without a zone: `at 03:00 every day`.
    pub fn words(&self) -> String {
        let pattern = &self.line.pattern.pattern;
        let (time, needs_days) = time(&pattern.seconds.values(), &pattern.minutes.values(), &pattern.hours.values());
        let months = pattern.months.values();
        let days = self.days().or_else(|| needs_days.then(|| "every day".to_owned()));
        let when = match days {
            // `at 03:00 on Mondays`, and `every 5 minutes, Monday to Friday`.
            Some(days) if time.starts_with("at") && days.starts_with(['o', 'e']) && !time.contains(" of ") => {
                format!("{time} {days}")
            }
            Some(days) => format!("{time}, {days}"),
            None => time,
        };
        if months.len() == 12 {
            return when;
        }
        let at = |month: u16| MONTHS.get(usize::from(month).saturating_sub(1)).copied().unwrap_or("?");
        format!("{when}, in {}", list(&runs(&months), |month| at(month).to_owned()))
    }

    /// The days on which it is due; none for every day.
    fn days(&self) -> Option<String> {
        let line = expand(&self.line.text);
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [.., day_field, _, weekday_field] = fields.as_slice() else { return None };
        let is_any = |field: &str| matches!(field, "*" | "?" | "*/1");
        let (day, weekday) = (self.days_of_month(), self.days_of_week());
        match (is_any(day_field), is_any(weekday_field)) {
            (true, true) => None,
            (false, true) => Some(format!("on {day} of the month")),
            (true, false) => Some(weekday),
            // As the parser does it: a field that begins with `*` narrows the other one.
            (false, false) if [day_field, weekday_field].iter().any(|field| field.starts_with(['*', '?'])) => {
                Some(format!("on days that are both {day} of the month and {}", weekday.trim_start_matches("on ")))
            }
            (false, false) => Some(format!("on {day} of the month, and also {weekday}")),
        }
    }

    fn days_of_month(&self) -> String {
        let days = &self.line.pattern.pattern.days;
        let values = days.values();
        let mut told = Vec::new();
        match steps(&values, 1, 31) {
            Some(step) if step > 1 && values.len() > MAX_NAMED => {
                told.push(format!("every {} day from the 1st", ordinal(step)))
            }
            _ if values.len() == 31 => told.push("every day".into()),
            _ if !values.is_empty() => told.push(format!("the {}", list(&runs(&values), ordinal))),
            _ => {}
        }
        let nearest = days.get_set_values(NEAREST);
        told.extend(nearest.into_iter().map(|day| format!("the weekday nearest the {}", ordinal(day))));
        match (days.is_feature_enabled(LAST), days.is_feature_enabled(NEAREST)) {
            (true, true) => told.push("the last weekday".into()),
            (true, false) => told.push("the last day".into()),
            _ => {}
        }
        told.join(" and ")
    }

    fn days_of_week(&self) -> String {
        let field = &self.line.pattern.pattern.days_of_week;
        // From Monday on, and Sunday once.
        let of = |bit: u8| {
            let values = if bit == 1 { field.values() } else { field.get_set_values(bit) };
            let mut days: Vec<u16> = values.into_iter().map(|day| (day + 6) % 7).collect();
            days.sort_unstable();
            days.dedup();
            days
        };
        let name = |day: u16| DAYS.get(usize::from(day)).copied().unwrap_or("?").to_owned();
        let mut told = Vec::new();
        let every = of(1);
        match &runs(&every)[..] {
            [] => {}
            [(0, 6)] => told.push("every day".to_owned()),
            [(first, last)] if last - first > 1 => told.push(format!("{} to {}", name(*first), name(*last))),
            runs => told.push(format!("on {}", list(runs, |day| format!("{}s", name(day))))),
        }
        for (bit, nth) in NTH.into_iter().chain([(LAST, "last")]) {
            let days = of(bit);
            if !days.is_empty() {
                told.push(format!("on the {nth} {} of the month", list(&runs(&days), name)));
            }
        }
        told.join(" and ")
    }
}

/// The times of day, and whether days must be named too: `at 03:00` needs a day, `every hour` does not.
fn time(seconds: &[u16], minutes: &[u16], hours: &[u16]) -> (String, bool) {
    let (every_minute, every_hour) = (minutes.len() == 60, hours.len() == 24);
    if seconds != [0] {
        if every_minute
            && every_hour
            && let Some(step) = steps(seconds, 0, 59).filter(|step| 60 % step == 0)
        {
            return (every(step, "second"), false);
        }
        if seconds.len() * minutes.len() * hours.len() <= MAX_NAMED {
            let times =
                combined(hours, minutes).flat_map(|at| seconds.iter().map(move |second| format!("{at}:{second:02}")));
            return (format!("at {}", and(times.collect())), true);
        }
        let seconds = values(seconds, "second");
        let minutes = if every_minute { "every minute".into() } else { values(minutes, "minute") };
        let hours = if every_hour { "every hour".into() } else { values(hours, "hour") };
        return (format!("at {seconds} of {minutes} of {hours}"), !every_hour);
    }
    if minutes.len() * hours.len() <= MAX_NAMED {
        return (format!("at {}", and(combined(hours, minutes).collect())), true);
    }
    let step = steps(minutes, 0, 59).filter(|step| 60 % step == 0);
    let span = match runs(hours)[..] {
        [(first, last)] => Some((first, last)),
        _ => None,
    };
    match (minutes, step, span) {
        (_, Some(step), _) if every_hour => (every(step, "minute"), false),
        (_, Some(step), Some((first, last))) => {
            (format!("{} from {first:02}:00 to {last:02}:{:02}", every(step, "minute"), 60 - step), true)
        }
        ([0], ..) if every_hour => ("every hour".into(), false),
        ([minute], ..) if every_hour => (format!("every hour at minute {minute}"), false),
        ([minute], _, Some((first, last))) => {
            (format!("every hour from {first:02}:{minute:02} to {last:02}:{minute:02}"), true)
        }
        ([minute], ..) => match steps(hours, 0, 23).filter(|step| 24 % step == 0) {
            Some(step) => {
                (format!("{} from 00:{minute:02} to {:02}:{minute:02}", every(step, "hour"), 24 - step), true)
            }
            None => (format!("at minute {minute} of {}", values(hours, "hour")), true),
        },
        _ if every_hour => (format!("at {} of every hour", values(minutes, "minute")), false),
        _ => (format!("at {} of {}", values(minutes, "minute"), values(hours, "hour")), true),
    }
}

fn combined<'a>(hours: &'a [u16], minutes: &'a [u16]) -> impl Iterator<Item = String> + 'a {
    hours.iter().flat_map(move |hour| minutes.iter().map(move |minute| format!("{hour:02}:{minute:02}")))
}

fn every(step: u16, unit: &str) -> String {
    if step == 1 { format!("every {unit}") } else { format!("every {step} {unit}s") }
}

/// The step of values that begin at the lowest and cover the whole field; none if they are not such a series.
fn steps(values: &[u16], low: u16, high: u16) -> Option<u16> {
    let [first, second, ..] = values else { return None };
    let step = second - first;
    let expected: Vec<u16> = (low..=high).step_by(usize::from(step)).collect();
    (expected == values).then_some(step)
}

/// Ranges of consecutive values, as their first and last.
fn runs(values: &[u16]) -> Vec<(u16, u16)> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for value in values {
        match runs.last_mut().filter(|(_, last)| last + 1 == *value) {
            Some((_, last)) => *last = *value,
            None => runs.push((*value, *value)),
        }
    }
    runs
}

fn values(values: &[u16], unit: &str) -> String {
    let plural = if values.len() == 1 { "" } else { "s" };
    format!("{unit}{plural} {}", list(&runs(values), |value| value.to_string()))
}

fn list(runs: &[(u16, u16)], name: impl Fn(u16) -> String) -> String {
    let told = runs.iter().flat_map(|(first, last)| match last - first {
        0 => vec![name(*first)],
        1 => vec![name(*first), name(*last)],
        _ => vec![format!("{} to {}", name(*first), name(*last))],
    });
    and(told.collect())
}

fn and(mut words: Vec<String>) -> String {
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
}

fn ordinal(day: u16) -> String {
    let ending = match (day % 10, day % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{day}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &str) -> String {
        line.parse::<Cron>().unwrap_or_else(|e| panic!("{line}: {e}")).words()
    }

    #[test]
    fn lines_that_people_write_are_said_as_people_say_them() {
        for (line, said) in [
            ("0 3 * * *", "at 03:00 every day"),
            ("@daily", "at 00:00 every day"),
            ("@midnight", "at 00:00 every day"),
            ("@hourly", "every hour"),
            ("@weekly", "at 00:00 on Sundays"),
            ("@monthly", "at 00:00 on the 1st of the month"),
            ("@yearly", "at 00:00 on the 1st of the month, in January"),
            ("* * * * *", "every minute"),
            ("*/1 * * * *", "every minute"),
            ("*/15 * * * *", "every 15 minutes"),
            ("0,15,30,45 * * * *", "every 15 minutes"),
            ("*/15 9-17 * * MON-FRI", "every 15 minutes from 09:00 to 17:45, Monday to Friday"),
            ("* 9-17 * * *", "every minute from 09:00 to 17:59, every day"),
            ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
            ("10-50/10 * * * *", "at minutes 10, 20, 30, 40 and 50 of every hour"),
            ("30 * * * *", "every hour at minute 30"),
            ("0 */2 * * *", "every 2 hours from 00:00 to 22:00, every day"),
            ("5 */6 * * *", "at 00:05, 06:05, 12:05 and 18:05 every day"),
            ("0 */5 * * *", "at minute 0 of hours 0, 5, 10, 15 and 20, every day"),
            ("0 8-18 * * 1-5", "every hour from 08:00 to 18:00, Monday to Friday"),
            ("30 8-18 * * *", "every hour from 08:30 to 18:30, every day"),
            ("0 9,17 * * *", "at 09:00 and 17:00 every day"),
            ("0,30 9,17 * * *", "at 09:00, 09:30, 17:00 and 17:30 every day"),
            ("*/30 2 * * *", "at 02:00 and 02:30 every day"),
            ("*/5 2 * * *", "every 5 minutes from 02:00 to 02:55, every day"),
            ("*/20 22,23,0 * * *", "at minutes 0, 20 and 40 of hours 0, 22 and 23, every day"),
            ("0 3 1 * *", "at 03:00 on the 1st of the month"),
            ("0 3 1,15 * *", "at 03:00 on the 1st and 15th of the month"),
            ("0 3 1-7 * *", "at 03:00 on the 1st to 7th of the month"),
            ("0 3 */2 * *", "at 03:00 on every 2nd day from the 1st of the month"),
            ("0 3 L * *", "at 03:00 on the last day of the month"),
            ("0 3 LW * *", "at 03:00 on the last weekday of the month"),
            ("0 3 15W * *", "at 03:00 on the weekday nearest the 15th of the month"),
            ("0 3 1,L * *", "at 03:00 on the 1st and the last day of the month"),
            ("0 3 * * MON", "at 03:00 on Mondays"),
            ("0 3 * * 0", "at 03:00 on Sundays"),
            ("0 3 * * 7", "at 03:00 on Sundays"),
            ("0 3 * * 6,0", "at 03:00 on Saturdays and Sundays"),
            ("0 3 * * 1,3,5", "at 03:00 on Mondays, Wednesdays and Fridays"),
            ("0 3 * * 0-6", "at 03:00 every day"),
            ("0 3 * * FRI-SUN", "at 03:00, Friday to Sunday"),
            ("0 3 * * 5#2", "at 03:00 on the second Friday of the month"),
            ("0 3 * * 5L", "at 03:00 on the last Friday of the month"),
            ("0 3 * * 7L", "at 03:00 on the last Sunday of the month"),
            ("0 3 13 * 5", "at 03:00 on the 13th of the month, and also on Fridays"),
            ("0 3 */2 * MON", "at 03:00 on days that are both every 2nd day from the 1st of the month and Mondays"),
            ("0 3 * 1,7 *", "at 03:00 every day, in January and July"),
            ("0 0 1 JAN-MAR *", "at 00:00 on the 1st of the month, in January to March"),
            ("*/10 * * * * *", "every 10 seconds"),
            ("* * * * * *", "every second"),
            ("30 0 3 * * *", "at 03:00:30 every day"),
            ("5 * * * * *", "at second 5 of every minute of every hour"),
            (
                "*/15 */5 9-17 * * *",
                "at seconds 0, 15, 30 and 45 of minutes 0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50 and 55 of \
              hours 9 to 17, every day",
            ),
            ("0 0 ? * MON", "at 00:00 on Mondays"),
        ] {
            assert_eq!(words(line), said, "{line}");
        }
    }

    /// Parses the words of a time of day, into the set of hours and minutes that they name.
    fn heard(words: &str) -> Vec<(u16, u16)> {
        let numbers = |text: &str| -> Vec<u16> {
            let text = text.replace(" and ", ", ");
            let number = |text: &str| text.trim().parse::<u16>().unwrap_or_else(|_| panic!("{words}: {text}"));
            text.split(", ")
                .flat_map(|part| match part.split_once(" to ") {
                    Some((from, to)) => (number(from)..=number(to)).collect::<Vec<_>>(),
                    None => vec![number(part)],
                })
                .collect()
        };
        let clock = |text: &str| {
            let (hour, minute) = text.trim().split_once(':').unwrap_or_else(|| panic!("{words}: {text}"));
            (hour.parse::<u16>().unwrap(), minute.parse::<u16>().unwrap())
        };
        let spread = |step: u16, from: (u16, u16), to: (u16, u16)| -> Vec<(u16, u16)> {
            (from.0 * 60 + from.1..=to.0 * 60 + to.1).step_by(usize::from(step)).map(|at| (at / 60, at % 60)).collect()
        };
        let text = words.strip_suffix(" every day").unwrap_or(words).trim_end_matches(',');
        if let Some(rest) = text.strip_prefix("every ") {
            let (step, rest) = match rest.split_once(' ').filter(|(first, _)| first.parse::<u16>().is_ok()) {
                Some((step, rest)) => (step.parse::<u16>().unwrap(), rest),
                None => (1, rest),
            };
            let (unit, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let step = if unit.starts_with("hour") { step * 60 } else { step };
            if let Some(minute) = rest.strip_prefix("at minute ") {
                return spread(step, (0, minute.parse().unwrap()), (23, 59));
            }
            return match rest.strip_prefix("from ").and_then(|span| span.split_once(" to ")) {
                None => spread(step, (0, 0), (23, 59)),
                Some((from, to)) => spread(step, clock(from), clock(to)),
            };
        }
        let text = text.strip_prefix("at ").unwrap_or_else(|| panic!("{words}"));
        if let Some(text) = text.strip_prefix("minute") {
            let (minutes, hours) = text.trim_start_matches(['s', ' ']).split_once(" of ").unwrap();
            let hours = match hours {
                "every hour" => (0..24).collect(),
                hours => numbers(hours.trim_start_matches("hour").trim_start_matches(['s', ' '])),
            };
            let minutes = numbers(minutes);
            return hours.iter().flat_map(|hour| minutes.iter().map(|minute| (*hour, *minute))).collect();
        }
        text.replace(" and ", ", ").split(", ").map(clock).collect()
    }

    fn field(high: u16) -> impl Strategy<Value = String> {
        let number = 0..=high;
        prop_oneof![
            Just("*".to_owned()),
            number.clone().prop_map(|n| n.to_string()),
            (2..=high).prop_map(|step| format!("*/{step}")),
            (number.clone(), number.clone()).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
            (number.clone(), number.clone(), 1..6_u16).prop_map(|(a, b, s)| format!("{}-{}/{s}", a.min(b), a.max(b))),
            proptest::collection::btree_set(number, 1..7).prop_map(|set| set
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(",")),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]
        #[test]
        fn the_words_name_the_times_that_the_line_has_and_no_others(minute in field(59), hour in field(23)) {
            let Ok(cron) = format!("{minute} {hour} * * *").parse::<Cron>() else { return Ok(()) };
            let pattern = &cron.line.pattern.pattern;
            let minutes = pattern.minutes.values();
            let meant: Vec<(u16, u16)> =
                pattern.hours.values().iter().flat_map(|hour| minutes.iter().map(move |minute| (*hour, *minute))).collect();
            prop_assert_eq!(heard(&cron.words()), meant, "{} {}: {}", minute, hour, cron.words());
        }

        #[test]
        fn any_line_has_words(line in "[0-9*/,-]{1,5} [0-9*/,-]{1,5} [0-9*/,LW-]{1,4} [0-9*/,-]{1,3} [0-7*/,#L-]{1,4}") {
            if let Ok(cron) = line.parse::<Cron>() {
                prop_assert!(!cron.words().contains(['?', '_']) && !cron.words().ends_with(' '), "{}: {}", line, cron.words());
            }
        }
    }
}
