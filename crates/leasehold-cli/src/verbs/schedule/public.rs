//! What a scheduler does for others: it publishes its jobs, so that anybody can notice that nobody ran them, notices that of
//! all published jobs itself, and delivers notifications.
//!
//! Promise: nothing here keeps a job from running, and a store that is away is tried again. Non-promise: between a change of the
//! file and its publication others go by the old one.

use super::launch::Processes;
use super::table::Jobs;
use crate::notify::{AFTER_RUN, Background, Beat, Notifier, Target};
use leasehold_core::{Coordinator, Kind};
use leasehold_work::notify::Rule;
use leasehold_work::schedule::{Definitions, Job, Publisher};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long after an error publishing is tried again.
const RETRY: Duration = Duration::from_secs(5);

pub struct Public {
    coordinator: Coordinator,
    processes: Arc<Processes>,
    notifier: Option<Notifier>,
    delivering: Option<Background>,
    publishing: Option<JoinHandle<()>>,
}

impl Public {
    pub fn new(coordinator: Coordinator, processes: Arc<Processes>) -> Self {
        Public { coordinator, processes, notifier: None, delivering: None, publishing: None }
    }

    /// Publishes these jobs, and tells by these rules from now on.
    pub fn take_up(&mut self, jobs: &Jobs, rules: Vec<(Rule, Target)>) {
        if let Some(old) = self.publishing.take() {
            old.abort();
        }
        let definitions = Definitions::new(self.coordinator.clone());
        self.publishing = Some(tokio::spawn(publish(definitions, jobs.all.clone(), jobs.publisher.clone())));
        self.notifier = Notifier::new(&self.coordinator, rules);
        self.processes.notify(self.notifier.clone());
        self.delivering = self.notifier.as_ref().map(|notifier| notifier.in_background(Beat::Jobs));
    }

    /// Delivers what is left, for a while.
    pub async fn end(&mut self) {
        self.delivering = None;
        if let Some(notifier) = self.notifier.take() {
            let last = async {
                // How the last runs ended.
                let _ = notifier.sweep().await;
                notifier.deliver_for(AFTER_RUN).await;
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

async fn publish(definitions: Definitions, jobs: Vec<Arc<Job>>, publisher: Publisher) {
    let mut is_said = false;
    loop {
        match definitions.publish(&jobs, &publisher).await {
            Ok(report) => {
                for name in &report.retired {
                    tracing::info!(job = %name, "job `{name}` is no longer in the file; nobody watches for it any more");
                }
                for (name, newer) in &report.outdated {
                    tracing::warn!(
                        job = %name,
                        "a newer file defines job `{name}` otherwise ({newer}); it still runs here by the old one; see \
                         `leasehold schedule plan`"
                    );
                }
                return;
            }
            // Nothing is published there any more.
            Err(error) if error.kind() == Kind::Moved => return,
            Err(error) if !is_said => {
                is_said = true;
                tracing::warn!(%error, "cannot publish the jobs; retrying: {error}");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}
