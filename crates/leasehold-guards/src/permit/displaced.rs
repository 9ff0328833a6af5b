//! Trees that a publish has displaced by exchange: perhaps the only copy of what somebody made by hand.
//!
//! While a staged tree may be exchanged, its name has its inode: `tree-<inode>`. If the publisher dies, the next one
//! finds either that folder there, which nobody needs, or another one, which was displaced.
//!
//! Promise: a displaced tree stays in the fence folder until a publish that succeeded has moved it to the generations.
//! A stale exchange finds its whole source or none. Non-promise: with `--keep 0` it is removed.

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
/// Prefix, in the fence folder, of what may have been displaced; a random number and the inode of what was staged
/// follow.
pub(crate) const SWAPPED: &str = "swapped-";
/// Prefix, in the fence folder, of what was displaced; a random number follows.
pub(crate) const DISPLACED: &str = "displaced-";

/// What a tree of this inode is called while it may be exchanged.
#[cfg(feature = "folder")]
pub(crate) fn tree_name(inode: u64) -> String {
    format!("{TREE}{inode}")
}

/// Moves out of a permit what its publishers may have displaced.
pub(crate) fn rescue_from_permit(scene: &Scene<'_>, fence: &OwnedFd, permit: &str) -> Result<()> {
    for (name, kind) in entries(scene, fence, permit)? {
        let is_stage = name.strip_prefix(STAGE).is_some_and(|nonce| nonce.parse::<Nonce>().is_ok());
        if is_stage && kind == FileType::Directory {
            rescue_from_stage(scene, fence, &format!("{permit}/{name}"))?;
        }
    }
    Ok(())
}

/// The same for one stage. It is moved first and judged then, because once it has moved nobody can exchange it.
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

/// Whether [`judge`] has to decide about it.
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
