//! The folder of a spool: making it, telling its time, adding to it, finding things in it.
//!
//! Promise: what was added is synced before the answer; a name in it never climbs out of it. Non-promise: it is only as
//! durable as its volume's fsync.

use super::name::FileName;
use super::steps::{SpoolStep, SpoolSteps, Unwatched};
use crate::queue::{Attempts, DedupeKey, ItemId, Payload, Priority};
use leasehold::{Epoch, Error, Kind, Lineage, Nonce, Result, Timestamp};
use leasehold_system::clock;
use leasehold_system::volume::{self, Volume};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The file with the spool's lineage.
const LINEAGE: &str = ".lineage";
/// The folders of a spool.
pub(super) const FOLDERS: [&str; 10] =
    ["ready", "later", "claimed", "done", "failed", "cancelled", "notes", "outbox", "keys", "tmp"];
/// How far behind the true time a stamp of a local volume may lie, and one of a file server.
const LOCAL_GRAIN: Duration = Duration::from_millis(20);
const REMOTE_GRAIN: Duration = Duration::from_millis(1_100);

/// A spool. Clones share it.
#[derive(Debug, Clone)]
pub struct Spool {
    root: Arc<Path>,
    volume: Volume,
    lineage: Lineage,
    steps: Arc<dyn SpoolSteps>,
}

/// What is to be added.
#[derive(Debug, Clone)]
pub struct SpoolNew {
    /// How urgent it is.
    pub priority: Priority,
    /// How long it waits before it may be claimed.
    pub delay: Duration,
    /// How often it is tried.
    pub most: u32,
    /// Added only if no item has this key.
    pub key: Option<DedupeKey>,
}

impl Default for SpoolNew {
    fn default() -> Self {
        SpoolNew { priority: Priority::default(), delay: Duration::ZERO, most: Attempts::default().most, key: None }
    }
}

/// An item that is to be added when another is completed.
#[derive(Debug, Clone)]
pub struct SpoolFollowUp {
    /// What it is.
    pub new: SpoolNew,
    /// What it carries.
    pub payload: Payload,
}

/// Where an item is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Where {
    /// In line.
    Ready,
    /// In line later.
    Later,
    /// In this worker's folder.
    Claimed(String),
    /// Completed.
    Done,
    /// Given up.
    Failed,
    /// Taken out by an operator.
    Cancelled,
}

impl Where {
    /// The word in JSON and output, as for queues in a store.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Where::Ready | Where::Later => "ready",
            Where::Claimed(_) => "claimed",
            Where::Done => "done",
            Where::Failed => "dead",
            Where::Cancelled => "cancelled",
        }
    }

    /// The folder below the root.
    pub fn folder(&self) -> PathBuf {
        match self {
            Where::Ready => "ready".into(),
            Where::Later => "later".into(),
            Where::Claimed(worker) => Path::new("claimed").join(worker),
            Where::Done => "done".into(),
            Where::Failed => "failed".into(),
            Where::Cancelled => "cancelled".into(),
        }
    }
}

/// An item and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolItem {
    /// Its name.
    pub name: FileName,
    /// Where it is.
    pub place: Where,
}

/// The lineage of a spool: read, or written by whoever comes first.
fn lineage(root: &Path) -> Result<Lineage> {
    let path = root.join(LINEAGE);
    let read = || match fs::read_to_string(&path) {
        Ok(text) => text.trim_end().parse::<Lineage>().map(Some).map_err(|e| {
            let message = format!("corrupt spool {}: its file `{LINEAGE}` cannot be read", root.display());
            Error::new(Kind::Corrupt, message).with_source(e)
        }),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(e, "read", &path)),
    };
    if let Some(lineage) = read()? {
        return Ok(lineage);
    }
    let staged = root.join("tmp").join(format!("lineage-{}", Nonce::random()));
    let made = || {
        let mut file = File::create_new(&staged)?;
        file.write_all(format!("{}\n", Lineage::random()).as_bytes())?;
        file.sync_all()?;
        match fs::hard_link(&staged, &path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    };
    let linked = made();
    let _ = fs::remove_file(&staged);
    linked.map_err(|e| failed(e, "write", &path))?;
    sync(root)?;
    read()?.ok_or_else(|| Error::new(Kind::Corrupt, format!("`{}` was removed while it was written", path.display())))
}

