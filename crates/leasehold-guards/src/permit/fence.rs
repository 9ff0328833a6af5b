//! The fence folder as it is read: which lease, which permits, what was left behind.
//!
//! Promise: damage is not taken for absence, and what is not ours is neither trusted nor touched. Non-promise: a
//! listing is not a snapshot; `permit/mod.rs` explains what follows from that.

use crate::observe::file::FileStep;
use crate::permit::adopt::{FORMER, is_staged_name};
use crate::permit::displaced::is_swapped;
use crate::permit::error::{Scene, errno};
use crate::permit::location::ArtifactPath;
use crate::permit::teardown::GONE;
use leasehold_core::guard::HighWater;
use leasehold_core::{Epoch, Error, Kind, LeaseName, Lineage, Nonce, Result, codec};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

pub(crate) const LEASE: &str = "lease";
pub(crate) const SEALED: &str = "sealed";
pub(crate) const WROTE: &str = "wrote";

/// The nonce of permits that no grant made.
pub(crate) const NOBODY: Nonce = Nonce::from_u128(0);

/// What a fence folder holds, lowest permit first.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) permits: Vec<(Epoch, Nonce)>,
    /// Permits and lease staging files whose removal was interrupted.
    pub(crate) leftovers: Vec<String>,
    /// Trees of publishers that died, which displaced.rs judges.
    pub(crate) swapped: Vec<String>,
    /// Fence folders of leases that the artifact was taken from, as adopt.rs names them.
    pub(crate) former: Vec<String>,
}

impl Listing {
    /// Whether an operator has given the artifact to another lease: then adopt.rs has put a permit of the highest
    /// possible epoch here.
    pub(crate) fn is_retired(&self) -> bool {
        self.permits.last().is_some_and(|(epoch, _)| *epoch == Epoch::MAX)
    }
}

/// The highest permit, whoever asks. Nothing is created.
pub(crate) fn high_water(scene: &Scene<'_>, artifact: &ArtifactPath) -> Result<Option<HighWater>> {
    match open_fence(scene, artifact, &artifact.sibling(".fence")?)? {
        Some(fence) => high_in(scene, &fence),
        None => Ok(None),
    }
}

/// The highest permit in this fence folder.
pub(crate) fn high_in(scene: &Scene<'_>, fence: &OwnedFd) -> Result<Option<HighWater>> {
    // Listed first: the lease file comes before any permit, so for a permit that is seen it is there.
    let listing = list(scene, fence)?;
    let lease = read_lease(scene, fence)?;
    let Some(&(epoch, nonce)) = listing.permits.last() else {
        // The lease that made the fence has no permit yet. The fence refuses every other lease, so it counts.
        let founded = |(lease, lineage)| HighWater { lease, lineage, epoch: Epoch::ZERO, nonce: NOBODY, seq: 0 };
        return Ok(lease.map(founded));
    };
    let (lease, lineage) = lease.ok_or_else(|| scene.corrupt("the fence folder has permits but no `lease` file"))?;
    let wrote = format!("{}/{WROTE}", permit_name(epoch, nonce));
    let seq = u64::from(rustix::fs::statat(fence, wrote, AtFlags::SYMLINK_NOFOLLOW).is_ok());
    Ok(Some(HighWater { lease, lineage, epoch, nonce, seq }))
}

pub(crate) fn sync(folder: &OwnedFd) -> io::Result<()> {
    // The standard library's sync reaches the disk on every system; the plain system call does not on macOS.
    File::from(folder.try_clone()?).sync_all()
}

pub(crate) fn permit_name(epoch: Epoch, nonce: Nonce) -> String {
    format!("{epoch}-{nonce}")
}

fn parse_permit(name: &str) -> Option<(Epoch, Nonce)> {
    let (epoch, nonce) = name.split_once('-')?;
    let permit = (epoch.parse().ok()?, nonce.parse().ok()?);
    (permit_name(permit.0, permit.1) == name).then_some(permit)
}

/// Opens a folder, but not through a symlink.
pub(crate) fn open_folder(at: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

pub(crate) fn open_fence(scene: &Scene<'_>, artifact: &ArtifactPath, name: &OsStr) -> Result<Option<OwnedFd>> {
    match open_folder(&artifact.parent, name) {
        Ok(fence) => Ok(Some(fence)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(Error::new(
            Kind::Invalid,
            format!(
                "fence folder refused: resource=`{}`: `{}` is a symlink or a file, not a folder; remove it",
                scene.resource,
                leasehold_core::printable(&name.to_string_lossy())
            ),
        )),
        Err(e) => Err(scene.failed(FileStep::MakeFence, e.into())),
    }
}

pub(crate) fn read_lease(scene: &Scene<'_>, fence: &OwnedFd) -> Result<Option<(LeaseName, Lineage)>> {
    let what = || format!("lease of {}", scene.resource);
    read_file(scene, fence, LEASE)?.map(|bytes| codec::decode("fence", &bytes, &what())).transpose()
}

/// A file of ours in the fence folder; none if it is not there.
pub(crate) fn read_file(scene: &Scene<'_>, fence: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(fence, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(scene.corrupt(&format!("the `{name}` file is a symlink; remove it"))),
        answer => answer.map_err(|e| scene.failed(FileStep::List, e.into()))?,
    };
    let mut bytes = Vec::new();
    let limit = codec::MAX_RECORD_BYTES as u64 + 1;
    File::from(opened).take(limit).read_to_end(&mut bytes).map_err(|e| scene.failed(FileStep::List, e))?;
    Ok(Some(bytes))
}

pub(crate) fn list(scene: &Scene<'_>, fence: &OwnedFd) -> Result<Listing> {
    let mut listing = Listing::default();
    let names = scene.take(FileStep::List, || names(fence))?;
    for (name, kind) in names {
        if let Some(permit) = parse_permit(&name) {
            if kind != FileType::Directory {
                return Err(scene.corrupt(&format!("`{name}` is not a folder; Leasehold did not create it, remove it")));
            }
            listing.permits.push(permit);
        } else if is_leftover(&name, kind) {
            listing.leftovers.push(name);
        } else if kind == FileType::Directory && name.strip_prefix(FORMER).is_some_and(is_staged_name) {
            listing.former.push(name);
        } else if kind == FileType::Directory && is_swapped(&name) {
            listing.swapped.push(name);
        }
    }
    listing.permits.sort_unstable();
    Ok(listing)
}

/// Anything else in there is not ours and is left alone.
fn is_leftover(name: &str, kind: FileType) -> bool {
    let random = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<Nonce>().is_ok());
    match kind {
        FileType::Directory => random(GONE),
        FileType::Symlink => random(GONE),
        FileType::RegularFile => random(GONE) || random("lease-"),
        _ => false,
    }
}

pub(crate) fn names(fence: &OwnedFd) -> io::Result<Vec<(String, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fence)? {
        let entry = entry?;
        // Names of ours are plain text.
        let Ok(name) = entry.file_name().to_str() else { continue };
        let kind = match entry.file_type() {
            FileType::Unknown => match rustix::fs::statat(fence, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(e) if errno(&e.into()) == Some(Errno::NOENT) => continue,
                stat => FileType::from_raw_mode(stat?.st_mode),
            },
            kind => kind,
        };
        names.push((name.to_owned(), kind));
    }
    Ok(names)
}
