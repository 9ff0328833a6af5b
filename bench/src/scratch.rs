//! Where the state is kept: a temporary folder on a real disk, removed afterwards.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder for one run.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    file_system: String,
}

impl Scratch {
    /// A new folder in the one given, or beside this program.
    pub fn new(within: Option<&Path>) -> Result<Self> {
        let within = match within {
            Some(folder) => folder.to_path_buf(),
            None => std::env::current_exe()?.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf),
        };
        let folder = tempfile::Builder::new()
            .prefix("bench-")
            .tempdir_in(&within)
            .with_context(|| format!("cannot use {}", within.display()))?;
        let file_system = file_system_of(&folder.path().canonicalize()?);
        if ["tmpfs", "ramfs"].contains(&&*file_system) {
            let shown = within.display();
            bail!("{shown} is in memory, where fsync costs nothing; give a folder on a disk with --scratch");
        }
        Ok(Scratch { folder, file_system })
    }

    /// Removed, with all that is in it, when this is dropped.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A new folder inside it.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.path().join(name);
        std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// The kind of file system, as the system names it.
    pub fn file_system(&self) -> &str {
        &self.file_system
    }
}

/// The kind of the mount that this path is in.
fn file_system_of(path: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    mounts
        .filter(|(mount, _)| path.starts_with(mount))
        // Of two at the same point the later covers the earlier, and `max_by_key` gives the last.
        .max_by_key(|(mount, _)| mount.len())
        .map_or_else(|| "unknown".into(), |(_, kind)| kind.to_owned())
}
