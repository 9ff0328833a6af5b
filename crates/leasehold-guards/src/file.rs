//! The file guard: replaces one file whole, and only for the newest holder.
//!
//! Promise: readers see the old content or the new, never a part; a stale writer changes nothing, wherever it slept;
//! symlinks, mode and, where permitted, the file's user and group stay as they were. Non-promise: hard links to the file
//! keep the old content, extended attributes are not copied, and set-user-id bits are dropped.

use crate::blocking::blocking;
use crate::observe::file::FileStep;
use crate::permit::Permits;
use crate::permit::artifact::{Artifact, ArtifactGuard};
use crate::permit::error::Scene;
use crate::permit::location::ArtifactPath;
use crate::permit::stage::hold;
use leasehold_core::guard::{HighWater, Policy};
use leasehold_core::{Error, Result, Token};
use rustix::fs::{Gid, Mode, Stat, Uid};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// How much of the payload is copied at a time.
const CHUNK_BYTES: usize = 128 * 1024;

/// Guards one file by a permit directory beside it.
pub type FileGuard = ArtifactGuard<WholeFile>;

/// A file that is replaced whole; symlinks are followed to it.
#[derive(Debug, Clone, Copy)]
pub struct WholeFile;

impl Artifact for WholeFile {
    const SCHEME: &'static str = "file";

    fn locate(path: &Path, resource: &str) -> Result<ArtifactPath> {
        ArtifactPath::open_followed(path, resource)
    }
}

impl ArtifactGuard<WholeFile> {
    /// A guard for the file at `path`, which need not exist; the folder around it must.
    ///
    /// # Errors
    /// [`Kind::Unsupported`](leasehold_core::Kind::Unsupported) for [`Policy::Ordered`]: a file remembers epochs, not
    /// sequences.
    pub fn new(path: impl Into<PathBuf>, policy: Policy) -> Result<Self> {
        ArtifactGuard::of(WholeFile, path.into(), policy)
    }

    /// Replaces the file with everything that `payload` gives. The token is checked before the first byte is read, and
    /// again after the last.
    ///
    /// With [`Policy::OncePerEpoch`] a crash in the middle of publishing counts as the one write, because it may have
    /// been published.
    pub fn write_from(&self, token: &impl AsRef<Token>, mut payload: impl Read) -> Result<HighWater> {
        let token = token.as_ref();
        let scene = self.scene();
        let artifact = self.locate()?;
        let permits = Permits::open(scene, &artifact, token)?;
        permits.drop_abandoned();
        // The old file may be readable by few. The staged one must not be readable by more.
        let mode = if artifact.found.is_some() { 0o600 } else { 0o666 };
        let (stage, file) = permits.anchored(self.policy, |stage| {
            let file = permits.create(stage, mode)?;
            hold(&file)?;
            Ok(File::from(file))
        })?;
        let written = fill(&scene, &file, &mut payload, artifact.found.as_ref()).and_then(|()| {
            permits.publish(self.policy, || {
                Ok(rustix::fs::renameat(permits.fence(), stage.as_str(), &artifact.parent, &artifact.name)?)
            })
        });
        if written.is_err() {
            permits.drop_stage(&stage);
        }
        // Kept open until here: this tells other processes of our tenure that the stage is in use.
        drop(file);
        written
    }

    /// [`FileGuard::write_from`] for callers that may not block.
    pub async fn write(&self, token: &impl AsRef<Token>, payload: impl Into<Vec<u8>>) -> Result<HighWater> {
        let (guard, token, payload) = (self.clone(), token.as_ref().clone(), payload.into());
        blocking(move || guard.write_from(&token, &payload[..])).await
    }
}

fn fill(scene: &Scene<'_>, mut file: &File, payload: &mut impl Read, old: Option<&Stat>) -> Result<()> {
    scene.take(FileStep::Stage, || Ok(()))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match payload.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                let message = format!("cannot read the payload: resource=`{}`: the old content stays", scene.resource);
                return Err(Error::unavailable(message, e));
            }
        };
        file.write_all(&chunk[..read]).map_err(|e| scene.failed(FileStep::Stage, e))?;
    }
    if let Some(old) = old {
        keep_looks(file, old).map_err(|e| scene.failed(FileStep::Stage, e))?;
    }
    scene.take(FileStep::SyncPayload, || file.sync_all())
}

fn keep_looks(file: &File, old: &Stat) -> io::Result<()> {
    let new = rustix::fs::fstat(file)?;
    // Only root may change the owner, and the group must be one of ours, so a refusal is not an error. Two calls,
    // because the group may be permitted when the owner is not.
    if new.st_uid != old.st_uid {
        let _ = rustix::fs::fchown(file, Some(Uid::from_raw(old.st_uid)), None);
    }
    if new.st_gid != old.st_gid {
        let _ = rustix::fs::fchown(file, None, Some(Gid::from_raw(old.st_gid)));
    }
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(old.st_mode) & (Mode::RWXU | Mode::RWXG | Mode::RWXO))?)
}
