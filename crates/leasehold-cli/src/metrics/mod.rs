//! Numbers and health of a running scheduler, worker or server, for machines that ask.
//!
//! Promise: what is counted comes from the store, so that every process on it shows the same totals; a store that does not
//! answer leaves out its numbers, and nothing else. Nobody who asks makes the store work more than once in [`FRESH`], or wait
//! for it longer than [`PATIENCE`], also while it does not answer.
//! Non-promise: what this process measured by itself is its own, and begins again when it does.

mod exposition;
mod families;
mod health;
#[cfg(feature = "server")]
mod server;
mod snapshot;

pub use exposition::Exposition;
pub use families::{Own, states, text};
pub use health::{Probed, STUCK};
#[cfg(feature = "server")]
pub use server::Served;
pub use snapshot::{Snapshot, all_counters, queue_names};

use crate::context::Context;
use crate::output;
use async_trait::async_trait;
use health::Health;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::measured::Requests;
use leasehold_core::{NamePattern, Result};
use leasehold_server::status::{Page, Pages};
use leasehold_system::sync::Mutex;
use leasehold_work::schedule::Job;
use leasehold_work::spool::Spool;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, watch};

/// How long what was read of the store is good for.
const FRESH: Duration = Duration::from_secs(3);
/// How long reading the store may take. Prometheus waits for 10 s by default.
const PATIENCE: Duration = Duration::from_secs(8);

const METRICS: &str = "/metrics";
const LIVE: &str = "/livez";
const READY: &str = "/readyz";

/// The answers to those who ask.
#[derive(Debug)]
pub struct Monitor {
    probed: Probed,
    health: Health,
    requests: Requests,
    patterns: Vec<NamePattern>,
    jobs: Mutex<Vec<Arc<Job>>>,
    /// What the last look found, and when it was over: nothing, if the store could not be read.
    taken: AsyncMutex<Option<(Moment, Option<Arc<Snapshot>>)>>,
    more: Option<Box<dyn More>>,
}

/// Numbers that one verb has of its own.
pub trait More: std::fmt::Debug + Send + Sync {
    fn write(&self, text: &mut Exposition);
}

impl Monitor {
    /// Listens, if the settings name an address, and says where. An address that is taken is an error.
    pub async fn start(context: &Context, probed: Probed) -> Result<Option<Arc<Self>>> {
        Monitor::start_with(context, probed, None).await
    }

    /// The same with more numbers.
    pub async fn start_with(
        context: &Context,
        probed: Probed,
        more: Option<Box<dyn More>>,
    ) -> Result<Option<Arc<Self>>> {
        let settings = context.settings()?;
        let Some(address) = settings.metrics.value else { return Ok(None) };
        let listener = address.listen().await?;
        output::say(&format!("metrics and health on http://{}{METRICS}", listener.address()));
        let monitor = Arc::new(Monitor {
            health: Health::new(&probed),
            probed,
            requests: context.requests.clone(),
            patterns: settings.metrics_leases.value.clone(),
            jobs: Mutex::default(),
            taken: AsyncMutex::default(),
            more,
        });
        let watching = monitor.clone();
        tokio::spawn(async move { watching.health.watch(&watching.probed).await });
        tokio::spawn(listener.serve(monitor.clone()));
        Ok(Some(monitor))
    }

    /// These are the jobs from now on.
    pub fn schedule(&self, jobs: &[Arc<Job>]) {
        *self.jobs.lock() = jobs.to_vec();
    }

    /// From now on nothing new is taken on.
    pub fn drain(&self) {
        self.health.drain();
    }

    /// The same, when somebody is asked to end.
    pub fn drain_when(self: Arc<Self>, mut asked: watch::Receiver<u32>) {
        tokio::spawn(async move {
            if asked.wait_for(|count| *count > 0).await.is_ok() {
                self.drain();
            }
        });
    }

