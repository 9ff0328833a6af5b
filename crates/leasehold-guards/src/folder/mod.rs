//! The folder guard: replaces a whole folder in one step, and only for the newest holder.
//!
//! Promise: a reader that opens the folder once sees one whole publish, never a mixture. A stale publisher changes
//! nothing. Non-promise: a reader that resolves the path again for every file may see two publishes.
//!
//! There are two ways, chosen by what is there. If there is nothing, or a symlink of ours, the tree is moved to
//! `.NAME.generations/` and a symlink is renamed into place. A real folder is exchanged with the staged tree. In both
//! cases the rename that publishes has its source in the permit, so a stale publisher's rename fails.

mod generations;
mod tree;

use self::generations::Generations;
use crate::observe::file::FileStep;
use crate::permit::Permits;
use crate::permit::artifact::{Artifact, ArtifactGuard};
use crate::permit::displaced::{DISPLACED, tree_name};
use crate::permit::fence::{self, open_folder};
use crate::permit::location::{ArtifactPath, shown};
use crate::permit::stage::hold;
use crate::permit::teardown::discard_aside;
use leasehold_core::guard::{HighWater, Policy};
use leasehold_core::{Error, Kind, Remedy, Result, Token};
use rustix::fs::{AtFlags, FileType, Mode};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How many old generations stay, so that a reader that has just opened one can finish.
const KEEP: usize = 1;

/// Guards one folder by a permit directory beside it.
pub type FolderGuard = ArtifactGuard<WholeFolder>;

/// A folder that is replaced whole; a symlink at its path is not followed.
#[derive(Debug, Clone, Copy)]
pub struct WholeFolder {
    keep: usize,
}

impl Artifact for WholeFolder {
    const SCHEME: &'static str = "folder";

    fn locate(path: &Path, resource: &str) -> Result<ArtifactPath> {
        ArtifactPath::open(path, resource)
    }
}

/// How the staged tree takes its place.
enum Replacement {
    Symlink,
    Exchange,
}

impl ArtifactGuard<WholeFolder> {
    /// A guard for the folder at `path`, which need not exist; the folder around it must.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for [`Policy::Ordered`]: a folder remembers epochs, not sequences.
    pub fn new(path: impl Into<PathBuf>, policy: Policy) -> Result<Self> {
        ArtifactGuard::of(WholeFolder { keep: KEEP }, path.into(), policy)
    }

    /// The same guard, keeping this many generations besides the live one.
    #[must_use]
    pub fn keeping(mut self, generations: usize) -> Self {
        self.artifact.keep = generations;
        self
    }

    /// Replaces the folder by a copy of `source`.
    pub fn publish(&self, token: &impl AsRef<Token>, source: &Path) -> Result<HighWater> {
        let token = token.as_ref();
        let scene = self.scene();
        let artifact = self.locate()?;
        let replacement = self.replacement(&artifact)?;
        self.apart(&artifact, source)?;
        let permits = Permits::open(scene, &artifact, token)?;
        permits.seal()?;
        let _turn = permits.turn()?;
        permits.drop_abandoned();
        let (stage, held) = permits.anchored(self.policy, |stage| open_stage(&permits, stage))?;
        let staged = scene
            .take(FileStep::Stage, || Ok(()))
            .and_then(|()| tree::copy(&scene, &permits, source, &Path::new(&stage).join("tree")))
            .and_then(|()| scene.take(FileStep::SyncPayload, || Ok(())));
        let published = staged.and_then(|()| match replacement {
            Replacement::Symlink => self.swap_symlink(&permits, &artifact, token, &stage),
            Replacement::Exchange => self.exchange(&permits, &artifact, token, &stage, &held),
        });
        // After an exchange the stage may hold the old tree. Failing to remove it does not undo the publish.
        if scene.take(FileStep::Collect, || Ok(())).is_ok() || published.is_err() {
            permits.drop_stage(&stage);
        }
        if published.is_ok() {
            self.keep_rescued(&permits, &artifact, token);
        }
        drop(held);
        published
    }

    fn swap_symlink(
        &self,
        permits: &Permits<'_>,
        artifact: &ArtifactPath,
        token: &Token,
        stage: &str,
    ) -> Result<HighWater> {
        let scene = self.scene();
        let generations = Generations::open(&scene, artifact)?;
        let name = generations.next_name(token);
        let (tree, link) = (format!("{stage}/tree"), format!("{stage}/link"));
        rustix::fs::symlinkat(generations.link_to(&name), permits.fence(), link.as_str())
            .map_err(|e| permits.why(FileStep::Stage, e.into()))?;
        scene
            .attempt(FileStep::MoveGeneration, || {
                rustix::fs::renameat(permits.fence(), tree.as_str(), generations.folder(), name.as_str())?;
                fence::sync(generations.folder())
            })
            .map_err(|e| permits.why(FileStep::MoveGeneration, e))?;
        let published = permits.publish(self.policy, || {
            Ok(rustix::fs::renameat(permits.fence(), link.as_str(), &artifact.parent, &artifact.name)?)
        });
        match published {
            Ok(_) => generations.collect(&scene, permits.fence(), token.epoch, self.artifact.keep),
            Err(_) => generations.withdraw(&scene, permits.fence(), &name),
        }
        published
    }

