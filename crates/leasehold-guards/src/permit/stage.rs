//! Stages: what a writer prepares inside its own permit before it publishes.
//!
//! Promise: a stage that a live process of our tenure uses is not removed by another. Non-promise: locks are only hints for
//! cleaning up; no write is decided by one.

use super::displaced;
use super::teardown::discard_aside;
use super::{Permits, STAGE};
#[cfg(feature = "folder")]
use crate::observe::file::FileStep;
#[cfg(feature = "folder")]
use leasehold_core::Result;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;

#[cfg(feature = "folder")]
const TURN: &str = "turn";

impl Permits<'_> {
    /// Waits until no other process of our tenure is publishing. A higher epoch does not wait: it removes the locked
    /// file.
    #[cfg(feature = "folder")]
    pub(crate) fn turn(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let turn = rustix::fs::openat(&self.fence, format!("{}/{TURN}", self.own), flags, mode)
            .map_err(|e| self.why(FileStep::Anchor, e.into()))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&turn, FlockOperation::LockExclusive))
            .map_err(|e| self.scene.failed(FileStep::Anchor, e.into()))?;
        Ok(turn)
    }

    /// Removes what one call staged; what cannot be removed now goes with the permit.
    pub(crate) fn drop_stage(&self, stage: &str) {
        if rustix::fs::unlinkat(&self.fence, stage, AtFlags::empty()).is_err() {
            let quiet = self.scene.quiet();
            // If what it may have displaced cannot be saved now, it is left to the next seal.
            if displaced::rescue_from_stage(&quiet, &self.fence, stage).is_ok() {
                discard_aside(&quiet, &self.fence, stage, &self.fence);
            }
        }
    }

    /// Removes what crashed processes of our own tenure have staged. A live one holds its stage; that is only a hint
    /// for cleaning up, nothing is decided by it.
    pub(crate) fn drop_abandoned(&self) {
        for name in self.own_entries(STAGE) {
            let stage = format!("{}/{name}", self.own);
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let Ok(opened) = rustix::fs::openat(&self.fence, stage.as_str(), flags, Mode::empty()) else { continue };
            if abandoned(&opened) {
                self.drop_stage(&stage);
            }
        }
    }
}

/// Marks a stage as in use by a live process, as far as the file system can. A stage that somebody has just cleaned up
/// counts as vanished.
pub(crate) fn hold(stage: &OwnedFd) -> io::Result<()> {
    let held = rustix::fs::flock(stage, FlockOperation::NonBlockingLockExclusive);
    if held == Err(Errno::WOULDBLOCK) || rustix::fs::fstat(stage)?.st_nlink == 0 {
        return Err(Errno::NOENT.into());
    }
    Ok(())
}

/// True if no live process holds this stage; false also where the file system cannot tell.
fn abandoned(stage: &OwnedFd) -> bool {
    rustix::fs::flock(stage, FlockOperation::NonBlockingLockExclusive).is_ok()
}
