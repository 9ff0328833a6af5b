//! The folder of a spool: creating it, reading its time, adding items, finding items.
//!
//! Promise: an item is synced before its addition is answered; no item's name leads out of the folder. Non-promise: it
//! is only as durable as its volume's fsync.

use super::heartbeat::{changed, heartbeat_file};
use super::name::FileName;
use super::rights::{Rights, is_sticky};
use super::steps::SpoolStep;
use super::temporary::{ABANDONED, Temporary};
use crate::backlog::OnExpired;
use crate::queue::{DedupeKey, ItemId, NewItem};
use leasehold_core::observe::{Observed, Observer};
use leasehold_core::{Epoch, Error, Kind, Lineage, Nonce, Remedy, Result, Timestamp};
use leasehold_system::clock;
use leasehold_system::volume::{self, Volume};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The file with the spool's lineage.
pub(super) const LINEAGE: &str = ".lineage";
/// The folders of a spool.
pub(super) const FOLDERS: [&str; 11] =
    ["ready", "later", "claimed", "done", "failed", "cancelled", "notes", "outbox", "keys", "epochs", "tmp"];
/// How far a timestamp may be behind the true time: on a local volume, and on a file server.
const LOCAL_GRAIN: Duration = Duration::from_millis(20);
const REMOTE_GRAIN: Duration = Duration::from_millis(1_100);
/// How far a timestamp may be ahead of the clock: on a local volume, and on one
/// whose machines may stamp by clocks of their own.
const LOCAL_SKEW: Duration = Duration::from_secs(1);
const REMOTE_SKEW: Duration = Duration::from_secs(60);

/// A spool. Clones refer to the same spool.
#[derive(Debug, Clone)]
pub struct Spool {
    root: Arc<Path>,
    volume: Volume,
    rights: Rights,
    lineage: Lineage,
    abandoned: Duration,
    steps: Observed<SpoolStep>,
    pub(super) on_expired: OnExpired,
}

/// The folder that an item is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpoolFolder {
    /// Items that wait for a worker.
    Ready,
    /// In line, but not due yet.
    Later,
    /// In this worker's folder.
    Claimed(String),
    /// Items whose work is completed.
    Done,
    /// A dead letter.
    Failed,
    /// Taken out by an operator.
    Cancelled,
}

impl SpoolFolder {
    /// The word in JSON and output, the same as for queues in a store.
    pub const fn as_str(&self) -> &'static str {
        match self {
            SpoolFolder::Ready => "ready",
            SpoolFolder::Later => "delayed",
            SpoolFolder::Claimed(_) => "claimed",
            SpoolFolder::Done => "done",
            SpoolFolder::Failed => "dead",
            SpoolFolder::Cancelled => "cancelled",
        }
    }

    /// The folder, relative to the root.
    pub fn path(&self) -> PathBuf {
        match self {
            SpoolFolder::Ready => "ready".into(),
            SpoolFolder::Later => "later".into(),
            SpoolFolder::Claimed(worker) => Path::new("claimed").join(worker),
            SpoolFolder::Done => "done".into(),
            SpoolFolder::Failed => "failed".into(),
            SpoolFolder::Cancelled => "cancelled".into(),
        }
    }
}

/// An item, and the folder that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolItem {
    /// The name of its file.
    pub name: FileName,
    /// The folder that it is in.
    pub folder: SpoolFolder,
}

/// Whether an entry of the spool's root folder belongs to it.
pub(super) fn is_known(name: &str) -> bool {
    FOLDERS.contains(&name) || name.starts_with('.') || name == "lost+found"
}

/// Refuses to turn a folder with other contents into a spool.
fn check_empty(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root).map_err(|e| failed(e, "list the spool", root))? {
        let name = entry.map_err(|e| failed(e, "list the spool", root))?.file_name();
        if !name.to_str().is_some_and(is_known) {
            let (shown, stranger) = (root.display(), leasehold_core::printable(&name.to_string_lossy()));
            let message = format!("folder {shown} is not a spool and holds `{stranger}`; give an empty or new one");
            return Err(Error::new(Kind::Invalid, message));
        }
    }
    Ok(())
}

