//! Operators' orders on a spool, and what there is to see of an item.
//!
//! Promise: an order renames the item under the next epoch, so that the worker who had it is fenced, and leaves a note
//! that says who and why. Non-promise: an order that races a completion may come too late, and then says so.

use super::claiming::{lease_of, worker_name};
use super::ending::read_at_most;
use super::folder::{Spool, SpoolItem, Where, failed, make};
use super::listing::names;
use super::name::FileName;
use super::signs::{changed, sign_of};
use super::steps::SpoolStep;
use crate::queue::ItemId;
use leasehold_core::{Epoch, Error, Kind, Label, Nonce, Result, Timestamp, Token, Ttl, Who, Why};
use std::fs;

/// The longest note that is shown.
const SHOWN: usize = 64 * 1024;

/// Something that was noted about an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The epoch it was noted under.
    pub epoch: u64,
    /// Which kind: `result`, `checkpoint`, `failed`, `expired`, `retried`, `cancelled`, `handed_off`.
    pub kind: String,
    /// When.
    pub at: Timestamp,
    /// What.
    pub text: String,
}

/// All there is to see of an item.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its name and place.
    pub item: SpoolItem,
    /// When it last gave a sign of life.
    pub changed: Timestamp,
    /// How long its payload is.
    pub bytes: u64,
    /// What was noted, by epoch.
    pub notes: Vec<Note>,
    /// The time of the clock that stamps its files.
    pub now: Timestamp,
}

impl Spool {
    /// Looks at an item without changing anything.
    pub fn show(&self, id: &ItemId) -> Result<Shown> {
        let item = self.find(id)?;
        let path = self.path(item.place.folder()).join(item.name.to_string());
        let now = self.now()?;
        let stamp = self.last_sign(&path).unwrap_or(now);
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
        notes.sort_by(|a, b| (a.epoch, a.at, &a.kind).cmp(&(b.epoch, b.at, &b.kind)));
        Ok(Shown { item, changed: stamp, bytes, notes, now })
    }

    /// Puts an item back in line, with all its attempts, and past an epoch that a guard has seen if one is given.
    pub fn retry(&self, id: &ItemId, by: &Who, why: &Why, past: Option<Epoch>) -> Result<SpoolItem> {
        if past.is_some_and(|past| past > Epoch::HIGHEST_ADVANCE) {
            let message =
                format!("item `{id}` can be put past epoch {} at most; nothing was changed", Epoch::HIGHEST_ADVANCE);
            return Err(Error::new(Kind::Invalid, message));
        }
        let last = |name: &FileName| past.map_or(name.epoch, |past| name.epoch.max(past));
        let fresh = |name: &FileName| FileName { tried: 0, ..FileName { epoch: last(name), ..name.clone() }.raised() };
        let allowed = |place: &Where| !matches!(place, Where::Done);
        self.order(id, allowed, |name| Ok((Where::Ready, fresh(name))), ("retried", by, why))
    }

    /// Takes an item out of the line for good.
    pub fn cancel(&self, id: &ItemId, by: &Who, why: &Why) -> Result<SpoolItem> {
        let allowed = |place: &Where| !matches!(place, Where::Done | Where::Cancelled);
        self.order(id, allowed, |name| Ok((Where::Cancelled, name.raised())), ("cancelled", by, why))
    }

    /// Puts an item into somebody's hands; gives it, and the token to complete it by.
    pub fn hand_off(&self, id: &ItemId, by: &Who, why: &Why, to: &Label, ttl: Ttl) -> Result<(SpoolItem, Token)> {
        let nonce = Nonce::random();
        let worker = worker_name(to, nonce, ttl);
        let folder = self.path("claimed").join(&worker);
        let allowed = |place: &Where| matches!(place, Where::Ready | Where::Later | Where::Claimed(_));
        let moved = self.order(
            id,
            allowed,
            |name| {
                make(&folder, self.rights())?;
                Ok((Where::Claimed(worker.clone()), name.raised()))
            },
            ("handed_off", by, why),
        );
        let _ = fs::remove_dir(&folder);
        let item = moved?;
        let epoch = item.name.epoch;
        Ok((item, Token { lease: lease_of(id)?, lineage: self.lineage(), epoch, nonce, seq: 0 }))
    }

    fn order(
        &self,
        id: &ItemId,
        allowed: impl Fn(&Where) -> bool,
        target: impl Fn(&FileName) -> Result<(Where, FileName)>,
        (kind, by, why): (&str, &Who, &Why),
    ) -> Result<SpoolItem> {
        const TRIES: u32 = 20;
        for _ in 0..TRIES {
            let item = self.find(id)?;
            if !allowed(&item.place) {
                let message = format!("item `{id}` is {}; nothing was changed", item.place.as_str());
                return Err(Error::new(Kind::Invalid, message));
            }
            let (place, next) = target(&item.name)?;
            let from = self.path(item.place.folder()).join(item.name.to_string());
            let to = self.path(place.folder()).join(next.to_string());
            if self.shift(&from, &to, SpoolStep::End, SpoolStep::SyncEnded)? {
                let _ = fs::remove_file(sign_of(&from));
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
                return Ok(SpoolItem { name: next, place });
            }
        }
        Err(Error::new(Kind::Contended, format!("item `{id}` moves too fast; try again")))
    }

    /// The payload of an item, if it is not longer than this.
    pub fn payload(&self, item: &SpoolItem, most: usize) -> Result<Option<Vec<u8>>> {
        let path = self.path(item.place.folder()).join(item.name.to_string());
        let bytes = read_at_most(&path, most).map_err(|e| failed(e, "read", &path))?;
        Ok((bytes.len() <= most).then_some(bytes))
    }
}
