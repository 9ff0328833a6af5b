//! Adoption: an operator gives an artifact to another lease.
//!
//! A whole new fence folder is made under `.NAME.adopt/` and exchanged with `.NAME.fence` in one rename. The former
//! one moves into the new one, as `former-*`, and is *retired*: a permit of the highest possible epoch shuts out
//! everybody who still has it open, by the same rules as any higher epoch. It is never removed, because a paused
//! writer of the former lease must find a fence that refuses it.
//!
//! Promise: at every moment there is one whole fence in place. A permit of the new lease is marked as sealed only
//! after the former fence was retired, so the first writer after a crash retires it. Non-promise: it does not work
//! where two folders cannot be exchanged (NFS).

use crate::observe::file::FileStep;
use crate::permit::Permits;
use crate::permit::error::{Scene, exists, vanished};
use crate::permit::fence::{
    LEASE, NOBODY, SEALED, high_in, list, names, open_fence, open_folder, permit_name, read_file, read_lease, sync,
};
use crate::permit::location::ArtifactPath;
use crate::permit::nesting;
use crate::permit::teardown::{GONE, discard_aside};
use crate::succession::{Former, MAX_FORMER_BYTES};
use leasehold_core::guard::HighWater;
use leasehold_core::{Epoch, Error, Kind, Nonce, Result, Token, Who, Why, codec};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Prefix of former leases' fence folders in the present one; the name they were staged under follows.
pub(crate) const FORMER: &str = "former-";
/// Prefix of a fence folder that is being filled.
const NEW: &str = "new-";
/// Who adopted it, and why: for people.
const ADOPTED: &str = "adopted";
/// The leases that had the artifact before, with the highest epoch of each. A lease that returns gets a new fence
/// folder, so its epochs must be remembered here.
const EARLIER: &str = "earlier";

/// True for `<nonce>-<inode>`. The inode is that of the folder that was staged under this name: if another one is
/// there, the two were exchanged.
pub(crate) fn is_staged_name(name: &str) -> bool {
    inode_in(name).is_some()
}

fn inode_in(name: &str) -> Option<u64> {
    let (nonce, inode) = name.split_once('-')?;
    nonce.parse::<Nonce>().ok()?;
    inode.parse().ok()
}

/// Gives the artifact at `artifact` to the lease of `token`, if the fence still is what the operator saw.
pub(crate) fn adopt(
    scene: Scene<'_>,
    artifact: &ArtifactPath,
    from: &HighWater,
    token: &Token,
    by: &Who,
    why: &Why,
) -> Result<HighWater> {
    let name = artifact.sibling(".fence")?;
    let changed = |now: &str| {
        let message = format!(
            "the fence has changed: resource=`{}` was fenced by {} when you looked, {now} now; nothing was changed, look \
             again",
            scene.resource,
            described(from)
        );
        Error::new(Kind::Contended, message)
    };
    let Some(former) = open_fence(&scene, artifact, &name)? else { return Err(changed("by nobody")) };
    lock(&scene, &former)?;
    if !is_still_current(&scene, artifact, &former)? {
        return Err(changed("by another lease"));
    }
    let unchanged = || match high_in(&scene, &former)? {
        Some(now)
            if (&now.lease, now.lineage, now.epoch, now.nonce)
                == (&from.lease, from.lineage, from.epoch, from.nonce) =>
        {
            Ok(())
        }
        Some(now) => Err(changed(&format!("by {}", described(&now)))),
        None => Err(changed("by nobody")),
    };
    unchanged()?;
    nesting::refuse(&scene, artifact)?;
    if (&from.lease, from.lineage) == (&token.lease, token.lineage) {
        // It is this lease's already, perhaps by an adoption that was interrupted: sealing completes it.
        return Permits::open(scene, artifact, token)?.seal();
    }
    let earlier = read_earlier(&scene, &former)?.given(scene.resource, from, token, MAX_FORMER_BYTES)?;
    let staging = open_staging(&scene, artifact)?;
    let undo = |staged: Option<&str>| {
        if let Some(staged) = staged {
            discard_aside(&scene, &staging, staged, &former);
        }
        if let Ok(name) = artifact.sibling(".adopt") {
            let _ = rustix::fs::unlinkat(&artifact.parent, name, AtFlags::REMOVEDIR);
        }
    };
    let staged = stage(&scene, &staging, &earlier, token, &note(from, token, by, why)).inspect_err(|_| undo(None))?;
    // Checked after staging: a newer epoch of the former lease is either seen here, or removes what was staged.
    let exchanged = unchanged().and_then(|()| {
        scene
            .attempt(FileStep::ExchangeFence, || {
                leasehold_system::rename::exchange(&staging, Path::new(&staged), &artifact.parent, Path::new(&name))
            })
            .map_err(|e| match e {
                e if e.kind() == io::ErrorKind::Unsupported => no_exchange(&scene, &name),
                e if vanished(&e) => changed("by a newer epoch"),
                e => scene.failed(FileStep::ExchangeFence, e),
            })
    });
    exchanged.inspect_err(|_| undo(Some(&staged)))?;
    let sealed = scene
        .take(FileStep::SyncParent, || sync(&artifact.parent))
        .and_then(|()| Permits::open(scene, artifact, token)?.seal());
    sealed.map_err(|e| unfinished(&scene, from, token, e))
}

