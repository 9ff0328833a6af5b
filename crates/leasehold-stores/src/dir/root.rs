//! The folder itself: opening, reading, listing and the clock.

use super::folders::{Folders, sync_folder};
use super::layout::{self, Version};
use crate::url::Namespace;
use leasehold_core::store::{Page, Reading, Revision, Versioned};
use leasehold_core::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp};
use leasehold_system::clock;
use leasehold_system::volume::{self, Volume};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file that marks a folder as ours, and its content.
const MARKER: &str = "leasehold-store";
const FORMAT: &str = "leasehold directory store, format 1\n";
const STAGING: &str = "tmp";
/// How often a read is repeated when the version it chose was removed in between.
const MAX_LOOKS: u32 = 100;
/// How far a file's timestamp may be behind the kernel's clock: one tick of the slowest timer.
const FINE_GRAIN: Duration = Duration::from_millis(10);
/// The same where timestamps are whole seconds, or even ones (FAT).
const COARSE_GRAIN: Duration = Duration::from_secs(2);
/// Age at which a staging file is removed. If its process was only suspended, its link then fails with an error.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// How deep a name's folder may be below its shelf: 400 encoded bytes at 200 per component.
const MAX_DEPTH: usize = 3;

/// The opened folder of a store.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    folders: Folders,
    namespace: Namespace,
    volume: Volume,
    grain: Duration,
}

/// A file that is being written. It is always removed when dropped.
#[derive(Debug)]
pub struct Staged {
    pub path: PathBuf,
    /// The store's time when the file was created.
    pub now: Timestamp,
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Root {
    pub fn open(root: PathBuf, namespace: Namespace) -> Result<Self> {
        let folders = Folders::default();
        match folders.create(&root) {
            Ok(()) => {}
            // Checked below. On a read-only file system this fails even for an existing folder.
            Err(_) if root.is_dir() => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let above = root.parent().unwrap_or(&root).display().to_string();
                let message = format!("cannot create {}: create the folder {above} first", root.display());
                return Err(Error::new(Kind::Invalid, message).with_source(e));
            }
            Err(e) => return Err(failed(e, "cannot create the folder", &root)),
        }
        let volume = volume::of(&root).map_err(|e| failed(e, "cannot look at", &root))?;
        let mut root = Root { path: root, folders, namespace, volume, grain: FINE_GRAIN };
        root.check_marker()?;
        root.learn_clock();
        Ok(root)
    }

    pub fn volume(&self) -> Volume {
        self.volume
    }

    pub fn grain(&self) -> Duration {
        self.grain
    }

    fn shelf(&self, shelf: Shelf) -> PathBuf {
        self.path.join(&*self.namespace.shelf(shelf))
    }

    /// Creates the folder of a key that has no version yet, durable with every folder above it.
    pub fn make_folder(&self, key: &Key) -> Result<()> {
        let folder = self.folder(key);
        self.folders.lead_to(&self.path, &folder).map_err(|e| failed(e, "cannot create", &folder))
    }

    /// The folder of a key's versions.
    pub fn folder(&self, key: &Key) -> PathBuf {
        self.shelf(key.shelf).join(layout::folder_of(&key.name))
    }

