//! The permit directory: the right to write, as a directory that a newer epoch removes.
//!
//! The fence of `out.json` is beside it: `.out.json.fence/<epoch>-<nonce>/`. A writer stages inside its own permit and
//! publishes by a rename out of it. A newer writer has removed that permit, so a stale writer's rename has no source
//! and fails. Nobody waits for anybody.
//!
//! Promise: once [`Permits::seal`] has returned, nothing that was staged under a lower epoch is ever published,
//! wherever and for however long its writer was paused. Non-promise: whoever may write to the folder may also remove
//! the fence by hand.
//!
//! The permits of the highest epoch are the memory of the fence. They stay until a higher epoch removes them, even if
//! one epoch was granted twice and both are refused.
//!
//! Three rules carry the proof, and each was a hole once:
//! - *Create, then list.* Of two writers at least one sees the other.
//! - *Anchor, then list.* What is later renamed is created, under a random name, before the listing that admits it.
//!   Otherwise a second process of the same tenure could re-create a removed permit, and the first, which had passed
//!   its check long ago, would find a directory to publish from.
//! - *Lowest first.* A listing is no snapshot. A writer that misses a permit because it was removed during the listing
//!   was itself removed before, if the lower go first.

pub(crate) mod adopt;
pub(crate) mod artifact;
pub(crate) mod displaced;
pub(crate) mod error;
pub(crate) mod fence;
pub(crate) mod location;
pub(crate) mod nesting;
pub(crate) mod stage;
pub(crate) mod teardown;

use self::error::{Scene, exists, vanished};
use self::fence::{LEASE, Listing, SEALED, WROTE, list, names, open_fence, open_folder, permit_name, read_lease, sync};
use self::location::ArtifactPath;
use self::teardown::{discard, gone_name};
use crate::observe::file::FileStep;
use leasehold_core::guard::{self, HighWater, Policy};
use leasehold_core::{Epoch, Error, Kind, LeaseName, Lineage, Nonce, Result, Token, codec};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

const ANCHOR: &str = "anchor-";
pub(crate) const STAGE: &str = "stage-";
/// How often our own permit may vanish before we give up.
const MAX_ENTRIES: usize = 64;
/// How many listings a seal takes to see no lower permit: others may create theirs meanwhile, and withdraw them.
const MAX_LISTINGS: usize = 1024;
/// The umask applies: users who may write to the artifact's folder may fence there.
const FOLDER_MODE: u32 = 0o777;

/// The fence folder of one artifact, opened on behalf of one token.
#[derive(Debug)]
pub(crate) struct Permits<'a> {
    pub(crate) scene: Scene<'a>,
    pub(crate) artifact: &'a ArtifactPath,
    pub(crate) token: &'a Token,
    pub(crate) fence: OwnedFd,
    pub(crate) own: String,
}

impl<'a> Permits<'a> {
    /// Opens the fence folder, and creates it if there is none. A token of another lease is refused here, before
    /// anything is created on its behalf.
    pub(crate) fn open(scene: Scene<'a>, artifact: &'a ArtifactPath, token: &'a Token) -> Result<Self> {
        let name = artifact.sibling(".fence")?;
        let mut made_here = false;
        let fence = match open_fence(&scene, artifact, &name)? {
            Some(fence) => fence,
            None => {
                // Checked before the folder is made, and again after.
                nesting::refuse(&scene, artifact)?;
                let made = scene.attempt(FileStep::MakeFence, || {
                    Ok(rustix::fs::mkdirat(&artifact.parent, &name, Mode::from_raw_mode(FOLDER_MODE as _))?)
                });
                match made {
                    Err(e) if !exists(&e) => return Err(scene.failed(FileStep::MakeFence, e)),
                    answer => made_here = answer.is_ok(),
                }
                if made_here && let Err(e) = scene.attempt(FileStep::SyncFence, || sync(&artifact.parent)) {
                    // Removed while it is empty, so that the next writer makes a new one: a second sync would prove
                    // nothing.
                    let _ = rustix::fs::unlinkat(&artifact.parent, &name, AtFlags::REMOVEDIR);
                    return Err(scene.failed(FileStep::SyncFence, e));
                }
                open_fence(&scene, artifact, &name)?
                    .ok_or_else(|| scene.corrupt("the fence folder was removed while it was used; try again"))?
            }
        };
        if let Err(refused) = nesting::refuse(&scene, artifact) {
            if made_here {
                // Removes it only if it is empty.
                let _ = rustix::fs::unlinkat(&artifact.parent, &name, AtFlags::REMOVEDIR);
            }
            return Err(refused);
        }
        let permits = Permits::inside(scene, artifact, token, fence);
        let lease = match read_lease(&permits.scene, &permits.fence)? {
            Some(lease) => lease,
            None => permits.found_lease()?,
        };
        permits.refuse_other(&permits.fence, lease)?;
        Ok(permits)
    }

