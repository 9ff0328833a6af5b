//! How many runs are kept in a folder.

use super::file::{is_being_written, parts};
use super::layout::ENDING;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

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

/// The files of runs in a folder, newest first.
pub fn kept(folder: &Path) -> Vec<(SystemTime, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<(SystemTime, PathBuf)> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.ends_with(ENDING)))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    files
}
