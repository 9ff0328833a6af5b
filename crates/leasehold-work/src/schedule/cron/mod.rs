//! A cron line: when a job is due, in wall-clock time.
//!
//! Promise: a valid line comes due some day, and an invalid line is refused with the field, the value and the allowed
//! form. Non-promise: a cron line alone has no time zone; [`super::Schedule`] turns it into instants.

mod advice;
mod words;

use jiff::civil::DateTime;
use leasehold_core::{Error, Remedy, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

/// Words for a whole line, and the lines that they mean.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A field of a line: its name, its allowed form, and the letters it may have.
struct Field {
    name: &'static str,
    form: &'static str,
    words: &'static [&'static str],
    /// How many values it may have.
    span: u32,
}

impl Field {
    /// Its lowest value: 1 for days of the month and months, otherwise 0.
    fn low(&self) -> u32 {
        u32::from(matches!(self.name, "day of month" | "month"))
    }
}

const FIELDS: [Field; 6] = [
    Field { name: "second", form: "use 0-59, a list 0,30, a range 0-29 or a step */10", words: &[], span: 60 },
    Field { name: "minute", form: "use 0-59, a list 0,30, a range 0-29 or a step */15", words: &[], span: 60 },
    Field { name: "hour", form: "use 0-23, a list 9,17, a range 9-17 or a step */2", words: &[], span: 24 },
    Field {
        name: "day of month",
        form: "use 1-31, a list 1,15, a range 1-7, a step */2, L for the last day, 15W for the weekday nearest the \
               15th or LW for the last weekday",
        words: &["L", "W", "LW"],
        span: 31,
    },
    Field {
        name: "month",
        form: "use 1-12 or JAN-DEC, a list 1,7, a range JAN-MAR or a step */3",
        words: &MONTHS,
        span: 12,
    },
    Field {
        name: "day of week",
        form: "use 0-7 or SUN-SAT (0 and 7 are Sunday), a list MON,WED, a range MON-FRI, 5#2 for the second Friday or \
               5L for the last",
        words: &["L", "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
        span: 7,
    },
];

/// A cron line of five fields (minute, hour, day of month, month, day of week), or six with seconds first, or a
/// nickname such as `@daily`.
///
/// ```
/// use leasehold_work::schedule::Cron;
/// assert_eq!("@daily".parse::<Cron>()?.to_string(), "@daily");
/// let error = "0 25 * * *".parse::<Cron>().unwrap_err().to_string();
/// assert!(error.starts_with("invalid cron `0 25 * * *`: hour `25`"), "{error}");
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Cron {
    line: Arc<Line>,
}

/// A line, in its original text and parsed.
#[derive(PartialEq, Eq)]
struct Line {
    text: String,
    pattern: croner::Cron,
}

/// The lines in use, by their text. A parsed line takes 6 KB, so jobs with the same line share one.
static LINES: LazyLock<Mutex<HashMap<String, Weak<Line>>>> = LazyLock::new(Mutex::default);

impl Line {
    /// The parsed line of another job with this text, if any.
    fn shared(text: &str) -> Option<Arc<Line>> {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).get(text)?.upgrade()
    }

    fn share(self) -> Arc<Line> {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        // Otherwise each reload of a configuration would leave its old lines behind.
        if lines.len() == lines.capacity() {
            lines.retain(|_, line| line.strong_count() > 0);
        }
        let line = Arc::new(self);
        lines.insert(line.text.clone(), Arc::downgrade(&line));
        line
    }
}

impl Cron {
    /// Whether a field of the time of day begins with `*`. Debian's cron runs such a line whenever the local time
    /// matches; only the other lines are corrected when clocks change.
    pub fn is_wildcard(&self) -> bool {
        let line = expand(&self.line.text);
        let fields: Vec<&str> = line.split_whitespace().collect();
        let time_of_day = fields.len().saturating_sub(3);
        fields.iter().take(time_of_day).any(|field| field.starts_with('*'))
    }

    /// The first local time at or after this one.
    pub(crate) fn at_or_after(&self, civil: DateTime) -> Option<DateTime> {
        self.line.pattern.find_next_occurrence(&civil, true).ok()
    }

    /// The last local time at or before this one.
    pub(crate) fn at_or_before(&self, civil: DateTime) -> Option<DateTime> {
        self.line.pattern.find_previous_occurrence(&civil, true).ok()
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({self})")
    }
}

impl std::str::FromStr for Cron {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if let Some(line) = Line::shared(text) {
            return Ok(Cron { line });
        }
        let pattern = parse(text)?;
        Ok(Cron { line: Line { text: text.to_owned(), pattern }.share() })
    }
}

