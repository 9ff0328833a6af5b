//! Records in one SQLite file, for the processes of one machine.
//!
//! Promise: one statement per swap, one fsync per commit (WAL, `synchronous=FULL`), so an answered swap survives a power
//! cut; any number of processes may open, create and use the file at once. Non-promise: it does not work on network file
//! systems (WAL needs shared memory) and says so instead of trying. Its clock is the machine's wall clock: there is only
//! one machine. A process that is stopped in the middle of a write blocks every other: a program whose users may stop it
//! handles the signal and takes a [pause](leasehold_system::critical::pause) first, as the command does; what cannot be
//! handled is found out by [`blocker()`].
//!
//! Every write has a random revision, so none ever comes back, not even where a copy of the file was put back. A
//! short-lived process does not checkpoint when it ends, which would cost two more fsyncs: whoever fills the log does.
//! The log's name follows from the file's, so a file with two names would have two logs: such a file is refused.

mod blocker;
mod commit;
mod connection;
mod sharing;
mod statements;

use crate::namespace::Namespace;
use crate::phase::Phase;
use crate::revision;
use async_trait::async_trait;
pub use blocker::{Blocker, ask, blocker};
use commit::{Change, NewTail};
use leasehold_core::store::{
    Beside, Capabilities, Class, ClockSource, Page, Parts, Reach, Reading, Revision, Store, Survey, Swap, Tail, Watch,
    Watching, refuse_erasing_a_lease,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf};
use leasehold_system::watch::PathWatch;
use sharing::{Pending, Shared};
use statements::Database;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long after a write of the log the hints follow.
const HINTS_AFTER: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(60)];

/// How many changes share a commit: others wait for as long as it takes.
const MOST_TOGETHER: usize = 64;

/// A store in one SQLite file. All handles of a process share one connection to it: several would only wait for each
/// other, and sleep while they do.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
    path: Arc<Path>,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteStore({})", self.path.display())
    }
}

impl SqliteStore {
    /// Opens the file, and creates it if it is missing and its folder is there.
    pub async fn open(path: &Path, namespace: &Namespace) -> Result<Self> {
        let path: Arc<Path> = path.into();
        let (opened, namespace) = (path.clone(), namespace.clone());
        let shared = blocking(Phase::Connecting, move || sharing::open(opened, namespace)).await?;
        Ok(SqliteStore { shared, path })
    }

    async fn with<T: Send + 'static>(
        &self,
        phase: Phase,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut database = self.shared.database.clone().lock_owned().await;
        blocking(phase, move || work(&mut database)).await
    }

    /// Makes a change, together with those that others wait for.
    async fn change(&self, change: Change) -> Result<Swap> {
        let broken_off = || Error::new(Kind::Indeterminate, "the sqlite call was broken off");
        let (tell, mut answer) = oneshot::channel();
        self.shared.wait_for(Pending { change, tell });
        let database = tokio::select! {
            biased;
            answered = &mut answer => return answered.unwrap_or_else(|_| Err(broken_off())),
            database = self.shared.database.clone().lock_owned() => database,
        };
        let pending = self.shared.take_pending();
        // Goes on when the caller is dropped: a swap is done or not, never half.
        tokio::task::spawn_blocking(move || {
            // Nobody waits any more for some of them, and they were not begun.
            let (changes, tell): (Vec<_>, Vec<_>) =
                pending.into_iter().filter(|p| !p.tell.is_closed()).map(|p| (p.change, p.tell)).unzip();
            let answers: Vec<_> = changes.chunks(MOST_TOGETHER).flat_map(|some| database.make(some)).collect();
            // Before anybody is told: whoever drops the store after its answer has closed the file.
            drop(database);
            for (tell, answer) in tell.into_iter().zip(answers) {
                let _ = tell.send(answer);
            }
        });
        answer.await.unwrap_or_else(|_| Err(broken_off()))
    }
}

