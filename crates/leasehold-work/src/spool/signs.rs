//! Signs of life: how a worker says that it is still at an item, and how anybody tells since when it is silent.
//!
//! Promise: a sign needs no right but those of the worker's own folder, so an item of another user is kept as well as
//! one's own. It is the change time of the item's file, where the worker may touch that, or of a hidden file beside it,
//! which is called `.` and the item's name; the later one counts. Both are stamped by the clock of the file server.
//! Non-promise: whoever may write in the folder can give a sign for another; epochs decide what counts, not signs.

use super::claiming::SpoolGrant;
use super::folder::{Spool, failed};
use super::steps::SpoolStep;
use leasehold::clock::{Clock, SystemClock};
use leasehold::{Error, Kind, Nonce, Result, Timestamp};
use leasehold_system::undo::{Mend, undone};
use leasehold_system::volume;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// When a file was last changed, which nobody can set but the clock that stamps it.
pub(super) fn changed(metadata: &fs::Metadata) -> Timestamp {
    let (seconds, nanos) = (metadata.ctime().max(0) as u64, metadata.ctime_nsec().max(0) as u64);
    Timestamp::from_millis(seconds.saturating_mul(1000) + nanos / 1_000_000)
}

/// The hidden file beside an item.
pub(super) fn sign_of(item: &Path) -> PathBuf {
    let name = item.file_name().unwrap_or_default().to_string_lossy();
    item.with_file_name(format!(".{name}"))
}

const fn stamp(nsec: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: nsec }
}

/// Moves an item's change time. Its modification time, which is the payload's own, stays.
fn touch_item(item: &Path) -> Result<(), Errno> {
    let times = Timestamps { last_access: stamp(UTIME_NOW), last_modification: stamp(UTIME_OMIT) };
    utimensat(CWD, item, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn touch_sign(sign: &Path) -> Result<(), Errno> {
    let times = Timestamps { last_access: stamp(UTIME_NOW), last_modification: stamp(UTIME_NOW) };
    utimensat(CWD, sign, &times, AtFlags::SYMLINK_NOFOLLOW)
}

impl Spool {
    /// Gives a sign of life. An error of kind [`Kind::Lost`] is final.
    pub fn renew(&self, grant: &mut SpoolGrant) -> Result<()> {
        let asked = SystemClock.now();
        let lost = |how: &str| Err(Error::new(Kind::Lost, format!("item `{}` {how}", grant.name.id)));
        if asked >= grant.trust_until {
            return lost("ran out before it was renewed");
        }
        self.reach(SpoolStep::Touch);
        match touch_item(grant.path()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return lost("was lost: somebody moved it"),
            // Only a file's owner may set its times, and the folder is ours to write in.
            Err(Errno::PERM | Errno::ACCESS) if !undone(Mend::SignOfLifeNeedsTheOwner) => {
                let sign = sign_of(grant.path());
                self.give_sign(&sign).map_err(|e| failed(e, "give a sign of life by", &sign))?;
                // An operator may have moved it, or whoever found it silent.
                if grant.path().symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                    let _ = fs::remove_file(&sign);
                    return lost("was lost: somebody moved it");
                }
            }
            Err(e) => return Err(failed(e.into(), "touch", grant.path())),
        }
        // A sign that came after the last one had run out may have been overlooked by whoever puts the item back.
        if SystemClock.now() >= grant.trust_until {
            return lost("was renewed too late: the folder answered after its time had run out");
        }
        grant.trust_until = asked + grant.ttl.get() - self.grain();
        Ok(())
    }

    fn give_sign(&self, sign: &Path) -> io::Result<()> {
        match touch_sign(sign) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {}
            Err(e) => return Err(e.into()),
        }
        // There is none, or it is another user's: a new file takes its place.
        let fresh = sign.with_file_name(format!(".{}", Nonce::random()));
        let placed = File::create_new(&fresh)
            .and_then(|file| self.rights().share(&file))
            .and_then(|()| fs::rename(&fresh, sign));
        if placed.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        placed
    }

    /// For how long an item has been silent, if that is longer than `ttl`. Whatever may be rounded away is the worker's.
    pub(super) fn silent_for(&self, item: &Path, ttl: Duration, now: Timestamp) -> Option<Duration> {
        let silent = |at: Timestamp| Some(now.saturating_since(at)).filter(|silent| *silent > ttl);
        silent(changed(&fs::symlink_metadata(item).ok()?))?;
        // Asked of the file server itself before anything is moved: a client may remember what was true a minute ago. What
        // cannot be told is left to the next look.
        silent(latest(item).ok()?)?;
        match latest(&sign_of(item)) {
            Ok(sign) => silent(sign),
            Err(e) if e.kind() == io::ErrorKind::NotFound => silent(latest(item).ok()?),
            Err(_) => None,
        }
    }

    /// When the last sign of life was given.
    pub(super) fn last_sign(&self, item: &Path) -> Result<Timestamp> {
        let at = fs::symlink_metadata(item).map_err(|e| failed(e, "look at", item))?;
        Ok(latest(&sign_of(item)).map_or(changed(&at), |sign| sign.max(changed(&at))))
    }
}

fn latest(path: &Path) -> io::Result<Timestamp> {
    volume::changed_ms(path).map(Timestamp::from_millis)
}