/// Excludes other adoptions. Writers do not use this lock.
fn lock(scene: &Scene<'_>, former: &OwnedFd) -> Result<()> {
    match rustix::fs::flock(former, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let message =
                format!("another adoption is under way: resource=`{}`; try again when it is done", scene.resource);
            Err(Error::new(Kind::Contended, message))
        }
        answer => answer.map_err(|e| scene.failed(FileStep::StageFence, e.into())),
    }
}

/// The new fence is in place, so *not applied* would be wrong.
fn unfinished(scene: &Scene<'_>, from: &HighWater, token: &Token, cause: Error) -> Error {
    if !cause.is_retryable() {
        return cause;
    }
    let message = format!(
        "resource=`{}` has the fence of {} now, but that of {} could not be shut: a writer that was there may still publish; run \
         the same command again",
        scene.resource,
        described(&HighWater::of(token, 0)),
        described(from)
    );
    Error::new(Kind::Indeterminate, message).with_source(cause)
}

fn described(high: &HighWater) -> String {
    format!("{} of lineage {}", high.token(), high.lineage)
}

fn is_still_current(scene: &Scene<'_>, artifact: &ArtifactPath, fence: &OwnedFd) -> Result<bool> {
    let at = rustix::fs::statat(&artifact.parent, artifact.sibling(".fence")?, AtFlags::SYMLINK_NOFOLLOW);
    let ours = rustix::fs::fstat(fence).map_err(|e| scene.failed(FileStep::List, e.into()))?;
    match at {
        Ok(at) => Ok((at.st_dev, at.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(scene.failed(FileStep::List, e.into())),
    }
}

fn open_staging(scene: &Scene<'_>, artifact: &ArtifactPath) -> Result<OwnedFd> {
    let name = artifact.sibling(".adopt")?;
    scene.take(FileStep::StageFence, || {
        match rustix::fs::mkdirat(&artifact.parent, &name, Mode::from_raw_mode(0o777)) {
            Err(e) if !exists(&e.into()) => Err(e.into()),
            _ => Ok(open_folder(&artifact.parent, &name)?),
        }
    })
}

/// Makes a fence folder of the new lease, with a permit that is not marked as sealed yet; durable when it returns.
fn stage(scene: &Scene<'_>, staging: &OwnedFd, earlier: &Former, token: &Token, note: &str) -> Result<String> {
    let nonce = Nonce::random();
    let new = format!("{NEW}{nonce}");
    let lease = codec::encode("fence", &(&token.lease, token.lineage))?;
    let earlier = codec::encode(EARLIER, &earlier.to_string())?;
    let made = scene.attempt(FileStep::StageFence, || {
        let mode = Mode::from_raw_mode(0o777);
        rustix::fs::mkdirat(staging, new.as_str(), mode)?;
        let fence = open_folder(staging, new.as_str())?;
        for (name, bytes) in [(LEASE, lease.as_slice()), (EARLIER, &earlier), (ADOPTED, note.as_bytes())] {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::openat(&fence, name, flags, Mode::from_raw_mode(0o666))?);
            file.write_all(bytes)?;
            file.sync_all()?;
        }
        rustix::fs::mkdirat(&fence, permit_name(token.epoch, token.nonce), mode)?;
        sync(&fence)?;
        let staged = format!("{nonce}-{}", rustix::fs::fstat(&fence)?.st_ino);
        rustix::fs::renameat(staging, new.as_str(), staging, staged.as_str())?;
        sync(staging)?;
        Ok(staged)
    });
    made.map_err(|e| {
        discard_aside(scene, staging, &new, staging);
        scene.failed(FileStep::StageFence, e)
    })
}

fn note(from: &HighWater, token: &Token, by: &Who, why: &Why) -> String {
    let (from, to) = (described(from), described(&HighWater::of(token, 0)));
    format!("adopted by {by}\nwhy: {why}\nfrom: {from}\nto: {to}\n")
}

fn read_earlier(scene: &Scene<'_>, fence: &OwnedFd) -> Result<Former> {
    let Some(bytes) = read_file(scene, fence, EARLIER)? else { return Ok(Former::default()) };
    let text: String = codec::decode(EARLIER, &bytes, &format!("{EARLIER} of {}", scene.resource))?;
    Former::read(scene.resource, &text)
}

fn no_exchange(scene: &Scene<'_>, fence: &OsStr) -> Error {
    let message = format!(
        "this file system cannot exchange two folders, so resource=`{}` cannot be adopted here; stop every job of the former \
         lease, then remove the folder `{}` by hand: the next write makes a new fence",
        scene.resource,
        leasehold_core::printable(&fence.to_string_lossy())
    );
    Error::new(Kind::Unsupported, message)
}

impl Permits<'_> {
    /// Completes adoptions that were interrupted. Those that have not changed anything yet are undone, because the
    /// fence is no longer what their operator saw. Fences that were displaced are retired.
    pub(crate) fn settle(&self) -> Result<()> {
        let name = self.artifact.sibling(".adopt")?;
        match open_folder(&self.artifact.parent, &name) {
            Err(Errno::NOENT) => {}
            Err(e) => return Err(self.scene.failed(FileStep::Retire, e.into())),
            Ok(staging) => {
                self.move_in(&staging)?;
                let _ = rustix::fs::unlinkat(&self.artifact.parent, &name, AtFlags::REMOVEDIR);
            }
        }
        self.retire_former()
    }

    /// Retires the fences that were displaced by ours, and those that were displaced by them.
    fn retire_former(&self) -> Result<()> {
        for former in list(&self.scene, &self.fence)?.former {
            self.scene.take(FileStep::Retire, || Ok(()))?;
            let Some(inode) = former.strip_prefix(FORMER).and_then(inode_in) else { continue };
            let opened = match open_folder(&self.fence, former.as_str()) {
                Err(Errno::NOENT) => continue,
                answer => answer.map_err(|e| self.scene.failed(FileStep::Retire, e.into()))?,
            };
            let stat = rustix::fs::fstat(&opened).map_err(|e| self.scene.failed(FileStep::Retire, e.into()))?;
            if stat.st_ino == inode {
                // What was staged is still here: nothing was adopted.
                discard_aside(&self.scene, &self.fence, &former, &self.fence);
            } else {
                self.retire(opened)?;
            }
        }
        Ok(())
    }

    /// Moves the contents of `.NAME.adopt` into our own fence, where nobody can exchange them any more.
    fn move_in(&self, staging: &OwnedFd) -> Result<()> {
        let found = self.scene.take(FileStep::Retire, || names(staging))?;
        for (name, kind) in found {
            if kind != FileType::Directory {
                continue;
            }
            if name.starts_with(NEW) || name.starts_with(GONE) {
                discard_aside(&self.scene, staging, &name, &self.fence);
            } else if is_staged_name(&name) {
                match rustix::fs::renameat(staging, name.as_str(), &self.fence, format!("{FORMER}{name}")) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // A folder cannot be moved into itself: our own fence was displaced.
                    Err(Errno::INVAL) => return Err(self.adopted()),
                    Err(e) => return Err(self.scene.failed(FileStep::Retire, e.into())),
                }
            }
        }
        Ok(())
    }

    /// Shuts a former fence for ever, by a permit of the highest possible epoch.
    fn retire(&self, former: OwnedFd) -> Result<()> {
        let last = Token { epoch: Epoch::MAX, nonce: NOBODY, ..self.token.clone() };
        let mark = format!("{}/{SEALED}", permit_name(last.epoch, last.nonce));
        match rustix::fs::statat(&former, mark, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(e) => return Err(self.scene.failed(FileStep::Retire, e.into())),
        }
        let permits = Permits::inside(self.scene, self.artifact, &last, former);
        permits.seal_again(&|| permits.retire_former()).map(|_| ())
    }

    /// The error for a fence that was displaced while we had it open: the lease that has the artifact now refuses us.
    pub(crate) fn adopted(&self) -> Error {
        let refused = || {
            let name = self.artifact.sibling(".fence")?;
            if let Some(fence) = open_fence(&self.scene, self.artifact, &name)?
                && let Some(lease) = read_lease(&self.scene, &fence)?
            {
                self.refuse_other(&fence, lease)?;
            }
            Err::<(), _>(self.contended("the fence was replaced while it was used"))
        };
        refused().err().unwrap_or_else(|| self.contended("the fence was replaced while it was used"))
    }
}
