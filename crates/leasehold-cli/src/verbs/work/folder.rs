//! The private folder in which a command finds its payload and leaves its result.

use crate::private_folder::{PrivateFolder, cannot, sweep};
use crate::run_context::{ContextFile, RunContext};
use leasehold_core::Result;
use leasehold_system::undo::{Fix, is_disabled};
use leasehold_work::backlog::Content;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

pub struct WorkFolder(PrivateFolder);

impl WorkFolder {
    pub fn new() -> Result<Self> {
        sweep();
        PrivateFolder::new().map(WorkFolder)
    }

    /// Clears it, and lays out the payload; gives its path. A folder that was removed, as cleaners of temporary files do, is
    /// created again under another name.
    pub fn prepare(&mut self, payload: &Content) -> Result<PathBuf> {
        if !self.0.is_there() && !is_disabled(Fix::LaneFolderNotMadeAgain) {
            *self = WorkFolder::new()?;
        }
        for path in [self.result(), self.follow_ups()] {
            let _ = std::fs::remove_file(path);
        }
        let bytes = match payload {
            Content::File(path) => return Ok(path.clone()),
            Content::Bytes(bytes) => bytes,
        };
        let path = self.0.file("payload");
        File::create(&path).and_then(|mut file| file.write_all(bytes)).map_err(|e| cannot(e, &path))?;
        Ok(path)
    }

    pub fn result(&self) -> PathBuf {
        self.0.file("result")
    }

    pub fn follow_ups(&self) -> PathBuf {
        self.0.file("follow-ups")
    }

    /// The file in which the command finds its lease.
    pub fn context(&self, context: RunContext) -> ContextFile {
        ContextFile::within(&self.0, context)
    }
}