    fn exchange(
        &self,
        permits: &Permits<'_>,
        artifact: &ArtifactPath,
        token: &Token,
        stage: &str,
        held: &OwnedFd,
    ) -> Result<HighWater> {
        let tree = name_by_inode(permits, stage, held).map_err(|e| permits.why(FileStep::Stage, e))?;
        let mut unsupported = false;
        let published = permits.publish(self.policy, || {
            let answer = leasehold_system::rename::exchange(
                permits.fence(),
                Path::new(&tree),
                &artifact.parent,
                Path::new(&artifact.name),
            );
            unsupported = answer.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Unsupported);
            answer
        });
        if unsupported {
            let message = format!(
                "this file system cannot exchange two folders: resource=`{}` is a real folder; move it away once, then \
                 publish again: a symlink takes its place and is swapped from then on",
                self.resource
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        if published.is_ok() {
            self.keep_displaced(permits, artifact, token, &tree);
        }
        published
    }

    /// The old tree is moved to the generations: it may be the only copy of what somebody made by hand. If that fails,
    /// the publish is still done.
    fn keep_displaced(&self, permits: &Permits<'_>, artifact: &ArtifactPath, token: &Token, tree: &str) {
        // The publish is done, so this is not observed.
        let scene = self.scene().quiet();
        if self.artifact.keep == 0 {
            return;
        }
        let Ok(generations) = Generations::open(&scene, artifact) else { return };
        let name = generations.next_name(token);
        let moved = scene.attempt(FileStep::MoveGeneration, || {
            Ok(rustix::fs::renameat(permits.fence(), tree, generations.folder(), name.as_str())?)
        });
        if moved.is_ok() {
            generations.collect(&scene, permits.fence(), token.epoch, self.artifact.keep);
        }
    }

    /// What publishers that died have displaced is moved to the generations too, after the old ones were removed. So
    /// it stays for one publish more.
    fn keep_rescued(&self, permits: &Permits<'_>, artifact: &ArtifactPath, token: &Token) {
        let scene = self.scene().quiet();
        let Ok(found) = fence::names(permits.fence()) else { return };
        for (name, _) in found.into_iter().filter(|(name, _)| name.starts_with(DISPLACED)) {
            if self.artifact.keep == 0 {
                discard_aside(&scene, permits.fence(), &name, permits.fence());
            } else if let Ok(generations) = Generations::open(&scene, artifact) {
                let generation = generations.next_name(token);
                let _ = rustix::fs::renameat(permits.fence(), name.as_str(), generations.folder(), generation.as_str());
            }
        }
    }

    fn replacement(&self, artifact: &ArtifactPath) -> Result<Replacement> {
        let kind = artifact.found.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode));
        let allowed = match kind {
            None => return Ok(Replacement::Symlink),
            Some(FileType::Directory) => return Ok(Replacement::Exchange),
            Some(FileType::Symlink) if generations::is_ours(artifact, &artifact.link(&self.resource)?) => {
                return Ok(Replacement::Symlink);
            }
            Some(FileType::Symlink) => "it is a symlink that no publish made; publish to where it leads, or remove it",
            Some(_) => {
                let error = Error::invalid("path", shown(self.path()), "it is not a folder");
                return Err(error.with_remedy(Remedy::WriteTheFile));
            }
        };
        Err(Error::invalid("path", shown(self.path()), allowed))
    }

    /// A tree that holds its own destination would be copied into itself.
    fn apart(&self, artifact: &ArtifactPath, source: &Path) -> Result<()> {
        let (Ok(from), Ok(around)) = (source.canonicalize(), artifact.folder.canonicalize()) else { return Ok(()) };
        if around.starts_with(&from) || self.path().canonicalize().is_ok_and(|target| target.starts_with(&from)) {
            return Err(Error::invalid("source", shown(source), format!("it is or holds `{}` itself", self.resource)));
        }
        Ok(())
    }
}

/// Names the staged tree by its inode, durably: another folder under that name is one that was displaced.
fn name_by_inode(permits: &Permits<'_>, stage: &str, held: &OwnedFd) -> io::Result<String> {
    let staged = format!("{stage}/tree");
    let inode = rustix::fs::statat(permits.fence(), staged.as_str(), AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
    let tree = format!("{stage}/{}", tree_name(inode));
    rustix::fs::renameat(permits.fence(), staged.as_str(), permits.fence(), tree.as_str())?;
    fence::sync(held)?;
    Ok(tree)
}

fn open_stage(permits: &Permits<'_>, stage: &str) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(permits.fence(), stage, Mode::from_raw_mode(0o777))?;
    let opened = open_folder(permits.fence(), stage)?;
    hold(&opened)?;
    Ok(opened)
}
