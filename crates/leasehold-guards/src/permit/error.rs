//! Errors of the file system, as errors that say what to do.
//!
//! Promise: one line that names the resource and the step, and a kind that fits the cause. Non-promise: whether a
//! missing file means *fenced* is not decided here; the caller lists the permits.

use crate::observe::file::FileStep;
use leasehold_core::observe::Observed;
use leasehold_core::{Error, Kind, Result};
use rustix::io::Errno;
use std::io;

/// The resource and its observer: every step is announced to it, and every error names the resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) resource: &'a str,
    pub(crate) steps: &'a Observed<FileStep>,
}

impl<'a> Scene<'a> {
    /// The same without an observer, for cleaning up: nothing is decided by it.
    pub(crate) fn quiet(&self) -> Scene<'a> {
        Scene { resource: self.resource, steps: &Observed::NOBODY }
    }

    /// Takes a step; the caller handles its error.
    pub(crate) fn attempt<T>(&self, step: FileStep, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.steps.reach(step)?;
        loop {
            match act() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                answer => return answer,
            }
        }
    }

    /// Takes a step; its error is final.
    pub(crate) fn take<T>(&self, step: FileStep, act: impl FnMut() -> io::Result<T>) -> Result<T> {
        self.attempt(step, act).map_err(|e| self.failed(step, e))
    }

    /// The error for a step that failed; the old content is in place.
    pub(crate) fn failed(&self, step: FileStep, cause: io::Error) -> Error {
        let (kind, advice) = advise(&cause);
        Error::new(kind, format!("cannot {step}: resource=`{}`: {advice}", self.resource)).with_source(cause)
    }

    /// The error for a publish that is visible but perhaps not durable.
    pub(crate) fn unsure(&self, cause: io::Error) -> Error {
        let message = format!(
            "published, but the folder could not be synced: resource=`{}` is visible now and may not survive a crash \
             of the machine; read it back",
            self.resource
        );
        Error::new(Kind::Indeterminate, message).with_source(cause)
    }

    /// The error for a fence folder that something else has changed.
    pub(crate) fn corrupt(&self, what: &str) -> Error {
        Error::new(Kind::Corrupt, format!("corrupt fence: resource=`{}`: {what}", self.resource))
    }
}

fn advise(cause: &io::Error) -> (Kind, &'static str) {
    match errno(cause) {
        Some(Errno::XDEV) => {
            (Kind::Unsupported, "the fence folder and the target must be on one file system, nothing was changed")
        }
        Some(Errno::BUSY) => (Kind::Unsupported, "the target is a mount point, guard the folder around it instead"),
        Some(Errno::ROFS) => (Kind::Unsupported, "the file system is read-only"),
        Some(Errno::ACCESS | Errno::PERM) => {
            (Kind::Unsupported, "permission is missing on the folder, its fence folder or the target")
        }
        Some(Errno::NAMETOOLONG) => (Kind::Invalid, "use a shorter path"),
        Some(Errno::NOSPC | Errno::DQUOT) => (Kind::Unavailable, "the disk is full, the old content stays"),
        Some(e) if e == Errno::NOTSUP || e == Errno::OPNOTSUPP || e == Errno::NOSYS => {
            (Kind::Unsupported, "this file system cannot do it, use a local or NFS one")
        }
        _ => (Kind::Unavailable, "the old content stays"),
    }
}

/// The system's number for this cause, if it came from there.
pub(crate) fn errno(cause: &io::Error) -> Option<Errno> {
    cause.raw_os_error().map(Errno::from_raw_os_error)
}

/// A file or folder is not there any more: by name, or by a handle that a file server has forgotten.
pub(crate) fn vanished(cause: &io::Error) -> bool {
    matches!(errno(cause), Some(Errno::NOENT | Errno::STALE))
}

pub(crate) fn exists(cause: &io::Error) -> bool {
    errno(cause) == Some(Errno::EXIST)
}