/// The lineage of a spool: read, or written by the first process.
fn lineage(root: &Path, rights: Rights) -> Result<Lineage> {
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
    let temporary = root.join("tmp").join(format!("lineage-{}", Nonce::random()));
    let made = || {
        let mut file = File::create_new(&temporary)?;
        rights.share(&file)?;
        file.write_all(format!("{}\n", Lineage::random()).as_bytes())?;
        file.sync_all()?;
        match fs::hard_link(&temporary, &path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    };
    let linked = made();
    let _ = fs::remove_file(&temporary);
    linked.map_err(|e| failed(e, "write", &path))?;
    sync(root)?;
    read()?.ok_or_else(|| Error::new(Kind::Corrupt, format!("`{}` was removed while it was written", path.display())))
}

impl Spool {
    /// The lineage of the epochs in its file names.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Opens a spool, and creates it if its folder is missing or empty.
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
        // Foreign entries in a spool's folder do not stop it; `doctor` names them.
        if root.join(LINEAGE).symlink_metadata().is_err() {
            check_empty(root)?;
        }
        let rights = Rights::of(&fs::metadata(root).map_err(|e| failed(e, "look at", root))?);
        for folder in FOLDERS {
            make(&root.join(folder), rights)?;
        }
        sync(root)?;
        let volume = volume::of(root).map_err(|e| failed(e, "look at", root))?;
        let lineage = lineage(root, rights)?;
        let steps = Observed::NOBODY;
        Ok(Spool {
            root: root.into(),
            volume,
            rights,
            lineage,
            abandoned: ABANDONED,
            steps,
            on_expired: OnExpired::default(),
        })
    }

    /// The same, observed by a test.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer<SpoolStep>>) -> Self {
        self.steps = Observed::by(observer);
        self
    }

    /// The same with another limit, for tests that cannot wait a minute until a silent producer counts as dead.
    #[must_use]
    pub fn abandoning_after(mut self, silence: Duration) -> Self {
        self.abandoned = silence;
        self
    }

    /// Its root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    pub(super) fn rights(&self) -> Rights {
        self.rights
    }

    pub(super) fn volume(&self) -> Volume {
        self.volume
    }

    /// How long a producer, or a completion, may be silent before its leftovers may be removed.
    pub(super) fn abandoned(&self) -> Duration {
        self.abandoned
    }

    pub(super) fn reach(&self, step: SpoolStep) {
        self.steps.announce(step);
    }

    /// How far a timestamp may be behind the true time.
    pub(super) fn grain(&self) -> Duration {
        if self.volume == Volume::Local { LOCAL_GRAIN } else { REMOTE_GRAIN }
    }

    /// How far a timestamp may be ahead of the clock that stamps its files. A
    /// timestamp further ahead is from before that clock was set back.
    pub(super) fn skew(&self) -> Duration {
        if self.volume == Volume::Local { LOCAL_SKEW } else { REMOTE_SKEW }
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

    /// Adds an item whose payload is read from `input`, which may take long. Returns its id, and whether it is new.
    pub fn add(&self, new: &NewItem, input: &mut dyn io::Read) -> Result<(ItemId, bool)> {
        self.add_temporary(new, self.copy_to_temporary(input)?)
    }

    /// The same with these bytes as its payload.
    pub fn add_bytes(&self, new: &NewItem, payload: &[u8]) -> Result<(ItemId, bool)> {
        self.add_temporary(new, self.write_temporary(payload)?)
    }

    fn add_temporary(&self, new: &NewItem, temporary: Temporary) -> Result<(ItemId, bool)> {
        let mut name = self.name_for(new)?;
        if let Some(key) = &new.key {
            if !self.take_key(key, temporary.path(), &name)? {
                temporary.remove();
                return Ok((name.id, false));
            }
            // Read after we have the key: a purge that frees it has raised the first epoch before.
            match self.first_epoch() {
                Ok(first) => name.epoch = first,
                Err(error) => {
                    let _ = fs::remove_file(self.path("keys").join(key.as_str()));
                    temporary.remove();
                    return Err(error);
                }
            }
        }
        // An item without a delay does not wait, whatever the clock says now.
        let folder = if new.delay.is_zero() { SpoolFolder::Ready } else { self.line_of(&name)? };
        self.enter(temporary.path(), &name, &folder)?;
        Ok((name.id, true))
    }

    /// The folder for an item that waits, which depends on whether it is due.
    pub(super) fn line_of(&self, name: &FileName) -> Result<SpoolFolder> {
        Ok(if name.due > self.now()? { SpoolFolder::Later } else { SpoolFolder::Ready })
    }

    pub(super) fn name_for(&self, new: &NewItem) -> Result<FileName> {
        let now = self.now()?;
        let id = new.key.as_ref().map_or_else(|| ItemId::fresh(now), ItemId::keyed);
        let (priority, most) = (new.priority, new.attempts.most);
        Ok(FileName { priority, due: now.plus(new.delay), id, tried: 0, most, epoch: Epoch::ZERO })
    }

    /// Takes a key for a temporary file. False if it was already taken.
    fn take_key(&self, key: &DedupeKey, temporary: &Path, name: &FileName) -> Result<bool> {
        self.reach(SpoolStep::LinkKey);
        let path = self.path("keys").join(key.as_str());
        match fs::hard_link(temporary, &path) {
            Ok(()) => {
                sync(&self.path("keys")).inspect_err(|_| drop(fs::remove_file(&path)))?;
                Ok(true)
            }
            // The link succeeded although the answer was an error, as with a file server: it is ours.
            Err(_) if same_file(temporary, &path) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && self.has_item(&path, &name.id) => {
                // The process that added it may have died before it was synced.
                // If a sync failed, the item was taken back.
                for folder in ["keys", "ready", "later"] {
                    sync(&self.path(folder))?;
                }
                Ok(false)
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                let _ = fs::remove_file(temporary);
                let message =
                    format!("item `{}` is being added, or its addition was cut off; try again in a minute", name.id);
                Err(Error::new(Kind::Contended, message))
            }
            Err(e) => Err(failed(e, "take the key", &path)),
        }
    }

    /// Whether a taken key has its item. Usually they are one file with two names, but a
    /// command may have replaced its file, or somebody may have copied the spool. A key
    /// alone belongs to an addition, or a purge, that is in progress or was interrupted.
    pub(super) fn has_item(&self, key: &Path, id: &ItemId) -> bool {
        fs::metadata(key).is_ok_and(|m| m.nlink() > 1 && !self.is_temporary(m.ino())) || self.find(id).is_ok()
    }

    fn enter(&self, temporary: &Path, name: &FileName, to: &SpoolFolder) -> Result<()> {
        let folder = to.path();
        self.reach(SpoolStep::Enter);
        let path = self.path(&folder).join(name.to_string());
        match fs::rename(temporary, &path) {
            Ok(()) => {}
            // A file server's second answer to a request that it has already carried out.
            Err(e) if e.kind() == ErrorKind::NotFound && path.symlink_metadata().is_ok() => {}
            Err(e) if e.kind() == ErrorKind::NotFound && self.path(&folder).is_dir() => {
                let message = format!(
                    "nothing was added: a janitor took this process for dead, after {} without a heartbeat, and removed \
                     {} (was it stopped, or the machine asleep?); add it again",
                    leasehold_core::format_duration(self.abandoned),
                    temporary.display()
                );
                return Err(Error::new(Kind::Unavailable, message));
            }
            Err(e) => return Err(failed(e, "add", &path)),
        }
        self.reach(SpoolStep::SyncEntered);
        sync(&self.path(&folder)).inspect_err(|_| {
            // Taken back, unless a worker has it: a producer that repeats the addition must not find what may not last.
            if fs::rename(&path, temporary).is_ok() {
                let _ = fs::remove_file(temporary);
            }
        })
    }

    /// Moves an item, and syncs both folders. False if the item was no longer there.
    pub(super) fn shift(&self, from: &Path, to: &Path, before: SpoolStep, after: SpoolStep) -> Result<bool> {
        self.reach(before);
        match fs::rename(from, to) {
            Ok(()) => {}
            // A file server's second answer to a request that it has already carried out.
            Err(e) if e.kind() == ErrorKind::NotFound && to.symlink_metadata().is_ok() => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(unmoved(e, from, to)),
        }
        self.reach(after);
        sync(to.parent().unwrap_or(to))?;
        let left = from.parent().unwrap_or(from);
        match sync(left) {
            // An outbox, or a worker's folder, was removed because it was empty: there is nothing to sync.
            Err(_) if !left.exists() => Ok(true),
            other => other.map(|()| true),
        }
    }

    /// The path of an item in this folder.
    pub(super) fn at(&self, folder: &SpoolFolder, name: &FileName) -> PathBuf {
        self.path(folder.path()).join(name.to_string())
    }

    /// Ends a claim, by one rename. False if the item was no longer there.
    pub(super) fn end(&self, from: &Path, to: &SpoolFolder, name: &FileName) -> Result<bool> {
        let is_moved = self.shift(from, &self.at(to, name), SpoolStep::End, SpoolStep::SyncEnded)?;
        if is_moved {
            let _ = fs::remove_file(heartbeat_file(from));
        }
        Ok(is_moved)
    }

    /// The folder that an item is in. It may have moved on by the time this returns.
    pub fn find(&self, id: &ItemId) -> Result<SpoolItem> {
        // An item that is moved while the folders are read may be missed once.
        let mut closed = Vec::new();
        for _ in 0..3 {
            let seen = self.survey();
            if let Some(found) = seen.items.into_iter().find(|item| item.name.id == *id) {
                return Ok(found);
            }
            closed = seen.closed;
        }
        // It may be where this user cannot look.
        Err(closed.into_iter().next().unwrap_or_else(|| {
            Error::new(Kind::Invalid, format!("there is no item `{id}` in {}", self.root.display()))
        }))
    }
}

