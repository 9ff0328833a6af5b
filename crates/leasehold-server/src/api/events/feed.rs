//! One task for each namespace that somebody listens to: it goes through the records and tells all listeners what happened.
//!
//! Promise: what happened is told once by a feed, by its time in the record. A write may be visible a while after its own time,
//! so each pass looks back by [`OVERLAP`] and leaves out what it has told. It reads a bounded number of records a second.

use super::EventData;
use super::past::{Past, Span, of_job, of_lease};
use crate::api::cursor::Beginnings;
use crate::api::walk::{Steps, Walk};
use leasehold_core::store::Range;
use leasehold_core::{Coordinator, LeaseName, LeaseVerbs, Result, Revision, Shelf, Timestamp};
use leasehold_stores::Namespace;
use leasehold_work::schedule::JobVerbs;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// How long after its own time a write is surely visible.
pub const OVERLAP: Duration = Duration::from_secs(30);
/// A feed that has read everything up to `through` sends no event again that is older than this, in milliseconds.
pub fn told_since(through: Timestamp) -> u64 {
    through.as_millis().saturating_sub(2 * OVERLAP.as_millis() as u64)
}

/// How long a pass pauses after its end, and between two pages.
const PAUSE: Duration = Duration::from_secs(1);
const BREATH: Duration = Duration::from_millis(50);
const PAGE: usize = 500;
/// How many records are gone through for one client that comes back.
const MAX_READ: usize = 50_000;
/// How many batches a slow client may be behind.
const BACKLOG: usize = 256;

/// What one pass found.
#[derive(Debug)]
pub struct Batch {
    /// Everything up to this time was told by now.
    pub through: Timestamp,
    pub events: Vec<EventData>,
}

/// The feeds of a server, one for each namespace.
#[derive(Debug, Clone, Default)]
pub struct EventFeeds(Arc<Mutex<HashMap<Namespace, Weak<EventFeed>>>>);

impl EventFeeds {
    /// The feed of a namespace. It runs while somebody has it, and a new one tells what happens from this time on.
    pub fn feed(&self, namespace: &Namespace, coordinator: Coordinator, from: Timestamp) -> Arc<EventFeed> {
        let mut feeds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.retain(|_, feed| feed.strong_count() > 0);
        if let Some(feed) = feeds.get(namespace).and_then(Weak::upgrade) {
            return feed;
        }
        let sender = broadcast::Sender::new(BACKLOG);
        let task = tokio::spawn(follow(coordinator.clone(), sender.clone(), from));
        let feed = Arc::new(EventFeed { coordinator, sender, task });
        feeds.insert(namespace.clone(), Arc::downgrade(&feed));
        feed
    }
}

/// What goes through the records of one namespace.
#[derive(Debug)]
pub struct EventFeed {
    coordinator: Coordinator,
    sender: broadcast::Sender<Arc<Batch>>,
    task: JoinHandle<()>,
}

impl Drop for EventFeed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EventFeed {
    pub fn listen(&self) -> broadcast::Receiver<Arc<Batch>> {
        self.sender.subscribe()
    }

    /// The store's time.
    pub async fn now(&self) -> Result<Timestamp> {
        LeaseVerbs::now(&self.coordinator).await
    }

    /// What happened since to names that are wanted, for one client that comes back; no more than `most`. All of them begin as
    /// `reach` says: leases before these cost nothing.
    pub async fn since(
        &self,
        last: Timestamp,
        reach: Beginnings,
        most: usize,
        is_wanted: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Past> {
        let after = Timestamp::from_millis(last.as_millis().saturating_sub(OVERLAP.as_millis() as u64));
        let mut pass = Pass { after, found: Vec::new() };
        let mut walk = Walk::new(reach, None, Steps { first: PAGE, further: PAGE, most: MAX_READ / PAGE });
        while let Some((at, step)) = walk.step() {
            let page = self.coordinator.list(at.as_ref(), step).await?;
            if let Some((last, _)) = page.entries.last() {
                walk.pass(last);
            }
            walk.end(page.more);
            pass.take_leases(page);
            pass.keep(is_wanted);
            if pass.found.len() > most {
                return Ok(Past::TooMany);
            }
        }
        if walk.next().is_some() {
            return Ok(Past::TooMany);
        }
        if !pass.jobs(&self.coordinator, Some((most, is_wanted))).await? {
            return Ok(Past::TooMany);
        }
        let now = self.now().await?;
        let (queues, _) = queues(&self.coordinator).await?;
        let queues = queues.into_keys().filter(|name| is_wanted(name.as_str()));
        pass.found.extend(queues.map(|name| queue_event(&name, now)));
        pass.found.sort_by_key(|event| event.at_ms);
        Ok(Past::All(pass.found))
    }
}

/// How many events at most, and of which names.
type Wanted<'a> = (usize, &'a (dyn Fn(&str) -> bool + Sync));

/// One time through the records.
struct Pass {
    after: Timestamp,
    found: Vec<EventData>,
}

impl Pass {
    fn take_leases(&mut self, page: leasehold_core::Listing) {
        for (name, seen) in page.entries {
            // A damaged record is told by those who look at it.
            let Ok(seen) = seen else { continue };
            let span = Span { after: self.after, until: seen.now };
            of_lease(&name, &seen.record, span, &mut self.found);
        }
    }

    /// Leaves out what is not wanted.
    fn keep(&mut self, is_wanted: &(dyn Fn(&str) -> bool + Sync)) {
        self.found.retain(|event| event.name.as_ref().is_some_and(|name| is_wanted(name)));
    }

