//! The ownership record as it lies in a store: a short head that every swap writes, and a tail of old transfers.
//!
//! Promise: head and tail together are one JSON object, and the head's checksum covers both, so that a tail of another
//! record is noticed. What has gathered in the head moves to the tail with one acquisition of eight, and with the first
//! renewal of a tenure: whoever renews once will renew often, with nothing in the head but what a renewal needs.
//! Non-promise: a tail may have more transfers than are remembered; they are dropped when it is read.
//!
//! ```text
//! leasehold ownership v1 0a1b2c3d 1234
//! {"epoch":9,"tenure":{...},"recent":[[8,...],[9,...]]     the head
//! ,"transfers":[[1,...],...,[7,...]]}                      the tail
//! ```

use crate::codec;
use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::lease::record::{OperatorMark, Ownership, Progress, SlotMark, TRANSFERS_KEPT, Tenure};
use crate::lease::transfer::Transfer;
use crate::nonce::Lineage;
use crate::relocation::Relocation;
use crate::store::{self, Parts, Versioned};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The kind of an ownership record, as its header names it.
pub(crate) const KIND: &str = "ownership";
/// So many transfers gather in the head before all but the newest move to the tail.
const MOST_RECENT: usize = 8;
/// So many stay there while a tenure is renewed: the one that it began with.
const MOST_RENEWED: usize = 1;
const TAIL: &[u8] = b",\"transfers\":";

/// A record as it is read: the old transfers, and those after them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored {
    epoch: Epoch,
    lineage: Option<Lineage>,
    #[serde(default)]
    healed: bool,
    #[serde(default)]
    newborn: bool,
    relocation: Option<Relocation>,
    tenure: Option<Tenure>,
    slot: Option<SlotMark>,
    progress: Option<Progress>,
    paused: Option<OperatorMark>,
    resumed: Option<OperatorMark>,
    #[serde(default)]
    recent: Vec<Arc<Transfer>>,
    #[serde(default)]
    transfers: Vec<Arc<Transfer>>,
}

impl From<Stored> for Ownership {
    fn from(stored: Stored) -> Self {
        let Stored { epoch, lineage, healed, newborn, relocation, tenure, slot, progress, paused, resumed, .. } =
            stored;
        let mut transfers = stored.transfers;
        transfers.extend(stored.recent);
        transfers.drain(..transfers.len().saturating_sub(TRANSFERS_KEPT));
        Ownership { epoch, lineage, healed, newborn, relocation, tenure, slot, progress, paused, resumed, transfers }
    }
}

/// The head as it is written.
#[derive(Serialize)]
struct Head<'a> {
    epoch: Epoch,
    #[serde(skip_serializing_if = "Option::is_none")]
    lineage: Option<Lineage>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    healed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    newborn: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    relocation: Option<&'a Relocation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenure: Option<&'a Tenure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<&'a SlotMark>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<&'a OperatorMark>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed: Option<&'a OperatorMark>,
    #[serde(skip_serializing_if = "<[Arc<Transfer>]>::is_empty")]
    recent: &'a [Arc<Transfer>],
}

/// The old transfers as they lie in the store in a part of their own.
#[derive(Debug, Clone)]
pub(crate) struct Old {
    bytes: Arc<[u8]>,
    /// The epoch of the last of them.
    until: Epoch,
}

impl Old {
    /// None: everything is in the head.
    pub(crate) fn none() -> Self {
        Old { bytes: Arc::default(), until: Epoch::ZERO }
    }

    /// Where the transfers begin that are not among them, if these are those.
    fn end(&self, before: &[Arc<Transfer>], next: &[Arc<Transfer>]) -> Option<usize> {
        let count = |transfers: &[Arc<Transfer>]| transfers.iter().take_while(|t| t.epoch <= self.until).count();
        let (known, end) = (&before[..count(before)], count(next));
        (known.ends_with(&next[..end]) && next[end..].iter().all(|t| t.epoch > self.until)).then_some(end)
    }
}

