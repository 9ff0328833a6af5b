//! How many runs are kept in a folder.

use super::file::{is_locked, parts_among};
use super::folder::Folder;
use super::layout::RunFile;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// By how much the clock of a shared disk may be ahead of this machine's.
const SKEW: Duration = Duration::from_secs(60);

/// Removes the oldest runs in this folder, best effort: this one stays, and so does what is still being written.
pub fn apply(folder: &Path, name: &str, runs: u64) {
    let Ok(folder) = Folder::open(folder) else { return };
    let surplus = list_runs(&folder).into_iter().skip(usize::try_from(runs).unwrap_or(usize::MAX));
    for (_, old) in surplus.filter(|(_, old)| old != name && !is_being_written(&folder, old)) {
        remove(&folder, &old);
    }
}

/// Removes a run's files.
pub fn remove(folder: &Folder, name: &str) {
    parts_among(folder.names(), name).iter().chain([&name.to_owned()]).for_each(|file| drop(folder.remove(file)));
}

/// Whether somebody is still writing this file.
pub fn is_being_written(folder: &Folder, name: &str) -> bool {
    folder.read(name).is_ok_and(|file| is_locked(&file))
}

/// The files of runs in a folder, newest first; what else lies there is not ours. One that is dated in the future was written
/// while the clock was ahead: it is taken for the oldest, or it would never be removed, and every newer one in its stead.
pub fn list_runs(folder: &Folder) -> Vec<(SystemTime, String)> {
    let latest = SystemTime::UNIX_EPOCH + Duration::from_millis(leasehold_system::clock::wall_ms()) + SKEW;
    let mut files: Vec<(SystemTime, String)> = folder
        .names()
        .into_iter()
        .filter(|name| RunFile::parse(name).is_some())
        .filter_map(|name| Some((folder.read(&name).ok()?.metadata().ok()?.modified().ok()?, name)))
        .map(|(at, name)| (if at > latest { SystemTime::UNIX_EPOCH } else { at }, name))
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    files
}
