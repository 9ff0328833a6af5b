//! Times as services write them.

/// The milliseconds since 1970 of a time like `2026-11-15T23:27:25.123456Z`, rounded down.
pub(crate) fn millis_of(time: &str) -> Option<u64> {
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // Days since 1970 by the civil calendar, in which the year begins in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = (days.checked_sub(719_468)? * 24 + hour) * 3600 + minute * 60 + second;
    let millis = format!("{fraction:0<3}")[..3].parse::<u64>().ok()?;
    Some(seconds * 1000 + millis)
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let numbers = text.split(separator).map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
    <[u64; 3]>::try_from(numbers).ok().filter(|numbers| numbers[0] < 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_millisecond_below() {
        for (time, millis) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:34:56.7Z", Some(951_827_696_700)),
            ("2026-11-15T23:27:25.123999999Z", Some(1_794_785_245_123)),
            ("2026-03-01T00:00:00.000001Z", Some(1_772_323_200_000)),
            ("2026-11-15T23:27:25", None),
            ("2026-13-15T23:27:25Z", None),
            ("2026-11-15T23:27Z", None),
            ("2026-11-15T23:27:25.é1Z", None),
            ("1970-01-02T00:00:00.0019Z", Some(86_400_001)),
            ("2000-03-01T00:00:00Z", Some(951_868_800_000)),
            ("2100-03-01T00:00:00Z", Some(4_107_542_400_000)),
            ("0000-01-01T00:00:00Z", None),
            ("0001-01-01T00:00:00Z", None),
            ("2026-11-15T23:29:xxZ", None),
            ("", None),
            ("Z", None),
            ("x", None),
        ] {
            assert_eq!(millis_of(time), millis, "{time}");
        }
    }
}
