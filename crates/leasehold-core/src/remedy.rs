//! What to do about an error, as data.
//!
//! Promise: the library names no command. A program for people [puts the remedy into words](put_into_words), which
//! follow the message wherever the error is shown. Non-promise: the library does not know the address of the caller's
//! store; until [`crate::Error::in_store`] sets it, the words omit it.

use crate::relocation::Address;
use crate::resolve::TokenKind;
use crate::{Epoch, LeaseName, Lineage};
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// What to do about an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Move a lease past an epoch that the store has lost.
    Advance {
        /// The lease, in the store that granted the token.
        lease: LeaseName,
        /// The highest epoch of it that was seen.
        past: Epoch,
        /// If the store was lost: the lineage that the lease had, and the one that the store has for it now.
        back_to: Option<(Lineage, StoredLineage)>,
    },
    /// Try an item again, past an epoch that the store has lost.
    Retry {
        /// The lease name in the item's tokens.
        lease: LeaseName,
        /// The highest epoch of it that was seen.
        past: Epoch,
    },
    /// Give this resource to the lease of the token that was refused.
    Adopt {
        /// The resource, as its guard names it.
        resource: String,
    },
    /// Give the resource to another lease, if that is intended.
    GiveAway,
    /// Hold a lease for the write itself.
    LeaseTheWrite,
    /// Run `doctor` on the store, which reports who began the migration.
    Examine,
    /// Run `doctor` on the spool, which reports the permissions to change.
    ExamineSpool {
        /// Its path, if known.
        path: Option<PathBuf>,
    },
    /// Finish an interrupted migration, or give it up.
    FinishMigration {
        /// The old store.
        from: Address,
        /// The new store.
        to: Address,
    },
    /// Finish a migration that can no longer be given up.
    CompleteMigration {
        /// The old store.
        from: Address,
        /// The new store.
        to: Address,
    },
    /// Give a migration up. `None` stands for the caller's own store.
    AbortMigration {
        /// The old store.
        from: Option<Address>,
        /// The new store.
        to: Option<Address>,
    },
    /// Look at the items of this queue, or of all queues if none.
    ListItems {
        /// The queue; every queue if none.
        queue: Option<String>,
    },
    /// Let a janitor put the items of this queue in line.
    CleanQueue {
        /// The queue whose items are not in line.
        queue: String,
    },
    /// Say where the spool is that the token came from.
    NameSpool,
    /// Start it from a system unit of the machine.
    StartWithTheMachine,
    /// Install the fence in the database.
    SetUpSql,
    /// Install the hook in the repository.
    InstallHook,
    /// Push in a way that moves the fence.
    PushThroughTheGuard,
    /// Name the branch to push to.
    NameBranch {
        /// The git remote, by name or URL.
        remote: String,
        /// The branch on the remote.
        branch: String,
    },
    /// Replace the folder as a whole.
    PublishTheFolder,
    /// Write it as a single file.
    WriteTheFile,
    /// Start the server, if it is not running.
    StartServer,
    /// Manage the servers' keys by the command for them.
    ManageKeys,
    /// Give another folder for the state of this machine, or do without one.
    ChooseStateFolder,
}

/// The lineage of the record in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredLineage {
    /// The store has no record of that name.
    Nothing,
    /// The store has a record of this lineage.
    Lineage(Lineage),
}

impl fmt::Display for StoredLineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredLineage::Nothing => f.write_str("none"),
            StoredLineage::Lineage(lineage) => write!(f, "{lineage}"),
        }
    }
}

impl Remedy {
    /// A guard has seen an epoch that the store, restored from an old copy, does not know.
    pub fn restored(lease: &LeaseName, seen: Epoch) -> Self {
        match TokenKind::of(lease) {
            TokenKind::Lease => Remedy::Advance { lease: lease.clone(), past: seen, back_to: None },
            TokenKind::Item | TokenKind::SpoolFile => Remedy::Retry { lease: lease.clone(), past: seen },
        }
    }

    /// A guard has seen an epoch of a lineage that the store, lost and created again, does not have.
    pub fn lost(resource: &str, lease: &LeaseName, seen: Epoch, lineage: Lineage, found: StoredLineage) -> Self {
        match TokenKind::of(lease) {
            TokenKind::Lease => Remedy::Advance { lease: lease.clone(), past: seen, back_to: Some((lineage, found)) },
            // Items are short-lived: the work is added again, and the new item adopts what the old one wrote.
            TokenKind::Item | TokenKind::SpoolFile => Remedy::Adopt { resource: resource.to_owned() },
        }
    }

    /// Whether the remedy applies to an address of this kind: a spool is not a store.
    pub(crate) fn is_for(&self, address: &str) -> bool {
        let of_spool = matches!(self, Remedy::Retry { lease, .. } if TokenKind::of(lease) == TokenKind::SpoolFile);
        address.starts_with("spool:") == of_spool
    }
}

/// The words for a remedy, with the store's address if known. They follow the message: `; heal with: ...`.
pub type Words = fn(&Remedy, Option<&str>) -> String;

static WORDS: OnceLock<Words> = OnceLock::new();

/// Sets the words for the remedies in all error messages of this process. For
/// programs that have commands. Only the first call counts.
pub fn put_into_words(words: Words) {
    let _ = WORDS.set(words);
}

/// The words for a remedy; empty if the program has set none.
pub(crate) fn words(remedy: &Remedy, store: Option<&str>) -> String {
    WORDS.get().map_or_else(String::new, |words| words(remedy, store))
}
