//! What a spool's folders say about a token.

use super::claiming::id_of;
use super::folder::{Spool, SpoolFolder, SpoolItem};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Epoch, Kind, Resolved, Result, Token, TokenKind, TokenState};
use std::fs;

/// The longest note that is shown, in bytes.
const SHOWN: usize = 400;

impl Spool {
    /// Looks up the file that a token belongs to.
    pub fn resolve(&self, token: &Token) -> Result<Resolved> {
        // An item that is moved while the folders are read is searched again.
        const LOOKS: u32 = 5;
        let id = id_of(token)?;
        let found = |epoch, state| {
            Ok(Resolved {
                kind: TokenKind::SpoolFile,
                epoch,
                state,
                location: format!("spool `{}`", self.root().display()),
            })
        };
        if self.lineage() != token.lineage {
            let epoch = self.find(&id).map_or(Epoch::ZERO, |item| item.name.epoch);
            return found(epoch, TokenState::OtherLineage { seen: self.lineage() });
        }
        let mut seen = None;
        for _ in 0..LOOKS {
            match self.adopt(token) {
                Ok(grant) if SystemClock.now() < grant.live().trust_until => {
                    return found(token.epoch, TokenState::Live(grant.live()));
                }
                Ok(_) => return found(token.epoch, TokenState::Expired),
                Err(error) if error.kind() == Kind::Fenced => {}
                Err(error) => return Err(error),
            }
            match self.find(&id) {
                Ok(item) => seen = Some(item),
                Err(error) if error.kind() == Kind::Invalid => return found(Epoch::ZERO, TokenState::Missing),
                Err(error) => return Err(error),
            }
            let nonce = token.nonce.to_string();
            let moves =
                |item: &SpoolItem| matches!(&item.folder, SpoolFolder::Claimed(worker) if worker.contains(&nonce));
            if !seen.as_ref().is_some_and(|item| item.name.epoch == token.epoch && moves(item)) {
                break;
            }
        }
        let Some(item) = seen else { return found(Epoch::ZERO, TokenState::Missing) };
        let state = match (item.name.epoch.cmp(&token.epoch), &item.folder) {
            (std::cmp::Ordering::Greater, _) => TokenState::Superseded { by: self.succession(&item) },
            (std::cmp::Ordering::Equal, SpoolFolder::Done) => TokenState::Ended { how: "completed" },
            _ => TokenState::NeverGranted,
        };
        found(item.name.epoch, state)
    }

    /// Where the file is, and the order that moved it there, if one did.
    fn succession(&self, item: &SpoolItem) -> String {
        let order = ["cancelled", "retried", "handed_off"].iter().find_map(|kind| {
            let path = self.path("notes").join(item.name.note(kind));
            let plain = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
            let text = plain.then(|| fs::read_to_string(&path).ok()).flatten()?;
            let line: String = text.lines().next().unwrap_or_default().chars().take(SHOWN).collect();
            Some(format!("{} by {line}, ", kind.replace('_', " ")))
        });
        let folder = match &item.folder {
            SpoolFolder::Claimed(worker) => format!("now held by {worker}"),
            other => format!("it is {} now", other.as_str()),
        };
        format!("{}{folder}", order.unwrap_or_default())
    }
}
