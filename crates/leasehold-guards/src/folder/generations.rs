//! The generations beside a published folder: `.NAME.generations/<epoch>-<nonce>-<n>`, one of which is live.
//!
//! Promise: the live one is never removed, nor one of a higher epoch, which somebody may be about to publish.
//! Non-promise: an old one is removed under its readers after as many publishes as the guard keeps.

use crate::observe::file::FileStep;
use crate::permit::error::{Scene, exists, vanished};
use crate::permit::location::ArtifactPath;
use crate::permit::teardown::discard_aside;
use leasehold_core::{Epoch, Error, Kind, Result, Token};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How many digits of the nonce are in a generation's name: enough for people to tell two grants apart.
const NONCE_DIGITS: usize = 8;

/// The folder of generations, opened.
#[derive(Debug)]
pub(crate) struct Generations<'a> {
    artifact: &'a ArtifactPath,
    name: OsString,
    folder: OwnedFd,
}

/// Epoch, then count within the tenure: the order in which they were made.
type Order = (Epoch, u64);

impl<'a> Generations<'a> {
    /// Opens the folder, and creates it if there is none.
    pub(crate) fn open(scene: &Scene<'_>, artifact: &'a ArtifactPath) -> Result<Self> {
        let name = artifact.sibling(".generations")?;
        let made = scene.attempt(FileStep::MoveGeneration, || {
            Ok(rustix::fs::mkdirat(&artifact.parent, &name, Mode::from_raw_mode(0o777))?)
        });
        match made {
            Err(e) if !exists(&e) => return Err(scene.failed(FileStep::MoveGeneration, e)),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&artifact.parent, &name, flags, Mode::empty()) {
            Ok(folder) => Ok(Generations { artifact, name, folder }),
            Err(Errno::LOOP | Errno::NOTDIR) => Err(Error::new(
                Kind::Invalid,
                format!("generations refused: resource=`{}`: they are not in a folder of their own", scene.resource),
            )),
            Err(e) => Err(scene.failed(FileStep::MoveGeneration, e.into())),
        }
    }

    pub(crate) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// The next name of this tenure. Publishes of one tenure take turns, so nobody else takes it.
    pub(crate) fn next_name(&self, token: &Token) -> String {
        let prefix = prefix(token);
        let mine = self.list().into_iter().filter(|(_, name)| name.starts_with(&prefix));
        let last = mine.map(|((_, count), _)| count).max().unwrap_or(0);
        format!("{prefix}{}", last.saturating_add(1))
    }

    /// What the symlink points to when this generation is live.
    pub(crate) fn link_to(&self, generation: &str) -> PathBuf {
        Path::new(&self.name).join(generation)
    }

    /// Removes all but the live one, those of higher epochs, and the newest `keep` of the rest. What cannot be removed
    /// now is removed by the next publish.
    pub(crate) fn collect(&self, scene: &Scene<'_>, fence: &OwnedFd, upto: Epoch, keep: usize) {
        let Some(live) = self.live() else { return };
        let mut old: Vec<_> =
            self.list().into_iter().filter(|((epoch, _), name)| *epoch <= upto && OsStr::new(name) != live).collect();
        old.sort_unstable_by(|a, b| b.cmp(a));
        for (_, name) in old.into_iter().skip(keep) {
            self.remove(scene, fence, &name);
        }
    }

    /// Removes one whose publish failed, unless it is live.
    pub(crate) fn withdraw(&self, scene: &Scene<'_>, fence: &OwnedFd, name: &str) {
        if self.live().is_none_or(|live| live != OsStr::new(name)) {
            self.remove(scene, fence, name);
        }
    }

    fn remove(&self, scene: &Scene<'_>, fence: &OwnedFd, name: &str) {
        discard_aside(scene, &self.folder, name, fence);
    }

    /// The live generation; none if that is not known. An empty name if there is no symlink of ours.
    fn live(&self) -> Option<OsString> {
        match self.artifact.link("") {
            Ok(to) => Some(to.file_name().unwrap_or_default().to_os_string()),
            Err(_) => {
                match rustix::fs::statat(
                    &self.artifact.parent,
                    &self.artifact.name,
                    rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
                ) {
                    Err(e) if vanished(&e.into()) => Some(OsString::new()),
                    // A real folder: what is here was displaced by it.
                    Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Some(OsString::new()),
                    _ => None,
                }
            }
        }
    }

    fn list(&self) -> Vec<(Order, String)> {
        let Ok(entries) = Dir::read_from(&self.folder) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
        names.filter_map(|name| Some((parse(&name)?, name))).collect()
    }
}

/// Whether a symlink that points here is one of ours.
pub(crate) fn is_ours(artifact: &ArtifactPath, to: &Path) -> bool {
    let Ok(folder) = artifact.sibling(".generations") else { return false };
    let name = to.file_name().and_then(OsStr::to_str);
    to.parent() == Some(Path::new(&folder)) && name.is_some_and(|name| parse(name).is_some())
}

fn prefix(token: &Token) -> String {
    let nonce = token.nonce.to_string();
    format!("{}-{}-", token.epoch, &nonce[..NONCE_DIGITS])
}

fn parse(name: &str) -> Option<Order> {
    let mut parts = name.split('-');
    let (epoch, nonce, count) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = nonce.len() == NONCE_DIGITS && nonce.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let order: Order = (epoch.parse().ok()?, count.parse().ok()?);
    (hex && format!("{}-{nonce}-{}", order.0, order.1) == name).then_some(order)
}
