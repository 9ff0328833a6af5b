//! How many runs are kept in a folder.

use super::file::{is_locked, parts_among};
use super::folder::Folder;
use super::layout::{self, RunFile};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// By how much the clock of a shared disk may be ahead of this machine's.
const SKEW: Duration = Duration::from_secs(60);
/// How long nothing of a job was written under another host's name before its runs there are taken for left behind.
const LEFT_AFTER: Duration = Duration::from_secs(86_400);
/// How many folders of other hosts are looked into after a run.
const MAX_HOMES: usize = 1_000;

/// Removes the oldest runs in this folder, best effort: this one stays, and so does what is still being written. Of what was
/// left behind under other host names, as each start of a container may have its own, as many runs stay in all.
pub fn apply(folder: &Path, name: &str, runs: u64) {
    let runs = usize::try_from(runs).unwrap_or(usize::MAX);
    if let Ok(folder) = Folder::open(folder) {
        let surplus = list_runs(&folder).into_iter().skip(runs);
        for (_, old) in surplus.filter(|(_, old)| old != name && !is_being_written(&folder, old)) {
            remove(&folder, &old);
        }
    }
    apply_to_left(folder, runs);
}

/// The same for what other homes of this user have of the same job, and where nobody has written for long.
fn apply_to_left(folder: &Path, runs: usize) {
    let (Some(home), Some(job)) = (folder.parent(), folder.file_name()) else { return };
    let Some(root) = home.parent() else { return };
    let (now, mut left) = (wall(), Vec::new());
    for other in other_homes(root, home) {
        let folder = other.join(job);
        let Ok(open) = Folder::open(&folder) else { continue };
        let there = list_runs(&open);
        if there.first().is_some_and(|(newest, _)| *newest + LEFT_AFTER < now) {
            left.extend(there.into_iter().map(|(at, file)| (at, folder.clone(), file)));
        }
    }
    left.sort_by(|a, b| b.cmp(a));
    for (_, folder, old) in left.into_iter().skip(runs) {
        let Ok(open) = Folder::open(&folder) else { continue };
        if !is_being_written(&open, &old) {
            remove(&open, &old);
            // Both only once they are empty.
            let _ = std::fs::remove_dir(&folder);
            let _ = folder.parent().map(std::fs::remove_dir);
        }
    }
}

/// The folders of this user under other host names.
fn other_homes(root: &Path, home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        path != home && path.file_name().and_then(|name| name.to_str()).is_some_and(layout::is_home_of_this_user)
    };
    entries.filter(is_ours).take(MAX_HOMES).collect()
}

/// Removes a run's files.
pub fn remove(folder: &Folder, name: &str) {
    parts_among(folder.names(), name).iter().chain([&name.to_owned()]).for_each(|file| drop(folder.remove(file)));
}

/// Whether somebody is still writing this file.
pub fn is_being_written(folder: &Folder, name: &str) -> bool {
    folder.read(name).is_ok_and(|file| is_locked(&file))
}

fn wall() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(leasehold_system::clock::wall_ms())
}

/// The files of runs in a folder, newest first; what else lies there is not ours. One that is dated in the future was written
/// while the clock was ahead: it is taken for the oldest, or it would never be removed, and every newer one in its stead.
pub fn list_runs(folder: &Folder) -> Vec<(SystemTime, String)> {
    let latest = wall() + SKEW;
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_behind_under_other_host_names_is_bounded_together() {
        let root = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let name = |epoch: u64| format!("{epoch}-0123456789abcdef0123456789abcdef{}", layout::ENDING);
        let run = |home: &str, epoch: u64, hours: u64| {
            let folder = root.path().join(home).join("nightly");
            let file = Folder::make(&folder).unwrap().create(&name(epoch)).unwrap();
            file.set_modified(wall() - Duration::from_secs(hours * 3_600)).unwrap();
            (folder.join(name(epoch)), file)
        };
        let own = layout::home();
        let mine = run(&own, 90, 0).0;
        let left: Vec<PathBuf> = (0..5).map(|n| run(&format!("box{n}-{user}"), n, 100 - n).0).collect();
        // Another machine that writes still has its own number; another user's are not ours.
        let busy: Vec<PathBuf> = (0..5).map(|n| run(&format!("busy-{user}"), 10 + n, 20 * n).0).collect();
        let strange = run(&format!("strange-{}", user + 1), 7, 500).0;
        apply(mine.parent().unwrap(), &name(90), 2);
        let is_there = |path: &PathBuf| path.exists();
        assert_eq!(left.iter().map(is_there).collect::<Vec<_>>(), [false, false, false, true, true]);
        assert!(busy.iter().all(is_there) && mine.exists() && strange.exists());
        assert!(!root.path().join(format!("box0-{user}")).exists(), "an empty folder of a host is left");
    }
}
