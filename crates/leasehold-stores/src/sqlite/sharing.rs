//! The connections of this process, shared by all handles of the same file and namespace.
//!
//! Promise: two handles share one connection if and only if their paths now lead
//! to the same file. It is closed when the last handle is dropped. Non-promise:
//! two that open a file at the same moment may get one each, which does no harm.

use super::commit::Pending;
use super::statements::Database;
use crate::url::Namespace;
use leasehold_core::Result;
use leasehold_core::store::Swap;
use leasehold_system::sync::Mutex as PlainMutex;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use tokio::sync::{Mutex, oneshot};

/// A connection, and the changes that wait for it.
pub(super) struct Shared {
    // An asynchronous mutex in front of the blocking pool: waiting calls cost a queue entry, not a thread each.
    pub(super) database: Arc<Mutex<Database>>,
    pending: PlainMutex<Vec<Waiting>>,
}

/// A change that was not begun, and where to send its answer.
pub(super) struct Waiting {
    pub(super) change: Pending,
    pub(super) tell: oneshot::Sender<Result<Swap>>,
}

impl Shared {
    /// Queues a change for the next user of the connection.
    pub(super) fn wait_for(&self, change: Waiting) {
        self.pending.lock().push(change);
    }

    pub(super) fn take_pending(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.pending.lock())
    }
}

type Databases = HashMap<(PathBuf, String), Entry>;

struct Entry {
    shared: Weak<Shared>,
    /// Device and inode of the open file.
    identity: (u64, u64),
}

static DATABASES: LazyLock<PlainMutex<Databases>> = LazyLock::new(PlainMutex::default);

/// The connection that this process has to the file, or a new one.
pub(super) fn open(path: Arc<Path>, namespace: Namespace) -> Result<Arc<Shared>> {
    let key = (path.to_path_buf(), namespace.as_str().to_owned());
    let found = std::fs::metadata(&path).ok().map(|file| (file.dev(), file.ino()));
    if let Some(entry) = DATABASES.lock().get(&key)
        && Some(entry.identity) == found
        && let Some(shared) = entry.shared.upgrade()
    {
        return Ok(shared);
    }
    let database = Database::open(path, namespace)?;
    let identity = database.identity;
    let shared = Arc::new(Shared { database: Arc::new(Mutex::new(database)), pending: PlainMutex::default() });
    let mut databases = DATABASES.lock();
    databases.retain(|_, entry| entry.shared.strong_count() > 0);
    databases.insert(key, Entry { shared: Arc::downgrade(&shared), identity });
    Ok(shared)
}
