//! Items as JSON and as text.

use crate::output::rfc3339;
use crate::table::Column::{self, Text, Whole};
use crate::table::{page as page_of, table};
use crate::view;
use leasehold_core::{Error, Timestamp, printable};
use leasehold_work::backlog::ItemView;
use leasehold_work::queue::{Attempts, Item, ItemId, ItemName, Payload, Priority, State};
use leasehold_work::spool::{PlainFile, Shown, SpoolFolder, SpoolItem};
use serde_json::{Value, json};

/// A payload or result: text where it is text.
fn bytes(payload: &Payload) -> Value {
    match payload.text() {
        Some(text) => json!(text),
        None => json!({ "base64": payload.base64() }),
    }
}

/// An item of a queue at this time; with everything about it, or as a line of a listing.
pub fn item(name: &ItemName, item: &Item, now: Timestamp, full: bool) -> Value {
    let mut value = json!({
        "queue": name.queue.as_str(),
        "id": name.id.as_str(),
        "state": item.word(now),
        "epoch": item.epoch.get(),
        "lineage": item.lineage.to_string(),
        "relocation": item.relocation.as_ref().map(|state| json!({
            "state": state.as_str(),
            "store": state.address().as_str(),
        })),
        "priority": item.priority.get(),
        "due": item.due.map(rfc3339),
        "added": rfc3339(item.added),
        "tried": item.tried,
        "attempts": item.attempts.most,
    });
    match &item.state {
        State::Claimed(tenure) => {
            value["holder"] = json!(tenure.holder.to_string());
            value["until"] = json!(rfc3339(tenure.deadline));
            let drain = item.drain.as_ref().filter(|drain| drain.epoch() == item.epoch);
            value["drain"] = drain.map_or(Value::Null, view::drain_json);
        }
        State::Done { at } | State::Cancelled { at } | State::Purged { at } => value["at"] = json!(rfc3339(*at)),
        State::Dead { at, why } => {
            value["at"] = json!(rfc3339(*at));
            value["why"] = json!(why.as_str());
        }
        State::Ready => {}
    }
    if full {
        let progress = item.progress.as_ref();
        value["payload"] = bytes(&item.payload);
        value["result"] = item.result.as_ref().map_or(Value::Null, bytes);
        value["marker"] = json!(progress.and_then(|p| p.marker.as_ref()).map(|m| m.as_str()));
        value["checkpoint"] = json!(progress.and_then(|p| p.checkpoint.as_ref()).map(|c| c.as_str()));
        value["origin"] = json!(item.origin);
        value["follow_ups"] = item.follow_ups.iter().map(|name| json!(name.to_string())).collect();
        value["history"] = item
            .history
            .iter()
            .map(|event| {
                json!({
                    "at": rfc3339(event.at),
                    "epoch": event.epoch.get(),
                    "what": event.what.as_str(),
                    "by": event.by.as_ref().map(|by| by.as_str()),
                    "why": event.why.as_ref().map(|why| why.as_str()),
                })
            })
            .collect();
    }
    value
}

/// An item whose record cannot be read.
pub fn damaged(name: &ItemName, error: &Error) -> Value {
    json!({
        "queue": name.queue.as_str(),
        "id": name.id.as_str(),
        "state": "damaged",
        "why": error.to_string(),
    })
}

/// An item, wherever it was seen.
pub fn seen(seen: &ItemView) -> Value {
    match seen {
        ItemView::Item(name, seen, now) => item(name, seen, *now, true),
        ItemView::File(file) => spooled(file),
        ItemView::Shown(all, payload) => shown(all, payload.as_ref().map(Option::as_deref)),
    }
}

/// An item of a spool.
pub fn spooled(item: &SpoolItem) -> Value {
    let name = &item.name;
    let mut value = json!({
        "id": name.id.as_str(),
        "state": item.folder.as_str(),
        "epoch": name.epoch.get(),
        "priority": name.priority.get(),
        "due": rfc3339(name.due),
        "tried": name.tried,
        "attempts": name.most,
        "file": format!("{}/{name}", item.folder.path().display()),
    });
    if let SpoolFolder::Claimed(worker) = &item.folder {
        value["holder"] = json!(worker);
    }
    value
}

/// A file with a plain name, as the item that its worker makes of it.
pub fn plain(file: &PlainFile) -> Value {
    json!({
        "id": file.id.as_ref().map(ItemId::as_str),
        "state": SpoolFolder::Ready.as_str(),
        "epoch": 0,
        "priority": Priority::default().get(),
        "due": Value::Null,
        "tried": 0,
        "attempts": Attempts::default().most,
        "file": format!("{}/{}", SpoolFolder::Ready.path().display(), file.name),
    })
}

/// All there is to see of an item of a spool. Its payload may be too long to be shown, or closed to this user.
fn shown(shown: &Shown, payload: Result<Option<&[u8]>, &Error>) -> Value {
    let mut value = spooled(&shown.item);
    value["changed"] = json!(rfc3339(shown.changed));
    value["payload"] = match payload {
        Ok(Some(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!({ "bytes": bytes.len() }),
        },
        Ok(None) => json!({ "bytes": shown.bytes }),
        Err(error) => json!({ "bytes": shown.bytes, "error": error.to_string() }),
    };
    value["history"] = shown
        .notes
        .iter()
        .map(|note| {
            let text = note.text.trim_end();
            json!({ "at": rfc3339(note.at), "epoch": note.epoch, "what": note.kind, "why": text })
        })
        .collect();
    value
}

/// The fields of a page, in the order in which they are printed: what it is, what happened to it, what it carries.
const FIELDS: [&str; 24] = [
    "id",
    "queue",
    "state",
    "relocation",
    "why",
    "epoch",
    "lineage",
    "priority",
    "added",
    "due",
    "changed",
    "tried",
    "attempts",
    "holder",
    "until",
    "drain",
    "at",
    "file",
    "origin",
    "follow_ups",
    "marker",
    "checkpoint",
    "payload",
    "result",
];

/// The columns of an item's history.
const EVENTS: [Column; 5] = [Whole("AT"), Whole("EPOCH"), Whole("WHAT"), Text("BY"), Text("WHY")];

/// An item for people: one line per field, then its history as a table, oldest first.
pub fn page(value: &Value) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| text.trim_end().to_owned());
    let is_told = |value: &&Value| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty);
    let fields = FIELDS.iter().filter_map(|field| Some((field, value.get(field).filter(is_told)?)));
    // Says in words who asked.
    let plain = |value: &Value| match value.get("by") {
        Some(by) => {
            format!("asked to finish by {}: {}, until {}", plain(by), plain(&value["why"]), plain(&value["until"]))
        }
        None => plain(value),
    };
    let rows = fields.map(|(field, value)| vec![(*field).to_owned(), printable(&plain(value))]);
    let mut page = page_of(rows);
    let cell = |event: &Value, field: &str| match &event[field] {
        Value::Null => "-".to_owned(),
        value => printable(&plain(value)),
    };
    let history = value["history"].as_array().filter(|history| !history.is_empty());
    if let Some(history) = history {
        let row = |event: &Value| ["at", "epoch", "what", "by", "why"].map(|field| cell(event, field)).to_vec();
        page.push_str(&format!("\n{}", table(&EVENTS, history.iter().map(row))));
    }
    page
}
