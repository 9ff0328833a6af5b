//! The fence as we last saw it, in a file, so that the next push need not read it first.
//!
//! Promise: if the file is damaged, foreign or missing, the fence is read from the remote. The remote compares in any
//! case. Non-promise: it is not synced to disk, and nothing is decided by it alone.

use super::commit::{FenceMessage, Oid, TRAIL};
use crate::succession::Former;
use leasehold_core::guard::HighWater;
use leasehold_core::{Result, Token, codec};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const KIND: &str = "git-fence";
/// A longer file is not ours.
const MAX_BYTES: u64 = 16 * 1024;

/// The fence of one lease on one remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) oid: Oid,
    pub(crate) high: HighWater,
    /// Where it was before, the latest first.
    pub(crate) after: Vec<Oid>,
    /// The leases of its name that had it before.
    pub(crate) former: Former,
}

impl Fence {
    /// From the commit that the remote has.
    pub(crate) fn read(oid: Oid, commit: &str, name: &str) -> Result<Self> {
        let FenceMessage { high, after, former, .. } = FenceMessage::read(commit, name)?;
        Ok(Fence { oid, high, after, former })
    }

    /// Whether its trail goes back to this commit, or to the first one.
    pub(crate) fn passed(&self, tip: Option<&Oid>) -> bool {
        tip.is_some_and(|oid| self.after.contains(oid)) || self.after.len() < TRAIL
    }

    /// The leases that the next commit has to name.
    pub(crate) fn former(found: Option<&Fence>) -> Former {
        found.map(|fence| fence.former.clone()).unwrap_or_default()
    }

    /// The trail of the next commit.
    pub(crate) fn trail(found: Option<&Fence>) -> Vec<Oid> {
        let Some(fence) = found else { return Vec::new() };
        std::iter::once(&fence.oid).chain(&fence.after).take(TRAIL).cloned().collect()
    }
}

/// The file that remembers one fence.
#[derive(Debug)]
pub(crate) struct Note {
    path: PathBuf,
    /// The remote, without its password, and the ref. The file's name is only a hash of both, so they are compared.
    subject: String,
}

impl Note {
    pub(crate) fn new(folder: &Path, url: &str, fence: &str) -> Self {
        let subject = format!("{url} {fence}");
        Note { path: folder.join(format!("fence-{:016x}", fingerprint(&subject))), subject }
    }

    /// The fence in the file, if it is whole and of this remote.
    pub(crate) fn read(&self) -> Option<Fence> {
        if fs::symlink_metadata(&self.path).ok().filter(|stat| stat.is_file())?.len() > MAX_BYTES {
            return None;
        }
        let record: (String, String, Vec<String>, String) =
            codec::decode(KIND, &fs::read(&self.path).ok()?, "note").ok()?;
        let (subject, high, oids, former) = record;
        if subject != self.subject {
            return None;
        }
        let high: Token = high.parse().ok()?;
        let mut oids = oids.iter().map(|oid| Oid::parse(oid)).collect::<Option<Vec<_>>>()?.into_iter();
        let former = Former::parse(&former)?;
        Some(Fence { oid: oids.next()?, high: HighWater::of(&high, high.seq), after: oids.collect(), former })
    }

    pub(crate) fn write(&self, fence: &Fence) -> io::Result<()> {
        let high = fence.high.token().wire();
        let oids: Vec<&str> = std::iter::once(&fence.oid).chain(&fence.after).map(Oid::as_str).collect();
        let bytes =
            codec::encode(KIND, &(&self.subject, high, oids, fence.former.to_string())).map_err(io::Error::other)?;
        if fs::symlink_metadata(&self.path).is_ok_and(|stat| !stat.is_file()) {
            fs::remove_file(&self.path)?;
        }
        // Written in place: some file systems flush a file that replaces another, which would cost more than the rest
        // of the push. If the write is torn, the checksum tells.
        let open = || OpenOptions::new().write(true).create(true).truncate(false).open(&self.path);
        let mut file = open().or_else(|error| match self.path.parent() {
            Some(folder) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(folder).and_then(|()| open()),
            _ => Err(error),
        })?;
        file.write_all(&bytes)?;
        let length = bytes.len() as u64;
        if file.metadata()?.len() > length { file.set_len(length) } else { Ok(()) }
    }

    pub(crate) fn forget(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// FNV-1a: short, and the whole subject is compared afterwards.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Epoch, Nonce};

    #[test]
    fn a_note_is_read_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let note = Note::new(&folder.path().join("leasehold"), "https://host/x", "refs/fence/job");
        assert_eq!(note.read(), None);
        let (lease, nonce) = ("job".parse().unwrap(), Nonce::from_u128(9));
        let high = HighWater {
            lease,
            lineage: leasehold_core::Lineage::from_u128(1),
            epoch: Epoch::new(4).unwrap(),
            nonce,
            seq: 2,
        };
        let fence = Fence {
            oid: Oid::parse(&"ab".repeat(20)).unwrap(),
            high,
            after: vec![Oid::parse(&"cd".repeat(20)).unwrap()],
            former: Former::parse(&format!("job:{}:3", "0".repeat(32))).unwrap(),
        };
        note.write(&fence).unwrap();
        assert_eq!(note.read().as_ref(), Some(&fence));
        let bytes = fs::read(&note.path).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            fs::write(&note.path, &flipped).unwrap();
            assert_eq!(note.read(), None, "byte {at}");
        }
        let shorter = Fence { after: Vec::new(), ..fence };
        note.write(&shorter).unwrap();
        assert_eq!(note.read().as_ref(), Some(&shorter));
        note.forget();
        assert_eq!(note.read(), None);
        // A link in place of our file is not written through.
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "theirs").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &note.path).unwrap();
        note.write(&shorter).unwrap();
        assert_eq!(note.read(), Some(shorter));
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "theirs");
    }
}
