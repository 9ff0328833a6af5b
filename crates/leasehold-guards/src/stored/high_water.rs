//! The high water of one resource in files of this machine, for a fence that is kept in the store.
//!
//! The fence in the store decides. These files remember it in case the store is lost, or restored from an old copy.
//!
//! Promise: what was raised is on disk when the call returns. A lower token never replaces a higher one, however many others
//! write and however long a writer is paused, and nobody holds a lock: every token has its own file, and the highest
//! counts. Damage is an error, never taken for empty. Non-promise: other machines' files are not read. A file contains
//! the grant's nonce, so only this user can read it.

use crate::blocking::blocking;
use crate::succession;
use leasehold_core::guard::{self, HighWater, Rejection};
use leasehold_core::{Epoch, Error, Kind, LeaseName, Lineage, Nonce, Remedy, Result, Token, codec};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const KIND: &str = "high-water";
/// Below the folder that a user names: other things may be kept there.
const SUBFOLDER: &str = "fences";
/// How often the folder is listed again because files went away while they were read.
const MAX_LISTINGS: u32 = 32;
/// The highest, and the one before it: a listing that runs beside a change then finds one of them.
const FILES_KEPT: usize = 2;

/// One file of the folder, and the high water that it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    resource: String,
    /// How often the resource was given to another lease. A later generation counts, whatever the epochs.
    generation: u32,
    lease: LeaseName,
    lineage: Lineage,
    epoch: Epoch,
    nonce: Nonce,
}

impl Entry {
    fn high(&self) -> HighWater {
        let Entry { lease, lineage, epoch, nonce, .. } = self.clone();
        HighWater { lease, lineage, epoch, nonce, seq: 0 }
    }

    fn file_name(&self) -> String {
        format!("{:06}-{:020}-{}", self.generation, self.epoch.get(), self.nonce)
    }

    fn rank(&self) -> (u32, Epoch) {
        (self.generation, self.epoch)
    }
}

/// The files of one resource.
#[derive(Debug, Clone)]
pub struct StateFolder {
    resource: String,
    folder: PathBuf,
}

