//! Trees that a publish has displaced by exchange: perhaps the only copy of what somebody made by hand.
//!
//! While a staged tree may be exchanged, its name says its inode: `tree-<inode>`. Whoever clears the stage of a publisher
//! that died finds that very folder there, which nobody misses, or another one, which was displaced.
//!
//! Promise: a displaced tree is in the fence folder or among the generations until a publish that succeeded has put it
//! there; a stale exchange that is under way finds its whole source or none. Non-promise: with `--keep 0` it goes.

use crate::observe::file::FileStep;
use crate::permit::STAGE;
use crate::permit::error::{Scene, vanished};
use crate::permit::fence::{names, open_folder};
use crate::permit::teardown::discard_aside;
use leasehold_core::{Nonce, Result};
use rustix::fs::{AtFlags, FileType};
use std::io;
use std::os::fd::OwnedFd;

const TREE: &str = "tree-";
/// What may have been displaced, in the fence folder: before a random number and the inode of what was staged.
pub(crate) const SWAPPED: &str = "swapped-";
/// What was displaced, in the fence folder: before a random number.
pub(crate) const DISPLACED: &str = "displaced-";

/// What a tree of this inode is called while it may be exchanged.
#[cfg(feature = "folder")]
pub(crate) fn tree_name(inode: u64) -> String {
    format!("{TREE}{inode}")
}

/// Takes out of a permit that was set aside what its publishers may have displaced.
pub(crate) fn rescue_from_permit(scene: &Scene<'_>, fence: &OwnedFd, permit: &str) -> Result<()> {
    for (name, kind) in entries(scene, fence, permit)? {
        let is_stage = name.strip_prefix(STAGE).is_some_and(|nonce| nonce.parse::<Nonce>().is_ok());
        if is_stage && kind == FileType::Directory {
            rescue_from_stage(scene, fence, &format!("{permit}/{name}"))?;
        }
    }
    Ok(())
}

/// The same for one stage. Moved first, then judged: once it has moved, nobody can exchange it any more.
pub(crate) fn rescue_from_stage(scene: &Scene<'_>, fence: &OwnedFd, stage: &str) -> Result<()> {
    for (name, kind) in entries(scene, fence, stage)? {
        let Some(inode) = name.strip_prefix(TREE).and_then(|inode| inode.parse::<u64>().ok()) else { continue };
        if kind != FileType::Directory {
            continue;
        }
        let swapped = format!("{SWAPPED}{}-{inode}", Nonce::random());
        match rustix::fs::renameat(fence, format!("{stage}/{name}"), fence, swapped.as_str()).map_err(io::Error::from) {
            Err(e) if vanished(&e) => {}
            Err(e) => return Err(scene.failed(FileStep::Empty, e)),
            Ok(()) => judge(scene, fence, &swapped)?,
        }
    }
    Ok(())
}

/// True for what [`judge`] judges.
pub(crate) fn is_swapped(name: &str) -> bool {
    staged_inode(name).is_some()
}

fn staged_inode(name: &str) -> Option<u64> {
    let (nonce, inode) = name.strip_prefix(SWAPPED)?.split_once('-')?;
    nonce.parse::<Nonce>().ok()?;
    inode.parse().ok()
}

/// Keeps what was displaced, removes what was only staged.
pub(crate) fn judge(scene: &Scene<'_>, fence: &OwnedFd, swapped: &str) -> Result<()> {
    let stat = match rustix::fs::statat(fence, swapped, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from) {
        Err(e) if vanished(&e) => return Ok(()),
        answer => answer.map_err(|e| scene.failed(FileStep::Empty, e))?,
    };
    if staged_inode(swapped) == Some(stat.st_ino) {
        discard_aside(scene, fence, swapped, fence);
        return Ok(());
    }
    let displaced = format!("{DISPLACED}{}", Nonce::random());
    match rustix::fs::renameat(fence, swapped, fence, displaced.as_str()).map_err(io::Error::from) {
        Err(e) if !vanished(&e) => Err(scene.failed(FileStep::Empty, e)),
        _ => Ok(()),
    }
}

fn entries(scene: &Scene<'_>, fence: &OwnedFd, folder: &str) -> Result<Vec<(String, FileType)>> {
    let listed = open_folder(fence, folder).map_err(io::Error::from).and_then(|at| names(&at));
    match listed {
        Err(e) if vanished(&e) || e.kind() == io::ErrorKind::NotADirectory => Ok(Vec::new()),
        answer => answer.map_err(|e| scene.failed(FileStep::Empty, e)),
    }
}
