//! What kind of file system a path is on.
//!
//! Promise: [`Volume::Local`] is said only of file systems that this kernel alone writes to, so that its clock is theirs
//! and shared memory works on them. Non-promise: a local folder that a tool copies elsewhere (Dropbox, Syncthing) looks
//! local.

use crate::native;
use std::io;
use std::path::Path;

/// Who else may be writing to a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Volume {
    /// Nobody: a disk or memory of this machine.
    Local,
    /// Other machines: a network or cluster file system of this name.
    Network(&'static str),
    /// Unknown: a program stands behind it (FUSE), or the kind is not on our list.
    Unknown,
}

/// The kind of file system that an existing path is on.
pub fn of(path: &Path) -> io::Result<Volume> {
    native::volume::of(path)
}
