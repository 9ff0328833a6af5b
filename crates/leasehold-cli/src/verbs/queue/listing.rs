//! Lines of listings: in which order, with which cells.

use super::view::{item, plain, spooled};
use crate::output::{relative, rfc3339, rough};
use crate::table::Column::{self, Extra, Text, Whole};
use leasehold_core::{Timestamp, printable};
use leasehold_work::queue::{Item, ItemName, Reason, State};
use leasehold_work::spool::{PlainFile, Spool, SpoolFolder, SpoolItem};
use leasehold_work::tally::{SameReason, Tally};
use serde_json::{Value, json};
use std::cmp::Reverse;

/// The columns of every row below.
pub const COLUMNS: [Column; 7] =
    [Whole("ID"), Column::State("STATE"), Extra("EPOCH"), Extra("PRI"), Whole("TRIED"), Text("WHAT"), Text("PAYLOAD")];
/// How much of a payload a listing shows, in characters, and how many bytes are looked at for that.
const SHOWN: usize = 32;
const MAX_CHECKED: usize = 4 * SHOWN;

/// How many items of each state a queue has.
pub fn tally(queue: &str, tally: &Tally) -> Value {
    json!({
        "queue": queue,
        "ready": tally.ready,
        "claimed": tally.claimed,
        "delayed": tally.delayed,
        "dead": tally.dead,
        "done": tally.done,
        "cancelled": tally.cancelled,
        "elsewhere": tally.elsewhere,
        "oldest": tally.oldest.map(rfc3339),
    })
}

/// Dead letters with one reason.
pub fn same_reason(group: &SameReason<'_>) -> Value {
    json!({
        "why": group.why.map(Reason::as_str),
        "count": group.count,
        "oldest": rfc3339(group.oldest),
        "newest": rfc3339(group.newest),
    })
}

/// A reason, for people.
pub fn reason(why: Option<&Reason>) -> String {
    why.map_or_else(|| "(none was noted)".into(), ToString::to_string)
}

/// What lines of a queue are sorted by: claimable, delayed, claimed, dead, cancelled, done; then as they are claimed, or by
/// time.
pub type Order = (u8, Reverse<u8>, Timestamp, String);

/// Where an item comes in a listing.
pub fn order(name: &ItemName, item: &Item, now: Timestamp) -> Order {
    let (group, urgency, at) = match &item.state {
        _ if item.relocation.is_some() => (6, 0, item.added),
        State::Ready if item.is_due(now) => (0, item.priority.get(), item.position(name).at),
        State::Ready => (1, 0, item.position(name).at),
        State::Claimed(tenure) => (2, 0, tenure.deadline),
        State::Dead { at, .. } => (3, 0, *at),
        State::Cancelled { at } => (4, 0, *at),
        State::Done { at } | State::Purged { at } => (5, 0, *at),
    };
    (group, Reverse(urgency), at, name.id.to_string())
}

/// Where one that cannot be read comes.
pub fn last(name: &ItemName) -> Order {
    (u8::MAX, Reverse(0), Timestamp::from_millis(0), name.id.to_string())
}

/// Where an item of a spool comes, whose names sort in the order of claiming; plain names come after those.
pub const fn spool_order(folder: &SpoolFolder, plain: u8) -> (u8, u8) {
    let group = match folder {
        SpoolFolder::Ready => 0,
        SpoolFolder::Later => 1,
        SpoolFolder::Claimed(_) => 2,
        SpoolFolder::Failed => 3,
        SpoolFolder::Cancelled => 4,
        SpoolFolder::Done => 5,
    };
    (group, plain)
}

/// The beginning of a payload, as it can be shown in a line.
fn beginning(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(MAX_CHECKED)];
    // A character that was cut in two is no reason to show none.
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or(""),
        Err(_) => return "(not text)".into(),
    };
    let shown = printable(text.trim_end());
    let is_cut = shown.chars().count() > SHOWN || head.len() < bytes.len();
    if is_cut { shown.chars().take(SHOWN - 1).chain(['…']).collect() } else { shown }
}

/// A line of a queue's listing, as JSON.
pub fn listed(name: &ItemName, seen: &Item, now: Timestamp) -> Value {
    let mut value = item(name, seen, now, false);
    value["payload_begins"] = json!(beginning(seen.payload.bytes()));
    value
}

/// A line of a listing, from the JSON and further details.
fn cells(value: &Value, what: String) -> Vec<String> {
    let text = |field: &str| value[field].as_str().map_or_else(|| value[field].to_string(), ToOwned::to_owned);
    let id = if value["id"].is_null() { "-".into() } else { text("id") };
    let tried = format!("{}/{}", value["tried"], value["attempts"]);
    let payload = if value["payload_begins"].is_null() { "-".into() } else { text("payload_begins") };
    vec![id, text("state"), text("epoch"), text("priority"), tried, what, payload]
}

/// A line of a queue's listing, for people.
pub fn row(value: &Value, seen: &Item, now: Timestamp) -> Vec<String> {
    let what = match &seen.state {
        _ if seen.relocation.is_some() => seen.relocation.as_ref().map(ToString::to_string).unwrap_or_default(),
        State::Ready => match seen.due {
            Some(due) if due > now => format!("due {}", relative(due, now)),
            due => format!("waiting for {}", rough(now.saturating_since(due.unwrap_or(seen.since)))),
        },
        State::Claimed(tenure) => format!("{}, until {}", tenure.holder, relative(tenure.deadline, now)),
        State::Done { at } | State::Cancelled { at } | State::Purged { at } => relative(*at, now),
        State::Dead { at, why } => format!("{}: {why}", relative(*at, now)),
    };
    cells(value, what)
}

/// An item of a spool, as JSON and for people.
pub fn spool_line(spool: &Spool, item: &SpoolItem) -> (Value, Vec<String>) {
    let mut value = spooled(item);
    value["payload_begins"] = json!(spool.beginning(item, MAX_CHECKED + 1).map(|bytes| beginning(&bytes)));
    let mut what = format!("{}/", item.folder.path().display());
    if let Some(why) = spool.why_dead(item) {
        value["why"] = json!(why.as_str());
        what = format!("{what}: {why}");
    }
    let row = cells(&value, what);
    (value, row)
}

/// A file with a plain name, as JSON and for people.
pub fn plain_line(spool: &Spool, file: &PlainFile) -> (Value, Vec<String>) {
    let mut value = plain(file);
    let bytes = spool.beginning_of_plain(&file.name, MAX_CHECKED + 1);
    value["payload_begins"] = json!(bytes.map(|bytes| beginning(&bytes)));
    let row = cells(&value, format!("{}/, as {}", SpoolFolder::Ready.path().display(), printable(&file.name)));
    (value, row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_payload_is_one_short_printable_line() {
        assert_eq!(beginning(b"to: ada\nhello\n"), "to: ada\\nhello");
        assert_eq!(beginning(b"\x1b[31mred"), "\\u{1b}[31mred");
        assert_eq!(beginning(&[0xff, 0xfe, 0]), "(not text)");
        assert_eq!(beginning(b""), "");
        assert_eq!(beginning("é".repeat(100).as_bytes()).chars().count(), SHOWN);
        // 128 bytes end within a character.
        let text = format!("x{}", "€".repeat(100));
        assert!(beginning(text.as_bytes()).starts_with("x€€"), "{}", beginning(text.as_bytes()));
        assert!(beginning(&[b'x'; 33]).ends_with('…'));
        assert_eq!(beginning(&[b'x'; 32]), "x".repeat(32));
    }
}