    /// The permits in a fence folder that was opened already.
    pub(crate) fn inside(scene: Scene<'a>, artifact: &'a ArtifactPath, token: &'a Token, fence: OwnedFd) -> Self {
        Permits { scene, artifact, token, fence, own: permit_name(token.epoch, token.nonce) }
    }

    /// Refuses our token if `fence` belongs to another lease.
    pub(crate) fn refuse_other(&self, fence: &OwnedFd, (lease, lineage): (LeaseName, Lineage)) -> Result<()> {
        if (&lease, lineage) == (&self.token.lease, self.token.lineage) {
            return Ok(());
        }
        let epoch = list(&self.scene, fence)?.permits.last().map_or(Epoch::ZERO, |(epoch, _)| *epoch);
        let high = HighWater { lease, lineage, epoch, nonce: self.token.nonce, seq: 0 };
        self.refuse_or(guard::seal(Some(&high), self.token)).map(|_| ())
    }

    /// Writes the lease file, which says whose fence it is. The first to link it wins.
    fn found_lease(&self) -> Result<(LeaseName, Lineage)> {
        let listing = list(&self.scene, &self.fence)?;
        if !listing.permits.is_empty() {
            // The lease file comes before any permit, so it is there by now, if somebody wrote it since we looked.
            return read_lease(&self.scene, &self.fence)?.ok_or_else(|| {
                self.scene.corrupt(
                    "the fence folder has permits but no `lease` file; restore it from a backup, or remove the whole \
                     fence folder while no job runs",
                )
            });
        }
        let staged = format!("{LEASE}-{}", Nonce::random());
        let bytes = codec::encode("fence", &(&self.token.lease, self.token.lineage))?;
        self.scene.take(FileStep::StageLease, || {
            let mut file = File::from(self.create(&staged, 0o666)?);
            file.write_all(&bytes)?;
            file.sync_all()
        })?;
        let linked = self.scene.attempt(FileStep::LinkLease, || {
            Ok(rustix::fs::linkat(&self.fence, staged.as_str(), &self.fence, LEASE, AtFlags::empty())?)
        });
        let _ = rustix::fs::unlinkat(&self.fence, staged.as_str(), AtFlags::empty());
        match linked {
            // If it is gone, a seal has cleaned up our staging file, so somebody else's lease file is there.
            Err(e) if !exists(&e) && !vanished(&e) => Err(self.scene.failed(FileStep::LinkLease, e)),
            _ => read_lease(&self.scene, &self.fence)?
                .ok_or_else(|| self.scene.corrupt("the lease file was removed while it was written; try again")),
        }
    }

    /// Shuts every lower epoch out; durable when it returns.
    pub(crate) fn seal(&self) -> Result<HighWater> {
        // Listed first, so that a refused token leaves nothing behind.
        let listing = list(&self.scene, &self.fence)?;
        let high = self.judge(&listing)?;
        // Over NFS a stat may still find the mark of a permit that is gone. A listing is fresh.
        if listing.permits.contains(&(self.token.epoch, self.token.nonce)) && self.marked(SEALED)? {
            return Ok(high);
        }
        self.seal_again(&|| self.settle())
    }