    async fn metrics(&self) -> Page {
        let found = self.snapshot().await;
        let jobs = self.jobs.lock().clone();
        let store = self.probed.coordinator().map(|coordinator| coordinator.store().capabilities().name);
        let own = Own { store, requests: &self.requests, jobs: &jobs, more: self.more.as_deref() };
        Page { is_well: true, kind: exposition::KIND, text: text(&own, found.as_deref()) }
    }

    /// What the store knows. Those who ask at the same time share it.
    async fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let mut taken = self.taken.lock().await;
        if let Some((at, found)) = &*taken
            && SystemClock.now().saturating_since(*at) < FRESH
        {
            return found.clone();
        }
        let jobs = self.jobs.lock().clone();
        let reading = async {
            match &self.probed {
                Probed::Store(coordinator) | Probed::Scheduler(coordinator, _) => {
                    Snapshot::take(coordinator, &self.patterns, &jobs).await
                }
                Probed::Spool(path) => spool(path),
            }
        };
        let found = tokio::time::timeout(PATIENCE, reading).await.ok().and_then(Result::ok).map(Arc::new);
        *taken = Some((SystemClock.now(), found.clone()));
        found
    }
}

/// A spool has items and nothing else.
fn spool(path: &Path) -> Result<Snapshot> {
    let tally = Spool::open(path)?.tally();
    Ok(Snapshot { queues: vec![(format!("spool:{}", path.display()), tally)], ..Snapshot::default() })
}

#[async_trait]
impl Pages for Monitor {
    fn paths(&self) -> &'static [&'static str] {
        &[METRICS, LIVE, READY]
    }

    async fn page(&self, path: &'static str) -> Page {
        match path {
            METRICS => self.metrics().await,
            READY => self.health.page(),
            _ => Page::plain(true, "alive\n"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use leasehold_core::store::{Capabilities, Change, Page as Records, Range, Reading, Store, Survey, Swap, Watch};
    use leasehold_core::{Coordinator, Error, Key, MemoryStore, Shelf};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A store that cannot be read: it fails, or never answers. It counts how often somebody tries.
    #[derive(Debug)]
    struct Away {
        hangs: bool,
        reads: AtomicUsize,
    }

    impl Away {
        async fn fail<T>(&self) -> Result<T> {
            self.reads.fetch_add(1, Ordering::AcqRel);
            if self.hangs {
                std::future::pending::<()>().await;
            }
            Err(Error::new(leasehold_core::Kind::Unavailable, "away"))
        }
    }

    #[async_trait]
    impl Store for Away {
        fn capabilities(&self) -> Capabilities {
            MemoryStore::default().capabilities()
        }

        async fn read(&self, _: &Key) -> Result<Reading> {
            self.fail().await
        }

        async fn write(&self, _: &Change<'_>) -> Result<Swap> {
            self.fail().await
        }

        async fn list(&self, _: Shelf, _: Range<'_>) -> Result<Records> {
            self.fail().await
        }

        async fn watch(&self, _: &Key) -> Result<Watch> {
            self.fail().await
        }

        async fn survey(&self) -> Result<Survey> {
            self.fail().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_or_hangs_is_read_once_for_all_who_ask_meanwhile() {
        for hangs in [false, true] {
            let store = Arc::new(Away { hangs, reads: AtomicUsize::default() });
            let probed = Probed::Store(Coordinator::new(store.clone()));
            let monitor = Monitor {
                health: Health::new(&probed),
                probed,
                requests: Requests::default(),
                patterns: Vec::new(),
                jobs: Mutex::default(),
                taken: AsyncMutex::default(),
                more: None,
            };
            let all = async { tokio::join!(monitor.snapshot(), monitor.snapshot(), monitor.snapshot()) };
            let (one, two, three) = tokio::time::timeout(PATIENCE + Duration::from_secs(1), all).await.unwrap();
            assert!(one.is_none() && two.is_none() && three.is_none());
            assert_eq!(store.reads.load(Ordering::Acquire), 1, "hangs: {hangs}");
        }
    }
}
