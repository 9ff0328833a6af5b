//! What lies in a spool's folders, entry by entry.
//!
//! Promise: what cannot be an item, or cannot be read, is named and skipped, and hides nothing else. Links are
//! not followed. Non-promise: an entry that moves while its folder is read may be missed.

use super::folder::{Spool, SpoolItem, Where, failed, same_file};
use super::name::FileName;
use crate::queue::{DedupeKey, ItemId};
use leasehold_core::{Error, Kind, Result, printable};
use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// How many different warnings one worker gives.
const MOST_TOLD: usize = 1_000;

/// What is in a folder.
#[derive(Default)]
pub(super) struct Listing {
    /// Plain files whose names are text.
    pub files: Vec<String>,
    /// Folders whose names are text.
    pub folders: Vec<String>,
    /// Names that begin with a dot, whatever they are of.
    pub hidden: Vec<String>,
    /// Everything else, as it can be shown: links, pipes, devices, names that are not UTF-8.
    pub others: Vec<String>,
}

impl Listing {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        [&self.files, &self.folders, &self.hidden, &self.others].iter().all(|found| found.is_empty())
    }

    /// Names what lies there and is no plain file.
    pub fn odd(&self, folder: &Path) -> impl Iterator<Item = Error> {
        let why = "it is no plain file with a name in UTF-8; move it elsewhere, or remove it";
        self.folders.iter().chain(&self.others).map(move |odd| odd_entry(folder, odd, why))
    }
}

/// The warning about an entry that is skipped.
pub(super) fn odd_entry(folder: &Path, name: &str, why: &str) -> Error {
    Error::new(Kind::Invalid, format!("passed over `{}` in {}: {why}", printable(name), folder.display()))
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

/// A file in `ready/` with a name of another form than items have: the worker that claims it makes an item of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainFile {
    /// Its name in `ready/`.
    pub name: String,
    /// The id that it gets, if its name is a key that no other item has; otherwise it gets a new one.
    pub id: Option<ItemId>,
}

/// Everything that a user can see of a spool.
#[derive(Debug, Default)]
pub struct SpoolSurvey {
    /// Every item, wherever it is.
    pub items: Vec<SpoolItem>,
    /// Folders that this user cannot look into; there may be items in them.
    pub closed: Vec<Error>,
    /// What lies where items do and cannot be one.
    pub odd: Vec<Error>,
}

impl Spool {
    /// The items in a folder, in order. Strangers' files are left out.
    pub fn items(&self, place: &Where) -> Result<Vec<FileName>> {
        Ok(in_order(names(&self.path(place.folder()))?))
    }

    /// Looks at everything. What cannot be looked at hides nothing else.
    pub fn survey(&self) -> SpoolSurvey {
        let mut seen = SpoolSurvey::default();
        let mut places = vec![Where::Ready, Where::Later, Where::Done, Where::Failed, Where::Cancelled];
        match listing(&self.path("claimed")) {
            Ok(claimed) => drop(places.splice(2..2, claimed.folders.into_iter().map(Where::Claimed))),
            Err(error) => seen.closed.push(error),
        }
        for place in places {
            let folder = self.path(place.folder());
            match listing(&folder) {
                Ok(found) => {
                    seen.odd.extend(found.odd(&folder));
                    let items = in_order(found.files).into_iter();
                    seen.items.extend(items.map(|name| SpoolItem { name, place: place.clone() }));
                }
                Err(error) => seen.closed.push(error),
            }
        }
        seen
    }

    /// What waits under a plain name, in the order in which it is claimed.
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

/// What a worker has told of, each once.
#[derive(Debug, Default)]
pub(super) struct Told {
    said: HashSet<String>,
    warn: Option<fn(&Error)>,
}

impl Told {
    /// Tells by this from now on.
    pub fn by(&mut self, warn: fn(&Error)) {
        self.warn = Some(warn);
    }

    /// Tells, unless it did before.
    pub fn tell(&mut self, error: &Error) {
        let Some(warn) = self.warn else { return };
        if self.said.len() < MOST_TOLD && self.said.insert(error.to_string()) {
            warn(error);
            if self.said.len() == MOST_TOLD {
                warn(&Error::new(Kind::Invalid, format!("{MOST_TOLD} such lines were said; there may be more")));
            }
        }
    }
}