    /// Seals without trusting any mark. `last` runs when every lower epoch is gone, before the permit is marked.
    pub(crate) fn seal_again(&self, last: &dyn Fn() -> Result<()>) -> Result<HighWater> {
        for _ in 0..MAX_ENTRIES {
            let made = self.make_own()?;
            let anchor = format!("{}/{ANCHOR}{}", self.own, Nonce::random());
            match self.scene.attempt(FileStep::Anchor, || self.create(&anchor, 0o666)) {
                Err(e) if vanished(&e) => {
                    self.look_again()?;
                    continue;
                }
                Err(e) => return Err(self.scene.failed(FileStep::Anchor, e)),
                Ok(_) => {}
            }
            let cleared = self.clear_lower().and_then(|high| last().map(|()| high));
            let marked = match cleared {
                Ok(_) => self.scene.attempt(FileStep::MarkSealed, || {
                    let sealed = format!("{}/{SEALED}", self.own);
                    Ok(rustix::fs::renameat(&self.fence, anchor.as_str(), &self.fence, sealed.as_str())?)
                }),
                Err(_) => Ok(()),
            };
            if cleared.is_err() || marked.is_err() {
                let _ = rustix::fs::unlinkat(&self.fence, anchor.as_str(), AtFlags::empty());
            }
            match (cleared, marked) {
                (Ok(_), Err(e)) if vanished(&e) => self.look_again()?,
                (Ok(_), Err(e)) => return Err(self.scene.failed(FileStep::MarkSealed, e)),
                (Ok(high), Ok(())) => {
                    self.remove_anchors();
                    return Ok(high);
                }
                (Err(refused), _) => {
                    // Only for a higher epoch: two grants of one epoch would each withdraw for the other, and leave a
                    // fence that remembers neither. Only what this call created: another process of our tenure may have
                    // sealed what was there. And only an empty one: then it may be in the middle of it.
                    if made && refused.kind() == Kind::Fenced {
                        let _ = rustix::fs::unlinkat(&self.fence, self.own.as_str(), AtFlags::REMOVEDIR);
                    }
                    return Err(refused);
                }
            }
        }
        Err(self.contended("our own permit keeps vanishing"))
    }

    /// Refuses if our permit vanished because of a newer epoch. Over NFS it also refreshes the mount's cache of names:
    /// a stat of what another machine has removed may be answered from it for up to a minute, but a listing asks the
    /// server.
    fn look_again(&self) -> Result<()> {
        self.judge(&list(&self.scene, &self.fence)?).map(|_| ())
    }

    fn make_own(&self) -> Result<bool> {
        let mode = Mode::from_raw_mode(FOLDER_MODE as _);
        self.scene.take(FileStep::MakePermit, || match rustix::fs::mkdirat(&self.fence, self.own.as_str(), mode) {
            Err(Errno::EXIST) => self.make_own_again(mode),
            made => Ok(made.map(|()| true)?),
        })
    }

