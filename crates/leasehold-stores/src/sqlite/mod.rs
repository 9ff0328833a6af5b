//! Records in one SQLite file, for the processes of one machine.
//!
//! Promise: one statement per swap, one fsync per commit (WAL, `synchronous=FULL`), so an answered swap survives a
//! power failure; any number of processes may open, create and use the file at once. Non-promise: it does not work on
//! network file systems (WAL needs shared memory) and refuses them instead of trying. Its clock is the machine's wall
//! clock, because there is only one machine. A process that is stopped during a write blocks all others. A program
//! whose users may stop it should handle the signal and take a [pause](leasehold_system::critical::pause) first, as the
//! command does. For signals that cannot be handled, [`blocker()`] finds the process.
//!
//! Every write has a random revision, so none is used twice, even if a copy of the file was restored. A short-lived
//! process does not checkpoint when it ends, which would cost two more fsyncs; the process that fills the log does. The
//! log's name follows from the file's, so a file with two names would have two logs: such a file is refused.

mod blocker;
mod commit;
mod connection;
mod error;
mod sharing;
mod statements;

use crate::phase::Phase;
use crate::url::Namespace;
use async_trait::async_trait;
pub use blocker::{Blocker, ask, blocker};
use commit::Pending;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Page, Range, Reach, Reading, Revision, Store, Survey, Swap, Watch,
    Watching,
};
use leasehold_core::{Error, Key, Kind, Result, Shelf};
use leasehold_system::watch::PathWatch;
use sharing::{Shared, Waiting};
use statements::Database;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The pauses between a write to the log and its hints.
const HINTS_AFTER: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(60)];

/// The most changes that share a commit.
const MAX_TOGETHER: usize = 64;

/// A store in one SQLite file. All handles of a process share one connection: several would only wait for each other.
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
    /// Opens the file, and creates it if it is missing and its folder exists.
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

    /// Makes a change, together with others that are waiting.
    async fn change(&self, change: Pending) -> Result<Swap> {
        let interrupted = || Error::new(Kind::Indeterminate, "the sqlite call was interrupted");
        let (tell, mut answer) = oneshot::channel();
        self.shared.wait_for(Waiting { change, tell });
        let database = tokio::select! {
            biased;
            answered = &mut answer => return answered.unwrap_or_else(|_| Err(interrupted())),
            database = self.shared.database.clone().lock_owned() => database,
        };
        let pending = self.shared.take_pending();
        // Continues if the caller is dropped: a swap is carried out completely or not at all.
        tokio::task::spawn_blocking(move || {
            // Changes whose callers were dropped are not begun.
            let (changes, tell): (Vec<_>, Vec<_>) =
                pending.into_iter().filter(|p| !p.tell.is_closed()).map(|p| (p.change, p.tell)).unzip();
            let answers: Vec<_> = changes.chunks(MAX_TOGETHER).flat_map(|some| database.make(some)).collect();
            // Before the answers: a caller that drops the store after its answer has then closed the file.
            drop(database);
            for (tell, answer) in tell.into_iter().zip(answers) {
                let _ = tell.send(answer);
            }
        });
        answer.await.unwrap_or_else(|_| Err(interrupted()))
    }
}

/// Runs blocking work off the runtime. It continues if the caller is dropped: a
/// swap is carried out completely or not at all.
async fn blocking<T: Send + 'static>(phase: Phase, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
        let kind = phase.unanswered();
        Err(Error::new(kind, "the sqlite call was interrupted").with_source(e))
    })
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
            writes_along: true,
            by_verbs: false,
            durability: "write-ahead log, one fsync before each answer",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        // A read is a few pages, mostly in memory, and waits for no writer:
        // that is cheaper here than on another thread.
        if let Ok(database) = self.shared.database.try_lock() {
            return database.read(key);
        }
        let key = key.clone();
        self.with(Phase::Reading, move |database| database.read(&key)).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let expected = match change.expected.map(Revision::number) {
            Some(None) => return Ok(Swap::Mismatch),
            expected => expected.flatten(),
        };
        let next = change.next.value().map(|value| (value.to_vec(), Revision::random_number()));
        let put = change.along.put.map(|(key, value)| (key.clone(), value.to_vec()));
        let erased = change.along.erase.cloned();
        self.change(Pending { key: change.key.clone(), expected, next, erased, put }).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let (after, until) = (range.after.cloned(), range.until.cloned());
        let (skip, limit) = (range.skip, range.limit);
        let list = move |database: &mut Database| {
            database.list(shelf, Range { after: after.as_ref(), until: until.as_ref(), skip, limit })
        };
        self.with(Phase::Reading, list).await
    }

    /// Every commit writes to the log next to the file, so a write there is a hint for every key.
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
                // The log is written before the commit becomes visible, by as long as its fsync takes. So hint when it
                // is most likely done, and once more in case it was not.
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
