//! Whether this process would take on work now.

use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, migration};
use leasehold_server::status::Page;
use leasehold_system::sync::Mutex;
use leasehold_work::spool::Presence;
use std::path::PathBuf;
use std::time::Duration;

/// How often the store is looked at, and how long it may take to answer.
const LOOK: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(3);

/// What is looked at.
#[derive(Debug)]
pub enum Probed {
    Store(Coordinator),
    Spool(PathBuf),
}

/// Why not, if it would not.
#[derive(Debug)]
pub struct Health {
    /// What the last look found; nothing was looked at before the first.
    found: Mutex<Result<(), String>>,
    draining: Mutex<bool>,
}

impl Default for Health {
    fn default() -> Self {
        Health { found: Mutex::new(Err("the store was not asked yet".into())), draining: Mutex::default() }
    }
}

impl Health {
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
        match &*self.found.lock() {
            Ok(()) => Page::plain(true, "ready\n"),
            Err(why) => Page::plain(false, format!("not ready: {why}\n")),
        }
    }
}

/// What stands in the way.
async fn look(probed: &Probed) -> Result<(), String> {
    match probed {
        Probed::Store(coordinator) => {
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