/// Runs blocking work beside the runtime. It goes on when the caller is dropped: a swap is done or not, never half.
async fn blocking<T: Send + 'static>(phase: Phase, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
        let kind = phase.unanswered();
        Err(Error::new(kind, "the sqlite call was broken off").with_source(e))
    })
}

/// A revision that this store never gave stands for no value at all.
fn number(revision: &Revision) -> Option<i64> {
    revision.0.parse().ok()
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sqlite",
            class: Class::A,
            clock: ClockSource::Store { grain: Duration::from_millis(1) },
            reach: Reach::Host,
            watch: Watching::Hints,
            durability: "write-ahead log, one fsync before each answer",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        // A read is a few pages that are mostly in memory, and waits for no writer: cheaper done than handed over.
        if let Ok(database) = self.shared.database.try_lock() {
            return database.read(key);
        }
        let key = key.clone();
        self.with(Phase::Reading, move |database| database.read(&key)).await
    }

    async fn swap_parts(&self, key: &Key, expected: Option<&Revision>, next: Parts<'_>) -> Result<Swap> {
        let expected = match expected.map(number) {
            Some(None) => return Ok(Swap::Mismatch),
            expected => expected.flatten(),
        };
        let tail = match next.tail {
            Tail::Kept(_) => NewTail::Stays,
            // What is not there has no tail.
            Tail::New([]) if expected.is_none() => NewTail::Stays,
            Tail::New([]) => NewTail::Goes,
            Tail::New(tail) => NewTail::Is(tail.to_vec()),
        };
        let next = Some((next.head.to_vec(), revision::fresh()));
        self.change(Change { key: key.clone(), expected, next, tail, erased: None, put: None }).await
    }

    fn writes_beside(&self) -> bool {
        true
    }

    async fn swap_beside(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        next: &[u8],
        beside: Beside<'_>,
    ) -> Result<Swap> {
        beside.erased.map_or(Ok(()), refuse_erasing_a_lease)?;
        let expected = match expected.map(number) {
            Some(None) => return Ok(Swap::Mismatch),
            expected => expected.flatten(),
        };
        let tail = if expected.is_some() { NewTail::Goes } else { NewTail::Stays };
        let put = beside.put.map(|(key, bytes)| (key.clone(), bytes.to_vec()));
        let next = Some((next.to_vec(), revision::fresh()));
        self.change(Change { key: key.clone(), expected, next, tail, erased: beside.erased.cloned(), put }).await
    }

    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        self.list_skipping(shelf, after, 0, limit).await
    }

    async fn list_skipping(&self, shelf: Shelf, after: Option<&LeaseName>, skip: usize, limit: usize) -> Result<Page> {
        let after = after.cloned();
        self.with(Phase::Reading, move |database| database.list(shelf, after.as_ref(), skip, limit)).await
    }

    async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        refuse_erasing_a_lease(key)?;
        let Some(expected) = number(expected) else { return Ok(Swap::Mismatch) };
        let (key, expected) = (key.clone(), Some(expected));
        self.change(Change { key, expected, next: None, tail: NewTail::Goes, erased: None, put: None }).await
    }

    /// Every process's commit writes to the log beside the file, so a write there is a hint for every key.
    async fn watch(&self, _key: &Key) -> Result<Watch> {
        let mut log = self.path.as_os_str().to_owned();
        log.push("-wal");
        let Ok(mut log) = PathWatch::content(&PathBuf::from(log)) else { return Ok(Watch::silent()) };
        let (sender, watch) = Watch::channel();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    changed = log.changed() => if changed.is_err() { return },
                }
                // The log is written before the commit can be seen, by as long as its fsync takes: hint once it is
                // most likely done, and once more in case it was not.
                for pause in HINTS_AFTER {
                    tokio::time::sleep(pause).await;
                    let _ = sender.try_send(());
                }
            }
        });
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        self.with(Phase::Reading, Database::survey).await
    }
}
