//! What tests of slots share.

use super::Home;
use serde_json::Value;

/// A slot that came a few months ago and comes again in a few: nothing is due by chance while the test runs.
pub fn rare_slot() -> String {
    let now = jiff::Timestamp::from_millisecond(leasehold_system::clock::wall_ms() as i64).unwrap();
    let past = now - jiff::SignedDuration::from_hours(24 * 90);
    let day = past.to_zoned(jiff::tz::TimeZone::UTC);
    format!("0 3 {} {} *", day.day().min(28), day.month())
}

pub fn runs(home: &Home, job: &str) -> Vec<Value> {
    serde_json::from_str(&home.done(&["runs", job, "--json"]).expect(0).stdout).unwrap()
}

/// Writes the settings, with their jobs.
pub fn jobs(home: &Home, text: &str) {
    std::fs::write(home.path("leasehold.toml"), text).unwrap();
}
