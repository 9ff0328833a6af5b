//! A file that a child of ours writes and we read.
//!
//! Promise: only this user can read it; it has a path until it is dropped, and is removed
//! then. Where the system can, it is in memory, so that nothing is left even if we are killed.
//! Non-promise: elsewhere, a killed process leaves a file in the folder for temporary files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A file that is removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Whether the path is to be removed.
    pub(crate) is_on_disk: bool,
}

impl Scratch {
    /// An empty file.
    pub fn new() -> io::Result<Self> {
        crate::native::scratch()
    }

    /// The path by which a child process opens it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything that was written to it.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&self.file).seek(SeekFrom::Start(0))?;
        (&self.file).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_on_disk {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_writes_and_we_read_and_then_it_is_gone() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        for word in ["one", "two"] {
            let wrote = Command::new("sh").args(["-c", "echo $1 >>$0"]).arg(&path).arg(word).status().unwrap();
            assert!(wrote.success());
        }
        assert_eq!(scratch.read().unwrap(), b"one\ntwo\n");
        drop(scratch);
        assert!(!path.exists());
    }
}
