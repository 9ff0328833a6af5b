//! Times for people: how long ago, with the exact instant behind it.

use askama::Template;
use askama::filters::HtmlSafe;
use leasehold_core::{Slot, Timestamp};
use leasehold_work::schedule::slot_text;
use std::time::Duration;

/// An instant: relative as text, exact in its attributes. The script keeps it current, and says it in the viewer's zone.
#[derive(Debug, Clone, Template)]
#[template(
    source = r#"<time datetime="{{ iso }}" data-at="{{ at_ms }}" title="{{ exact }}">{{ relative }}</time>"#,
    ext = "html"
)]
pub struct When {
    at_ms: u64,
    iso: String,
    exact: String,
    relative: String,
}

// Its template escapes what is in it.
impl HtmlSafe for When {}

/// The same instant spelled out: in UTC without script, and in the viewer's zone with it.
#[derive(Debug, Clone, Template)]
#[template(
    source = r#"<time datetime="{{ iso }}" data-at="{{ at_ms }}" data-as="{{ form }}" title="{{ exact }}">{{ text }}</time>"#,
    ext = "html"
)]
pub struct Spelled {
    at_ms: u64,
    iso: String,
    exact: String,
    /// What the script makes of it.
    form: &'static str,
    text: String,
}

// Its template escapes what is in it.
impl HtmlSafe for Spelled {}

impl When {
    fn spelled(&self, form: &'static str, text: String) -> Spelled {
        Spelled { at_ms: self.at_ms, iso: self.iso.clone(), exact: self.exact.clone(), form, text }
    }

    /// When on its day that is.
    pub fn clock(&self) -> Spelled {
        self.spelled("clock", self.exact.split_once(' ').map_or(self.exact.as_str(), |(_, time)| time).to_owned())
    }

    /// Its day and its time, to the minute if that is all there is.
    pub fn slot(&self) -> Spelled {
        match self.at_ms.is_multiple_of(60_000) {
            true => self.spelled("slot", self.exact.replace(":00 UTC", " UTC")),
            false => self.spelled("exact", self.exact.clone()),
        }
    }

    /// The same without the year.
    pub fn tick(&self) -> Spelled {
        self.spelled("tick", self.exact.get(5..16).map(|text| format!("{text} UTC")).unwrap_or_default())
    }

    /// An instant as seen from another.
    pub fn new(at: Timestamp, now: Timestamp) -> Self {
        let iso = slot_text(Slot(at));
        let exact = exact(at);
        let relative = match (at > now, ms(at.saturating_since(now)), ms(now.saturating_since(at))) {
            (true, ahead, _) => format!("in {}", brief(ahead)),
            (false, _, ago) if ago < 1_000 => "just now".to_owned(),
            (false, _, ago) => format!("{} ago", brief(ago)),
        };
        When { at_ms: at.as_millis(), iso, exact, relative }
    }
}

/// An instant in UTC, to the second.
pub fn exact(at: Timestamp) -> String {
    let seconds = Timestamp::from_millis(at.as_millis() / 1_000 * 1_000);
    slot_text(Slot(seconds)).replace('T', " ").replace('Z', " UTC")
}

/// A length of time in its two largest units: `3d 4h`, `12s`, `240ms`.
pub fn brief(ms: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let Some(first) = UNITS.iter().position(|(_, unit)| ms >= *unit) else { return format!("{ms}ms") };
    let (name, unit) = UNITS[first];
    let whole = format!("{}{name}", ms / unit);
    match UNITS.get(first + 1).map(|(next, size)| (next, ms % unit / size)) {
        // With ten of the larger, the smaller is noise.
        Some((next, rest)) if rest > 0 && ms / unit < 10 => format!("{whole} {rest}{next}"),
        _ => whole,
    }
}

/// Milliseconds of a duration.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A number with its thousands apart.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_brief() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (61_000, "1m 1s"),
            (720_000, "12m"),
            (754_000, "12m"),
            (5_400_000, "1h 30m"),
            (90_000_000, "1d 1h"),
            (86_400_000 * 400, "400d"),
        ] {
            assert_eq!(brief(ms), text);
        }
    }

    #[test]
    fn instants_are_relative_and_exact() {
        let now = Timestamp::from_millis(1_700_000_000_500);
        let at = |ms| When::new(Timestamp::from_millis(ms), now).render().unwrap();
        let ago = at(1_699_999_880_500);
        assert!(ago.contains(">2m ago<") && ago.contains("2023-11-14 22:11:20 UTC"), "{ago}");
        assert!(at(1_700_000_030_500).contains(">in 30s<"));
        assert!(at(1_700_000_000_400).contains(">just now<"));
        let clock = When::new(Timestamp::from_millis(1_699_999_880_500), now).clock().render().unwrap();
        assert!(clock.contains(">22:11:20 UTC<"), "{clock}");
        let slot = |ms| When::new(Timestamp::from_millis(ms), now).slot().render().unwrap();
        assert!(
            slot(1_699_999_860_000).contains("data-as=\"slot\"")
                && slot(1_699_999_860_000).contains(">2023-11-14 22:11 UTC<")
        );
        assert!(slot(1_699_999_880_500).contains(">2023-11-14 22:11:20 UTC<"));
        assert!(When::new(now, now).tick().render().unwrap().contains(">11-14 22:13 UTC<"));
    }

    #[test]
    fn thousands_are_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }
}
