//! Watching through inotify.

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Hints about one folder's entries, or one file's content.
#[derive(Debug)]
pub struct PathWatch(AsyncFd<OwnedFd>);

impl PathWatch {
    /// Watches an existing folder for new entries. Call it inside a runtime.
    pub fn entries(folder: &Path) -> io::Result<Self> {
        Self::open(folder, WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR)
    }

    /// Watches an existing file for writes. Call it inside a runtime.
    pub fn content(file: &Path) -> io::Result<Self> {
        Self::open(file, WatchFlags::MODIFY)
    }

    fn open(path: &Path, flags: WatchFlags) -> io::Result<Self> {
        let queue = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        add_watch(&queue, path, flags)?;
        Ok(PathWatch(crate::descriptor::watched(queue)?))
    }

    /// Waits for the next change. Changes that came together count as one.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut events = [0; 4096];
        loop {
            let mut ready = self.0.readable().await?;
            let mut any = false;
            loop {
                match rustix::io::read(self.0.get_ref(), &mut events[..]) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => any = true,
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_new_entry_and_a_write_are_hinted_at() {
        let folder = tempfile::tempdir().unwrap();
        let mut entries = PathWatch::entries(folder.path()).unwrap();
        let file = folder.path().join("x");
        std::fs::write(&file, "1").unwrap();
        entries.changed().await.unwrap();
        let mut content = PathWatch::content(&file).unwrap();
        std::fs::write(&file, "2").unwrap();
        content.changed().await.unwrap();
    }
}
