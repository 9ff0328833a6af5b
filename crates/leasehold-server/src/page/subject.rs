//! What one page is about, for whoever has that page open: the lease, the job, the item, or the line of the queue.
//!
//! Promise: a change of it is noticed within [`LOOK`], or at once where the store has hints, however many others there are.
//! Non-promise: of a queue, only the beginning of its line is compared.

use super::budget::WATCHED;
use super::changes::LOOK;
use super::visit::Visit;
use crate::serve::Problem;
use leasehold_core::item::{ItemName, LinePosition, QueueName, Section};
use leasehold_core::store::{Range, Watch};
use leasehold_core::{Key, LeaseName, Shelf, Store};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// What a page is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum About {
    /// These records.
    Records(Vec<Key>),
    /// The line of this queue.
    Line(QueueName),
}

impl About {
    /// What a page of this path below the namespace is about, such as `lease/team/daily`; none if that is no single thing.
    pub fn of(visit: &Visit, path: &str) -> Result<Option<Self>, Problem> {
        let Some((kind, name)) = path.split_once('/') else { return Ok(None) };
        let about = match kind {
            "lease" | "job" => {
                visit.reads(name)?;
                let lease = LeaseName::new(name)?.of_a_lease()?;
                let shelves: &[Shelf] = if kind == "job" { &[Shelf::Lease, Shelf::Runs] } else { &[Shelf::Lease] };
                About::Records(shelves.iter().map(|shelf| Key::new(*shelf, &lease)).collect())
            }
            "queue" => {
                let queue = name.split('/').next().unwrap_or_default();
                visit.reads(queue)?;
                About::Line(queue.parse()?)
            }
            "item" => {
                let Some((queue, id)) = name.split_once('/') else { return Ok(None) };
                visit.reads(queue)?;
                About::Records(vec![ItemName { queue: queue.parse()?, id: id.parse()? }.key()?])
            }
            _ => return Ok(None),
        };
        Ok(Some(about))
    }

    /// The record whose hints tell that it may have changed.
    fn watched(&self) -> Option<Key> {
        match self {
            About::Records(keys) => keys.first().cloned(),
            // What wakes its workers.
            About::Line(queue) => Some(Key::new(Shelf::Queue, &LeaseName::new(queue.as_str()).ok()?)),
        }
    }
}

/// The same, as it was last seen.
#[derive(Debug)]
pub struct Subject {
    store: Arc<dyn Store>,
    about: About,
    watch: Watch,
    ticks: Interval,
    seen: Option<u64>,
}

impl Subject {
    /// As it is now.
    pub async fn new(store: Arc<dyn Store>, about: About) -> Self {
        let watch = match about.watched() {
            Some(key) => store.watch(&key).await.unwrap_or_else(|_| Watch::silent()),
            None => Watch::silent(),
        };
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut subject = Subject { store, about, watch, ticks, seen: None };
        subject.seen = subject.digest().await;
        subject
    }

    /// Waits for a hint or the next time to look, and says whether it has changed.
    pub async fn has_changed(&mut self) -> bool {
        tokio::select! {
            () = self.watch.hint() => {}
            _ = self.ticks.tick() => {}
        }
        self.watch.forget();
        let now = self.digest().await;
        if now.is_some() && now != self.seen {
            self.seen = now;
            return true;
        }
        // Some stores hint at every write to any record.
        self.ticks.tick().await;
        false
    }

    /// Its revisions as one number; none if the store does not answer.
    async fn digest(&self) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        match &self.about {
            About::Records(keys) => {
                for key in keys {
                    let value = self.store.read(key).await.ok()?.value;
                    value.map(|value| value.revision).hash(&mut hasher);
                }
            }
            About::Line(queue) => {
                let begin = LinePosition::before(queue, Section::Aside).ok()?;
                let end = LinePosition::behind_all(queue).ok()?;
                let range = Range { until: Some(&end), ..Range::new(Some(&begin), WATCHED) };
                for (name, value) in self.store.list(Shelf::Line, range).await.ok()?.entries {
                    (name, value.revision).hash(&mut hasher);
                }
            }
        }
        Some(hasher.finish())
    }
}

/// The part of an address that [`About::of`] takes, if the page there is about one thing.
pub fn path_of(path: &str) -> Option<String> {
    let page = path.strip_prefix("/ns/")?.split_once('/')?.1;
    let (kind, name) = page.split_once('/')?;
    // As it is in the address, with its escapes.
    (matches!(kind, "lease" | "job" | "queue" | "item") && !name.is_empty()).then(|| page.to_owned())
}