/// Whether this is a folder, and not a link to one.
pub(super) fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_dir())
}

pub(super) fn same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    identity(one).is_some() && identity(one) == identity(other)
}

pub(super) fn make(folder: &Path, rights: Rights) -> Result<()> {
    let shared = || File::open(folder).and_then(|folder| rights.share(&folder));
    match fs::create_dir(folder) {
        Ok(()) => shared().map_err(|e| failed(e, "open to others", folder)),
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

/// The error for a rename that failed.
fn unmoved(error: io::Error, from: &Path, to: &Path) -> Error {
    let folder = from.parent().unwrap_or(from);
    let (kind, advice) = match error.kind() {
        ErrorKind::PermissionDenied if is_sticky(folder) => {
            let why = "has the sticky bit, so that only a file's owner may move it: chmod -t";
            (Kind::Unsupported, format!("{} {why} {}", folder.display(), folder.display()))
        }
        ErrorKind::PermissionDenied => {
            let message =
                format!("cannot move {} to {}: this user may not", from.display(), to.parent().unwrap_or(to).display());
            let remedy = Remedy::ExamineSpool { path: None };
            return Error::new(Kind::Unsupported, message).with_source(error).with_remedy(remedy);
        }
        ErrorKind::InvalidFilename => (Kind::Unsupported, "this volume has no room for the name".to_owned()),
        ErrorKind::CrossesDevices => (Kind::Unsupported, "a spool must be on one volume".to_owned()),
        ErrorKind::ReadOnlyFilesystem => (Kind::Unavailable, "the volume is read-only".to_owned()),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Kind::Unavailable, "no space is left".to_owned()),
        _ => (Kind::Indeterminate, "no answer; look again".to_owned()),
    };
    let message = format!("cannot move {} to {}: {advice}", from.display(), to.parent().unwrap_or(to).display());
    Error::new(kind, message).with_source(error)
}

pub(super) fn failed(error: io::Error, what: &str, path: &Path) -> Error {
    let (kind, advice) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (Kind::Unsupported, "this user needs read and write permission")
        }
        ErrorKind::NotADirectory => (Kind::Invalid, "it is, or lies below, a file; give a folder"),
        ErrorKind::NotFound => (Kind::Invalid, "create the folder around it first; is the share mounted?"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Kind::Unavailable, "no space is left; nothing was added"),
        ErrorKind::CrossesDevices => (Kind::Unsupported, "a spool must be on one volume"),
        _ => (Kind::Unavailable, "try again"),
    };
    Error::new(kind, format!("cannot {what} {}: {advice}", path.display())).with_source(error)
}