impl Spool {
    /// The line of epochs that the numbers in its file names belong to.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Opens a spool, and makes it if its folder is missing or empty.
    pub fn open(root: &Path) -> Result<Self> {
        let shown = root.display();
        if !root.is_absolute() {
            return Err(Error::invalid("spool", shown, "use an absolute path: spool:/path/to/folder"));
        }
        match fs::create_dir(root) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(failed(e, "create the spool", root));
            }
            _ => {}
        }
        let known = |name: &str| FOLDERS.contains(&name) || name.starts_with('.') || name == "lost+found";
        for entry in fs::read_dir(root).map_err(|e| failed(e, "list the spool", root))? {
            let name = entry.map_err(|e| failed(e, "list the spool", root))?.file_name();
            if !name.to_str().is_some_and(known) {
                let stranger = leasehold::printable(&name.to_string_lossy());
                let message = format!("folder {shown} is not a spool and holds `{stranger}`; give an empty or new one");
                return Err(Error::new(Kind::Invalid, message));
            }
        }
        for folder in FOLDERS {
            make(&root.join(folder))?;
        }
        sync(root)?;
        let volume = volume::of(root).map_err(|e| failed(e, "look at", root))?;
        let lineage = lineage(root)?;
        Ok(Spool { root: root.into(), volume, lineage, steps: Arc::new(Unwatched) })
    }

    /// The same, watched by a test.
    #[must_use]
    pub fn with_steps(mut self, steps: Arc<dyn SpoolSteps>) -> Self {
        self.steps = steps;
        self
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    pub(super) fn reach(&self, step: SpoolStep) {
        self.steps.reach(step);
    }

    /// How far behind the true time a stamp may lie.
    pub(super) fn grain(&self) -> Duration {
        if self.volume == Volume::Local { LOCAL_GRAIN } else { REMOTE_GRAIN }
    }

    /// The time of the clock that stamps its files.
    pub fn now(&self) -> Result<Timestamp> {
        if self.volume == Volume::Local {
            return Ok(Timestamp::from_millis(clock::wall_ms()));
        }
        let path = self.path("tmp").join(format!("clock-{}", Nonce::random()));
        let stamp = File::create_new(&path).and_then(|file| file.metadata());
        let _ = fs::remove_file(&path);
        Ok(changed(&stamp.map_err(|e| failed(e, "tell the time of", &self.root))?))
    }

    /// Adds an item; gives its name, and whether it is new.
    pub fn add(&self, new: &SpoolNew, payload: &mut dyn io::Read) -> Result<(ItemId, bool)> {
        let staged = self.stage(payload)?;
        let name = self.name_for(new)?;
        let added = match &new.key {
            Some(key) => self.take_key(key, &staged, &name)?,
            None => true,
        };
        if added {
            self.enter(&staged, &name)?;
        } else {
            let _ = fs::remove_file(&staged);
        }
        Ok((name.id, added))
    }

    pub(super) fn name_for(&self, new: &SpoolNew) -> Result<FileName> {
        let now = self.now()?;
        let id = new.key.as_ref().map_or_else(|| ItemId::fresh(now), ItemId::keyed);
        let (priority, most) = (new.priority, new.most);
        Ok(FileName { priority, due: now.plus(new.delay), id, tried: 0, most, epoch: Epoch::ZERO })
    }

    /// Writes a file under a name that nobody looks at, and syncs it.
    pub(super) fn stage(&self, payload: &mut dyn io::Read) -> Result<PathBuf> {
        self.reach(SpoolStep::Stage);
        let path = self.path("tmp").join(Nonce::random().to_string());
        let mut write = || {
            let mut file = File::create_new(&path)?;
            io::copy(payload, &mut file)?;
            file.flush()?;
            file.sync_all()
        };
        write().map_err(|e| {
            let _ = fs::remove_file(&path);
            failed(e, "write", &path)
        })?;
        Ok(path)
    }

    /// Takes a key for a staged file. False if it was taken before.
    fn take_key(&self, key: &DedupeKey, staged: &Path, name: &FileName) -> Result<bool> {
        self.reach(SpoolStep::LinkKey);
        let path = self.path("keys").join(key.as_str());
        match fs::hard_link(staged, &path) {
            Ok(()) => {
                sync(&self.path("keys")).inspect_err(|_| drop(fs::remove_file(&path)))?;
                Ok(true)
            }
            // Linked and answered late, as a file server may: it is ours.
            Err(_) if same_file(staged, &path) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => match fs::metadata(&path) {
                // The key and the item are one file with two names; a key alone is of an addition that was cut off.
                Ok(found) if found.nlink() > 1 && !self.is_staged(found.ino()) => {
                    // Whoever added it may have died before it was synced; one whose sync failed has taken it back.
                    for folder in ["keys", "ready", "later"] {
                        sync(&self.path(folder))?;
                    }
                    Ok(false)
                }
                _ => {
                    let _ = fs::remove_file(staged);
                    let message = format!(
                        "item `{}` is being added, or its addition was cut off; try again in a minute",
                        name.id
                    );
                    Err(Error::new(Kind::Contended, message))
                }
            },
            Err(e) => Err(failed(e, "take the key", &path)),
        }
    }

    /// Whether this file is still among those that nobody looks at.
    pub(super) fn is_staged(&self, inode: u64) -> bool {
        let staged = fs::read_dir(self.path("tmp")).into_iter().flatten().flatten();
        staged.filter_map(|entry| entry.metadata().ok()).any(|found| found.ino() == inode)
    }

    pub(super) fn enter(&self, staged: &Path, name: &FileName) -> Result<()> {
        let folder = if name.due > self.now()? { "later" } else { "ready" };
        self.reach(SpoolStep::Enter);
        let path = self.path(folder).join(name.to_string());
        fs::rename(staged, &path).map_err(|e| failed(e, "add", &path))?;
        self.reach(SpoolStep::SyncEntered);
        sync(&self.path(folder)).inspect_err(|_| {
            // Taken back, unless a worker has it: a producer who asks again by the same key must not find what may not last.
            if fs::rename(&path, staged).is_ok() {
                let _ = fs::remove_file(staged);
            }
        })
    }

    /// Moves an item, and syncs both folders. False if it was not there any more.
    pub(super) fn shift(&self, from: &Path, to: &Path, before: SpoolStep, after: SpoolStep) -> Result<bool> {
        self.reach(before);
        match fs::rename(from, to) {
            Ok(()) => {}
            // A file server's second answer to a request that it has heard before.
            Err(e) if e.kind() == ErrorKind::NotFound && to.symlink_metadata().is_ok() => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => {
                let message = format!("no answer to the rename of {}; look again", from.display());
                return Err(Error::new(Kind::Indeterminate, message).with_source(e));
            }
        }
        self.reach(after);
        sync(to.parent().unwrap_or(to))?;
        let left = from.parent().unwrap_or(from);
        match sync(left) {
            // An outbox, or a worker's folder, that somebody removed because it was empty: there is nothing to sync.
            Err(_) if !left.exists() => Ok(true),
            other => other.map(|()| true),
        }
    }

    /// The workers' folders.
    pub(super) fn workers(&self) -> Result<Vec<String>> {
        folders(&self.path("claimed"))
    }

    /// The items in a folder, in order. Strangers' files are left out.
    pub fn items(&self, place: &Where) -> Result<Vec<FileName>> {
        let mut items: Vec<String> = names(&self.path(place.folder()))?;
        items.sort_unstable();
        Ok(items.iter().filter_map(|name| FileName::parse(name)).collect())
    }

    /// Every item, wherever it is.
    pub fn everything(&self) -> Result<Vec<SpoolItem>> {
        let mut places = vec![Where::Ready, Where::Later, Where::Done, Where::Failed, Where::Cancelled];
        places.splice(2..2, self.workers()?.into_iter().map(Where::Claimed));
        let mut all = Vec::new();
        for place in places {
            all.extend(self.items(&place)?.into_iter().map(|name| SpoolItem { name, place: place.clone() }));
        }
        Ok(all)
    }

    /// Where an item is. It may have moved on when this is answered.
    pub fn find(&self, id: &ItemId) -> Result<SpoolItem> {
        // An item that is moved while the folders are read may be missed once.
        for _ in 0..3 {
            if let Some(found) = self.everything()?.into_iter().find(|item| item.name.id == *id) {
                return Ok(found);
            }
        }
        Err(Error::new(Kind::Invalid, format!("there is no item `{id}` in {}", self.root.display())))
    }
}

