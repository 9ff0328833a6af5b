//! What a server keeps in memory about the records that its clients use: the last version of leases that are held through it,
//! whom to hint, and which queues to look after.
//!
//! Promise: nothing here is needed for a right answer. A remembered record is used only if it has the revision that the client
//! names, and the store compares that revision again; another server, or this one after a restart, reads the record instead.
//! Memory is bounded, by number and by size, and what is no longer held is dropped soon after its deadline. No account can use up
//! the queues that are looked after: they exist, and each account causes a bounded number of them.

use crate::access::Account;
use leasehold_core::cell::Snapshot;
use leasehold_core::clock::Moment;
use leasehold_core::{Coordinator, Key, LeaseName, Ownership, Shelf};
use leasehold_stores::Namespace;
use leasehold_system::sync::Mutex;
use leasehold_work::queue::{ItemName, Queue, Sweep};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How many held leases are remembered.
const MAX_REMEMBERED: usize = 100_000;
/// How many bytes of them, about.
const MAX_BYTES: usize = 128 * 1024 * 1024;
/// About how many bytes a record takes, and each of its transfers.
const RECORD: usize = 1024;
const TRANSFER: usize = 512;
/// How many queues are looked after, and how many of them on behalf of one account.
const MAX_QUEUES: usize = 1024;
const MAX_QUEUES_OF_ACCOUNT: usize = 128;
/// How often a queue's items are looked after, a page at a time.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(2);
/// For how long after a worker last asked for its items.
const SWEEPS: u32 = 300;
/// How many items of a queue are noted, whose positions in line have to be checked.
const MAX_SUSPECTS: usize = 1024;

type ByName<T> = HashMap<(Namespace, LeaseName), T>;

/// What a server keeps in memory for its clients.
#[derive(Debug, Default)]
pub struct Tended {
    leases: Mutex<Remembered>,
    /// Queues that workers ask for.
    queues: Arc<Mutex<ByName<Care>>>,
    /// The records that are watched through this server.
    watched: Mutex<HashMap<(Namespace, Key), watch::Sender<()>>>,
}

/// Leases as they were last written through this server.
#[derive(Debug, Default)]
struct Remembered {
    all: ByName<Lease>,
    bytes: usize,
}

#[derive(Debug)]
struct Lease {
    seen: Arc<Snapshot<Ownership>>,
    /// When it expires unless it is renewed.
    until: Moment,
    bytes: usize,
}

impl Remembered {
    fn remove(&mut self, entry: &(Namespace, LeaseName)) {
        if let Some(lease) = self.all.remove(entry) {
            self.bytes -= lease.bytes;
        }
    }

    /// Remembers it, unless that would take too much memory.
    fn put(&mut self, entry: (Namespace, LeaseName), lease: Lease) {
        self.remove(&entry);
        if self.all.len() < MAX_REMEMBERED && self.bytes + lease.bytes <= MAX_BYTES {
            self.bytes += lease.bytes;
            self.all.insert(entry, lease);
        }
    }
}

/// About how much memory a record takes.
fn bytes_of(record: &Ownership) -> usize {
    let checkpoint = record.progress.as_ref().and_then(|progress| progress.checkpoint.as_ref());
    RECORD + record.transfers.len() * TRANSFER + checkpoint.map_or(0, |checkpoint| checkpoint.as_str().len())
}

/// A queue that is looked after.
#[derive(Debug)]
struct Care {
    /// The account whose worker first asked for its items.
    account: Account,
    /// How many more times it is looked after.
    left: u32,
    /// Items that a worker found in line, and that are finished or gone.
    suspects: HashSet<ItemName>,
}

/// Hints about one record, from changes that pass through this server.
#[derive(Debug)]
pub(super) struct Hinted(watch::Receiver<()>);

