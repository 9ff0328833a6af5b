//! How large an item's record may become, and what is dropped to make it fit.
//!
//! Promise: every part at its documented limit, in its longest encoding, fits into one record together with all the
//! others. So an item that was added can be claimed, failed, retried, completed, moved and cancelled, whatever it
//! carries. Only follow-ups have no limit of their own: a completion is refused if its follow-ups do not fit into the
//! rest. Non-promise: events are for people, and the oldest are dropped when there is no room for them.
//!
//! | part of the record | bytes as given | bytes in the record, at most |
//! |---|---|---|
//! | payload | 48 KiB | 65,536 as base64 |
//! | result | 16 KiB | 21,848 as base64 |
//! | checkpoint | 4 KiB | 24,576: six for each control character |
//! | marker, reason of a dead letter, holder, origin, numbers, names of fields | | 3,072 |
//! | the request to finish | 700 | 2,048 |
//! | the relocation, and its event, when the store is migrated | | 4,096, kept free ([`RELOCATION`]) |
//! | sum | | 121,176 |
//! | a record of any store | | 131,072 |
//!
//! The rest, and what an item does not use, is for events (up to 24) and for follow-ups.

use super::record::Item;
use crate::codec::MAX_RECORD_BYTES;
use leasehold_system::undo::{Fix, is_disabled};
use std::io::{self, Write};

/// Reserved in every record for what a migration adds to it.
const RELOCATION: usize = 4096;
/// Room for the header line of a record.
const HEADER: usize = 64;
/// A record whose payload, result and checkpoint together have fewer bytes than this fits without being measured.
const SMALL: usize = 12 * 1024;

/// The sizes of a record that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Excess {
    /// How many bytes it would have.
    pub(super) bytes: usize,
    /// How many it may have.
    pub(super) most: usize,
}

/// Makes a record fit by dropping its oldest events; an error if it does not fit without any.
pub(super) fn fit(item: &mut Item) -> Result<(), Excess> {
    if is_disabled(Fix::RecordBudgetNotKept) {
        return Ok(());
    }
    let is_plain = item.outbox.is_empty() && item.follow_ups.is_empty();
    if is_plain && carried(item) <= SMALL {
        return Ok(());
    }
    let most = MAX_RECORD_BYTES - if item.relocation.is_some() { 0 } else { RELOCATION };
    let mut bytes = HEADER + encoded(item);
    let mut dropped = 0;
    for event in &item.history {
        if bytes <= most {
            break;
        }
        // With its comma.
        bytes -= encoded(event) + 1;
        dropped += 1;
    }
    item.history.drain(..dropped);
    if bytes > most { Err(Excess { bytes, most }) } else { Ok(()) }
}

fn carried(item: &Item) -> usize {
    let checkpoint = item.progress.as_ref().and_then(|p| p.checkpoint.as_ref()).map_or(0, |c| c.as_str().len());
    item.payload.bytes().len() + item.result.as_ref().map_or(0, |result| result.bytes().len()) + checkpoint
}

/// The length of a value as JSON, in bytes.
fn encoded(value: &impl serde::Serialize) -> usize {
    let mut count = Count(0);
    // Neither the types nor the counter can fail. If they did, the record would be refused as too large.
    serde_json::to_writer(&mut count, value).map_or(usize::MAX / 2, |()| count.0)
}

struct Count(usize);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