/// What is in a folder: plain files, folders, and what is neither or has a name that is no text. Links are not followed.
#[derive(Default)]
pub(super) struct Listing {
    pub files: Vec<String>,
    pub folders: Vec<String>,
    pub others: Vec<String>,
}

/// Lists a folder; what is hidden is left out.
pub(super) fn listing(folder: &Path) -> Result<Listing> {
    let mut found = Listing::default();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
        Err(e) => return Err(failed(e, "list", folder)),
    };
    for entry in entries {
        let entry = entry.map_err(|e| failed(e, "list", folder))?;
        let name = match entry.file_name().into_string() {
            Ok(name) => name,
            Err(name) => {
                found.others.push(name.to_string_lossy().into_owned());
                continue;
            }
        };
        if name.starts_with('.') {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_file() => found.files.push(name),
            Ok(kind) if kind.is_dir() => found.folders.push(name),
            Ok(_) => found.others.push(name),
            // Moved on while it was looked at.
            Err(_) => {}
        }
    }
    Ok(found)
}

/// The plain files in a folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    Ok(listing(folder)?.files)
}

/// The folders in a folder; one that is a link leads elsewhere, and is none.
pub(super) fn folders(folder: &Path) -> Result<Vec<String>> {
    Ok(listing(folder)?.folders)
}

