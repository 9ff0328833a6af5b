//! The namespaces that are open, each with a store, which may have connections of its own.
//!
//! Promise: nobody can make the server hold more stores open than its bounds, by asking for namespaces that nobody uses. One
//! that a request, a stream or a waiter uses is never closed; one that nobody uses is closed after [`IDLE`], and earlier where
//! there are too many, the one that was least recently used first.

use crate::lanes::Lanes;
use leasehold_core::clock::Moment;
use leasehold_core::store::Store;
use leasehold_core::{Coordinator, Error, Kind, Result, Retention};
use leasehold_stores::{CALLS_AT_ONCE, Namespace};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;

/// For how long a namespace that nobody uses stays open.
pub const IDLE: Duration = Duration::from_secs(30);

/// How many namespaces may be open at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenLimits {
    /// How many of them may be unused.
    pub idle: usize,
    /// How many in all, besides those for holders.
    pub all: usize,
    /// How many calls of one namespace may be under way at once, besides those of holders. A store that carries out fewer at once
    /// makes holders wait for others.
    pub calls: usize,
}

impl OpenLimits {
    /// For stores that are files of this machine.
    pub const FILES: OpenLimits = OpenLimits { idle: 64, all: 256, calls: 16 };
    /// For stores over a network, of which each has connections of its own: PostgreSQL has 100 for everybody. A quarter of the
    /// [`CALLS_AT_ONCE`] is left to holders.
    pub const NETWORK: OpenLimits = OpenLimits { idle: 16, all: 48, calls: CALLS_AT_ONCE / 4 * 3 };
    /// For those whose handles have any number of calls under way.
    pub const CONCURRENT: OpenLimits = OpenLimits { calls: 64, ..OpenLimits::NETWORK };
}

/// How many more may be open for holders, whose requests are short, so that no holder loses its lease because others use them all.
const HOLDERS: usize = 16;

/// A store that is open, being opened, or failed to open.
type Cell = Arc<OnceCell<Opened>>;

/// A namespace that is open.
#[derive(Debug)]
pub struct Opened {
    lanes: Lanes,
    retention: Retention,
}

impl Opened {
    pub fn new(store: Arc<dyn Store>, retention: Retention, calls: usize) -> Self {
        Opened { lanes: Lanes::new(store, calls), retention }
    }

    /// The coordinator for this kind of caller.
    pub fn coordinator(&self, who: Who) -> Coordinator {
        let store = match who {
            Who::Holder => &self.lanes.holders,
            Who::Other => &self.lanes.others,
            Who::Waiter => &self.lanes.waiters,
        };
        Coordinator::new(store.clone()).with_retention(self.retention)
    }
}

/// The kinds of callers of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A holder that renews, reports on or ends what it was granted.
    Holder,
    /// A caller that acquires something, or reads.
    Other,
    /// A caller that was refused and waits.
    Waiter,
}

/// The namespaces that are open.
#[derive(Debug)]
pub struct Namespaces {
    found: Mutex<HashMap<Namespace, (Moment, Cell)>>,
    limits: OpenLimits,
}

impl Namespaces {
    pub fn new(limits: OpenLimits) -> Self {
        Namespaces { found: Mutex::default(), limits }
    }

    /// The place of a namespace's store, which may not be open yet. Refused if there are too many and all are in use.
    pub fn cell(&self, namespace: &Namespace, now: Moment, who: Who) -> Result<Cell> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut closed = Vec::new();
        if !found.contains_key(namespace) {
            let mut idle: Vec<_> = found
                .iter()
                .filter(|(_, (_, cell))| !is_used(cell))
                .map(|(name, (at, _))| (*at, name.clone()))
                .collect();
            idle.sort_unstable_by_key(|(at, _)| *at);
            // One more is about to be added.
            let all = self.limits.all + if who == Who::Holder { HOLDERS } else { 0 };
            let too_many = (found.len() + 1).saturating_sub(all);
            if too_many > idle.len() {
                let detail = "the server has as many namespaces in use as it may; nothing was done";
                // Another server may have room.
                return Err(Error::new(Kind::Unavailable, detail));
            }
            let closing = too_many.max((idle.len() + 1).saturating_sub(self.limits.idle));
            closed.extend(idle.iter().take(closing).map(|(_, name)| found.remove(name)));
        }
        let (last, cell) = found.entry(namespace.clone()).or_insert_with(|| (now, Cell::default()));
        *last = now;
        let cell = cell.clone();
        drop(found);
        // Closing a store may take a moment, so it is done without the lock.
        drop(closed);
        Ok(cell)
    }

    /// Whether the store of a namespace is open.
    pub fn is_open(&self, namespace: &Namespace) -> bool {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get(namespace).is_some_and(|(_, cell)| cell.initialized())
    }

    /// Closes what nobody has used for a while.
    pub fn close_idle(&self, now: Moment) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut idle = Vec::new();
        for (name, (last, cell)) in found.iter_mut() {
            if is_used(cell) {
                *last = now;
            } else if now.saturating_since(*last) >= IDLE {
                idle.push(name.clone());
            }
        }
        let closed: Vec<_> = idle.iter().map(|name| found.remove(name)).collect();
        drop(found);
        drop(closed);
    }
}