impl StateFolder {
    /// The files of this resource below `parent`. Makes the folders, and sees that they can be written to.
    pub fn open(parent: &Path, resource: &str) -> Result<Self> {
        // No name has a `+` in it.
        let folder = parent.join(SUBFOLDER).join(resource.replace('/', "+"));
        let state = StateFolder { resource: resource.to_owned(), folder };
        state.prepare(parent).map_err(|error| {
            let kind = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Kind::Unavailable,
                _ => Kind::Unsupported,
            };
            let folder = state.folder.display();
            let message = format!("cannot keep the high water of resource=`{resource}` in folder `{folder}`");
            Error::new(kind, message).with_source(error).with_remedy(Remedy::ChooseStateFolder)
        })?;
        state.list()?;
        Ok(state)
    }

    /// The folder, for people.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    fn prepare(&self, parent: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // Their maker may have died before it synced them.
        let subfolder = parent.join(SUBFOLDER);
        for folder in [&self.folder, &subfolder, parent] {
            sync_folder(folder).inspect_err(|_| {
                // Empty ones are removed, so that the next process makes new ones: a second sync would prove nothing.
                let _ = fs::remove_dir(&self.folder).and_then(|()| fs::remove_dir(&subfolder));
            })?;
        }
        for above in parent.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            match sync_folder(above) {
                Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                    break;
                }
                other => other?,
            }
        }
        let probe = self.temporary();
        self.write(&probe, b"probe")?;
        fs::remove_file(&probe)
    }

    /// The highest token that was remembered here.
    pub fn high(&self) -> Result<Option<HighWater>> {
        Ok(self.list()?.last().map(Entry::high))
    }

    /// The highest epoch of this lease that was remembered here, even if the resource now belongs to another lease.
    pub fn seen(&self, lease: &LeaseName, lineage: Lineage) -> Result<Option<Epoch>> {
        let known = self.list()?;
        Ok(known
            .iter()
            .filter(|entry| (&entry.lease, entry.lineage) == (lease, lineage))
            .map(|entry| entry.epoch)
            .max())
    }

    /// Remembers this token, durably, unless a higher one, or another lease, is remembered.
    pub fn raise(&self, next: &HighWater) -> Result<Result<(), Rejection>> {
        let known = self.list()?;
        if let Err(rejection) = admits(&known, next) {
            return Ok(Err(rejection));
        }
        let entry = self.entry(known.last().map_or(0, |last| last.generation), next);
        // Even if it is there: its writer may have failed to sync it, and only a new write makes sure.
        self.put(&entry)?;
        let known = self.list()?;
        if let Err(rejection) = admits(&known, next) {
            return Ok(Err(rejection));
        }
        self.tidy(&known, &entry);
        Ok(Ok(()))
    }

    /// Remembers this token in the place of `from`, whose lease the resource was taken from.
    pub fn replace(&self, from: Option<&HighWater>, next: &HighWater) -> Result<()> {
        let changed = || {
            let message = format!("the high water of resource=`{}` has changed meanwhile; look again", self.resource);
            Error::new(Kind::Contended, message)
        };
        let known = self.list()?;
        let found = known.last().map(Entry::high);
        if found.as_ref().map(unnumbered) != from.map(unnumbered) {
            return Err(changed());
        }
        if found.as_ref().is_some_and(|found| (&found.lease, found.lineage) != (&next.lease, next.lineage)) {
            let of = |entry: &&Entry| (&entry.lease, entry.lineage) == (&next.lease, next.lineage);
            let before = known.iter().filter(of).map(|entry| entry.epoch).max();
            succession::returning(&self.resource, before, &next.token())?;
        }
        let entry = self.entry(known.last().map_or(0, |last| last.generation + 1), next);
        self.put(&entry)?;
        let known = self.list()?;
        if known.iter().any(|other| *other != entry && other.rank() >= entry.rank()) {
            return Err(changed());
        }
        self.tidy(&known, &entry);
        Ok(())
    }

    fn entry(&self, generation: u32, high: &HighWater) -> Entry {
        let HighWater { lease, lineage, epoch, nonce, .. } = high.clone();
        Entry { resource: self.resource.clone(), generation, lease, lineage, epoch, nonce }
    }

    /// All that is remembered, the highest last.
    fn list(&self) -> Result<Vec<Entry>> {
        for _ in 0..MAX_LISTINGS {
            let mut entries = Vec::new();
            let mut whole = true;
            for found in fs::read_dir(&self.folder).map_err(|e| self.failed("read", e))? {
                let found = found.map_err(|e| self.failed("read", e))?;
                let Ok(name) = found.file_name().into_string() else { return Err(self.corrupt("a name is no text")) };
                if name.starts_with('.') {
                    continue;
                }
                match fs::read(found.path()) {
                    Ok(bytes) => entries.push(self.decode(&name, &bytes)?),
                    // A higher one has come meanwhile, and this one was removed.
                    Err(error) if error.kind() == ErrorKind::NotFound => whole = false,
                    Err(error) => return Err(self.failed("read", error)),
                }
            }
            if whole {
                entries.sort_by_key(Entry::rank);
                return Ok(entries);
            }
        }
        Err(Error::new(Kind::Contended, format!("folder `{}` keeps changing; try again", self.folder.display())))
    }

    fn decode(&self, name: &str, bytes: &[u8]) -> Result<Entry> {
        let path = self.folder.join(name).display().to_string();
        let entry: Entry = codec::decode(KIND, bytes, &path)?;
        if entry.resource != self.resource {
            return Err(self.corrupt(&format!("`{name}` is of resource=`{}`", entry.resource)));
        }
        if entry.file_name() != name {
            return Err(self.corrupt(&format!("`{name}` was renamed; it was `{}`", entry.file_name())));
        }
        Ok(entry)
    }

    fn put(&self, entry: &Entry) -> Result<()> {
        let bytes = codec::encode(KIND, entry)?;
        let temporary = self.temporary();
        let written = self.write(&temporary, &bytes).and_then(|()| fs::rename(&temporary, self.path_of(entry)));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(self.failed("write to", error));
        }
        sync_folder(&self.folder).map_err(|error| {
            let message = format!("the high water in `{}` is written, but could not be synced", self.folder.display());
            Error::new(Kind::Indeterminate, message).with_source(error)
        })
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Removes files below the newest, except the highest of each lease that had the resource before: a lease that
    /// returns needs a higher epoch. Best effort: more files only make the list longer.
    fn tidy(&self, known: &[Entry], own: &Entry) {
        let doomed = known.len().saturating_sub(FILES_KEPT);
        let is_highest = |entry: &Entry| {
            let of = |other: &&Entry| (&other.lease, other.lineage) == (&entry.lease, entry.lineage);
            known.iter().filter(of).all(|other| other.epoch <= entry.epoch && other.rank() <= entry.rank())
        };
        for entry in known.iter().take(doomed).filter(|entry| entry.rank() < own.rank() && !is_highest(entry)) {
            let _ = fs::remove_file(self.path_of(entry));
        }
    }

    fn path_of(&self, entry: &Entry) -> PathBuf {
        self.folder.join(entry.file_name())
    }

    fn temporary(&self) -> PathBuf {
        self.folder.join(format!(".{}", Nonce::random()))
    }

    fn corrupt(&self, what: &str) -> Error {
        let message = format!(
            "corrupt high water of resource=`{}` in `{}`: {what}. If the store was not restored or lost since, the file can \
                 be removed: the store has the same number",
            self.resource,
            self.folder.display()
        );
        Error::new(Kind::Corrupt, message)
    }

    fn failed(&self, verb: &str, error: io::Error) -> Error {
        let message = format!("cannot {verb} folder `{}`; nothing was let through", self.folder.display());
        Error::unavailable(message, error)
    }
}

