//! Kept output in a bucket: what a run left on this machine is uploaded when it is over, and removed here.
//!
//! Promise: a file is removed here only once the bucket has it. Non-promise: the number of runs that a bucket keeps is counted
//! by who uploads; two machines at once may leave one more for a while.

use super::file::Found;
#[cfg(feature = "full")]
use super::file::{decode, parts_among};
#[cfg(feature = "full")]
use super::folder::Folder;
#[cfg(feature = "full")]
use super::layout::ENDING;
#[cfg(feature = "full")]
use super::retention;
#[cfg(feature = "full")]
use leasehold_core::Error;
use leasehold_core::Result;
use leasehold_stores::StoreUrl;
use std::fmt;
#[cfg(feature = "full")]
use std::io::Read;
use std::path::Path;
#[cfg(feature = "full")]
use std::sync::Arc;

/// A part of a bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    url: StoreUrl,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl Bucket {
    pub const fn new(url: StoreUrl) -> Self {
        Bucket { url }
    }

    #[cfg(feature = "full")]
    fn files(&self) -> Result<leasehold_stores::object::Files> {
        let address = self.url.address().ok_or_else(|| crate::targets::lean(self.url.scheme()))?;
        leasehold_stores::object::Files::open(address)
    }

    /// Uploads everything in a folder of this machine that is complete, and removes the oldest from the bucket.
    #[cfg(feature = "full")]
    pub async fn upload(&self, folder: &Path, name: &str, runs: u64) -> Result<()> {
        let files = self.files()?;
        let opened = folder.to_path_buf();
        let folder = match off_thread(move || Ok(Folder::open(&opened))).await? {
            // Nothing was kept yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            folder => Arc::new(folder.map_err(|e| Error::unavailable("cannot read kept output", e))?),
        };
        let waiting = {
            let folder = folder.clone();
            off_thread(move || {
                let kept = retention::list_runs(&folder).into_iter().map(|(_, file)| file);
                Ok(kept.filter(|file| !retention::is_being_written(&folder, file)).collect::<Vec<_>>())
            })
        };
        for file in waiting.await?.into_iter().rev() {
            let (read, from) = (file.clone(), folder.clone());
            let content = off_thread(move || {
                let mut content = Vec::new();
                from.read(&read)?.read_to_end(&mut content)?;
                // Of a run that was killed.
                for part in parts_among(from.names(), &read) {
                    from.read(&part)?.read_to_end(&mut content)?;
                }
                Ok(content)
            });
            files.put(&format!("{name}/{file}"), content.await?).await?;
            let folder = folder.clone();
            off_thread(move || {
                retention::remove(&folder, &file);
                Ok(())
            })
            .await?;
        }
        let mut there = files.list(name).await?;
        there.retain(|(_, file)| file.ends_with(ENDING));
        there.sort();
        let surplus = there.len().saturating_sub(usize::try_from(runs).unwrap_or(usize::MAX));
        for (_, file) in there.into_iter().take(surplus) {
            files.remove(&file).await?;
        }
        Ok(())
    }

    /// What is stored of a run's output, at most this many bytes; none if there is no such file.
    #[cfg(feature = "full")]
    pub async fn read(&self, file: &str, most: u64) -> Result<Option<Found>> {
        // What cannot be compressed gets a little longer.
        let most_stored = most.saturating_add(most / 8).saturating_add(64 * 1024);
        Ok(self.files()?.get(file, most_stored).await?.map(|content| decode(&content[..], most)))
    }

    #[cfg(not(feature = "full"))]
    pub async fn upload(&self, _: &Path, _: &str, _: u64) -> Result<()> {
        Err(crate::targets::lean(self.url.scheme()))
    }

    #[cfg(not(feature = "full"))]
    pub async fn read(&self, _: &str, _: u64) -> Result<Option<Found>> {
        Err(crate::targets::lean(self.url.scheme()))
    }
}

/// Does what may wait for a disk where nobody else waits for it.
#[cfg(feature = "full")]
async fn off_thread<T: Send + 'static>(act: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(act).await.map_err(std::io::Error::other).and_then(|done| done);
    done.map_err(|e| Error::unavailable("cannot read kept output", e))
}
