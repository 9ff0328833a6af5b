//! The numbers of `serve`.

use super::More;
use super::exposition::Shape::{Gauge, Histogram};
use super::exposition::{Exposition, Family};
use super::families::family;
use leasehold_core::distribution::REQUESTS;
use leasehold_server::serve::Site;

const REQUEST: Family = family(
    "leasehold_http_request_duration_seconds",
    Histogram,
    "How long this server took to answer, by route, method and status; for a stream, until it began.",
);
const WAITERS: Family = family("leasehold_http_waiters", Gauge, "Requests that wait at this server, and open streams.");
const CONNECTIONS: Family = family("leasehold_http_connections", Gauge, "Open connections to this server.");

/// Every family of the server.
#[cfg(test)]
pub const ALL: [Family; 3] = [REQUEST, WAITERS, CONNECTIONS];

/// What a server was asked.
#[derive(Debug)]
pub struct Served(pub Site);

impl More for Served {
    fn write(&self, text: &mut Exposition) {
        let mut requests = text.begin(REQUEST);
        for (answered, durations) in self.0.durations() {
            let status = answered.status.to_string();
            let labels = [("route", answered.route.as_str()), ("method", answered.method), ("status", &status)];
            requests.add_all(&labels, &durations, REQUESTS);
        }
        text.begin(WAITERS).add(&[], self.0.waiters());
        text.begin(CONNECTIONS).add(&[], self.0.connections());
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;

    const PAGE: &str = include_str!("../../../../docs/metrics.md");

    #[test]
    fn every_family_is_documented() {
        for family in ALL {
            assert!(PAGE.contains(&format!("`{}", family.name)), "docs/metrics.md: {}", family.name);
        }
    }
}
