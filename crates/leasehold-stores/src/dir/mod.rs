//! Records in a shared folder: a local disk, or NFS between machines.
//!
//! Promise: no lock is ever held and nothing is ever replaced. A swap is one `link(2)` of a finished, fsynced file to
//! an unused name, which only one process can do. Non-promise: folders that a tool copies between machines (Dropbox,
//! iCloud, Syncthing) have no such call and must not be used; a file system without hard links is refused.
//!
//! # Layout
//! ```text
//! leasehold-store                      marks the folder as ours, with the format
//! tmp/<random>                         files being written; removed when they are a day old
//! <shelf>/<encoded name>/<20 digits>   one file per version; the highest number is the record
//! <shelf>@<namespace>/...              the same for each other namespace
//! ```
//! Each version file begins with a random tag, and a revision is number and tag. An erase writes a version that says
//! "erased", so numbers continue from there and no revision is ever used again.
//!
//! # Why a swap has one winner, however long a process is suspended
//! Old versions are removed, or the folder would grow for ever. When a swap to `M` is known to count and was answered,
//! numbers up to `M -` [`VERSIONS_KEPT`] are removed. So the highest number that counts never goes down, readers take the
//! highest, and a number `n` is removed only once the highest is at least `n +` [`VERSIONS_KEPT`].
//!
//! A swap that expects version `N` checks that `N` is the highest and has the expected tag, links `N + 1`,
//! and then lists the folder. If the highest number is still below `N + 1 +` [`VERSIONS_KEPT`], then `N + 1` had never
//! been removed before our link, so our link was the first ever: we won. If it is higher, that many swaps
//! happened while we were suspended. Then either we won long ago, or we created a stray file at a number that
//! was removed long ago. Nobody reads a stray, because it is not the highest; nobody expects its tag; the
//! next removal takes it. We cannot tell which of the two happened, so the answer is *indeterminate*, and the
//! caller reads the record to find out. A key's first write is the same with `N` = 0.
//!
//! This requires that `link` is exclusive, and that a listing requested after an answer shows
//! what the answer reported. NFSv4.2 provides both, however names and file contents are cached.
//! (Opening `N` instead of listing is not enough: over two NFS mounts that once gave one winner
//! too many, most likely because of a cached `N`.) A folder must not be mounted with `nocto`.
//!
//! Each version also has the tag of the one that it follows. After a failed sync, a version may be visible to all,
//! followed by another one, and then lost in a crash. A process that links that number a second time finds that the
//! next version does not follow *its* version, and is not told that it won.
//!
//! An erase that counts removes every version before its own, or what was erased would
//! stay on the disk. A process that links one of these numbers a second time finds, by
//! the same check, that the next version is missing or does not follow its own.
//!
//! A link whose answer was lost (NFS) is reported as "exists already"; the tag in that file tells whether it is ours.
//!
//! # Time
//! On a local file system, the kernel that stamps files is this one, so its wall clock is the store's clock. Elsewhere
//! the server stamps: each call creates a file and takes the time that the server gave it at its creation (not after
//! writing: a client may stamp delayed writes itself). A user who cannot write there cannot decide anything there, and
//! gets this machine's time for reading. Where files are stamped with whole seconds, the clock's grain is 2 s.

mod attempt;
mod folders;
mod layout;
mod root;
#[cfg(test)]
mod tests;

use crate::url::Namespace;
use async_trait::async_trait;
use attempt::Attempt;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Page, Range, Reach, Reading, Revision, Store, Survey, Swap, Watch,
    Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, Result, Shelf};
use leasehold_system::volume::Volume;
use leasehold_system::watch::PathWatch;
use root::Root;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

/// How many of the newest versions stay. That is more than a swap in a busy
/// race needs, at the cost of one small file each per lease.
pub const VERSIONS_KEPT: u64 = 16;

const INTERRUPTED: &str = "the call into the folder was interrupted";

/// A store in a shared folder. Clones share the opened folder.
#[derive(Debug, Clone)]
pub struct DirStore {
    root: Arc<Root>,
}

