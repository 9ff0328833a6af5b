//! Watching by polling: a kqueue would need an open descriptor per path and calls that safe code cannot make.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The interval of polling.
const LOOK: Duration = Duration::from_millis(200);

/// Hints about one folder's entries, or one file's content.
#[derive(Debug)]
pub struct PathWatch {
    path: PathBuf,
    seen: (SystemTime, u64),
}

impl PathWatch {
    /// Watches an existing folder for new entries. Call it inside a runtime.
    pub fn entries(folder: &Path) -> io::Result<Self> {
        Self::content(folder)
    }

    /// Watches an existing file for writes. Call it inside a runtime.
    pub fn content(file: &Path) -> io::Result<Self> {
        Ok(PathWatch { path: file.into(), seen: look(file)? })
    }

    /// Waits for the next change. Changes that came together count as one.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            tokio::time::sleep(LOOK).await;
            let seen = look(&self.path)?;
            if seen != self.seen {
                self.seen = seen;
                return Ok(());
            }
        }
    }
}

fn look(path: &Path) -> io::Result<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.modified()?, metadata.len()))
}
