//! Operators' orders on a spool, and what can be shown of an item.
//!
//! Promise: an order renames the item under the next epoch, so that the worker
//! that had it is fenced, and leaves a note that says who and why. Non-promise: an
//! order that races with a completion may come too late; then it returns an error.

use super::claiming::{lease_of, worker_name};
use super::ending::read_at_most;
use super::folder::{Spool, SpoolFolder, SpoolItem, failed, make};
use super::heartbeat::changed;
use super::listing::names;
use super::name::FileName;
use crate::backlog::{Ordered, changed_since};
use crate::queue::ItemId;
use crate::queue::protocol::Order;
use leasehold_core::{Epoch, Error, Kind, Nonce, Result, Timestamp, Token};
use std::fs;

/// The longest note that is shown, in bytes.
const SHOWN: usize = 64 * 1024;

/// A note about an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The epoch in its name.
    pub epoch: u64,
    /// Its kind: `result`, `checkpoint`, `failed`, `expired`, `retried`, `cancelled` or `handed_off`.
    pub kind: String,
    /// When it was written.
    pub at: Timestamp,
    /// The note itself.
    pub text: String,
}

/// Everything that can be shown of an item.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its name and place.
    pub item: SpoolItem,
    /// When its last heartbeat was given.
    pub changed: Timestamp,
    /// The length of its payload.
    pub bytes: u64,
    /// Its notes, in the order of time.
    pub notes: Vec<Note>,
    /// The time of the clock that stamps its files.
    pub now: Timestamp,
}

impl Spool {
    /// Looks at an item without changing anything.
    pub fn show(&self, id: &ItemId) -> Result<Shown> {
        let item = self.find(id)?;
        let path = self.at(&item.folder, &item.name);
        let now = self.now()?;
        let stamp = self.last_heartbeat(&path).unwrap_or(now);
        let bytes = fs::symlink_metadata(&path).map_or(0, |m| m.len());
        let mut notes = Vec::new();
        for note in names(&self.path("notes"))? {
            let Some((rest, kind)) = note.rsplit_once('.') else { continue };
            let Some((of, epoch)) = rest.rsplit_once(".e") else { continue };
            let (true, Ok(epoch)) = (of == id.as_str(), epoch.parse()) else { continue };
            let path = self.path("notes").join(&note);
            let Ok(text) = read_at_most(&path, SHOWN) else { continue };
            let at = fs::metadata(&path).map_or(now, |m| changed(&m));
            let text = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]).into_owned();
            notes.push(Note { epoch, kind: kind.to_owned(), at, text });
        }
        notes.sort_by(|a, b| (a.at, a.epoch, &a.kind).cmp(&(b.at, b.epoch, &b.kind)));
        Ok(Shown { item, changed: stamp, bytes, notes, now })
    }

    /// Carries out an operator's order; returns the item, and the token for a hand-off.
    pub fn operate(&self, id: &ItemId, ordered: &Ordered) -> Result<(SpoolItem, Option<Token>)> {
        match &ordered.order {
            Order::Retry { past: Some(past) } if *past > Epoch::HIGHEST_ADVANCE => {
                let most = Epoch::HIGHEST_ADVANCE;
                let message = format!("item `{id}` can be put past epoch {most} at most; nothing was changed");
                Err(Error::new(Kind::Invalid, message))
            }
            Order::Retry { past } => {
                let allowed = |folder: &SpoolFolder| *folder != SpoolFolder::Done;
                let last = |name: &FileName| past.map_or(name.epoch, |past| name.epoch.max(past));
                let next = |name: &FileName| FileName { epoch: last(name), tried: 0, ..name.clone() }.raised();
                Ok((self.order(id, ordered, "retried", allowed, &SpoolFolder::Ready, next)?, None))
            }
            Order::Cancel => {
                let allowed = |folder: &SpoolFolder| !matches!(folder, SpoolFolder::Done | SpoolFolder::Cancelled);
                Ok((self.order(id, ordered, "cancelled", allowed, &SpoolFolder::Cancelled, FileName::raised)?, None))
            }
            Order::HandOff { to, ttl } => {
                let nonce = Nonce::random();
                let worker = worker_name(to.label(), nonce, *ttl);
                let folder = self.path("claimed").join(&worker);
                let allowed = |folder: &SpoolFolder| {
                    matches!(folder, SpoolFolder::Ready | SpoolFolder::Later | SpoolFolder::Claimed(_))
                };
                make(&folder, self.rights())?;
                let moved =
                    self.order(id, ordered, "handed_off", allowed, &SpoolFolder::Claimed(worker), FileName::raised);
                // Only if it is empty: then the item was not moved.
                let _ = fs::remove_dir(&folder);
                let item = moved?;
                let (lease, epoch) = (lease_of(id)?, item.name.epoch);
                Ok((item, Some(Token { lease, lineage: self.lineage(), epoch, nonce, seq: 0 })))
            }
            Order::Drain { .. } => {
                Err(Error::new(Kind::Unsupported, "a spool cannot ask its workers to finish; nothing was changed"))
            }
            Order::Relocate { .. } | Order::Arrive { .. } => {
                Err(Error::new(Kind::Unsupported, "a spool is moved as a folder; nothing was changed"))
            }
        }
    }

    fn order(
        &self,
        id: &ItemId,
        Ordered { by, why, if_epoch, .. }: &Ordered,
        kind: &str,
        allowed: impl Fn(&SpoolFolder) -> bool,
        to: &SpoolFolder,
        next: impl Fn(&FileName) -> FileName,
    ) -> Result<SpoolItem> {
        const TRIES: u32 = 20;
        for _ in 0..TRIES {
            let item = self.find(id)?;
            let seen = item.name.epoch;
            if let Some(expected) = if_epoch.filter(|expected| *expected != seen) {
                return Err(changed_since(&format!("item `{id}`"), expected, seen));
            }
            if !allowed(&item.folder) {
                let message = format!("item `{id}` is {}; nothing was changed", item.folder.as_str());
                return Err(Error::new(Kind::Invalid, message));
            }
            let next = next(&item.name);
            if self.end(&self.at(&item.folder, &item.name), to, &next)? {
                let noted = self.note(&next, kind, format!("{by}: {why}\n").as_bytes());
                noted.map_err(|error| {
                    let message = format!(
                        "item `{id}` was {}, epoch {}, and the note of who did it and why could not be kept; look at it before \
                         asking again",
                        kind.replace('_', " "),
                        next.epoch
                    );
                    Error::new(Kind::Indeterminate, message).with_source(error)
                })?;
                return Ok(SpoolItem { name: next, folder: to.clone() });
            }
        }
        Err(Error::new(Kind::Contended, format!("item `{id}` moves too fast; try again")))
    }

    /// The payload of an item; none if it is longer than `most`.
    pub fn payload(&self, item: &SpoolItem, most: usize) -> Result<Option<Vec<u8>>> {
        let path = self.at(&item.folder, &item.name);
        let bytes = read_at_most(&path, most).map_err(|e| failed(e, "read", &path))?;
        Ok((bytes.len() <= most).then_some(bytes))
    }
}
