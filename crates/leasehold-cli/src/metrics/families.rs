//! Every family there is, and how it is filled. docs/metrics.md has the same list, for people.

use super::More;
use super::exposition::Shape::{Counter, Gauge, Histogram};
use super::exposition::{Exposition, Family, seconds};
use super::snapshot::Snapshot;
use leasehold_core::distribution::{REQUESTS, RUNS};
use leasehold_core::measured::Requests;
use leasehold_core::{Counters, Event, Timestamp};
use leasehold_work::schedule::Job;
use leasehold_work::tally::Tally;
use std::sync::Arc;

pub const fn family(name: &'static str, shape: super::exposition::Shape, help: &'static str) -> Family {
    Family { name, shape, help }
}

const RUNS_TOTAL: Family =
    family("leasehold_runs_total", Counter, "What became of attempts to run, by job and outcome.");
const LAST_SUCCESS: Family = family(
    "leasehold_job_last_success_timestamp_seconds",
    Gauge,
    "When a run of the job last succeeded, in store time.",
);
const LAST_RUN: Family =
    family("leasehold_job_last_run_timestamp_seconds", Gauge, "When a run of the job last began, in store time.");
const NEXT_SLOT: Family = family(
    "leasehold_job_next_slot_timestamp_seconds",
    Gauge,
    "When the job is due next, by the jobs of this process.",
);
const DURATION: Family = family("leasehold_run_duration_seconds", Histogram, "How long runs took, by job.");
const QUEUE_ITEMS: Family = family("leasehold_queue_items", Gauge, "Items, by queue and state.");
const OLDEST_READY: Family =
    family("leasehold_queue_oldest_ready_seconds", Gauge, "For how long the oldest item that is ready has waited.");
const FENCED: Family = family("leasehold_fenced_total", Counter, "Stale writes that a guard refused.");
const MARGIN: Family = family(
    "leasehold_renewal_margin_seconds",
    Gauge,
    "The least time left before a lease expires under which a job runs now.",
);
const MARGIN_RATIO: Family = family(
    "leasehold_renewal_margin_ratio",
    Gauge,
    "The least part of its TTL left before a lease expires under which a job runs now.",
);
const PAUSED: Family = family("leasehold_job_paused", Gauge, "Whether an operator has paused the job.");
const STORE_UP: Family =
    family("leasehold_store_up", Gauge, "Whether the store answered when it was last asked for these.");
const REQUEST: Family = family(
    "leasehold_store_request_duration_seconds",
    Histogram,
    "How long the store took to answer this process, by store and operation.",
);

/// Every family of `schedule`, `work` and `stats`.
#[cfg(test)]
pub const ALL: [Family; 13] = [
    RUNS_TOTAL,
    LAST_SUCCESS,
    LAST_RUN,
    NEXT_SLOT,
    DURATION,
    QUEUE_ITEMS,
    OLDEST_READY,
    FENCED,
    MARGIN,
    MARGIN_RATIO,
    PAUSED,
    STORE_UP,
    REQUEST,
];

/// What this process knows by itself.
#[derive(Debug)]
pub struct Own<'a> {
    /// What kind of store it has; none for a spool.
    pub store: Option<&'static str>,
    pub requests: &'a Requests,
    pub jobs: &'a [Arc<Job>],
    pub more: Option<&'a dyn More>,
}

/// All of it as text; without a snapshot, what can be said without the store.
pub fn text(own: &Own<'_>, found: Option<&Snapshot>) -> String {
    let mut text = Exposition::default();
    if let Some(found) = found {
        stored(&mut text, own, found);
    }
    let mut up = text.begin(STORE_UP);
    if own.store.is_some() {
        up.add(&[], u8::from(found.is_some()));
    }
    let mut requests = text.begin(REQUEST);
    if let Some(store) = own.store {
        for operation in Requests::OPERATIONS {
            requests.add_all(&[("store", store), ("operation", operation)], &own.requests.of(operation), REQUESTS);
        }
    }
    if let Some(more) = own.more {
        more.write(&mut text);
    }
    text.into_text()
}

/// What everybody who asks the same store finds.
fn stored(text: &mut Exposition, own: &Own<'_>, found: &Snapshot) {
    let all = || {
        let jobs = found.jobs.iter().map(|(job, counters)| (job.as_str(), counters));
        jobs.chain(found.now.map(|_| ("", &found.others)))
    };
    let mut runs = text.begin(RUNS_TOTAL);
    for (job, counters) in all() {
        // A refused write is no run: it has a family of its own.
        for event in Event::ALL.into_iter().filter(|event| *event != Event::Fenced) {
            runs.add(&[("job", job), ("outcome", event.as_str())], counters.get(event));
        }
    }
    let mut durations = text.begin(DURATION);
    for (job, counters) in all() {
        durations.add_all(&[("job", job)], &counters.durations, RUNS);
    }
    let when = |counters: &Counters| [counters.last_success, counters.last_run];
    for (number, family) in [LAST_SUCCESS, LAST_RUN].into_iter().enumerate() {
        let mut samples = text.begin(family);
        for (job, counters) in &found.jobs {
            if let Some(at) = when(counters)[number] {
                samples.add(&[("job", job)], unix(at));
            }
        }
    }
    let mut next = text.begin(NEXT_SLOT);
    for job in own.jobs {
        if let Some(slot) = found.now.and_then(|now| job.schedule.next_after(now)) {
            next.add(&[("job", job.name.as_str())], unix(slot.0));
        }
    }
    let mut items = text.begin(QUEUE_ITEMS);
    for (queue, tally) in &found.queues {
        for (state, count) in states(tally) {
            items.add(&[("queue", queue), ("state", state)], count);
        }
    }
    let mut oldest = text.begin(OLDEST_READY);
    for (queue, tally) in &found.queues {
        let waits = tally.oldest.map(|since| seconds(tally.now.saturating_since(since)));
        oldest.add(&[("queue", queue)], waits.unwrap_or(0.0));
    }
    let mut fenced = text.begin(FENCED);
    if found.now.is_some() {
        fenced.add(&[], found.fenced());
    }
    let mut margin = text.begin(MARGIN);
    if let Some(left) = found.margin {
        margin.add(&[], seconds(left));
    }
    let mut ratio = text.begin(MARGIN_RATIO);
    if let Some(left) = found.margin_ratio {
        // As much of it as anybody reads.
        ratio.add(&[], (left * 1e3).round() / 1e3);
    }
    let mut paused = text.begin(PAUSED);
    for job in found.jobs.keys() {
        paused.add(&[("job", job)], u8::from(found.paused.contains(job)));
    }
}

/// The states of items that have numbers.
pub fn states(tally: &Tally) -> [(&'static str, u64); 4] {
    [("ready", tally.ready), ("claimed", tally.claimed), ("delayed", tally.delayed), ("dead", tally.dead)]
}

fn unix(at: Timestamp) -> f64 {
    at.as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/metrics.md");

    #[test]
    fn every_family_is_begun_once_and_described() {
        let own = Own { store: Some("memory"), requests: &Requests::default(), jobs: &[], more: None };
        let text = text(&own, Some(&Snapshot::default()));
        for family in ALL {
            let begun = text.lines().filter(|line| line.starts_with(&format!("# TYPE {} ", family.name))).count();
            assert_eq!(begun, 1, "{}\n{text}", family.name);
            assert!(PAGE.contains(&format!("`{}", family.name)), "docs/metrics.md: {}", family.name);
        }
        assert_eq!(text.matches("# TYPE ").count(), ALL.len());
    }
}
