//! What git did on its way, by its own trace.
//!
//! Promise: a push that is said not to have begun to pack has not been applied, for the fence's new commit is in the pack;
//! in doubt it is said to have begun. Non-promise: a trace of git's that the user asked for is left to them, and then all
//! is in doubt.

use super::site::Site;
use leasehold::Nonce;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Pushes of one repository at the same time that need no file of their own.
const SLOTS: usize = 4;
/// From here on a slot is begun anew.
const MOST_BYTES: u64 = 64 * 1024;

/// The trace of one push.
#[derive(Debug, Default)]
pub(super) struct Trace {
    place: Option<Place>,
}

#[derive(Debug)]
enum Place {
    /// A file that stays, for making and removing one costs the push more than the rest of us does. It is locked, so
    /// that nobody shortens it meanwhile; what others add to it can only raise a doubt.
    Slot { path: PathBuf, file: File, from: u64 },
    /// All slots are taken.
    Own(PathBuf),
}

impl Trace {
    pub(super) fn new(site: &Site) -> Self {
        let is_taken = std::env::var_os("GIT_TRACE").is_some();
        let folder = std::path::absolute(&site.folder).ok().filter(|_| !is_taken);
        Trace { place: folder.and_then(|folder| Place::find(&folder)) }
    }

    /// Where git is to write it.
    pub(super) fn path(&self) -> Option<&Path> {
        match self.place.as_ref()? {
            Place::Slot { path, .. } | Place::Own(path) => Some(path),
        }
    }

    pub(super) fn shows_a_pack(&self) -> bool {
        let text = match &self.place {
            None => None,
            Some(Place::Own(path)) => fs::read(path).ok(),
            Some(Place::Slot { file, from, .. }) => rest(file, *from),
        };
        text.is_none_or(|text| String::from_utf8_lossy(&text).contains(" pack-objects "))
    }
}

impl Place {
    fn find(folder: &Path) -> Option<Self> {
        if !folder.is_dir() {
            fs::create_dir_all(folder).ok()?;
        }
        let slot = |number: usize| {
            let path = folder.join(format!("trace-{number}"));
            let file = OpenOptions::new().read(true).append(true).create(true).open(&path).ok()?;
            file.try_lock().ok()?;
            let length = file.metadata().ok()?.len();
            let from = if length > MOST_BYTES { file.set_len(0).ok().map(|()| 0)? } else { length };
            Some(Place::Slot { path, file, from })
        };
        let found = (0..SLOTS).find_map(slot);
        Some(found.unwrap_or_else(|| Place::Own(folder.join(format!("trace-{}", Nonce::random())))))
    }
}

/// What was added; none if the file is not what it was, or git wrote nothing at all.
fn rest(mut file: &File, from: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let is_whole = file.metadata().ok()?.len() >= from;
    file.seek(SeekFrom::Start(from)).ok().filter(|_| is_whole)?;
    file.read_to_end(&mut text).ok()?;
    Some(text).filter(|text| !text.is_empty())
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(Place::Own(path)) = &self.place {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn trace(folder: &Path) -> Trace {
        Trace { place: Place::find(folder) }
    }

    fn write(trace: &Trace, text: &str) {
        let file = OpenOptions::new().append(true).create(true).open(trace.path().unwrap());
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_push_sees_its_own_pack_and_not_that_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("leasehold");
        let first = trace(&place);
        write(&first, "trace: built-in: git push\n");
        assert!(!first.shows_a_pack());
        write(&first, "trace: run_command: git pack-objects --all\n");
        assert!(first.shows_a_pack());
        let beside = trace(&place);
        assert_ne!(beside.path(), first.path(), "two at a time share no file");
        assert!(beside.shows_a_pack(), "git wrote nothing at all");
        write(&beside, "trace: built-in: git push\n");
        assert!(!beside.shows_a_pack());
        let path = first.path().unwrap().to_owned();
        drop(first);
        let second = trace(&place);
        assert_eq!(second.path(), Some(&*path), "files are used again");
        write(&second, "trace: built-in: git push\n");
        assert!(!second.shows_a_pack());
        write(&second, &"x".repeat(70_000));
        drop(second);
        let third = trace(&place);
        assert_eq!(fs::metadata(third.path().unwrap()).unwrap().len(), 0, "it does not grow for ever");
    }

    #[test]
    fn in_doubt_it_shows_a_pack() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Trace::default().shows_a_pack());
        let slots: Vec<Trace> = (0..SLOTS).map(|_| trace(folder.path())).collect();
        let own = trace(folder.path());
        assert!(own.shows_a_pack(), "git wrote nothing at all");
        write(&own, "trace: built-in: git push\n");
        assert!(!own.shows_a_pack());
        let path = own.path().unwrap().to_owned();
        drop(own);
        assert!(!path.exists());
        write(&slots[0], "trace: built-in: git push\n");
        drop(slots);
        let again = trace(folder.path());
        let longer = OpenOptions::new().write(true).open(again.path().unwrap()).unwrap();
        longer.set_len(0).unwrap();
        assert!(again.shows_a_pack(), "somebody shortened it");
    }
}
