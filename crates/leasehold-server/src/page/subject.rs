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

#[derive(Debug)]
enum About {
    Records(Vec<Key>),
    Line(QueueName),
}

/// What a page is about, as it was last seen.
#[derive(Debug)]
pub struct Subject {
    store: Arc<dyn Store>,
    about: About,
    watch: Watch,
    ticks: Interval,
    seen: Option<u64>,
}

impl Subject {
    /// What a page of this path below the namespace is about, such as `lease/team/daily`; none if that is no single thing.
    pub async fn of(visit: &Visit, path: &str) -> Result<Option<Self>, Problem> {
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
        let store = visit.coordinator.store().clone();
        let watched = match &about {
            About::Records(keys) => keys.first().cloned(),
            // What wakes its workers.
            About::Line(queue) => Some(Key::new(Shelf::Queue, &LeaseName::new(queue.as_str())?)),
        };
        let watch = match watched {
            Some(key) => store.watch(&key).await.unwrap_or_else(|_| Watch::silent()),
            None => Watch::silent(),
        };
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut subject = Subject { store, about, watch, ticks, seen: None };
        subject.seen = subject.digest().await;
        Ok(Some(subject))
    }

    /// Returns when it has changed.
    pub async fn changed(&mut self) {
        loop {
            tokio::select! {
                () = self.watch.hint() => {}
                _ = self.ticks.tick() => {}
            }
            self.watch.forget();
            let now = self.digest().await;
            if now.is_some() && now != self.seen {
                self.seen = now;
                return;
            }
            // Some stores hint at every write to any record.
            self.ticks.tick().await;
        }
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

/// The part of an address that [`Subject::of`] takes, if the page there is about one thing.
pub fn path_of(path: &str) -> Option<String> {
    let page = path.strip_prefix("/ns/")?.split_once('/')?.1;
    let (kind, name) = page.split_once('/')?;
    // As it is in the address, with its escapes.
    (matches!(kind, "lease" | "job" | "queue" | "item") && !name.is_empty()).then(|| page.to_owned())
}