fn parse(text: &str) -> Result<croner::Cron> {
    let line = expand(text);
    if line.starts_with('@') {
        let known: Vec<&str> = NICKNAMES.iter().map(|(name, _)| *name).collect();
        if text.eq_ignore_ascii_case("@reboot") {
            let allowed = "it names no time; for a run at each start of a machine use a systemd unit";
            return Err(Error::invalid("cron", text, allowed).with_remedy(Remedy::StartWithTheMachine));
        }
        let allowed = format!("this nickname is not known; use one of {}, or @every 45m", known.join(", "));
        return Err(Error::invalid("cron", text, allowed));
    }
    let fields: Vec<&str> = line.split_whitespace().collect();
    if let Some(advice) = advice::on_surplus(&fields, FIELDS[5].words) {
        return Err(Error::invalid("cron", text, advice));
    }
    if !matches!(fields.len(), 5 | 6) {
        let count = if fields.len() == 1 { "1 field".to_owned() } else { format!("{} fields", fields.len()) };
        let allowed = format!(
            "it has {count}; use five (minute, hour, day of month, month, day of week) or six, with seconds first"
        );
        return Err(Error::invalid("cron", text, allowed));
    }
    let named = || fields.iter().zip(&FIELDS[6 - fields.len()..]);
    for (value, field) in named() {
        check_words(text, value, field)?;
    }
    let pattern = match read(&line) {
        Ok(pattern) => pattern,
        Err(error) => {
            for (value, field) in named() {
                check_alone(text, value, field, fields.len())?;
            }
            return Err(Error::invalid("cron", text, plain(&error)));
        }
    };
    let start = DateTime::constant(2000, 1, 1, 0, 0, 0, 0);
    if pattern.find_next_occurrence(&start, true).is_err() {
        let allowed = "this day never comes; see the day of month and the month";
        return Err(Error::invalid("cron", text, allowed));
    }
    Ok(pattern)
}

fn expand(text: &str) -> String {
    let known = NICKNAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    known.map_or(text, |(_, line)| *line).to_owned()
}

/// Parses a line of five or six fields.
fn read(line: &str) -> std::result::Result<croner::Cron, croner::errors::CronError> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let parser = || croner::parser::CronParser::builder().year(croner::parser::Year::Disallowed);
    let [.., day, _, weekday] = fields.as_slice() else { return parser().build().parse(line) };
    // Debian's cron requires a day to match both fields if one of them begins with `*`, otherwise either.
    let both = [day, weekday].iter().any(|field| field.starts_with(['*', '?']));
    let parser = parser().dom_and_dow(both).build();
    if names_last_sunday(weekday) { parser.parse(&format!("{line},0L")) } else { parser.parse(line) }
}

/// Whether a day-of-week field names the last Sunday of a month. The parser
/// accepts 7 for Sunday too, but not in `7L` and `5-7#L`.
fn names_last_sunday(weekday: &str) -> bool {
    weekday.split(',').filter_map(|part| part.strip_suffix(['L', 'l'])).any(|part| {
        let days = part.split('#').next().unwrap_or(part);
        let pattern = croner::parser::CronParser::new().parse(&format!("* * * * {days}"));
        pattern.is_ok_and(|cron| cron.pattern.days_of_week.values().contains(&0))
    })
}

fn wrong(text: &str, value: &str, field: &Field, what: &str) -> Result<()> {
    let (name, form) = (field.name, field.form);
    let value = leasehold_core::printable(value);
    Err(Error::invalid("cron", text, format!("{name} `{value}` is wrong: {what}; {form}")))
}

/// Refuses text that the parser would read as something else.
fn check_words(text: &str, value: &str, field: &Field) -> Result<()> {
    let refuse = |what: &str| wrong(text, value, field, what);
    for part in value.split(',') {
        if part.is_empty() {
            return refuse("a part of the list is missing");
        }
        // The parser takes MON for a month of January, and its own letters for numbers.
        for word in part.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty()) {
            if !field.words.iter().any(|known| word.eq_ignore_ascii_case(known)) {
                return refuse(&format!("`{}` is not a word of it", leasehold_core::printable(word)));
            }
        }
        // The user means every 90 minutes, but the line would mean every hour.
        if let Some(step) = part.split_once('/').and_then(|(_, step)| step.parse::<u32>().ok())
            && step > field.span
        {
            let span = field.span;
            return refuse(&format!("a step of {step} is longer than its {span}; `every` and `@every` count time"));
        }
        if let Some(odd) = part.chars().find(|c| !(c.is_ascii_alphanumeric() || "*/-#?".contains(*c))) {
            return refuse(&format!("character `{}` has no meaning here", odd.escape_debug()));
        }
    }
    Ok(())
}