    /// The runs of jobs: all, or those that are wanted. False if these are more than so many.
    async fn jobs(&mut self, coordinator: &Coordinator, wanted: Option<Wanted<'_>>) -> Result<bool> {
        let mut after: Option<LeaseName> = None;
        let span = Span { after: self.after, until: Timestamp::from_millis(u64::MAX) };
        loop {
            let (listed, more) = coordinator.list_journals(after.as_ref(), PAGE).await?;
            after = listed.last().map(|(name, _)| name.clone());
            for (name, journal) in listed {
                if let Ok(journal) = journal {
                    of_job(&name, &journal, span, &mut self.found);
                }
            }
            if let Some((most, is_wanted)) = wanted {
                self.keep(is_wanted);
                if self.found.len() > most {
                    return Ok(false);
                }
            }
            if !more || after.is_none() {
                return Ok(true);
            }
            tokio::time::sleep(BREATH).await;
        }
    }
}

fn queue_event(name: &LeaseName, at: Timestamp) -> EventData {
    let (name, at_ms) = (Some(name.to_string()), at.as_millis());
    EventData { what: "queue", name, epoch: None, at_ms, holder: None, by: None, why: None, slot_ms: None }
}

/// The queues, each with the revision of the record that is written when work comes; and the store's time.
async fn queues(coordinator: &Coordinator) -> Result<(HashMap<LeaseName, Revision>, Timestamp)> {
    let (mut all, mut after) = (HashMap::new(), None::<LeaseName>);
    loop {
        let page = coordinator.store().list(Shelf::Queue, Range::new(after.as_ref(), PAGE)).await?;
        after = page.entries.last().map(|(name, _)| name.clone());
        all.extend(page.entries.into_iter().map(|(name, value)| (name, value.revision)));
        if !page.more || after.is_none() {
            return Ok((all, page.now));
        }
    }
}

/// Goes through the records until nobody has the feed.
async fn follow(coordinator: Coordinator, listeners: broadcast::Sender<Arc<Batch>>, from: Timestamp) {
    let (mut begun, mut is_first) = (from, true);
    let mut told: HashSet<EventData> = HashSet::new();
    let mut known: Option<HashMap<LeaseName, Revision>> = None;
    loop {
        // What a store that is away has missed is found by the next pass: its times are in the records.
        if let Ok(pass) = pass(&coordinator, begun, &mut known).await {
            let (start, events) = pass;
            if std::mem::take(&mut is_first) {
                // Before anybody listened.
                told.extend(events.iter().filter(|event| event.at_ms < from.as_millis()).cloned());
            }
            let new: Vec<EventData> = events.into_iter().filter(|event| told.insert(event.clone())).collect();
            let _ = listeners.send(Arc::new(Batch { through: start, events: new }));
            let oldest = told_since(begun);
            told.retain(|event| event.at_ms >= oldest);
            begun = start;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn pass(
    coordinator: &Coordinator,
    begun: Timestamp,
    known: &mut Option<HashMap<LeaseName, Revision>>,
) -> Result<(Timestamp, Vec<EventData>)> {
    let start = LeaseVerbs::now(coordinator).await?;
    let after = begun.as_millis().saturating_sub(OVERLAP.as_millis() as u64);
    let mut pass = Pass { after: Timestamp::from_millis(after), found: Vec::new() };
    let mut from: Option<LeaseName> = None;
    loop {
        let page = coordinator.list(from.as_ref(), PAGE).await?;
        from = page.entries.last().map(|(name, _)| name.clone());
        let is_last = !page.more || from.is_none();
        pass.take_leases(page);
        if is_last {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    pass.jobs(coordinator, None).await?;
    let (queues, now) = queues(coordinator).await?;
    if let Some(known) = known {
        let is_new = |(name, revision): &(&LeaseName, &Revision)| known.get(*name) != Some(*revision);
        pass.found.extend(queues.iter().filter(is_new).map(|(name, _)| queue_event(name, now)));
    }
    *known = Some(queues);
    pass.found.sort_by_key(|event| event.at_ms);
    Ok((start, pass.found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Acquired, Ask, HolderId, MemoryStore, Outcome};

    #[tokio::test]
    async fn a_stream_that_is_resumed_is_held_no_more_than_is_wanted_of_it() {
        let leases = Coordinator::new(Arc::new(MemoryStore::default()));
        let before = LeaseVerbs::now(&leases).await.unwrap();
        for number in 0..20 {
            for folder in ["own", "other"] {
                let name = format!("{folder}/x{number}").parse().unwrap();
                let ask = Ask::new(HolderId::new(None), "60s".parse().unwrap());
                let Acquired::Granted(grant) = leases.acquire(&name, &ask).await.unwrap() else { panic!("it is free") };
                leases.release(&grant, Outcome::Succeeded).await.unwrap();
            }
        }
        let feed = EventFeeds::default().feed(&Namespace::default(), leases, before);
        let own = |name: &str| name.starts_with("own/");
        let since = async |most: usize, is_wanted: &(dyn Fn(&str) -> bool + Sync)| {
            feed.since(before, Beginnings::everything(), most, is_wanted).await.unwrap()
        };
        let Past::All(found) = since(100, &own).await else { panic!("it is not too much") };
        let count = found.len();
        assert!(count >= 20, "each was acquired: {found:?}");
        assert!(found.iter().all(|event| own(event.name.as_ref().unwrap())));
        assert!(matches!(since(count - 1, &own).await, Past::TooMany));
        assert!(matches!(since(2 * count - 1, &|_| true).await, Past::TooMany));
    }
}