impl DirStore {
    /// Opens the folder, and creates it if only its last component is missing.
    pub async fn open(path: &Path, namespace: &Namespace) -> Result<Self> {
        let (path, namespace) = (path.to_path_buf(), namespace.clone());
        let root = blocking(move || Root::open(path, namespace)).await?;
        Ok(DirStore { root: Arc::new(root) })
    }

    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&Root) -> Result<T> + Send + 'static) -> Result<T> {
        let root = self.root.clone();
        blocking(move || work(&root)).await
    }

    /// A swap or an erase. It continues if the caller is dropped: it is carried out completely or not at all.
    async fn replace(&self, key: &Key, expected: Option<&Revision>, next: Option<&[u8]>) -> Result<Swap> {
        let (root, key) = (self.root.clone(), key.clone());
        let (expected, next) = (expected.cloned(), next.map(<[u8]>::to_vec));
        let (sender, answer) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            Attempt::run_and_tell(&root, &key, expected.as_ref(), next.as_deref(), |swap| {
                let _ = sender.send(swap);
            });
        });
        answer.await.unwrap_or_else(|e| Err(Error::new(Kind::Indeterminate, INTERRUPTED).with_source(e)))
    }
}

/// Runs blocking calls off the runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(Error::unavailable(INTERRUPTED, e)))
}

#[async_trait]
impl Store for DirStore {
    fn capabilities(&self) -> Capabilities {
        let volume = self.root.volume();
        let local = volume == Volume::Local;
        Capabilities {
            name: "dir",
            // Class A where links and listings were tested. Other file systems may be as good, but that is not shown.
            class: if local || volume == Volume::Network("nfs") { Class::A } else { Class::B },
            clock: ClockSource::Store { grain: self.root.grain() },
            reach: if local { Reach::Host } else { Reach::Network },
            // Changes by other machines give no hints.
            watch: if local { Watching::Hints } else { Watching::None },
            writes_along: false,
            by_verbs: false,
            durability: "fsync of file and folder before each answer",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        if self.root.volume() == Volume::Local {
            // A listing and a small file, mostly in memory: that is cheaper
            // here than on another thread. A server may be slow.
            return self.root.read(key);
        }
        let key = key.clone();
        self.with(move |root| root.read(&key)).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        self.replace(change.key, change.expected, change.next.value()).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        let (after, limit) = (range.after.cloned(), range.limit);
        let page = self.with(move |root| root.list(shelf, after.as_ref(), limit)).await?;
        Ok(page.until(range.until))
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        if self.root.volume() != Volume::Local {
            return Ok(Watch::silent());
        }
        let folder = self.root.folder(key);
        let (sender, watch) = Watch::channel();
        match nearest(&folder) {
            Some(watched) => tokio::spawn(push_hints(folder, watched, sender)),
            None => return Ok(Watch::silent()),
        };
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        let survey = Survey::plain(self.capabilities().class);
        Ok(match self.root.volume() {
            Volume::Local => survey.advise(
                "file system",
                "local",
                "the folder is on a disk of this machine, and other machines do not see it: if several machines are to share \
                 leases, mount a shared file system (NFS) there, or use another store",
            ),
            _ => survey.fine("file system", "network"),
        })
    }
}

/// Watches the folder, or, while it does not exist, the nearest one above.
fn nearest(folder: &Path) -> Option<PathWatch> {
    folder.ancestors().take(3).find_map(|folder| PathWatch::entries(folder).ok())
}

async fn push_hints(folder: std::path::PathBuf, mut watched: PathWatch, sender: Sender<()>) {
    let mut arrived = folder.is_dir();
    loop {
        tokio::select! {
            () = sender.closed() => return,
            changed = watched.changed() => if changed.is_err() { return },
        }
        if !arrived {
            match nearest(&folder) {
                Some(nearer) => watched = nearer,
                None => return,
            }
            arrived = folder.is_dir();
        }
        let _ = sender.try_send(());
    }
}
