//! One swap, step by step: prepare, publish, confirm. The module above explains why it is correct.
//!
//! The steps are separate so that tests can suspend a process between any two of them.

use super::VERSIONS_KEPT;
use super::folders::sync_folder;
use super::layout::{self, Mark, Version};
use super::root::{Root, Staged, failed};
use leasehold_core::store::{Revision, Swap};
use leasehold_core::{Error, Key, Kind, Nonce, Result};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// A swap whose expectation held when it was checked. Its file is ready to be linked.
#[derive(Debug)]
pub struct Attempt<'root> {
    root: &'root Root,
    folder: PathBuf,
    next: Mark,
    is_erase: bool,
    staged: Staged,
}

impl<'root> Attempt<'root> {
    /// Stores `next`, or the trace of an erase, if the key still has the expected revision. Answers through `tell` as
    /// soon as the result is certain; old versions are removed after that.
    pub fn run_and_tell(
        root: &'root Root,
        key: &Key,
        expected: Option<&Revision>,
        next: Option<&[u8]>,
        tell: impl FnOnce(Result<Swap>),
    ) {
        match Attempt::prepare(root, key, expected, next) {
            Ok(Some(attempt)) => match attempt.publish() {
                Ok(true) => attempt.confirm_and_tell(tell),
                Ok(false) => tell(Ok(Swap::Mismatch)),
                Err(error) => tell(Err(error)),
            },
            Ok(None) => tell(Ok(Swap::Mismatch)),
            Err(error) => tell(Err(error)),
        }
    }

    /// Checks the expectation and writes the file; none on a mismatch.
    pub fn prepare(
        root: &'root Root,
        key: &Key,
        expected: Option<&Revision>,
        next: Option<&[u8]>,
    ) -> Result<Option<Self>> {
        let folder = root.folder(key);
        let numbers = root.numbers(&folder)?;
        let newest = match numbers.last() {
            Some(number) => match root.version(&folder, *number)? {
                Some(version) => Some(version),
                // Removed since it was listed: many other swaps were faster.
                None => return Ok(None),
            },
            None => None,
        };
        let base = newest.as_ref().map(|version| version.mark);
        let expectation_holds = match expected {
            Some(revision) => base.is_some() && Mark::of(revision) == base && newest.is_some_and(|v| v.value.is_some()),
            None => newest.is_none_or(|version| version.value.is_none()),
        };
        if !expectation_holds {
            return Ok(None);
        }
        let number = base.map_or(0, |base| base.number).checked_add(1).ok_or_else(|| {
            Error::new(Kind::Unsupported, format!("no version number is left in {}", folder.display()))
        })?;
        let next_mark = Mark { number, tag: Nonce::random() };
        if base.is_none() {
            root.make_folder(key)?;
        }
        let staged = root
            .stage(&Version::encode(next_mark, base.map(|base| base.tag), next))
            .map_err(|e| failed(e, "cannot write a new version for", &folder))?;
        Ok(Some(Attempt { root, folder, next: next_mark, is_erase: next.is_none(), staged }))
    }

    /// Links the file to its number; false if another file has that number.
    pub fn publish(&self) -> Result<bool> {
        let target = self.folder.join(layout::file_of(self.next.number));
        let Err(error) = fs::hard_link(&self.staged.path, &target) else { return Ok(true) };
        match error.kind() {
            // The existing link may be our own, if the server carried it out and the answer was lost.
            ErrorKind::AlreadyExists => {
                let there = self.root.version(&self.folder, self.next.number).map_err(|e| self.unknown(e))?;
                Ok(there.is_some_and(|there| there.mark == self.next))
            }
            _ if surely_refused(&error) => Err(failed(error, "cannot link", &target)),
            _ => Err(self.unknown(error)),
        }
    }

    /// Makes the link durable, checks that it was the first with its number, and answers. Then removes old versions.
    pub fn confirm_and_tell(self, tell: impl FnOnce(Result<Swap>)) {
        match self.settle() {
            Ok((swap, old)) => {
                tell(Ok(swap));
                old.remove();
            }
            Err(error) => tell(Err(error)),
        }
    }

    fn settle(self) -> Result<(Swap, Old)> {
        sync_folder(&self.folder).map_err(|e| self.unknown(e))?;
        let mut numbers = self.root.numbers(&self.folder).map_err(|e| self.unknown(e))?;
        let highest = numbers.last().copied().unwrap_or(0);
        // If a listing does not show our own file, it cannot be trusted about the others either.
        if !numbers.contains(&self.next.number) || highest >= self.next.number.saturating_add(VERSIONS_KEPT) {
            let message = format!("others advanced to version {highest} while this process slept");
            return Err(self.unknown(message));
        }
        if highest > self.next.number {
            let following = self.root.version(&self.folder, self.next.number + 1).map_err(|e| self.unknown(e))?;
            // If the next version does not follow ours, another version had this number and was lost in a crash.
            if following.is_none_or(|following| following.follows != Some(self.next.tag)) {
                return Err(self.unknown("another version of that number was followed"));
            }
        }
        // The trace of an erase may be the last version for a long time, so nothing that was erased may stay beside it.
        let kept = if self.is_erase { 1 } else { VERSIONS_KEPT };
        numbers.retain(|number| number.saturating_add(kept) <= self.next.number);
        let swap = Swap::Done { revision: self.next.revision(), now: self.staged.now };
        Ok((swap, Old { folder: self.folder, numbers }))
    }

    fn unknown(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let message = format!("it is unknown whether version {} of {} counts", self.next.number, self.folder.display());
        Error::new(Kind::Indeterminate, message).with_source(source)
    }
}

/// For tests, which continue after the old versions are removed.
#[cfg(test)]
impl<'root> Attempt<'root> {
    pub fn run(root: &'root Root, key: &Key, expected: Option<&Revision>, next: Option<&[u8]>) -> Result<Swap> {
        let mut answer = None;
        Attempt::run_and_tell(root, key, expected, next, |swap| answer = Some(swap));
        answer.unwrap()
    }

    pub fn confirm(self) -> Result<Swap> {
        let mut answer = None;
        self.confirm_and_tell(|swap| answer = Some(swap));
        answer.unwrap()
    }
}

/// Versions older than one that counts. However late they are removed, the highest number that counts stays.
#[derive(Debug)]
struct Old {
    folder: PathBuf,
    numbers: Vec<u64>,
}

impl Old {
    fn remove(&self) {
        for number in &self.numbers {
            // If that fails, the next swap removes the file.
            let _ = fs::remove_file(self.folder.join(layout::file_of(*number)));
        }
    }
}

/// Errors that a server reports instead of linking, never after it.
fn surely_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::TooManyLinks
            | ErrorKind::CrossesDevices
            | ErrorKind::Unsupported
    )
}