/// Whether this is a folder, and not a link to one.
pub(super) fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_dir())
}

/// When a file last gave a sign of life: its change time, which nobody can set but the clock that stamps it.
pub(super) fn changed(metadata: &fs::Metadata) -> Timestamp {
    let (seconds, nanos) = (metadata.ctime().max(0) as u64, metadata.ctime_nsec().max(0) as u64);
    Timestamp::from_millis(seconds.saturating_mul(1000) + nanos / 1_000_000)
}

pub(super) fn same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    identity(one).is_some() && identity(one) == identity(other)
}

pub(super) fn make(folder: &Path) -> Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(failed(e, "create", folder)),
        Err(_) if is_folder(folder) => Ok(()),
        Err(_) => {
            let message = format!(
                "{} is a link or no folder: what a spool has is in it and nowhere else; put a folder there",
                folder.display()
            );
            Err(Error::new(Kind::Invalid, message))
        }
    }
}

/// Makes a folder's entries durable.
pub(super) fn sync(folder: &Path) -> Result<()> {
    match File::open(folder).and_then(|file| file.sync_all()) {
        // Some network file systems have no such call, because their servers write entries at once.
        Err(e) if !matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
            let message = format!("cannot sync {}: what was done there may not last", folder.display());
            Err(Error::new(Kind::Indeterminate, message).with_source(e))
        }
        _ => Ok(()),
    }
}

pub(super) fn failed(error: io::Error, what: &str, path: &Path) -> Error {
    let (kind, advice) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (Kind::Unsupported, "give this user the right"),
        ErrorKind::NotADirectory => (Kind::Invalid, "it is, or lies below, a file; give a folder"),
        ErrorKind::NotFound => (Kind::Invalid, "create the folder around it first; is the share mounted?"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Kind::Unavailable, "no space is left; nothing was added"),
        ErrorKind::CrossesDevices => (Kind::Unsupported, "a spool must be on one volume"),
        _ => (Kind::Unavailable, "try again"),
    };
    Error::new(kind, format!("cannot {what} {}: {advice}", path.display())).with_source(error)
}
