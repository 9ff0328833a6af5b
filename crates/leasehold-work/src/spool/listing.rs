//! The contents of a spool's folders, entry by entry.
//!
//! Promise: an entry that cannot be an item, or cannot be read, is reported and skipped, and hides no other. Links are
//! not followed. Non-promise: an entry that moves while its folder is read may be missed.

use super::folder::{Spool, SpoolFolder, SpoolItem, failed, same_file};
use super::name::FileName;
use crate::queue::{DedupeKey, ItemId};
use leasehold_core::{Error, Kind, Result, printable};
use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// How many different warnings one worker gives.
const MAX_WARNINGS: usize = 1_000;

/// The contents of a folder.
#[derive(Default)]
pub(super) struct Listing {
    /// Plain files whose names are text.
    pub files: Vec<String>,
    /// Folders whose names are text.
    pub folders: Vec<String>,
    /// Names that begin with a dot, of files of any kind.
    pub hidden: Vec<String>,
    /// Everything else, made printable: links, pipes, devices, names that are not UTF-8.
    pub others: Vec<String>,
}

impl Listing {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        [&self.files, &self.folders, &self.hidden, &self.others].iter().all(|found| found.is_empty())
    }

    /// An error for each entry that is not a plain file.
    pub fn foreign(&self, folder: &Path) -> impl Iterator<Item = Error> {
        let why = "not a plain file with a UTF-8 name; move it elsewhere, or remove it";
        self.folders.iter().chain(&self.others).map(move |foreign| foreign_entry(folder, foreign, why))
    }
}

/// The warning about an entry that is skipped.
pub(super) fn foreign_entry(folder: &Path, name: &str, why: &str) -> Error {
    Error::new(Kind::Invalid, format!("skipped `{}` in {}: {why}", printable(name), folder.display()))
}

/// Lists a folder.
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
            Ok(name) if name.starts_with('.') => {
                found.hidden.push(name);
                continue;
            }
            Ok(name) => name,
            Err(name) => {
                found.others.push(name.to_string_lossy().into_owned());
                continue;
            }
        };
        match entry.file_type() {
            Ok(kind) if kind.is_file() => found.files.push(name),
            Ok(kind) if kind.is_dir() => found.folders.push(name),
            Ok(_) => found.others.push(name),
            // Moved on in the meantime.
            Err(_) => {}
        }
    }
    Ok(found)
}

/// The plain files in a folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    Ok(listing(folder)?.files)
}

/// The folders in a folder. Links to folders do not count.
pub(super) fn folders(folder: &Path) -> Result<Vec<String>> {
    Ok(listing(folder)?.folders)
}

/// A file in `ready/` whose name is not an item's. The worker that claims it turns it into an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainFile {
    /// Its name in `ready/`.
    pub name: String,
    /// The id that it will get, if its name is a key that no other item has; otherwise it gets a new id.
    pub id: Option<ItemId>,
}

/// Everything that a user can see of a spool.
#[derive(Debug, Default)]
pub struct SpoolSurvey {
    /// Every item, wherever it is.
    pub items: Vec<SpoolItem>,
    /// Errors of folders that this user cannot look into; there may be items in them.
    pub closed: Vec<Error>,
    /// Errors for entries that are where items are and cannot be one.
    pub foreign: Vec<Error>,
}

impl Spool {
    /// The items in a folder, in order. Files with other names are left out.
    pub fn items(&self, folder: &SpoolFolder) -> Result<Vec<FileName>> {
        Ok(in_order(names(&self.path(folder.path()))?))
    }

    /// Reads everything. What cannot be read hides nothing else.
    pub fn survey(&self) -> SpoolSurvey {
        let mut seen = SpoolSurvey::default();
        let mut kinds = vec![
            SpoolFolder::Ready,
            SpoolFolder::Later,
            SpoolFolder::Done,
            SpoolFolder::Failed,
            SpoolFolder::Cancelled,
        ];
        match listing(&self.path("claimed")) {
            Ok(claimed) => drop(kinds.splice(2..2, claimed.folders.into_iter().map(SpoolFolder::Claimed))),
            Err(error) => seen.closed.push(error),
        }
        for kind in kinds {
            let folder = self.path(kind.path());
            match listing(&folder) {
                Ok(found) => {
                    seen.foreign.extend(found.foreign(&folder));
                    let items = in_order(found.files).into_iter();
                    seen.items.extend(items.map(|name| SpoolItem { name, folder: kind.clone() }));
                }
                Err(error) => seen.closed.push(error),
            }
        }
        seen
    }

    /// Waiting files with plain names, in the order in which they are claimed.
    pub fn plain_files(&self) -> Result<Vec<PlainFile>> {
        let key = |name: &String| {
            let key: DedupeKey = name.parse().ok()?;
            let taken = self.path("keys").join(key.as_str());
            let is_free = taken.symlink_metadata().is_err() || same_file(&self.path("ready").join(name), &taken);
            is_free.then(|| ItemId::keyed(&key))
        };
        let mut plain = names(&self.path("ready"))?;
        plain.retain(|name| FileName::parse(name).is_none());
        plain.sort_unstable();
        Ok(plain.into_iter().map(|name| PlainFile { id: key(&name), name }).collect())
    }

    /// Every item, wherever it is; an error if some may be where this user cannot look.
    pub fn everything(&self) -> Result<Vec<SpoolItem>> {
        let SpoolSurvey { items, closed, .. } = self.survey();
        closed.into_iter().next().map_or(Ok(items), Err)
    }
}

fn in_order(mut names: Vec<String>) -> Vec<FileName> {
    names.sort_unstable();
    names.iter().filter_map(|name| FileName::parse(name)).collect()
}

/// The warnings that a worker has given, each once.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    given: HashSet<String>,
    warn: Option<fn(&Error)>,
}

impl Warnings {
    /// Sets the function that is called with warnings.
    pub fn by(&mut self, warn: fn(&Error)) {
        self.warn = Some(warn);
    }

    /// Warns, unless it did so before.
    pub fn warn(&mut self, error: &Error) {
        let Some(warn) = self.warn else { return };
        if self.given.len() < MAX_WARNINGS && self.given.insert(error.to_string()) {
            warn(error);
            if self.given.len() == MAX_WARNINGS {
                warn(&Error::new(Kind::Invalid, format!("{MAX_WARNINGS} such warnings were given; there may be more")));
            }
        }
    }
}
