//! How long things took, counted in buckets, so that the measurements of many processes can be added up.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The upper bounds of a distribution's buckets, in milliseconds. Longer times have a bucket of their own.
pub type Scale = &'static [u64];

/// For runs: from 100 ms to 12 hours.
pub const RUNS: Scale = &[100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 10_800_000, 43_200_000];
/// For requests to a store: from 1 ms to 30 s.
pub const REQUESTS: Scale = &[1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000];

/// Durations, counted in the buckets of one [`Scale`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// How many durations are in each bucket; empty buckets at the end are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    buckets: Vec<u64>,
    /// The sum of all durations, in microseconds.
    #[serde(default)]
    sum_us: u64,
    /// The longest duration, in microseconds.
    #[serde(default)]
    worst_us: u64,
}

impl Distribution {
    /// Counts one duration. Use one scale for the life of a distribution.
    pub fn add(&mut self, scale: Scale, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = scale.partition_point(|bound| bound.saturating_mul(1_000) < us);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.sum_us = self.sum_us.saturating_add(us);
        self.worst_us = self.worst_us.max(us);
    }

    /// Adds the counts of another distribution on the same scale.
    pub fn merge(&mut self, other: &Distribution) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count = count.saturating_add(*more);
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.worst_us = self.worst_us.max(other.worst_us);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |all, count| all.saturating_add(*count))
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many took no longer than each bound of the scale.
    pub fn up_to(&self, scale: Scale) -> impl Iterator<Item = (Duration, u64)> {
        let mut all = 0_u64;
        scale.iter().enumerate().map(move |(bucket, bound)| {
            all = all.saturating_add(self.buckets.get(bucket).copied().unwrap_or(0));
            (Duration::from_millis(*bound), all)
        })
    }

    /// The sum of all durations.
    pub const fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
    }

    /// The longest duration.
    pub const fn worst(&self) -> Duration {
        Duration::from_micros(self.worst_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_in_the_first_bucket_that_holds_it_and_two_add_up() {
        let mut one = Distribution::default();
        assert!(one.is_empty());
        for ms in [0, 1, 2, 3, 30_000, 30_001] {
            one.add(REQUESTS, Duration::from_millis(ms));
        }
        let up_to: Vec<(u64, u64)> = one.up_to(REQUESTS).map(|(bound, n)| (bound.as_millis() as u64, n)).collect();
        assert_eq!((up_to[0], up_to[1], up_to[2]), ((1, 2), (2, 3), (5, 4)));
        assert_eq!((up_to.last(), one.count()), (Some(&(30_000, 5)), 6));
        let mut two = Distribution::default();
        two.add(REQUESTS, Duration::from_millis(7));
        two.merge(&one);
        assert_eq!((two.count(), two.worst()), (7, Duration::from_millis(30_001)));
        assert_eq!(two.sum(), Duration::from_millis(60_014));
    }
}