    /// Replaces our permit, which is not sealed, by a new folder. Its maker may have failed to sync it, and a second
    /// sync would prove nothing: only a new entry can be made durable. There is a permit at every moment. One that is
    /// not empty stays, because another process of our tenure is sealing.
    fn make_own_again(&self, mode: Mode) -> io::Result<bool> {
        let fresh = gone_name();
        rustix::fs::mkdirat(&self.fence, fresh.as_str(), mode)?;
        let placed = rustix::fs::renameat(&self.fence, fresh.as_str(), &self.fence, self.own.as_str());
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(&self.fence, fresh.as_str(), AtFlags::REMOVEDIR);
        }
        Ok(placed.is_ok())
    }

    /// Lists and removes until two listings in a row show nothing lower. One is not enough: a permit that somebody
    /// renames during a listing can be missed under both names.
    fn clear_lower(&self) -> Result<HighWater> {
        let mut durable = false;
        let mut clean = 0;
        for _ in 0..MAX_LISTINGS {
            let listing = list(&self.scene, &self.fence)?;
            let high = self.judge(&listing)?;
            if !durable {
                // Before anything lower is removed: a crash must not leave a fence that remembers neither.
                self.scene.take(FileStep::SyncFence, || {
                    sync(&self.fence)?;
                    sync(&self.artifact.parent)
                })?;
                durable = true;
            }
            let lower = listing.permits.iter().filter(|(epoch, _)| *epoch < self.token.epoch);
            let mut torn = !listing.leftovers.is_empty() || !listing.swapped.is_empty();
            for (epoch, nonce) in lower {
                torn = true;
                self.tear_down(&permit_name(*epoch, *nonce))?;
            }
            for name in &listing.swapped {
                displaced::judge(&self.scene, &self.fence, name)?;
            }
            for name in &listing.leftovers {
                displaced::rescue_from_permit(&self.scene, &self.fence, name)?;
                discard(&self.scene, self.fence.as_fd(), OsStr::new(name))?;
            }
            clean = if torn { 0 } else { clean + 1 };
            if clean == 2 {
                return Ok(high);
            }
        }
        Err(self.contended("lower epochs keep coming"))
    }

    fn tear_down(&self, permit: &str) -> Result<()> {
        let aside = gone_name();
        let renamed = self.scene.attempt(FileStep::SetAside, || {
            Ok(rustix::fs::renameat(&self.fence, permit, &self.fence, aside.as_str())?)
        });
        match renamed {
            Err(e) if vanished(&e) => Ok(()),
            Err(e) => Err(self.scene.failed(FileStep::SetAside, e)),
            Ok(()) => {
                displaced::rescue_from_permit(&self.scene, &self.fence, &aside)?;
                discard(&self.scene, self.fence.as_fd(), OsStr::new(&aside))
            }
        }
    }

    /// Makes a stage in our own permit, and then checks everything that must be checked after it exists. `make`
    /// creates the file or folder of the name that it is given.
    pub(crate) fn anchored<T>(&self, policy: Policy, make: impl Fn(&str) -> io::Result<T>) -> Result<(String, T)> {
        let mut trusted = true;
        for _ in 0..MAX_ENTRIES {
            if !trusted || !self.marked(SEALED)? {
                self.seal()?;
            }
            let stage = format!("{}/{STAGE}{}", self.own, Nonce::random());
            let made = match self.scene.attempt(FileStep::Anchor, || make(&stage)) {
                Err(e) if vanished(&e) => {
                    self.look_again()?;
                    trusted = false;
                    continue;
                }
                Err(e) => return Err(self.scene.failed(FileStep::Anchor, e)),
                Ok(made) => made,
            };
            match self.may_write(policy) {
                Ok(()) => return Ok((stage, made)),
                Err(e) => {
                    self.drop_stage(&stage);
                    return Err(e);
                }
            }
        }
        Err(self.contended("our own permit keeps vanishing"))
    }

    fn may_write(&self, policy: Policy) -> Result<()> {
        let listing = list(&self.scene, &self.fence)?;
        let mut high = self.high(&listing)?;
        high.seq = u64::from(self.marked(WROTE)?);
        self.refuse_or(guard::admit(Some(&high), self.token, policy))?;
        Ok(())
    }

    /// Marks that this tenure has written, publishes by `rename`, and gives the new high water.
    pub(crate) fn publish(&self, policy: Policy, mut rename: impl FnMut() -> io::Result<()>) -> Result<HighWater> {
        let first = self.mark_wrote()?;
        if !first && policy == Policy::OncePerEpoch {
            return self.refuse_or(Err(guard::Rejection::Spent { epoch: self.token.epoch }));
        }
        // Synced before the write: after a crash there must not be the one write without its mark.
        let marked = match policy {
            Policy::OncePerEpoch => self.scene.attempt(FileStep::SyncMark, || self.sync_own()),
            _ => Ok(()),
        };
        let failed = match marked {
            Err(e) => Some(self.why(FileStep::SyncMark, e)),
            Ok(()) => self.scene.attempt(FileStep::Publish, &mut rename).err().map(|e| self.why(FileStep::Publish, e)),
        };
        if let Some(why) = failed {
            // If the source is gone and nobody newer was here, the rename may have been done and its answer lost
            // (NFS). Then the one write of this epoch may have been made, and the mark must stay.
            if first && why.kind() != Kind::Indeterminate {
                let _ = rustix::fs::unlinkat(&self.fence, format!("{}/{WROTE}", self.own), AtFlags::empty());
            }
            return Err(why);
        }
        self.scene.attempt(FileStep::SyncParent, || sync(&self.artifact.parent)).map_err(|e| self.scene.unsure(e))?;
        Ok(self.high_now(1))
    }

    /// True if nobody of this tenure has written before: only one process can create the mark.
    fn mark_wrote(&self) -> Result<bool> {
        match self.scene.attempt(FileStep::MarkWrote, || self.create(&format!("{}/{WROTE}", self.own), 0o666)) {
            Ok(_) => Ok(true),
            Err(e) if exists(&e) => Ok(false),
            Err(e) => Err(self.why(FileStep::MarkWrote, e)),
        }
    }

    /// An empty file has nothing to sync but its name, which is in the permit.
    fn sync_own(&self) -> io::Result<()> {
        sync(&open_folder(&self.fence, self.own.as_str())?)
    }

    /// Why a step inside our own permit failed: if there is a newer epoch, it has removed the permit.
    pub(crate) fn why(&self, step: FileStep, cause: io::Error) -> Error {
        if !vanished(&cause) {
            return self.scene.failed(step, cause);
        }
        match list(&self.scene, &self.fence).and_then(|listing| self.judge(&listing)) {
            Err(refused) => refused,
            Ok(_) if step == FileStep::Publish => {
                let what = format!(
                    "cannot tell whether resource=`{}` was written: what was to be published is gone, and by no newer \
                     epoch; read it back before anything else",
                    self.scene.resource
                );
                Error::new(Kind::Indeterminate, what).with_source(cause)
            }
            Ok(_) => {
                let what = format!(
                    "cannot {step}: resource=`{}`: the permit or the target was removed, and by no newer epoch; the old \
                     content stays, try again",
                    self.scene.resource
                );
                Error::unavailable(what, cause)
            }
        }
    }

    fn judge(&self, listing: &Listing) -> Result<HighWater> {
        if listing.is_retired() && self.token.epoch < Epoch::MAX {
            return Err(self.adopted());
        }
        let mut high = self.refuse_or(guard::seal(Some(&self.high(listing)?), self.token))?;
        high.seq = u64::from(self.marked(WROTE)?);
        Ok(high)
    }

    fn high(&self, listing: &Listing) -> Result<HighWater> {
        let top = listing.permits.last().map(|(epoch, _)| *epoch);
        let nonces = listing.permits.iter().filter(|(epoch, _)| Some(*epoch) == top).map(|(_, nonce)| *nonce);
        // Where one epoch was granted twice, each of the two must see the other, not itself.
        let rival = nonces.clone().find(|nonce| *nonce != self.token.nonce).or(nonces.clone().next());
        Ok(match (top, rival) {
            (Some(epoch), Some(nonce)) => HighWater { epoch, nonce, ..HighWater::of(self.token, 0) },
            _ => HighWater { epoch: Epoch::ZERO, ..HighWater::of(self.token, 0) },
        })
    }

    fn high_now(&self, seq: u64) -> HighWater {
        HighWater::of(self.token, seq)
    }

    fn refuse_or<T>(&self, decided: Result<T, guard::Rejection>) -> Result<T> {
        decided.map_err(|rejection| rejection.into_error(self.scene.resource))
    }

    fn marked(&self, mark: &str) -> Result<bool> {
        match rustix::fs::statat(&self.fence, format!("{}/{mark}", self.own), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::STALE) => Ok(false),
            Err(e) => Err(self.scene.failed(FileStep::List, e.into())),
        }
    }

    /// Creates a file that must not exist yet, by its path from the fence folder. Never through a handle to the permit:
    /// a renamed directory would still take it.
    pub(crate) fn create(&self, path: &str, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fence, path, flags, Mode::from_raw_mode(mode as _))?)
    }

    pub(crate) fn fence(&self) -> &OwnedFd {
        &self.fence
    }

    /// If another process of our tenure loses its anchor by this, it finds the permit sealed.
    fn remove_anchors(&self) {
        for name in self.own_entries(ANCHOR) {
            let _ = rustix::fs::unlinkat(&self.fence, format!("{}/{name}", self.own), AtFlags::empty());
        }
    }

    fn own_entries(&self, prefix: &str) -> Vec<String> {
        let Ok(own) = open_folder(&self.fence, self.own.as_str()) else { return Vec::new() };
        let found = names(&own).unwrap_or_default().into_iter().map(|(name, _)| name);
        found.filter(|name| name.starts_with(prefix)).collect()
    }

    pub(crate) fn contended(&self, what: &str) -> Error {
        Error::new(Kind::Contended, format!("{what}: resource=`{}`; try again", self.scene.resource))
    }
}
