//! The text format of Prometheus, version 0.0.4.
//!
//! Written here and not by a client library: nearly every number comes from the store and not from this process, and the
//! common library writes OpenMetrics only, which neither node_exporter's text files nor `promtool check metrics` read.

use leasehold_core::Distribution;
use leasehold_core::distribution::Scale;
use std::fmt::{Display, Write};
use std::time::Duration;

/// What its media type is.
pub const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What kind of numbers a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

/// Numbers of one name.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    pub name: &'static str,
    pub shape: Shape,
    pub help: &'static str,
}

/// A label and its value.
pub type Label<'a> = (&'static str, &'a str);

/// The text, family by family.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family. It is named even if nothing of it follows.
    pub fn begin(&mut self, family: Family) -> Samples<'_> {
        let Family { name, shape, help } = family;
        let shape = match shape {
            Shape::Counter => "counter",
            Shape::Gauge => "gauge",
            Shape::Histogram => "histogram",
        };
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {shape}\n");
        Samples { text: &mut self.0, name }
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

/// The numbers of one family.
#[derive(Debug)]
pub struct Samples<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Samples<'_> {
    /// One number. An empty label is the same as none, and is left out.
    pub fn add(&mut self, labels: &[Label<'_>], value: impl Display) {
        self.line("", labels, None, value);
    }

    /// A whole distribution.
    pub fn add_all(&mut self, labels: &[Label<'_>], found: &Distribution, scale: Scale) {
        for (bound, count) in found.up_to(scale) {
            self.line("_bucket", labels, Some(&seconds(bound).to_string()), count);
        }
        self.line("_bucket", labels, Some("+Inf"), found.count());
        self.line("_sum", labels, None, seconds(found.sum()));
        self.line("_count", labels, None, found.count());
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], bound: Option<&str>, value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut before = '{';
        for (label, value) in all.filter(|(_, value)| !value.is_empty()) {
            let _ = write!(self.text, "{before}{label}=\"{}\"", escaped(value));
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

/// In seconds, as the format has all durations.
pub fn seconds(duration: Duration) -> f64 {
    // By way of a whole number, so that a tenth of a second is one.
    duration.as_micros() as f64 / 1e6
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::distribution::REQUESTS;

    #[test]
    fn labels_are_escaped_and_empty_ones_left_out() {
        let mut text = Exposition::default();
        let mut samples = text.begin(Family { name: "a_total", shape: Shape::Counter, help: "All." });
        samples.add(&[("queue", "spool:/a \"b\"\\\n"), ("state", "")], 3);
        samples.add(&[("state", "")], 0.25);
        let expected = "# HELP a_total All.\n# TYPE a_total counter\na_total{queue=\"spool:/a \\\"b\\\"\\\\\\n\"} 3\na_total 0.25\n";
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    fn a_distribution_is_cumulative_and_ends_with_everything() {
        let mut found = Distribution::default();
        found.add(REQUESTS, Duration::from_millis(100));
        found.add(REQUESTS, Duration::from_secs(60));
        let mut text = Exposition::default();
        text.begin(Family { name: "t", shape: Shape::Histogram, help: "T." }).add_all(&[("a", "b")], &found, REQUESTS);
        let text = text.into_text();
        for line in [
            "t_bucket{a=\"b\",le=\"0.05\"} 0",
            "t_bucket{a=\"b\",le=\"0.1\"} 1",
            "t_bucket{a=\"b\",le=\"30\"} 1",
            "t_bucket{a=\"b\",le=\"+Inf\"} 2",
            "t_sum{a=\"b\"} 60.1",
            "t_count{a=\"b\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