impl Hinted {
    pub(super) async fn hint(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Tended {
    /// A lease as it was last written through this server.
    pub(super) fn remembered(&self, namespace: &Namespace, lease: &LeaseName) -> Option<Arc<Snapshot<Ownership>>> {
        self.leases.lock().all.get(&(namespace.clone(), lease.clone())).map(|lease| lease.seen.clone())
    }

    /// Remembers a lease that is held; forgets one that is not, or that somebody else has changed.
    pub(super) fn remember(&self, namespace: &Namespace, lease: &LeaseName, written: Option<Snapshot<Ownership>>) {
        let entry = (namespace.clone(), lease.clone());
        let held = written.and_then(|seen| {
            let deadline = seen.record.tenure.as_ref()?.deadline;
            let until = seen.anchor.asked + deadline.saturating_since(seen.anchor.now);
            Some(Lease { until, bytes: bytes_of(&seen.record), seen: Arc::new(seen) })
        });
        let mut leases = self.leases.lock();
        match held {
            Some(lease) => leases.put(entry, lease),
            None => leases.remove(&entry),
        }
    }

    /// Forgets leases that nobody has renewed in time.
    pub(crate) fn drop_expired(&self, now: Moment) {
        let mut leases = self.leases.lock();
        let Remembered { all, bytes } = &mut *leases;
        all.retain(|_, lease| {
            let is_held = lease.until > now;
            if !is_held {
                *bytes -= lease.bytes;
            }
            is_held
        });
        if all.capacity() > 4 * all.len().max(1024) {
            all.shrink_to_fit();
        }
    }

    /// Notifies those who watch through this server that a record has changed.
    pub(crate) fn changed(&self, namespace: &Namespace, key: &Key) {
        if let Some(sender) = self.watched.lock().get(&(namespace.clone(), key.clone())) {
            sender.send_replace(());
        }
    }

    /// Hints about a record that somebody watches through this server.
    pub(super) fn hints(&self, namespace: &Namespace, key: &Key) -> Hinted {
        let mut watched = self.watched.lock();
        // Entries that nobody watches any more are removed whenever the map would have to grow.
        if watched.len() == watched.capacity() {
            watched.retain(|_, sender| sender.receiver_count() > 0);
        }
        let sender = watched.entry((namespace.clone(), key.clone())).or_insert_with(|| watch::channel(()).0);
        Hinted(sender.subscribe())
    }

    /// Looks after a queue for as long as workers ask for its items: they cannot do it, because they have no store. One to which
    /// nothing was ever added needs no care.
    pub(crate) async fn look_after(
        &self,
        account: &Account,
        namespace: &Namespace,
        coordinator: &Coordinator,
        queue: &str,
    ) {
        let (Ok(name), Ok(queue)) = (LeaseName::new(queue), queue.parse()) else { return };
        let entry = (namespace.clone(), name);
        if let Some(care) = self.queues.lock().get_mut(&entry) {
            care.left = SWEEPS;
            return;
        }
        let record = coordinator.store().read(&Key::new(Shelf::Queue, &entry.1)).await;
        let is_there = record.is_ok_and(|record| record.value.is_some());
        if is_there && self.begin(account, &entry) {
            let queue = Queue::with_clock(coordinator.store().clone(), queue, coordinator.clock().clone());
            tokio::spawn(sweep(queue, self.queues.clone(), entry));
        }
    }

    /// Whether a queue is to be looked after from now on: it was not before, and there are not too many.
    fn begin(&self, account: &Account, entry: &(Namespace, LeaseName)) -> bool {
        let mut queues = self.queues.lock();
        let own = queues.values().filter(|care| care.account == *account).count();
        if queues.contains_key(entry) || queues.len() >= MAX_QUEUES || own >= MAX_QUEUES_OF_ACCOUNT {
            return false;
        }
        let care = Care { account: account.clone(), left: SWEEPS, suspects: HashSet::new() };
        queues.insert(entry.clone(), care);
        true
    }

    /// A worker has read an item that is finished or gone. If it found the item in line, a server died before it could remove the
    /// entry, and the worker cannot. The next pass over the queue removes it.
    pub(super) fn suspect(&self, namespace: &Namespace, item: ItemName) {
        let Ok(queue) = LeaseName::new(item.queue.as_str()) else { return };
        if let Some(care) = self.queues.lock().get_mut(&(namespace.clone(), queue))
            && care.suspects.len() < MAX_SUSPECTS
        {
            care.suspects.insert(item);
        }
    }
}

async fn sweep(queue: Queue, queues: Arc<Mutex<ByName<Care>>>, entry: (Namespace, LeaseName)) {
    let mut sweep = Sweep::new(queue.clone());
    loop {
        tokio::time::sleep(BETWEEN_SWEEPS).await;
        let suspects = queues.lock().get_mut(&entry).map(|care| std::mem::take(&mut care.suspects)).unwrap_or_default();
        if !suspects.is_empty() {
            // After a failure, the next worker that finds it notes it again.
            let _ = queue.repair_line(&suspects).await;
        }
        sweep.idle().await;
        let mut queues = queues.lock();
        match queues.get_mut(&entry) {
            Some(care) if care.left > 1 => care.left -= 1,
            _ => {
                queues.remove(&entry);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Acquired, Ask, HolderId, MemoryStore};

    #[tokio::test]
    async fn a_lease_that_nobody_renewed_is_forgotten_and_its_memory_given_back() {
        let (tended, namespace) = (Tended::default(), Namespace::default());
        let leases = Coordinator::new(Arc::new(MemoryStore::default()));
        let mut held = Vec::new();
        for (name, ttl) in [("short", "1s"), ("long", "1h")] {
            let (name, ask) = (LeaseName::new(name).unwrap(), Ask::new(HolderId::new(None), ttl.parse().unwrap()));
            let Acquired::Granted(grant) = leases.acquire(&name, &ask).await.unwrap() else { panic!("it is free") };
            let seen = grant.seen().clone();
            // Twice, as after a renewal.
            tended.remember(&namespace, &name, Some(seen.clone()));
            tended.remember(&namespace, &name, Some(seen.clone()));
            held.push((name, seen));
        }
        let each: Vec<usize> = held.iter().map(|(_, seen)| bytes_of(&seen.record)).collect();
        assert_eq!(tended.leases.lock().bytes, each[0] + each[1]);
        let (short, long) = (&held[0], &held[1]);
        tended.drop_expired(short.1.anchor.asked);
        assert!(tended.remembered(&namespace, &short.0).is_some());
        tended.drop_expired(short.1.anchor.asked + Duration::from_secs(2));
        assert!(tended.remembered(&namespace, &short.0).is_none() && tended.remembered(&namespace, &long.0).is_some());
        assert_eq!(tended.leases.lock().bytes, each[1]);
        tended.remember(&namespace, &long.0, None);
        let leases = tended.leases.lock();
        assert_eq!((leases.bytes, leases.all.len()), (0, 0));
    }

    #[tokio::test]
    async fn no_account_keeps_the_server_from_looking_after_the_queues_of_others() {
        let (tended, namespace) = (Tended::default(), Namespace::default());
        let leases = Coordinator::new(Arc::new(MemoryStore::default()));
        let account = |key: &str| Account::Key(key.parse().unwrap());
        let (ada, bob) = (account("aaaaaaaa"), account("bbbbbbbb"));
        for number in 0..2 * MAX_QUEUES {
            tended.look_after(&ada, &namespace, &leases, &format!("made-up-{number}")).await;
        }
        assert_eq!(tended.queues.lock().len(), 0, "nothing was ever added to these");
        for number in 0..MAX_QUEUES_OF_ACCOUNT + 10 {
            let name = format!("q{number}");
            let key = Key::new(Shelf::Queue, &name.parse().unwrap());
            leases.store().swap(&key, None, b"x").await.unwrap();
            tended.look_after(&ada, &namespace, &leases, &name).await;
        }
        assert_eq!(tended.queues.lock().len(), MAX_QUEUES_OF_ACCOUNT);
        let last = format!("q{}", MAX_QUEUES_OF_ACCOUNT + 9);
        tended.look_after(&ada, &namespace, &leases, &last).await;
        assert_eq!(tended.queues.lock().len(), MAX_QUEUES_OF_ACCOUNT);
        tended.look_after(&bob, &namespace, &leases, &last).await;
        assert_eq!(tended.queues.lock().len(), MAX_QUEUES_OF_ACCOUNT + 1);
    }

    #[test]
    fn no_more_is_remembered_than_is_allowed() {
        let mut remembered = Remembered::default();
        let seen = || {
            let anchor =
                leasehold_core::Anchor { now: leasehold_core::Timestamp::from_millis(1), asked: Moment::from_nanos(1) };
            Arc::new(Snapshot::new(Ownership::default(), None, anchor))
        };
        for number in 0..10 {
            let name = LeaseName::new(format!("x{number}")).unwrap();
            let lease = Lease { seen: seen(), until: Moment::from_nanos(1), bytes: MAX_BYTES / 4 };
            remembered.put((Namespace::default(), name), lease);
        }
        assert_eq!((remembered.all.len(), remembered.bytes), (4, MAX_BYTES));
    }
}
