//! The flaws that show only in leases: on other shelves a simpler promise would be the first to name them.

use super::{BrokenStore, Flaw, Version};
use leasehold_core::{Error, Key, Kind, Ownership, Result, Revision, Shelf, Tenure, codec};

/// A lease is put back to an older copy when it has been written so often, as by a failover that lost what was answered.
const WRITES_BEFORE_A_FALL: usize = 8;

/// The tenure in a lease's bytes.
fn tenure(bytes: &[u8]) -> Option<Tenure> {
    codec::decode::<Ownership>("ownership", bytes, "x").ok()?.tenure
}

impl BrokenStore {
    /// What is in a lease's record after a write, if it is not what was written.
    pub(super) fn overwritten_by(&self, key: &Key, written: Version) -> Option<Version> {
        if key.shelf != Shelf::Lease {
            return None;
        }
        let mut all = self.contents.versions.lock().unwrap();
        let versions = all.entry(key.clone()).or_default();
        versions.push(written);
        match (self.flaw, versions.as_slice()) {
            (Flaw::FallsBackToAnOlderLease, [_, older, ..]) if versions.len() == WRITES_BEFORE_A_FALL => {
                Some(older.clone())
            }
            // A renewal that was kept in memory comes to the disk after what was written next.
            (Flaw::FlushesRenewalsLate, [.., before, renewal, last]) if is_renewal(&before.1, &renewal.1) => {
                Some((last.0, renewal.1.clone()))
            }
            _ => None,
        }
    }

    /// Whether a swap is done though it expects what is no longer there.
    pub(super) fn lets_an_old_revision_pass(&self, key: &Key, expected: Option<&Revision>, next: &[u8]) -> bool {
        let Some(expected) = expected.filter(|_| key.shelf == Shelf::Lease) else { return false };
        let all = self.contents.versions.lock().unwrap();
        let old =
            all.get(key).and_then(|versions| versions.iter().find(|(number, _)| number.to_string() == expected.0));
        let (old, now) = (old.and_then(|old| tenure(&old.1)), self.current(key).and_then(|now| tenure(&now.1)));
        let (Some(old), Some(now)) = (old.map(|old| old.holder), now.map(|now| now.holder)) else { return false };
        match self.flaw {
            // Labels that nobody chose are the machine's name.
            Flaw::TellsHoldersByTheirLabel => old.label() == now.label() && old.label().as_str() != old.host(),
            Flaw::RenewsWhoeverAsks => tenure(next).is_some_and(|next| next.holder == old),
            _ => false,
        }
    }

    pub(super) fn is_a_repeated_lease(&self, key: &Key, next: &[u8]) -> bool {
        key.shelf == Shelf::Lease && self.current(key).is_some_and(|(_, bytes)| bytes == next)
    }

    /// Locks a key until [`BrokenStore::unlock`]: a call that is dropped in between never comes to that.
    pub(super) fn lock(&self, key: &Key) -> Result<()> {
        let is_free =
            self.flaw != Flaw::StaysLockedByADroppedCall || self.contents.locked.lock().unwrap().insert(key.clone());
        is_free.then_some(()).ok_or_else(|| Error::new(Kind::Unavailable, format!("`{key}` is locked")))
    }

    pub(super) fn unlock(&self, key: &Key) {
        self.contents.locked.lock().unwrap().remove(key);
    }
}

/// Whether the same holder has it for longer. The same bytes again are a write that is confirmed.
fn is_renewal(before: &[u8], after: &[u8]) -> bool {
    match (tenure(before), tenure(after)) {
        (Some(old), Some(new)) => before != after && old.holder == new.holder && new.deadline >= old.deadline,
        _ => false,
    }
}
