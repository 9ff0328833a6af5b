//! Heartbeats: how a worker shows that it still works on an item, and how others tell when it last did.
//!
//! Promise: a heartbeat needs only the permissions of the worker's own folder, so a worker can keep another user's item
//! as well as its own. It is the change time of the item's file, if the worker may touch that, or of a hidden file
//! beside it, whose name is `.` and the item's name; the later one counts. Both are stamped by the clock of the file
//! server. A heartbeat in the future is from before that clock was set back, and does not count: a process that finds
//! one replaces it by a new one, from which the time is counted. Non-promise: anyone who may write in the folder can
//! give a heartbeat for others. Epochs decide what counts, not heartbeats.

use super::claiming::SpoolGrant;
use super::folder::{Spool, failed};
use super::name::FileName;
use super::steps::SpoolStep;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Error, Kind, Nonce, Result, Timestamp};
use leasehold_system::undo::{Fix, is_disabled};
use leasehold_system::volume;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// When a file was last changed. Only the clock that stamps the file can set this.
pub(super) fn changed(metadata: &fs::Metadata) -> Timestamp {
    let (seconds, nanos) = (metadata.ctime().max(0) as u64, metadata.ctime_nsec().max(0) as u64);
    Timestamp::from_millis(seconds.saturating_mul(1000) + nanos / 1_000_000)
}

/// The hidden file beside an item.
pub(super) fn heartbeat_file(item: &Path) -> PathBuf {
    let name = item.file_name().unwrap_or_default().to_string_lossy();
    item.with_file_name(format!(".{name}"))
}

const fn stamp(nsec: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: nsec }
}

/// Updates an item's change time. Its modification time, which is the payload's own, stays.
fn touch_item(item: &Path) -> Result<(), Errno> {
    let times = Timestamps { last_access: stamp(UTIME_NOW), last_modification: stamp(UTIME_OMIT) };
    utimensat(CWD, item, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn touch_heartbeat(heartbeat: &Path) -> Result<(), Errno> {
    let times = Timestamps { last_access: stamp(UTIME_NOW), last_modification: stamp(UTIME_NOW) };
    utimensat(CWD, heartbeat, &times, AtFlags::SYMLINK_NOFOLLOW)
}

impl Spool {
    /// Gives a heartbeat. An error of kind [`Kind::Lost`] is final.
    pub fn renew(&self, grant: &mut SpoolGrant) -> Result<()> {
        let asked = SystemClock.now();
        let lost = |how: &str| Err(Error::new(Kind::Lost, format!("item `{}` {how}", grant.name.id)));
        if asked >= grant.live.trust_until {
            return lost("ran out before it was renewed");
        }
        self.reach(SpoolStep::Touch);
        match touch_item(grant.path()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return lost("was lost: somebody moved it"),
            // Only a file's owner may set its times, but we may write in the folder.
            Err(Errno::PERM | Errno::ACCESS) if !is_disabled(Fix::SignOfLifeNeedsTheOwner) => {
                let heartbeat = heartbeat_file(grant.path());
                self.give_heartbeat(&heartbeat).map_err(|e| failed(e, "write the heartbeat", &heartbeat))?;
                // An operator may have moved it, or a janitor that found it silent.
                if grant.path().symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                    let _ = fs::remove_file(&heartbeat);
                    return lost("was lost: somebody moved it");
                }
            }
            Err(e) => return Err(failed(e.into(), "touch", grant.path())),
        }
        // A janitor that puts the item back may have missed a heartbeat that came after the last one had expired.
        if SystemClock.now() >= grant.live.trust_until {
            return lost("was renewed too late: the folder answered after its time had run out");
        }
        grant.live.trust_until = asked + grant.live.ttl.get() - self.grain();
        Ok(())
    }

    fn give_heartbeat(&self, heartbeat: &Path) -> io::Result<()> {
        match touch_heartbeat(heartbeat) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {}
            Err(e) => return Err(e.into()),
        }
        // There is none, or it is another user's: a new file replaces it.
        let fresh = heartbeat.with_file_name(format!(".{}", Nonce::random()));
        let placed = File::create_new(&fresh)
            .and_then(|file| self.rights().share(&file))
            .and_then(|()| fs::rename(&fresh, heartbeat));
        if placed.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        placed
    }

    /// How long ago a file was changed. A timestamp from before the clock was
    /// set back is renewed, and counts from now on.
    pub(super) fn age(&self, path: &Path, metadata: &fs::Metadata, now: Timestamp) -> Duration {
        let at = changed(metadata);
        if at > now.plus(self.skew()) && touch_item(path).is_err() {
            // A user who may write to a file but does not own it can set only both of its times.
            let _ = touch_heartbeat(path);
        }
        now.saturating_since(at)
    }

    /// The latest of these times that is not ahead of the clock.
    fn believed(&self, times: &[Timestamp], now: Timestamp) -> Result<Option<Timestamp>> {
        let mut limit = now.plus(self.skew());
        if times.iter().any(|at| *at > limit) {
            // `now` may have been read a while ago.
            limit = self.now()?.plus(self.skew());
        }
        Ok(times.iter().copied().filter(|at| *at <= limit).max())
    }

    /// The new name of an item that waits too long because the clock was set back: it then waits as long as was
    /// requested, from now on. None if that is not so.
    pub(super) fn with_times_reset(&self, path: &Path, name: &FileName) -> Option<FileName> {
        let since = changed(&fs::symlink_metadata(path).ok()?);
        let now = self.now().ok()?;
        let misdated = since > now.plus(self.skew());
        misdated.then(|| FileName { due: now.plus(name.due.saturating_since(since)), ..name.clone() })
    }

    /// How long ago the last heartbeat was, if that is longer than `ttl`. Rounding favours the worker.
    pub(super) fn silent_for(&self, item: &Path, ttl: Duration, now: Timestamp) -> Option<Duration> {
        let silent = |at: Timestamp| Some(now.saturating_since(at)).filter(|silent| *silent > ttl);
        let seen = changed(&fs::symlink_metadata(item).ok()?);
        if seen <= now.plus(self.skew()) {
            silent(seen)?;
        }
        // The file server itself is asked before anything is moved: a client may have cached what was true a minute
        // ago. If it cannot be asked, this is left to the next look.
        let times = match latest(&heartbeat_file(item)) {
            Ok(heartbeat) => vec![latest(item).ok()?, heartbeat],
            Err(e) if e.kind() == io::ErrorKind::NotFound => vec![latest(item).ok()?],
            Err(_) => return None,
        };
        let Some(last) = self.believed(&times, now).ok()? else {
            // As if its claim had begun now. The worker trusts its claim for at most a TTL from asking.
            let _ = self.give_heartbeat(&heartbeat_file(item));
            return None;
        };
        silent(last)
    }

    /// When the last heartbeat was given; the present time if that cannot be determined.
    pub(super) fn last_heartbeat(&self, item: &Path) -> Result<Timestamp> {
        let at = changed(&fs::symlink_metadata(item).map_err(|e| failed(e, "look at", item))?);
        let times = latest(&heartbeat_file(item)).map_or_else(|_| vec![at], |heartbeat| vec![at, heartbeat]);
        let now = self.now()?;
        Ok(self.believed(&times, now)?.unwrap_or(now))
    }
}

fn latest(path: &Path) -> io::Result<Timestamp> {
    volume::changed_ms(path).map(Timestamp::from_millis)
}
