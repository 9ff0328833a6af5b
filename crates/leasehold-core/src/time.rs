//! Store time, and durations as people write them.
//!
//! Promise: a [`Timestamp`] is always in some store's clock, never in this
//! machine's. Non-promise: timestamps of two stores are not comparable.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How far a store's clock may go back without having been set: after a
/// failover to another server, or while it is adjusted.
pub const SKEW: Duration = Duration::from_secs(60);

/// A time in the store's clock: milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// A timestamp from milliseconds since 1970.
    pub const fn from_millis(ms: u64) -> Self {
        Timestamp(ms)
    }

    /// Milliseconds since the beginning of 1970 in UTC.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This time plus `by`, rounded up to a whole millisecond.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        let ms = by.as_nanos().div_ceil(1_000_000);
        Timestamp(self.0.saturating_add(u64::try_from(ms).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn saturating_since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

const DURATION_FORM: &str = "write a number and a unit (ms, s, m, h, d), joined for more: 90s, 5m, 1h30m";

/// Parses a duration as people write it: `90s`, `5m`, `1h30m`, `500ms`, `2d`. Units go from large to small.
///
/// ```
/// use leasehold_core::{format_duration, parse_duration};
/// let duration = parse_duration("90m")?;
/// assert_eq!(duration.as_secs(), 5_400);
/// assert_eq!(format_duration(duration), "1h30m");
/// assert!(parse_duration("90").is_err());
/// # Ok::<(), leasehold_core::Error>(())
/// ```
pub fn parse_duration(text: &str) -> Result<Duration> {
    let refuse = |what: &str| Error::invalid("duration", text, format!("{what}; {DURATION_FORM}"));
    if text.is_empty() {
        return Err(refuse("it is empty"));
    }
    if text.contains(char::is_whitespace) {
        return Err(refuse("there are no spaces in it, such as 3s"));
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    let mut smallest = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Err(refuse("a number is missing"));
        }
        let number: u64 = rest[..digits].parse().map_err(|_| refuse("the number is too large"))?;
        rest = &rest[digits..];
        if rest.starts_with(['.', ',']) {
            return Err(refuse("there are no fractions, use a smaller unit: 500ms for half a second"));
        }
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit_ms: u64 = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "" => return Err(refuse("a unit is missing")),
            other => return Err(refuse(&format!("`{other}` is not a unit"))),
        };
        if unit_ms >= smallest {
            return Err(refuse("units go from large to small, each once"));
        }
        smallest = unit_ms;
        rest = &rest[letters..];
        total_ms = number
            .checked_mul(unit_ms)
            .and_then(|ms| ms.checked_add(total_ms))
            .filter(|ms| *ms <= 1_000 * 365 * 86_400_000)
            .ok_or_else(|| refuse("it is longer than a thousand years"))?;
    }
    Ok(Duration::from_millis(total_ms))
}

/// Formats a duration so that [`parse_duration`] can read it.
pub fn format_duration(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    for (unit, unit_ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        if ms >= unit_ms {
            text.push_str(&format!("{}{unit}", ms / unit_ms));
            ms %= unit_ms;
        }
    }
    text
}

/// Durations as whole milliseconds, for serde.
pub(crate) mod millis {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// The same for an optional duration.
pub(crate) mod optional_millis {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

/// How long a grant lasts unless renewed: from 1 s to 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Ttl(u64);

impl Ttl {
    /// The shortest: 1 s.
    pub const MIN: Ttl = Ttl(1_000);
    /// The longest: 24 h.
    pub const MAX: Ttl = Ttl(86_400_000);

    /// A TTL of this length; an error outside [`Ttl::MIN`] to [`Ttl::MAX`].
    pub fn new(duration: Duration) -> Result<Self> {
        Ttl::try_from(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// As a duration, within the limits of a TTL.
    pub const fn get(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl TryFrom<u64> for Ttl {
    type Error = Error;

    fn try_from(ms: u64) -> Result<Self> {
        if (Ttl::MIN.0..=Ttl::MAX.0).contains(&ms) {
            return Ok(Ttl(ms));
        }
        Err(Error::invalid("ttl", format_duration(Duration::from_millis(ms)), "use 1s to 24h, such as 90s"))
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration(self.get()))
    }
}

impl FromStr for Ttl {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Ttl::new(parse_duration(s)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, ms) in [("90s", 90_000), ("5m", 300_000), ("1h30m", 5_400_000), ("500ms", 500), ("1d", 86_400_000)] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms));
            assert_eq!(parse_duration(&format_duration(Duration::from_millis(ms))).unwrap(), Duration::from_millis(ms));
        }
        assert_eq!(format_duration(Duration::from_millis(5_400_000)), "1h30m");
    }

    #[test]
    fn wrong_durations_name_the_allowed_form() {
        for bad in ["", "90", "s", "-1s", "1.5h", "5 m", "30m1h", "1h1h", "1w", "99999999999999999999s", "999999999d"] {
            let error = parse_duration(bad).unwrap_err().to_string();
            assert!(error.contains("90s, 5m, 1h30m"), "{bad} gave {error}");
        }
        let says = |text: &str, what: &str| parse_duration(text).unwrap_err().to_string().contains(what);
        assert!(says("0.5s", "there are no fractions, use a smaller unit: 500ms"));
        assert!(says("3 s", "there are no spaces in it, such as 3s"));
    }

    #[test]
    fn a_ttl_is_between_a_second_and_a_day() {
        assert!("999ms".parse::<Ttl>().is_err());
        assert!("24h1ms".parse::<Ttl>().is_err());
        assert_eq!("1s".parse::<Ttl>().unwrap(), Ttl::MIN);
        assert_eq!("24h".parse::<Ttl>().unwrap(), Ttl::MAX);
    }
}
