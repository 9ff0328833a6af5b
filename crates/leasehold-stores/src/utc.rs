//! Times in the formats of services.

/// The time in a `Date` header, in whole seconds, rounded down, so it is never ahead.
#[cfg(any(
    feature = "durable",
    feature = "dynamodb",
    feature = "etcd",
    feature = "firestore",
    feature = "object",
    feature = "remote"
))]
pub(crate) fn time_of(date: &str) -> Option<leasehold_core::Timestamp> {
    let since = httpdate::parse_http_date(date).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(leasehold_core::Timestamp::from_millis(u64::try_from(since.as_millis()).ok()?))
}

/// The milliseconds since 1970 of a time like `2026-11-15T23:27:25.123456Z`, rounded down; none before 1970.
#[cfg(any(feature = "firestore", feature = "nats"))]
pub(crate) fn millis_of(time: &str) -> Option<u64> {
    time.parse::<jiff::Timestamp>().ok()?.as_millisecond().try_into().ok()
}

#[cfg(all(test, any(feature = "firestore", feature = "nats")))]
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