/// The files of one resource for code that may not block; or nothing, where the operator chose to go without.
#[derive(Debug, Clone)]
pub struct LocalCopy(Option<StateFolder>);

impl LocalCopy {
    /// The files below this folder, if one is given.
    pub fn open(parent: Option<&Path>, resource: &str) -> Result<Self> {
        parent.map(|parent| StateFolder::open(parent, resource)).transpose().map(LocalCopy)
    }

    /// The folder, for people.
    pub fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(StateFolder::path)
    }

    /// As [`StateFolder::high`], in a thread that may block.
    pub async fn high(&self) -> Result<Option<HighWater>> {
        Ok(self.with(|folder| folder.high()).await?.flatten())
    }

    /// [`StateFolder::seen`], of this token's lease.
    pub async fn seen(&self, token: &Token) -> Result<Option<Epoch>> {
        let (lease, lineage) = (token.lease.clone(), token.lineage);
        Ok(self.with(move |folder| folder.seen(&lease, lineage)).await?.flatten())
    }

    /// As [`StateFolder::raise`], in a thread that may block.
    pub async fn raise(&self, next: &HighWater) -> Result<Result<(), Rejection>> {
        let next = next.clone();
        Ok(self.with(move |folder| folder.raise(&next)).await?.unwrap_or(Ok(())))
    }

    /// As [`StateFolder::replace`], in a thread that may block.
    pub async fn replace(&self, from: Option<HighWater>, next: &HighWater) -> Result<()> {
        let next = next.clone();
        self.with(move |folder| folder.replace(from.as_ref(), &next)).await.map(drop)
    }

    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(StateFolder) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        match self.0.clone() {
            Some(folder) => blocking(move || act(folder)).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Whether the files admit this token. If the highest epoch was granted twice, neither grant is admitted.
fn admits(known: &[Entry], next: &HighWater) -> Result<(), Rejection> {
    let Some(last) = known.last() else { return Ok(()) };
    let token = next.token();
    for entry in known.iter().filter(|entry| entry.rank() == last.rank()) {
        guard::seal(Some(&entry.high()), &token)?;
    }
    Ok(())
}

fn unnumbered(high: &HighWater) -> HighWater {
    HighWater { seq: 0, ..high.clone() }
}

/// Makes a folder's entries durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some network file systems have no such call, because their servers write entries at once.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn high(epoch: u64, nonce: u128) -> HighWater {
        HighWater {
            lease: "daily".parse().unwrap(),
            lineage: Lineage::from_u128(1),
            epoch: Epoch::new(epoch).unwrap(),
            nonce: Nonce::from_u128(nonce),
            seq: 0,
        }
    }

    fn folder() -> (tempfile::TempDir, StateFolder) {
        let parent = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&parent.path().join("a/b"), "http:team/api").unwrap();
        (parent, state)
    }

    #[test]
    fn the_highest_is_remembered_and_a_lower_one_changes_nothing() {
        let (parent, state) = folder();
        assert_eq!(state.high().unwrap(), None);
        for epoch in [4, 5, 7] {
            state.raise(&high(epoch, 1)).unwrap().unwrap();
        }
        state.raise(&high(7, 1)).unwrap().unwrap();
        assert!(matches!(state.raise(&high(6, 1)).unwrap(), Err(Rejection::Stale { .. })));
        assert!(matches!(state.raise(&high(7, 2)).unwrap(), Err(Rejection::Regressed { .. })));
        let other = HighWater { lineage: Lineage::from_u128(2), ..high(9, 1) };
        assert!(matches!(state.raise(&other).unwrap(), Err(Rejection::OtherLineage { .. })));
        let again = StateFolder::open(&parent.path().join("a/b"), "http:team/api").unwrap();
        assert_eq!(again.high().unwrap(), Some(high(7, 1)));
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), FILES_KEPT);
    }

    #[test]
    fn writers_at_once_never_lower_it() {
        let (_parent, state) = folder();
        std::thread::scope(|scope| {
            for epoch in 1..=24 {
                let state = state.clone();
                scope.spawn(move || {
                    let raised = state.raise(&high(epoch, 1)).unwrap();
                    let now = state.high().unwrap().unwrap().epoch.get();
                    assert!(now >= epoch && (raised.is_err() == (now > epoch) || raised.is_ok()));
                });
            }
        });
        assert_eq!(state.high().unwrap(), Some(high(24, 1)));
    }

    #[test]
    fn two_grants_of_one_epoch_shut_each_other_out_until_a_higher_one() {
        let (_parent, state) = folder();
        for nonce in [1, 2] {
            state.put(&state.entry(0, &high(5, nonce))).unwrap();
        }
        for nonce in [1, 2, 3] {
            assert!(matches!(state.raise(&high(5, nonce)).unwrap(), Err(Rejection::Regressed { .. })));
        }
        assert!(matches!(state.raise(&high(4, 1)).unwrap(), Err(Rejection::Stale { .. })));
        state.raise(&high(6, 1)).unwrap().unwrap();
    }

    #[test]
    fn another_lease_takes_its_place_only_over_what_was_seen() {
        let (_parent, state) = folder();
        state.raise(&high(5, 1)).unwrap().unwrap();
        let other = HighWater { lease: "other".parse().unwrap(), lineage: Lineage::from_u128(2), ..high(2, 9) };
        assert_eq!(state.replace(Some(&high(4, 1)), &other).unwrap_err().kind(), Kind::Contended);
        state.replace(Some(&high(5, 1)), &other).unwrap();
        assert_eq!(state.high().unwrap(), Some(other.clone()));
        assert!(matches!(state.raise(&high(6, 1)).unwrap(), Err(Rejection::Foreign { .. })));
        for epoch in 3..9 {
            state.raise(&HighWater { epoch: Epoch::new(epoch).unwrap(), ..other.clone() }).unwrap().unwrap();
        }
        // The first one comes back only with a higher epoch, however much was written since.
        let from = state.high().unwrap().unwrap();
        for (epoch, kind) in [(4, Kind::Regressed), (5, Kind::Fenced)] {
            assert_eq!(state.replace(Some(&from), &high(epoch, 1)).unwrap_err().kind(), kind);
        }
        assert_eq!(state.seen(&high(5, 1).lease, high(5, 1).lineage).unwrap(), Some(high(5, 1).epoch));
        state.replace(Some(&from), &high(6, 1)).unwrap();
    }

    #[test]
    fn every_flipped_bit_is_reported() {
        let (_parent, state) = folder();
        state.raise(&high(5, 1)).unwrap().unwrap();
        let file = state.path_of(&state.list().unwrap()[0]);
        let sound = fs::read(&file).unwrap();
        for at in 0..sound.len() {
            for bit in 0..8 {
                let mut bytes = sound.clone();
                bytes[at] ^= 1 << bit;
                fs::write(&file, &bytes).unwrap();
                let error = state.raise(&high(6, 1)).unwrap_err();
                assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "byte {at}, bit {bit}: {error}");
                assert_eq!(fs::read(&file).unwrap(), bytes, "it was not left as it is");
            }
        }
        for length in 0..sound.len() {
            fs::write(&file, &sound[..length]).unwrap();
            assert_eq!(state.high().unwrap_err().kind(), Kind::Corrupt);
        }
        fs::write(&file, &sound).unwrap();
        fs::rename(&file, file.with_file_name("000000-00000000000000000004-00000000000000000000000000000001")).unwrap();
        assert_eq!(state.high().unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_refused() {
        let error = StateFolder::open(Path::new("/proc/self/none"), "http:api").unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert_eq!(error.remedy(), Some(&Remedy::ChooseStateFolder), "{error}");
    }
}
