//! How many runs are kept in a folder.

use super::file::{is_being_written, parts};
use super::layout::ENDING;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// By how much the clock of a shared disk may be ahead of this machine's.
const SKEW: Duration = Duration::from_secs(60);

/// Removes the oldest runs beside this one, best effort: what is still being written stays.
pub fn apply(path: &Path, runs: u64) {
    let Some(folder) = path.parent() else { return };
    let surplus = kept(folder).into_iter().skip(usize::try_from(runs).unwrap_or(usize::MAX));
    for (_, old) in surplus.filter(|(_, old)| old != path && !is_being_written(old)) {
        remove(&old);
    }
}

/// Removes a run's files.
pub fn remove(path: &Path) {
    parts(path).iter().chain([&path.to_path_buf()]).for_each(|file| drop(std::fs::remove_file(file)));
}

/// The files of runs in a folder, newest first. One that is dated in the future was written while the clock was ahead: it is
/// taken for the oldest, or it would never be removed, and every newer one in its stead.
pub fn kept(folder: &Path) -> Vec<(SystemTime, PathBuf)> {
    let latest = SystemTime::UNIX_EPOCH + Duration::from_millis(leasehold_system::clock::wall_ms()) + SKEW;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<(SystemTime, PathBuf)> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.ends_with(ENDING)))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .map(|(at, path)| (if at > latest { SystemTime::UNIX_EPOCH } else { at }, path))
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    files
}