/// A record, ready to be written.
pub(crate) struct Sheet {
    head: Vec<u8>,
    pub(crate) old: Old,
    is_kept: bool,
}

impl Sheet {
    /// Writes `next` down, where `before` and `old` are what the store has.
    pub(crate) fn new(next: &Ownership, before: &Ownership, old: &Old) -> Result<Self> {
        let transfers = &next.transfers[..];
        let is_renewal = next.tenure.is_some() && next.epoch == before.epoch;
        let most = if is_renewal { MOST_RENEWED } else { MOST_RECENT };
        let end = old.end(&before.transfers, transfers).filter(|end| transfers.len() - end <= most);
        let (end, moved) = match end {
            Some(end) => (end, None),
            // The newest stays: its end is still to be written.
            None => {
                let end = transfers.len() - 1;
                let mut bytes = TAIL.to_vec();
                bytes.append(&mut codec::json(KIND, &&transfers[..end])?);
                bytes.push(b'}');
                (
                    end,
                    Some(Old {
                        bytes: bytes.into(),
                        until: transfers[..end].iter().map(|t| t.epoch).max().unwrap_or(Epoch::ZERO),
                    }),
                )
            }
        };
        let is_kept = moved.is_none();
        let old = moved.unwrap_or_else(|| old.clone());
        let mut body = codec::json(
            KIND,
            &Head {
                epoch: next.epoch,
                lineage: next.lineage,
                healed: next.healed,
                newborn: next.newborn,
                relocation: next.relocation.as_ref(),
                tenure: next.tenure.as_ref(),
                slot: next.slot.as_ref(),
                progress: next.progress.as_ref(),
                paused: next.paused.as_ref(),
                resumed: next.resumed.as_ref(),
                recent: &transfers[end..],
            },
        )?;
        if !old.bytes.is_empty() {
            body.pop();
        }
        Ok(Sheet { head: codec::seal(KIND, &body, &old.bytes)?, old, is_kept })
    }

    /// As a store takes it.
    pub(crate) fn parts(&self, is_news: bool) -> Parts<'_> {
        let tail = &self.old.bytes[..];
        let tail = if self.is_kept { store::Tail::Kept(tail) } else { store::Tail::New(tail) };
        Parts { head: &self.head, tail, is_news }
    }
}

