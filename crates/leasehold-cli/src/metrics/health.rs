//! Whether this process would take on work now.

use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, format_duration, migration};
use leasehold_server::status::Page;
use leasehold_system::sync::Mutex;
use leasehold_work::schedule::Pulse;
use leasehold_work::spool::Presence;
use std::path::PathBuf;
use std::time::Duration;

/// How often the store is looked at, and how long it may take to answer.
const LOOK: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(3);

/// A scheduler whose loop did not turn for so long is stuck: it turns every 10 s at least, and no answer of a store takes a
/// minute.
pub const STUCK: Duration = Duration::from_secs(120);

/// What is looked at.
#[derive(Debug)]
pub enum Probed {
    Store(Coordinator),
    /// A store, and the scheduler that runs the jobs in it.
    Scheduler(Coordinator, Pulse),
    Spool(PathBuf),
}

impl Probed {
    /// The store; none for a spool.
    pub fn coordinator(&self) -> Option<&Coordinator> {
        match self {
            Probed::Store(coordinator) | Probed::Scheduler(coordinator, _) => Some(coordinator),
            Probed::Spool(_) => None,
        }
    }
}

/// Why not, if it would not.
#[derive(Debug)]
pub struct Health {
    /// What the last look found; nothing was looked at before the first.
    found: Mutex<Result<(), String>>,
    draining: Mutex<bool>,
    /// Of the scheduler, if it is one.
    pulse: Option<Pulse>,
}

impl Health {
    pub fn new(probed: &Probed) -> Self {
        let pulse = if let Probed::Scheduler(_, pulse) = probed { Some(pulse.clone()) } else { None };
        Health { found: Mutex::new(Err("the store was not asked yet".into())), draining: Mutex::default(), pulse }
    }

    /// From now on nothing new is taken on.
    pub fn drain(&self) {
        *self.draining.lock() = true;
    }

    /// Looks, and looks again, for as long as it is polled.
    pub async fn watch(&self, probed: &Probed) {
        loop {
            let found = look(probed).await;
            *self.found.lock() = found;
            SystemClock.sleep_until(SystemClock.now() + LOOK).await;
        }
    }

    /// Whether it would take on work.
    pub fn page(&self) -> Page {
        if *self.draining.lock() {
            return Page::plain(false, "not ready: draining, nothing new is begun\n");
        }
        let found = self.found.lock().clone().and_then(|()| self.turns(&SystemClock));
        match found {
            Ok(()) => Page::plain(true, "ready\n"),
            Err(why) => Page::plain(false, format!("not ready: {why}\n")),
        }
    }

    /// Whether the scheduler's loop turns. A store that answers here may still keep it waiting.
    fn turns(&self, clock: &dyn Clock) -> Result<(), String> {
        let Some(pulse) = &self.pulse else { return Ok(()) };
        match pulse.age(clock) {
            None => Err("the scheduler has not begun yet".into()),
            Some(age) if age >= STUCK => {
                let age = format_duration(Duration::from_secs(age.as_secs()));
                Err(format!("the scheduler is stuck: it has looked at no job for {age}"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Why the process is not ready.
async fn look(probed: &Probed) -> Result<(), String> {
    match probed {
        Probed::Store(coordinator) | Probed::Scheduler(coordinator, _) => {
            let looking = migration::look(coordinator.store().as_ref());
            match tokio::time::timeout(PATIENCE, looking).await {
                Err(_) => Err("the store does not answer".into()),
                Ok(Err(error)) => Err(format!("the store cannot be read: {error}")),
                // Where everybody is leaving, or has left, nothing is begun.
                Ok(Ok(seen)) => seen.check("the store").map_err(|error| error.to_string()),
            }
        }
        Probed::Spool(path) => match Presence::at(path) {
            Ok(Presence::Spool) => Ok(()),
            Ok(_) => Err(format!("there is no spool at `{}`", path.display())),
            Err(error) => Err(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::clock::ManualClock;
    use leasehold_core::{MemoryStore, Ttl};
    use leasehold_work::schedule::{Decided, Job, Launcher, Scheduler, Settings, Start, Watcher};
    use std::sync::Arc;

    /// Runs nothing: there are no jobs.
    #[derive(Debug)]
    struct Idle;

    #[async_trait::async_trait]
    impl Launcher for Idle {
        async fn launch(&self, _: &Start) -> leasehold_core::Result<()> {
            Ok(())
        }
    }

    impl Watcher for Idle {
        fn decided(&self, _: &Job, _: Decided) {}
    }

    #[tokio::test]
    async fn a_scheduler_is_not_ready_before_its_loop_turns_nor_once_it_is_stuck() {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let coordinator = Coordinator::with_clock(store, Arc::new(clock.clone()));
        let settings = Settings { ttl: Ttl::new(Duration::from_secs(60)).unwrap(), label: None, max_running: 1 };
        let (scheduler, _steering) =
            Scheduler::new(coordinator.clone(), Vec::new(), Arc::new(Idle), Arc::new(Idle), settings);
        let pulse = scheduler.pulse();
        let health = Health::new(&Probed::Scheduler(coordinator.clone(), pulse.clone()));
        *health.found.lock() = look(&Probed::Store(coordinator.clone())).await;
        let told = health.page().text;
        assert_eq!(told, "not ready: the scheduler has not begun yet\n");
        let running = tokio::spawn(scheduler.run());
        pulse.started().await;
        assert_eq!(health.turns(&clock), Ok(()));
        // The store answers, and the loop waits for something else.
        running.abort();
        assert!(running.await.is_err());
        clock.advance(STUCK);
        let told = health.turns(&clock).unwrap_err();
        assert_eq!(told, "the scheduler is stuck: it has looked at no job for 2m");
        let worker = Health::new(&Probed::Store(coordinator));
        assert_eq!(worker.turns(&clock), Ok(()));
    }
}
