//! What the store knows that is worth a number, at one time.
//!
//! Promise: the store's own counts, so that every process on it shows the same. One lease has a label of its own only if it
//! is a job, or a pattern asks for it. Non-promise: it is read page by page, and others write meanwhile.

use leasehold_core::store::Range;
use leasehold_core::{
    Coordinator, Counters, Error, Event, LeaseName, LeaseVerbs, NamePattern, Result, Shelf, Timestamp,
};
use leasehold_work::queue::{Queue, QueueName};
use leasehold_work::schedule::{Job, Journals, is_backfill};
use leasehold_work::tally::Tally;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 500;

/// Everything that is read from the store for one answer.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Each job, and each lease that a pattern asks for.
    pub jobs: BTreeMap<String, Counters>,
    /// All other leases together.
    pub others: Counters,
    /// Each queue with its counts.
    pub queues: Vec<(String, Tally)>,
    /// Those of them that an operator has paused.
    pub paused: BTreeSet<String>,
    /// The least time that is left of a lease under which a job runs now.
    pub margin: Option<Duration>,
    /// The least part of its TTL that is left of any of them.
    pub margin_ratio: Option<f64>,
    /// The store's time; none where there is no store.
    pub now: Option<Timestamp>,
    /// Records that cannot be read, and so do not count.
    pub damaged: Vec<Error>,
}

impl Snapshot {
    /// Reads everything. The caller's own jobs have numbers before their first run: whoever watches a counter sees a first
    /// failure only as a step up from zero.
    pub async fn take(coordinator: &Coordinator, patterns: &[NamePattern], own: &[Arc<Job>]) -> Result<Self> {
        let mut found = Snapshot { now: Some(LeaseVerbs::now(coordinator).await?), ..Snapshot::default() };
        let mut jobs = found.jobs(coordinator).await?;
        jobs.extend(own.iter().map(|job| job.name.clone()));
        let is_labelled =
            |lease: &LeaseName| jobs.contains(lease) || patterns.iter().any(|pattern| pattern.matches(lease.as_str()));
        let (counters, damaged) = all_counters(coordinator).await?;
        found.damaged.extend(damaged);
        for (lease, counters) in counters {
            if is_labelled(&lease) {
                found.jobs.insert(lease.to_string(), counters);
            } else {
                found.others.merge(&counters);
            }
        }
        for job in &jobs {
            found.jobs.entry(job.to_string()).or_default();
        }
        found.leases(coordinator, is_labelled).await?;
        found.queues(coordinator).await?;
        Ok(found)
    }

    /// How many stale writes were refused, of any lease.
    pub fn fenced(&self) -> u64 {
        self.jobs.values().chain([&self.others]).map(|counters| counters.get(Event::Fenced)).sum()
    }

    /// Whatever has a journal.
    async fn jobs(&mut self, coordinator: &Coordinator) -> Result<BTreeSet<LeaseName>> {
        let (journals, mut jobs) = (Journals::new(coordinator.clone()), BTreeSet::new());
        let mut after: Option<LeaseName> = None;
        loop {
            let (page, more) = journals.list(after.as_ref(), PAGE).await?;
            after = page.last().map(|(job, _)| job.clone());
            for (job, journal) in page {
                self.damaged.extend(journal.err());
                jobs.insert(job);
            }
            if !more || after.is_none() {
                return Ok(jobs);
            }
        }
    }

    /// What the records of these leases say. One that ran out is not held any more.
    async fn leases(&mut self, coordinator: &Coordinator, is_meant: impl Fn(&LeaseName) -> bool) -> Result<()> {
        let mut after = None::<LeaseName>;
        loop {
            let page = coordinator.list(after.as_ref(), PAGE).await?;
            after = page.entries.last().map(|(lease, _)| lease.clone());
            for (lease, seen) in page.entries.into_iter().filter(|(lease, _)| is_meant(lease)) {
                // A lease that cannot be read is reported through its counters, or its job.
                let Ok(seen) = seen else { continue };
                if seen.record.paused.is_some() {
                    self.paused.insert(lease.to_string());
                }
                if let Some(tenure) = seen.record.live_tenure(seen.now) {
                    let left = tenure.deadline.saturating_since(seen.now);
                    let ratio = left.as_secs_f64() / tenure.ttl.get().as_secs_f64();
                    self.margin = Some(self.margin.map_or(left, |least| least.min(left)));
                    self.margin_ratio = Some(self.margin_ratio.map_or(ratio, |least| least.min(ratio)));
                }
            }
            if !page.more || after.is_none() {
                return Ok(());
            }
        }
    }

    async fn queues(&mut self, coordinator: &Coordinator) -> Result<()> {
        for name in queue_names(coordinator).await? {
            let mut tally = Queue::new(coordinator.store().clone(), name.clone()).tally().await?;
            self.damaged.append(&mut tally.troubles);
            self.queues.push((name.to_string(), tally));
        }
        Ok(())
    }
}

/// The queues of a store: each has a wake record.
pub async fn queue_names(coordinator: &Coordinator) -> Result<Vec<QueueName>> {
    let (mut names, mut after) = (Vec::new(), None::<LeaseName>);
    loop {
        let page = coordinator.store().list(Shelf::Queue, Range::new(after.as_ref(), PAGE)).await?;
        names.extend(page.entries.iter().filter_map(|(name, _)| name.as_str().parse().ok()));
        match page.entries.last() {
            Some((last, _)) if page.more => after = Some(last.clone()),
            _ => return Ok(names),
        }
    }
}

/// The counters of every lease, and those that cannot be read.
pub async fn all_counters(coordinator: &Coordinator) -> Result<(Vec<(LeaseName, Counters)>, Vec<Error>)> {
    let (mut all, mut damaged) = (Vec::new(), Vec::new());
    let mut after: Option<LeaseName> = None;
    loop {
        let (page, more) = coordinator.list_counters(after.as_ref(), PAGE).await?;
        after = page.last().map(|(lease, _)| lease.clone());
        for (lease, counters) in page.into_iter().filter(|(lease, _)| !is_backfill(lease)) {
            match counters {
                Ok(counters) => all.push((lease, counters)),
                Err(error) => damaged.push(error),
            }
        }
        if !more {
            return Ok((all, damaged));
        }
    }
}
