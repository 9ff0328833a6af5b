//! Darwin has no control groups, so none is ever created.

use rustix::process::Pid;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[derive(Debug)]
pub(crate) enum Cgroup {}

impl Cgroup {
    pub(crate) fn make(_key: &str) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "macOS has no control groups"))
    }

    pub(crate) fn find(_maker: Pid, _key: &str) -> Option<Self> {
        None
    }

    pub(crate) fn path(&self) -> &Path {
        match *self {}
    }

    pub(crate) fn spawn(&self, _command: &mut Command) -> io::Result<io::Result<Pid>> {
        match *self {}
    }

    pub(crate) fn usage(&self) -> (Option<Duration>, Option<u64>) {
        match *self {}
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        match *self {}
    }
}
