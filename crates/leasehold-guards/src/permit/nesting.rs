//! Guards inside guards: a folder is guarded as a whole, or its parts are.
//!
//! A publish replaces a folder together with the fences in it, and what they remember would be lost. So a guard of the
//! whole refuses a tree with fences, and a guard of a part refuses a place in a tree with a fence.
//!
//! Promise: each makes its own fence folder and then looks for the other's. So of two that start at the same moment at
//! least one is refused, before anything is written. Non-promise: a folder with two names (bind mounts) counts as two
//! folders.

use crate::observe::file::FileStep;
use crate::permit::error::{Scene, vanished};
use crate::permit::location::{ArtifactPath, hidden, shown};
use leasehold_core::{Error, Kind, Result};
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How many fences are named in a message.
const MAX_NAMED: usize = 3;

/// Refuses a place in a folder that is guarded as a whole, and a folder whose parts are guarded.
pub(crate) fn refuse(scene: &Scene<'_>, artifact: &ArtifactPath) -> Result<()> {
    let folder = artifact.folder.canonicalize().map_err(|e| scene.failed(FileStep::List, e))?;
    for around in folder.ancestors() {
        let Some(fence) = fence_of(around) else { continue };
        let message = format!(
            "resource=`{}` is inside of `{}`, which is guarded as a whole: the next publish would take its fence away. \
             Publish the whole folder; or, if nothing publishes it any more, remove `{}` while no job runs",
            scene.resource,
            shown(around),
            shown(&fence)
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    let is_folder = artifact.found.as_ref().is_some_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory);
    if !is_folder {
        return Ok(());
    }
    let fences = fences_in(&artifact.folder.join(&artifact.name)).map_err(|e| scene.failed(FileStep::List, e))?;
    if fences.is_empty() {
        return Ok(());
    }
    let named: Vec<_> = fences.iter().take(MAX_NAMED).map(|fence| format!("`{}`", shown(fence))).collect();
    let more = fences.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "resource=`{}` holds fences of its own: {}{more}. A publish would take them away, and stale writers could write there \
         again. Write its files one by one; or, if nothing writes them any more, remove those fences while no job runs",
        scene.resource,
        named.join(", ")
    );
    Err(Error::new(Kind::Invalid, message))
}

/// The fence folder of this folder, if there is one.
fn fence_of(folder: &Path) -> Option<PathBuf> {
    let fence = folder.parent()?.join(hidden(folder.file_name()?, ".fence"));
    fence.symlink_metadata().is_ok_and(|stat| stat.is_dir()).then_some(fence)
}

fn is_fence_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.len() > "..fence".len() && name.starts_with(b".") && name.ends_with(b".fence")
}

/// True for a fence folder that a lease has founded.
#[cfg(feature = "folder")]
pub(crate) fn is_fence(folder: &Path) -> bool {
    folder.file_name().is_some_and(is_fence_name) && folder.join(crate::permit::fence::LEASE).is_file()
}

fn fences_in(tree: &Path) -> io::Result<Vec<PathBuf>> {
    let mut fences = Vec::new();
    let mut open = vec![tree.to_path_buf()];
    while let Some(folder) = open.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(e) if vanished(&e) => continue,
            answer => answer?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.file_type() {
                Err(e) if vanished(&e) => {}
                Err(e) => return Err(e),
                Ok(kind) if !kind.is_dir() => {}
                Ok(_) if is_fence_name(&entry.file_name()) => fences.push(entry.path()),
                Ok(_) => open.push(entry.path()),
            }
        }
    }
    fences.sort();
    Ok(fences)
}
