//! What a scheduler does for others: it publishes its jobs, so that anybody can notice that nobody ran them, notices that of
//! all published jobs itself, and delivers notifications.
//!
//! Promise: nothing here keeps a job from running, and a store that is away is tried again. Non-promise: between a change of the
//! file and its publication others go by the old one.

use super::launch::Processes;
use super::table::Jobs;
use crate::notify::{AFTER_RUN, Background, Beat, Notifier, Told};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Kind};
use leasehold_work::notify::StoreLocation;
use leasehold_work::schedule::{Definitions, Job, Publisher};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long after an error publishing is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How often it is made sure that the jobs are still published: an operator may have retired one that is still run here, or the
/// store may have been restored. That is one listing, and no write while nothing has changed.
const AGAIN: Duration = Duration::from_secs(30);

pub struct Public {
    coordinator: Coordinator,
    processes: Arc<Processes>,
    location: StoreLocation,
    /// The rules in force.
    rules: Vec<Told>,
    notifier: Option<Notifier>,
    delivering: Option<Background>,
    publishing: Option<JoinHandle<()>>,
}

impl Public {
    pub fn new(coordinator: Coordinator, processes: Arc<Processes>, location: StoreLocation) -> Self {
        Public {
            coordinator,
            processes,
            location,
            rules: Vec::new(),
            notifier: None,
            delivering: None,
            publishing: None,
        }
    }

    /// Publishes these jobs, and from now on sends messages by these rules, or by the old ones if none are given.
    pub fn take_up(&mut self, jobs: &Jobs, rules: Option<Vec<Told>>) {
        if let Some(old) = self.publishing.take() {
            old.abort();
        }
        let definitions = Definitions::new(self.coordinator.clone());
        self.publishing = Some(tokio::spawn(publish(definitions, jobs.all.clone(), jobs.publisher.clone())));
        // Unchanged rules stay in force: what is being delivered is not cut off.
        let Some(rules) = rules.filter(|rules| *rules != self.rules) else { return };
        self.rules.clone_from(&rules);
        self.notifier = Notifier::new(&self.coordinator, rules, self.location.clone());
        self.processes.notify(self.notifier.clone());
        self.delivering = self.notifier.as_ref().map(|notifier| notifier.in_background(Beat::Jobs));
    }

    /// Delivers what is left, for a while.
    pub async fn end(&mut self) {
        self.delivering = None;
        if let Some(notifier) = self.notifier.take() {
            let until = SystemClock.now() + AFTER_RUN;
            let last = async {
                // How the last runs ended.
                let _ = notifier.sweep().await;
                notifier.deliver_until(until).await;
            };
            let _ = tokio::time::timeout(AFTER_RUN, last).await;
        }
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        if let Some(publishing) = &self.publishing {
            publishing.abort();
        }
    }
}

/// Publishes them, and again and again, until these jobs are replaced.
async fn publish(definitions: Definitions, jobs: Vec<Arc<Job>>, publisher: Publisher) {
    let (mut failures, mut outdated, mut left_out) = (0_u32, Vec::new(), Vec::new());
    loop {
        let pause = match definitions.publish(&jobs, &publisher).await {
            Ok(report) => {
                failures = 0;
                for name in &report.retired {
                    tracing::info!(job = %name, "job `{name}` is no longer in the file; nobody watches for it any more");
                }
                for (name, newer) in report.outdated.iter().filter(|job| !outdated.contains(*job)) {
                    tracing::warn!(
                        job = %name,
                        "a newer file defines job `{name}` differently ({newer}); this scheduler still runs it as its \
                         older file says; see `leasehold schedule plan`"
                    );
                }
                for (name, newer) in report.left_out.iter().filter(|job| !left_out.contains(*job)) {
                    tracing::warn!(
                        job = %name,
                        "a newer file is without job `{name}` ({newer}); this scheduler still runs it as its older file \
                         says, and nobody notices if it is missed; see `leasehold schedule plan`"
                    );
                }
                (outdated, left_out) = (report.outdated, report.left_out);
                AGAIN
            }
            // Nothing is published there any more.
            Err(error) if error.kind() == Kind::Moved => return,
            Err(error) => {
                failures = failures.saturating_add(1);
                // Not the first time: a scheduler that cannot begin at all ends with the same error. And the scheduler itself
                // says that the store is away.
                if failures == 2 && !matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate) {
                    tracing::warn!(%error, "cannot publish the jobs; retrying: {error}");
                }
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::MemoryStore;
    use leasehold_work::schedule::FileRevision;

    #[tokio::test(start_paused = true)]
    async fn a_job_that_was_retired_while_its_scheduler_has_it_is_published_again() {
        let definitions = Definitions::new(Coordinator::new(Arc::new(MemoryStore::default())));
        let table = serde_json::json!({ "name": "tick", "every": "2h", "command": "true" });
        let job = Arc::new(Job::read(serde_json::from_value(table).unwrap(), 1).unwrap());
        let revision = FileRevision::new(None, Duration::from_secs(1), "text");
        let publisher = Publisher { owner: "team".into(), revision, host: "a".into() };
        let publishing = tokio::spawn(publish(definitions.clone(), vec![job.clone()], publisher));
        for _ in 0..3 {
            while definitions.read(&job.name).await.unwrap().is_none() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert!(definitions.remove(&job.name).await.unwrap());
        }
        publishing.abort();
    }
}
