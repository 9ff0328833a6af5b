//! What every test of the guards needs.
#![allow(dead_code, clippy::unwrap_used)]

use leasehold_core::{Epoch, Nonce, Token};
use std::path::Path;

/// A token of lease `job`; the nonce follows from the epoch unless `rival` is not 0.
pub fn token(epoch: u64, rival: u64) -> Token {
    token_of("job", epoch, rival)
}

pub fn token_of(lease: &str, epoch: u64, rival: u64) -> Token {
    let nonce = Nonce::from_u128((u128::from(epoch) << 64) | u128::from(rival));
    Token {
        lease: lease.parse().unwrap(),
        lineage: leasehold_core::Lineage::from_u128(1),
        epoch: Epoch::new(epoch).unwrap(),
        nonce,
        seq: 0,
    }
}

/// A token of a lease of the same name in another store.
pub fn theirs(epoch: u64) -> Token {
    Token { lineage: leasehold_core::Lineage::from_u128(2), ..token(epoch, 77) }
}

/// Every path below `folder`, with its size; for "nothing was left" and "nothing was changed".
pub fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            found.push(format!("{} {}", path.strip_prefix(folder).unwrap().display(), stat.len()));
            if stat.is_dir() {
                open.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A folder for thousands of rounds: in memory where there is such a thing, for syncing is not what they are about.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}
