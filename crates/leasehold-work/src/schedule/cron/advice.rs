//! Advice for lines that other schedulers accept and this one does not.

use super::Field;

/// Advice for a line that has too many fields, or one of another kind at its end.
pub(super) fn on_surplus(fields: &[&str], weekdays: &[&str]) -> Option<String> {
    let (count, sixth, last) = (fields.len(), *fields.get(5)?, *fields.last()?);
    let is_year = |text: &str| text.len() == 4 && text.bytes().all(|b| b.is_ascii_digit());
    let word: String = sixth.chars().take_while(char::is_ascii_alphabetic).collect();
    let is_user = !word.is_empty() && !weekdays.iter().any(|known| word.eq_ignore_ascii_case(known));
    let seconds = "it has 6 fields, so the first would be seconds";
    let (sixth, shown) = (leasehold_core::printable(sixth), leasehold_core::printable(last));
    match count {
        6 if is_year(last) => Some(format!("{seconds}; drop the year `{shown}`")),
        6 if is_user => Some(format!("{seconds}; drop the user column `{sixth}`")),
        7 if is_year(last) || matches!(last, "*" | "?") => Some(format!("it has 7 fields; drop the year `{shown}`")),
        7.. if is_user => Some(format!(
            "it has {count} fields; drop the user column `{sixth}`, and give the command behind `--`, or in the job's `command`"
        )),
        _ => None,
    }
}

/// Advice for a range that goes backwards, such as `22-2` or `FRI-MON`.
pub(super) fn on_range(part: &str, field: &Field) -> Option<String> {
    let (from, to) = part.split_once('-')?;
    let names: Vec<&str> = field.words.iter().copied().filter(|word| word.len() == 3).collect();
    let low = field.low();
    let high = low + field.span - 1;
    let number = |text: &str| {
        let named = || names.iter().position(|name| text.eq_ignore_ascii_case(name)).map(|at| at as u32 + low);
        text.parse().ok().or_else(named)
    };
    let (first, last) = (number(from)?, number(to)?);
    // Sunday is 7 too.
    let is_end_of_week = to.eq_ignore_ascii_case("SUN");
    if first <= last || first > high || last < low || is_end_of_week {
        return None;
    }
    let is_named = from.starts_with(|c: char| c.is_ascii_alphabetic());
    let end = |at: u32| match names.get((at - low) as usize).filter(|_| is_named) {
        Some(name) => (*name).to_owned(),
        None => at.to_string(),
    };
    let range =
        |first: u32, last: u32| if first == last { end(first) } else { format!("{}-{}", end(first), end(last)) };
    Some(format!("a range goes upwards; write {},{}", range(first, high), range(low, last)))
}