/// Whether anybody else uses the store, or is opening it.
fn is_used(cell: &Cell) -> bool {
    Arc::strong_count(cell) > 1 || cell.get().is_some_and(|opened| opened.lanes.is_used())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::MemoryStore;

    const START: Moment = Moment::from_nanos(0);

    fn name(number: usize) -> Namespace {
        Namespace::new(&format!("n{number}")).unwrap()
    }

    /// Opens a namespace as a request does, which has the coordinator until it is over.
    fn ask(namespaces: &Namespaces, number: usize, now: Moment) -> Result<Coordinator> {
        let cell = namespaces.cell(&name(number), now, Who::Other)?;
        let _ = cell.set(Opened::new(Arc::new(MemoryStore::default()), Retention::default(), 1));
        Ok(cell.get().unwrap().coordinator(Who::Other))
    }

    fn count(namespaces: &Namespaces) -> usize {
        namespaces.found.lock().unwrap().len()
    }

    fn has(namespaces: &Namespaces, number: usize) -> bool {
        namespaces.found.lock().unwrap().contains_key(&name(number))
    }

    #[test]
    fn whoever_asks_for_made_up_namespaces_keeps_only_a_few_open() {
        let namespaces = Namespaces::new(OpenLimits { idle: 3, all: 5, calls: 1 });
        for number in 0..100 {
            let at = START + Duration::from_millis(number as u64);
            ask(&namespaces, number, at).unwrap();
            ask(&namespaces, 0, at).unwrap();
            assert!(count(&namespaces) <= 3);
        }
        assert!(has(&namespaces, 0) && has(&namespaces, 99) && !has(&namespaces, 50), "the last used ones are open");
    }

    #[test]
    fn what_is_in_use_stays_open_and_beyond_the_bound_others_are_told_to_come_back() {
        let namespaces = Namespaces::new(OpenLimits { idle: 1, all: 3, calls: 1 });
        let mut used: Vec<_> = (0..3).map(|number| ask(&namespaces, number, START).unwrap()).collect();
        let refused = crate::serve::Problem::from(ask(&namespaces, 3, START).unwrap_err());
        assert_eq!((refused.status().as_u16(), refused.kind()), (503, "unavailable"));
        assert!(refused.to_json()["retry_after_seconds"].as_u64().is_some());
        drop(namespaces.cell(&name(4), START, Who::Holder).unwrap());
        let again = ask(&namespaces, 1, START).unwrap();
        assert!(Arc::ptr_eq(again.store(), used[1].store()));
        drop(used.remove(0));
        ask(&namespaces, 3, START).unwrap();
        assert!(!has(&namespaces, 0) && has(&namespaces, 1) && has(&namespaces, 2) && has(&namespaces, 3));
    }

    #[test]
    fn what_nobody_uses_is_closed_after_a_while_counted_from_its_last_use() {
        let namespaces = Namespaces::new(OpenLimits::FILES);
        let used = ask(&namespaces, 0, START).unwrap();
        let store = Arc::downgrade(ask(&namespaces, 1, START).unwrap().store());
        namespaces.close_idle(START + IDLE / 2);
        assert_eq!((count(&namespaces), store.strong_count()), (2, 1));
        namespaces.close_idle(START + IDLE);
        assert_eq!((count(&namespaces), store.strong_count()), (1, 0), "its store is dropped too");
        drop(used);
        namespaces.close_idle(START + IDLE + IDLE / 2);
        assert_eq!(count(&namespaces), 1, "it was in use a moment ago");
        namespaces.close_idle(START + IDLE * 2);
        assert_eq!(count(&namespaces), 0);
    }
}