/// Parses one field alone, so that its errors are attributed to it.
fn check_alone(text: &str, value: &str, field: &Field, fields: usize) -> Result<()> {
    let position = FIELDS.iter().position(|f| f.name == field.name).unwrap_or(0) + fields - 6;
    let alone: Vec<&str> = (0..fields).map(|at| if at == position { value } else { "*" }).collect();
    match read(&alone.join(" ")) {
        Ok(_) => Ok(()),
        Err(error) => {
            let advice = value.split(',').find_map(|part| advice::on_range(part, field));
            wrong(text, value, field, &advice.unwrap_or_else(|| plain(&error)))
        }
    }
}

/// The parser's message as one lower-case line without its prefix.
fn plain(error: &croner::errors::CronError) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("Component error: ").unwrap_or(&text).trim_end_matches('.');
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_that_people_write_are_read() {
        for line in [
            "0 3 * * *",
            "*/15 9-17 * * MON-FRI",
            "0 0 1 JAN,jul *",
            "30 0 3 * * *",
            "0 0 L * *",
            "0 0 15W * *",
            "0 0 LW * *",
            "0 0 * * 5#2",
            "0 0 * * 5L",
            "0 0 * * 7",
            "0 0 ? * MON",
            "0 0 * * 5-7",
            "0 0 * * FRI-SUN",
            "0 30 2 * * sun",
            "@daily",
            "@HOURLY",
            "@weekly",
            "@monthly",
            "@yearly",
            "@annually",
            "@midnight",
            "0 0 29 2 *",
            "5,10-20/5 * * * *",
            "*/60 */24 * * *",
            "0 0 * * fri#L",
        ] {
            let cron: Cron = line.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            assert!(cron.at_or_after(DateTime::constant(2026, 1, 1, 0, 0, 0, 0)).is_some(), "{line}");
        }
    }

    #[test]
    fn a_wrong_line_is_blamed_on_its_field() {
        for (line, says) in [
            ("60 * * * *", "minute `60`"),
            ("0 24 * * *", "hour `24`"),
            ("0 0 32 * *", "day of month `32`"),
            ("0 0 0 * *", "day of month `0`"),
            ("0 0 1 13 *", "month `13`"),
            ("0 0 1 MON *", "month `MON` is wrong: `MON` is not a word of it"),
            ("0 0 * * JAN", "day of week `JAN`"),
            ("0 0 * * 8", "day of week `8`"),
            ("0 0 * * 5#6", "day of week `5#6`"),
            ("61 0 3 * * *", "second `61`"),
            ("0 99 3 * * *", "minute `99`"),
            ("1,,2 * * * *", "minute `1,,2` is wrong: a part of the list is missing"),
            ("*/0 * * * *", "minute `*/0`"),
            ("*/90 * * * *", "minute `*/90` is wrong: a step of 90 is longer than its 60"),
            ("0 2-20/36 * * *", "hour `2-20/36` is wrong: a step of 36"),
            ("5-1 * * * *", "minute `5-1` is wrong: a range goes upwards; write 5-59,0-1;"),
            ("0 22-2 * * *", "hour `22-2` is wrong: a range goes upwards; write 22-23,0-2;"),
            ("0 23-0 * * *", "write 23,0;"),
            ("0 0 * * fri-mon", "write FRI-SAT,SUN-MON;"),
            ("0 0 1 nov-feb *", "write NOV-DEC,JAN-FEB;"),
            ("30 2 * * * root", "it has 6 fields, so the first would be seconds; drop the user column `root`"),
            ("30 2 * * * www-data", "drop the user column `www-data`"),
            ("30 2 * * * root /usr/bin/backup", "it has 7 fields; drop the user column `root`, and give the command"),
            ("30 2 * * * 2026", "it has 6 fields, so the first would be seconds; drop the year `2026`"),
            ("0 0 3 * * ? *", "it has 7 fields; drop the year `*`"),
            ("x * * * *", "minute `x`"),
            ("0 3 * *", "it has 4 fields"),
            ("0 0 3 * * * 2026", "it has 7 fields; drop the year `2026`"),
            ("", "it has 0 fields"),
            ("@fortnightly", "this nickname is not known"),
            ("@reboot", "use a systemd unit"),
            ("0 0 30 2 *", "this day never comes"),
            ("0 0 31 4 *", "this day never comes"),
            ("0 0 31 2,4,6,9,11 *", "this day never comes"),
            ("0 0 * * L", "this day never comes"),
            ("0 0 1W-3 * *", "day of month `1W-3`"),
            ("\u{661} * * * *", "minute"),
        ] {
            let error = line.parse::<Cron>().unwrap_err().to_string();
            assert!(error.starts_with("invalid cron `") && error.contains(says), "{line}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn seven_is_sunday_also_behind_a_last() {
        let slots = |weekday: &str| {
            let cron: Cron = format!("0 0 * * {weekday}").parse().unwrap();
            let after = |from: DateTime| cron.at_or_after(from.checked_add(jiff::Span::new().seconds(1)).unwrap());
            let first = cron.at_or_after(DateTime::constant(2026, 11, 1, 0, 0, 0, 0));
            std::iter::successors(first, |slot| after(*slot)).take(20).collect::<Vec<_>>()
        };
        assert_eq!(slots("0L")[0], DateTime::constant(2026, 11, 29, 0, 0, 0, 0));
        for same in ["7L", "7l", "07L", "7#L", "SUN#L", "sun#l", "*/7#L"] {
            assert_eq!(slots(same), slots("0L"), "{same}");
        }
        for same in ["5-7#L", "FRI-SUN#L", "5L,6L,7L", "5-6#L,SUN#L"] {
            assert_eq!(slots(same), slots("0L,5L,6L"), "{same}");
        }
        assert_eq!(slots("1-7/2#L"), slots("0L,1L,3L,5L"));
        assert_eq!(slots("7#2,5L"), slots("0#2,5L"));
    }

    #[test]
    fn jobs_with_the_same_line_share_it() {
        let line = "17 3 11 * *";
        let (one, other): (Cron, Cron) = (line.parse().unwrap(), format!(" {line} ").parse().unwrap());
        assert!(Arc::ptr_eq(&one.line, &other.line));
        assert!(one != "18 3 11 * *".parse().unwrap());
        let gone = Arc::downgrade(&one.line);
        drop((one, other));
        assert!(gone.upgrade().is_none(), "the last job takes its line with it");
        assert_eq!(line.parse::<Cron>().unwrap().to_string(), line);
    }

    #[test]
    fn lines_of_jobs_that_are_gone_are_forgotten() {
        for number in 0..3_600 {
            format!("{} {} 5 * * *", number % 60, number / 60).parse::<Cron>().unwrap();
        }
        let known = LINES.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert!(known < 1_000, "{known} lines");
    }

    #[test]
    fn a_wildcard_time_is_distinguished_from_a_fixed_one() {
        let wildcard = |line: &str| line.parse::<Cron>().unwrap().is_wildcard();
        assert!(wildcard("*/30 * * * *") && wildcard("0 */2 * * *") && wildcard("0 0 * * * *"));
        assert!(wildcard("* 2 * * *") && wildcard("*/10 30 2 * * *") && wildcard("@hourly"));
        assert!(!wildcard("30 2 * * *") && !wildcard("0 30 2 * * *") && !wildcard("@daily"));
        assert!(!wildcard("0-59 2 * * *") && !wildcard("30 2 */2 */2 */2"));
    }

    /// A field as people write it: all, one, a list, a range, a step.
    fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
        prop_oneof![
            2 => Just("*".to_owned()),
            2 => (low..=high).prop_map(|n| n.to_string()),
            1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{a},{b}")),
            1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{a}-{b}")),
            1 => (1..=high).prop_map(|n| format!("*/{n}")),
        ]
    }

    /// A line that is usually valid, one of the letters that lines may have, or anything.
    fn text() -> impl Strategy<Value = String> {
        let day = prop_oneof![3 => field(1, 31), 1 => "L|LW|[1-3]?[0-9]W|[1-9]W,[12][0-9],L"];
        let weekday = prop_oneof![3 => field(0, 7), 1 => "[0-7]#[1-5L]|[0-7]L|[0-7]L,[0-7]#[1-5]|[0-7]-7#L"];
        let fields = (field(0, 59), field(0, 59), field(0, 23), day, field(1, 12), weekday);
        prop_oneof![
            4 => fields.prop_map(|(s, m, h, day, month, weekday)| format!("{s} {m} {h} {day} {month} {weekday}")),
            2 => prop::collection::vec("[0-9*/,#LW?A-Z@+-]{1,8}", 5..=6).prop_map(|fields| fields.join(" ")),
            1 => any::<String>(),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_refused_in_one_line_or_comes_due(text in text(), from in 0i64..5_000_000_000) {
            let cron: Cron = match text.parse() {
                Ok(cron) => cron,
                Err(error) => {
                    prop_assert!(!error.to_string().contains('\n'), "{}", error);
                    return Ok(());
                }
            };
            prop_assert_eq!(cron.to_string(), text.trim());
            let from = jiff::tz::TimeZone::UTC.to_datetime(jiff::Timestamp::from_second(from).unwrap());
            let (last, next) = (cron.at_or_before(from), cron.at_or_after(from));
            prop_assert!(last.is_some_and(|last| last <= from) && next.is_some_and(|next| next >= from), "{}", &text);
            // No due time lies between the two, from either side.
            prop_assert_eq!(next.and_then(|next| cron.at_or_before(next)), next, "{}", &text);
            let before = next.and_then(|next| next.checked_sub(jiff::Span::new().seconds(1)).ok());
            if next != last {
                prop_assert_eq!(before.and_then(|before| cron.at_or_before(before)), last, "{}", &text);
            }
        }
    }
}
