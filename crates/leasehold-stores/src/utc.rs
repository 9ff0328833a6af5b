//! Times as services write them.

/// The milliseconds since 1970 of a time like `2026-11-15T23:27:25.123456Z`, rounded down; none before 1970.
pub(crate) fn millis_of(time: &str) -> Option<u64> {
    time.parse::<jiff::Timestamp>().ok()?.as_millisecond().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_millisecond_below() {
        for (time, millis) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-11-15T23:27:25.123999999Z", Some(1_794_785_245_123)),
            ("2026-11-15T23:27:25", None),
            ("0001-01-01T00:00:00Z", None),
            ("", None),
        ] {
            assert_eq!(millis_of(time), millis, "{time}");
        }
    }
}