/// Reads a record; `place` names it in messages.
pub(crate) fn read(value: &Versioned, place: &str) -> Result<(Ownership, Old)> {
    let stored: Stored = codec::decode(KIND, &value.bytes, place)?;
    let tail = value.bytes.get(value.bytes.len().saturating_sub(value.tail_bytes)..).unwrap_or_default();
    let old = match stored.transfers.iter().map(|t| t.epoch).max() {
        _ if tail.is_empty() => Old::none(),
        Some(until) if tail.starts_with(TAIL) => Old { bytes: tail.into(), until },
        _ => {
            let message =
                format!("corrupt {KIND} record `{place}`: its parts are not leasehold's; it was left as it is");
            return Err(Error::new(Kind::Corrupt, message));
        }
    };
    Ok((stored.into(), old))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::HolderId;
    use crate::lease::protocol::{Decision, Request, decide};
    use crate::lease::transfer::Outcome;
    use crate::store::{Revision, Tail};
    use crate::time::{Timestamp, Ttl};
    use crate::token::Claim;

    /// A store with two parts, as strict as it can be.
    struct Shelf {
        record: Ownership,
        old: Old,
        value: Versioned,
        new_tails: u32,
    }

    impl Shelf {
        fn apply(&mut self, request: &Request, now: u64) {
            let Decision::Write(next) = decide(&self.record, request, Timestamp::from_millis(now)) else {
                panic!("not applied: {request:?}");
            };
            let sheet = Sheet::new(&next, &self.record, &self.old).unwrap();
            let (head, had) = (sheet.parts(true).head.to_vec(), &self.value.bytes[..]);
            let tail = match sheet.parts(true).tail {
                Tail::Kept(bytes) => {
                    assert_eq!(bytes, &had[had.len() - self.value.tail_bytes..], "vouched for what is not there");
                    bytes
                }
                Tail::New(bytes) => {
                    self.new_tails += 1;
                    bytes
                }
            };
            self.value = Versioned::parted(head, tail, Revision("r".into()));
            let (read, old) = read(&self.value, "x").unwrap();
            assert_eq!(read, *next);
            // What was written and what is read back lead to the same bytes.
            assert_eq!((&old.bytes, old.until), (&sheet.old.bytes, sheet.old.until));
            (self.record, self.old) = (read, old);
        }
    }

    impl Shelf {
        fn new() -> Self {
            let value = Versioned::whole(Vec::new(), Revision("r".into()));
            Shelf { record: Ownership::default(), old: Old::none(), value, new_tails: 0 }
        }

        /// One tenure, renewed so often; the new tails of acquiring, of each renewal and of releasing.
        fn tenure(&mut self, number: u64, renewals: u64) -> Vec<u32> {
            // As long on every machine.
            let holder = HolderId { host: "host".into(), pid: 1, ..HolderId::new(Some("label".parse().unwrap())) };
            let began = number * 100;
            let claim = Claim { epoch: Epoch::new(number).unwrap(), nonce: holder.nonce };
            let acquire = Request::Acquire { lineage: Lineage::from_u128(1), holder, ttl: Ttl::MIN, slot: None };
            let renew = Request::Renew { claim, ttl: Ttl::MIN, progress: None };
            let release = Request::Release { claim, outcome: Outcome::Succeeded };
            let requests = std::iter::once(acquire).chain((0..renewals).map(|_| renew.clone())).chain([release]);
            let steps = requests.zip(began..).map(|(request, now)| {
                let tails = self.new_tails;
                self.apply(&request, now);
                self.new_tails - tails
            });
            let tails = steps.collect();
            let epochs: Vec<u64> = self.record.transfers.iter().map(|t| t.epoch.get()).collect();
            assert_eq!(epochs, (number.saturating_sub(31).max(1)..=number).collect::<Vec<_>>());
            tails
        }
    }

    #[test]
    fn seven_of_eight_tenures_write_the_head_alone_and_nothing_is_lost() {
        let mut shelf = Shelf::new();
        for number in 1..=200 {
            assert_eq!(shelf.tenure(number, 0)[1], 0, "releasing moves nothing");
        }
        assert!((24..=25).contains(&shelf.new_tails), "{}", shelf.new_tails);
    }

    #[test]
    fn the_first_renewal_leaves_a_head_that_stays_small() {
        let mut shelf = Shelf::new();
        for number in 1..=200 {
            // Some are renewed and some are not, so that transfers gather in between.
            let tails = shelf.tenure(number, if number % 3 == 0 { 4 } else { 0 });
            if number % 3 == 0 {
                assert_eq!(tails, [0, 1, 0, 0, 0, 0], "tenure {number}");
                let head = shelf.value.bytes.len() - shelf.value.tail_bytes;
                assert!(head < 400, "{head} bytes: {}", String::from_utf8_lossy(&shelf.value.bytes[..head]));
            }
        }
    }

    #[test]
    fn a_tail_of_another_record_is_noticed() {
        let mut shelf = Shelf::new();
        let mut earlier = None;
        for tenure in 1..=20_u64 {
            let holder = HolderId::new(None);
            shelf.apply(
                &Request::Acquire { lineage: Lineage::from_u128(1), holder, ttl: Ttl::MIN, slot: None },
                tenure * 5_000,
            );
            if tenure == 12 {
                earlier = Some(shelf.old.bytes.clone());
            }
        }
        let head = &shelf.value.bytes[..shelf.value.bytes.len() - shelf.value.tail_bytes];
        let mixed = Versioned::parted(head.to_vec(), &earlier.unwrap(), Revision("r".into()));
        assert_eq!(read(&mixed, "x").unwrap_err().kind(), Kind::Corrupt);
    }
}