    fn check_marker(&self) -> Result<()> {
        let marker = self.path.join(MARKER);
        match fs::read(&marker) {
            Ok(found) if found == FORMAT.as_bytes() => return Ok(()),
            Ok(_) => {
                let message = format!(
                    "{} does not say `{}`: a newer leasehold wrote it, or it is damaged; it was left as it is",
                    marker.display(),
                    FORMAT.trim_end()
                );
                return Err(Error::new(Kind::Unsupported, message));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e, "cannot read", &marker)),
        }
        self.refuse_strangers()?;
        self.furnish().map_err(|e| failed(e, "cannot set up", &self.path))
    }

    /// Refuses a folder with other files in it, which was probably given by mistake.
    fn refuse_strangers(&self) -> Result<()> {
        let entries = fs::read_dir(&self.path).map_err(|e| failed(e, "cannot list", &self.path))?;
        for entry in entries {
            let name = entry.map_err(|e| failed(e, "cannot list", &self.path))?.file_name();
            let name = name.to_string_lossy();
            let ours = [MARKER, STAGING].contains(&&*name)
                || Shelf::ALL.iter().any(|shelf| name.split('@').next() == Some(shelf.as_str()));
            // Created by file systems themselves.
            let harmless = name.starts_with('.') || name == "lost+found";
            if !ours && !harmless {
                let message = format!(
                    "folder {} is not a leasehold store and holds `{}`; give an empty or a new folder",
                    self.path.display(),
                    leasehold_core::printable(&name)
                );
                return Err(Error::new(Kind::Invalid, message));
            }
        }
        Ok(())
    }

    /// Creates the inner folders and then the marker. Any number of processes may do so at once.
    fn furnish(&self) -> io::Result<()> {
        for folder in Shelf::ALL.iter().map(|shelf| shelf.as_str()).chain([STAGING]) {
            self.folders.make(&self.path.join(folder))?;
        }
        let staged = self.stage(FORMAT.as_bytes())?;
        match fs::hard_link(&staged.path, self.path.join(MARKER)) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        sync_folder(&self.path)
    }

    /// Finds out how precisely the server stamps files, and removes what dead processes left.
    fn learn_clock(&mut self) {
        // A local clock is read directly, however coarse the timestamps are.
        if self.volume == Volume::Local {
            if let Ok(now) = self.now() {
                self.sweep(now);
            }
            return;
        }
        // A timestamp may be a whole second by chance, but it is very unlikely twice in a row.
        for _ in 0..2 {
            let Ok((staged, nanos)) = self.stage_unsynced() else { return };
            if nanos != 0 {
                return self.sweep(staged.now);
            }
            std::thread::sleep(FINE_GRAIN * 2);
        }
        self.grain = COARSE_GRAIN;
    }

    fn sweep(&self, now: Timestamp) {
        let Ok(entries) = fs::read_dir(self.path.join(STAGING)) else { return };
        for entry in entries.flatten() {
            let Ok(stamp) = entry.metadata().map(|metadata| stamp(&metadata).0) else { continue };
            if now.saturating_since(stamp) > ABANDONED {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The store's time.
    pub fn now(&self) -> Result<Timestamp> {
        let local = || Timestamp::from_millis(clock::wall_ms());
        if self.volume == Volume::Local {
            return Ok(local());
        }
        match self.stage_unsynced() {
            Ok((staged, _)) => Ok(staged.now),
            // A user who may never write here decides nothing here, and may read by this machine's time. Any other
            // failure may be temporary, and a decision by the wrong clock would be permanent.
            Err(e) if matches!(e.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied) => {
                Ok(local())
            }
            Err(e) => Err(failed(e, "cannot tell the time of", &self.path)),
        }
    }

    /// Writes a complete, fsynced file that has no name of its own yet.
    pub fn stage(&self, bytes: &[u8]) -> io::Result<Staged> {
        let (mut file, mut staged, _) = self.create_staged()?;
        file.write_all(bytes)?;
        file.sync_all()?;
        if self.volume == Volume::Local {
            staged.now = Timestamp::from_millis(clock::wall_ms());
        }
        Ok(staged)
    }

    fn stage_unsynced(&self) -> io::Result<(Staged, u32)> {
        self.create_staged().map(|(_, staged, nanos)| (staged, nanos))
    }

    fn create_staged(&self) -> io::Result<(File, Staged, u32)> {
        let path = self.path.join(STAGING).join(Nonce::random().to_string());
        // Not exclusive: NFS servers store an exclusive create's verifier in the timestamp that is needed here.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&path)?;
        let mut staged = Staged { path, now: Timestamp::from_millis(0) };
        let (now, nanos) = stamp(&file.metadata()?);
        staged.now = now;
        Ok((file, staged, nanos))
    }

    /// The numbers of a key's versions, lowest first.
    pub fn numbers(&self, folder: &Path) -> Result<Vec<u64>> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed(e, "cannot list", folder)),
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry.map_err(|e| failed(e, "cannot list", folder))?.file_name();
            numbers.extend(name.to_str().and_then(layout::number_of));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// One version; none if it does not exist.
    pub fn version(&self, folder: &Path, number: u64) -> Result<Option<Version>> {
        let path = folder.join(layout::file_of(number));
        let mut bytes = Vec::new();
        let opened = OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path);
        match opened.and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => Version::decode(number, &bytes, &path).map(Some),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle) => Ok(None),
            Err(e) => Err(failed(e, "cannot read", &path)),
        }
    }

    /// The newest version; none if the key was never written.
    pub fn newest(&self, folder: &Path) -> Result<Option<Version>> {
        for _ in 0..MAX_LOOKS {
            let Some(number) = self.numbers(folder)?.last().copied() else {
                // An empty answer counts only if the store's folder exists: a share that is not mounted has no records.
                return match fs::metadata(self.path.join(MARKER)) {
                    Ok(_) => Ok(None),
                    Err(e) => Err(failed(e, "cannot find the store's", &self.path.join(MARKER))),
                };
            };
            if let Some(version) = self.version(folder, number)? {
                return Ok(Some(version));
            }
        }
        let message = format!("{} changes faster than it can be read; try again", folder.display());
        Err(Error::new(Kind::Contended, message))
    }

    /// The record, and the store's time.
    pub fn read(&self, key: &Key) -> Result<Reading> {
        let version = self.newest(&self.folder(key))?;
        let value = version.and_then(|version| {
            let revision = version.mark.revision();
            version.value.map(|bytes| Versioned { bytes, revision })
        });
        Ok(Reading { value, now: self.now()? })
    }

    pub fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let mut names = Vec::new();
        // A namespace's shelf is created by the first write to it.
        match self.collect_names(&self.shelf(shelf), &mut Vec::new(), &mut names) {
            Err(e) if e.kind() == Kind::Unavailable && self.is_unmade(shelf) => {}
            other => other?,
        }
        names.retain(|name| after.is_none_or(|after| name > after));
        names.sort_unstable();
        let now = self.now()?;
        let mut entries = Vec::new();
        for name in names {
            let (bytes, revision) = match self.newest(&self.folder(&Key::new(shelf, &name))) {
                Ok(Some(Version { mark, value: Some(bytes), .. })) => (bytes, mark.revision()),
                Ok(_) => continue,
                // A damaged file must not hide the others. Empty bytes decode
                // to no record, and no swap expects this revision.
                Err(e) if e.kind() == Kind::Corrupt => (Vec::new(), Revision("damaged".into())),
                Err(e) => return Err(e),
            };
            if entries.len() == limit {
                return Ok(Page { entries, more: true, now });
            }
            entries.push((name, Versioned { bytes, revision }));
        }
        Ok(Page { entries, more: false, now })
    }

    /// Whether the shelf was never written to, in a store that exists.
    fn is_unmade(&self, shelf: Shelf) -> bool {
        let missing = self.shelf(shelf).symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
        missing && !self.namespace.is_default() && self.path.join(MARKER).is_file()
    }

    fn collect_names(&self, folder: &Path, above: &mut Vec<String>, names: &mut Vec<LeaseName>) -> Result<()> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) => return Err(failed(e, "cannot list", folder)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| failed(e, "cannot list", folder))?;
            // Names that do not decode are not ours: desktop tools leave files everywhere.
            let Ok(component) = entry.file_name().into_string() else { continue };
            let continued = layout::is_continued(&component);
            above.push(component);
            if continued && above.len() < MAX_DEPTH && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.collect_names(&entry.path(), above, names)?;
            } else {
                names.extend(layout::name_of(above));
            }
            above.pop();
        }
        Ok(())
    }
}

fn stamp(metadata: &fs::Metadata) -> (Timestamp, u32) {
    let (seconds, nanos) = (metadata.mtime().max(0) as u64, metadata.mtime_nsec().max(0) as u32);
    (Timestamp::from_millis(seconds.saturating_mul(1000) + u64::from(nanos / 1_000_000)), nanos)
}

/// The system's error as ours, for calls that certainly changed no record.
pub fn failed(error: io::Error, what: &str, path: &Path) -> Error {
    let shown = path.display();
    let (kind, advice) = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => (Kind::Unsupported, "the file system is read-only"),
        ErrorKind::PermissionDenied => (Kind::Unsupported, "this user needs read and write permission"),
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            (Kind::Invalid, "it is, or lies below, a file; give a folder")
        }
        ErrorKind::CrossesDevices | ErrorKind::Unsupported => {
            (Kind::Unsupported, "this file system has no hard links; use another folder")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            (Kind::Unavailable, "no space is left; nothing was changed, free some and try again")
        }
        ErrorKind::NotFound => (Kind::Unavailable, "it is not there; is the share mounted?"),
        _ => (Kind::Unavailable, "nothing was changed; try again"),
    };
    Error::new(kind, format!("{what} {shown}: {advice}")).with_source(error)
}
