//! What tools answer, as JSON schemas. New keys may appear in answers, so none is closed.
//!
//! A client may check failures against the schema too, so each schema has the failure beside the tool's own outcomes.

use serde_json::{Map, Value, json};

/// The schema of a tool with these outcomes.
pub fn any_of(mut outcomes: Vec<Value>) -> Value {
    outcomes.push(failure());
    json!({ "type": "object", "anyOf": outcomes })
}

fn failure() -> Value {
    object(json!({
        "kind": {
            "enum": [
                "lost", "fenced", "contended", "unavailable", "indeterminate", "moved", "invalid", "unsupported", "corrupt",
                "regressed",
            ],
            "description": "What went wrong; `lost` and `fenced`: somebody else has taken over, stop",
        },
        "message": { "type": "string" },
        "next": { "type": "string", "description": "What to do now" },
    }))
}

/// An object that has all of these.
fn object(properties: Value) -> Value {
    let required: Vec<String> = properties.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// The same with a status that says which outcome it is.
fn outcome(status: &str, mut properties: Value) -> Value {
    properties["status"] = json!({ "const": status });
    object(properties)
}

fn text(meaning: &str) -> Value {
    json!({ "type": "string", "description": meaning })
}

fn text_or_null(meaning: &str) -> Value {
    json!({ "type": ["string", "null"], "description": meaning })
}

fn epoch() -> Value {
    json!({ "type": "integer", "minimum": 0, "description": "The fencing number: each grant has a larger one" })
}

pub fn acquired() -> Vec<Value> {
    let granted = json!({
        "lease": { "type": "string" },
        "epoch": epoch(),
        "token": text("The proof of this grant; keep it, other tools take it"),
        "ttl_ms": { "type": "integer", "description": "How long it lasts without renewal" },
        "renewed": { "type": "boolean", "description": "Whether it is renewed in the background; if not, use lease_renew" },
        "marker": text_or_null("How far the holder before you had come"),
        "checkpoint": text_or_null("What the holder before you left for you to carry on with"),
    });
    let held = json!({ "lease": { "type": "string" }, "why": text("Who holds it and until when, or why nobody may") });
    vec![outcome("granted", granted), outcome("held", held)]
}

pub fn renewed() -> Vec<Value> {
    let held = json!({
        "lease": { "type": "string" },
        "epoch": epoch(),
        "seconds_left": { "type": "integer", "minimum": 0 },
        "drain": text_or_null("An operator asks you to finish: who, why and by when"),
    });
    vec![outcome("held", held)]
}

pub fn released() -> Vec<Value> {
    ["released", "already_released"].map(|status| outcome(status, json!({ "lease": { "type": "string" } }))).to_vec()
}

/// A lease as `show` prints it.
fn lease() -> Value {
    let object_or_null = || json!({ "type": ["object", "null"] });
    object(json!({
        "name": { "type": "string" },
        "state": {
            "enum": ["held", "free", "expired", "paused", "forgotten", "moving", "moved", "arriving"],
        },
        "epoch": epoch(),
        "holder": object_or_null(),
        "granted_at": text_or_null("When it was acquired"),
        "deadline": text_or_null("When it expires unless renewed"),
        "ttl_ms": { "type": ["integer", "null"] },
        "paused": object_or_null(),
        "drain": object_or_null(),
        "progress": object_or_null(),
        "now": text("The store's time of this read"),
    }))
}

pub fn listed() -> Vec<Value> {
    let found = json!({
        "leases": { "type": "array", "items": lease() },
        "more": { "type": "integer", "minimum": 0, "description": "How many were left out" },
        "damaged": { "type": "array", "items": { "type": "string" } },
    });
    vec![outcome("found", found)]
}

pub fn shown() -> Vec<Value> {
    let mut shown = lease();
    let transfer = json!({ "epoch": epoch(), "at": { "type": "string" }, "reason": { "type": "string" } });
    for (name, schema) in [
        ("held_here", json!({ "type": "boolean", "description": "Whether this server keeps it for you" })),
        ("transfers", json!({ "type": "array", "items": object(transfer) })),
    ] {
        shown["properties"][name] = schema;
        if let Some(required) = shown["required"].as_array_mut() {
            required.push(json!(name));
        }
    }
    vec![shown]
}

pub fn noted() -> Vec<Value> {
    vec![outcome("noted", json!({ "lease": { "type": "string" }, "epoch": epoch() }))]
}

pub fn written() -> Vec<Value> {
    let written = json!({
        "file": { "type": "string" },
        "epoch": epoch(),
        "strength": text("`atomic`, or the window that remains"),
    });
    vec![outcome("written", written)]
}

/// A verb that did what was asked, and printed this.
fn done(output: Value) -> Value {
    outcome("done", json!({ "output": output, "notes": text("What the command said besides") }))
}

pub fn handed_off() -> Vec<Value> {
    let token = json!({ "name": { "type": "string" }, "epoch": epoch(), "token": text("For the new holder") });
    vec![done(object(token))]
}

/// What `publish` and `push` print.
pub fn guarded() -> Vec<Value> {
    vec![done(object(json!({
        "resource": { "type": "string" },
        "epoch": epoch(),
        "strength": text("`atomic`, or the window that remains"),
    })))]
}

pub fn added() -> Vec<Value> {
    let new = json!({ "type": "boolean", "description": "False: an item with this key was there already" });
    vec![done(object(json!({ "id": { "type": "string" }, "new": new })))]
}

/// An item as `queue show` prints it.
fn item(mut properties: Value) -> Value {
    properties["id"] = json!({ "type": "string" });
    properties["state"] = json!({ "type": "string" });
    properties["epoch"] = epoch();
    let mut item = object(properties);
    item["properties"]["payload"] = json!({ "description": "Text, or an object if it is not text" });
    item["properties"]["checkpoint"] = text_or_null("What an earlier attempt left to carry on with");
    item
}

pub fn claimed() -> Vec<Value> {
    let nothing = json!({ "output": { "type": "null" }, "notes": { "type": "string" } });
    vec![done(item(json!({ "token": text("The proof of this claim") }))), outcome("none", nothing)]
}

pub fn ended() -> Vec<Value> {
    vec![done(item(json!({})))]
}
