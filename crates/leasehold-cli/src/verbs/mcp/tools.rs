//! The tools: one table. To add one, write its function and put it here.

use super::session::Session;
use super::{files, leases, verbs};
use leasehold_core::{Error, Result};
use serde_json::{Map, Value, json};
use std::pin::Pin;

type Called<'a> = Pin<Box<dyn Future<Output = Result<Value>> + Send + 'a>>;

/// What a client can ask for.
pub struct Tool {
    /// As clients call it.
    pub name: &'static str,
    /// For whoever decides to call it.
    description: &'static str,
    arguments: &'static [Argument],
    /// Whether it changes nothing.
    is_read_only: bool,
    call: for<'a> fn(&'a Session, &'a Value) -> Called<'a>,
}

/// An argument of a tool, by its JSON type.
struct Argument {
    name: &'static str,
    kind: &'static str,
    meaning: &'static str,
    is_needed: bool,
}

const fn needed(name: &'static str, kind: &'static str, meaning: &'static str) -> Argument {
    Argument { name, kind, meaning, is_needed: true }
}

const fn optional(name: &'static str, kind: &'static str, meaning: &'static str) -> Argument {
    Argument { name, kind, meaning, is_needed: false }
}

const NAME: Argument = needed("lease", "string", "Name of the lease, such as daily-publish");
const HELD: Argument = optional("lease", "string", "Name of a lease that was acquired here");
const TOKEN: Argument = optional("token", "string", "The whole token, if the lease was not acquired here");
const QUEUE: Argument = needed("queue", "string", "The queue");

const ALL: &[Tool] = &[
    Tool {
        name: "lease_acquire",
        description: "Take a lease, so that nobody else does the same work. Renewed in the background until lease_release or \
                      the end of this connection. Answers status `granted` with a token, or `held` with who has it: that \
                      is no error.",
        arguments: &[
            NAME,
            optional("ttl", "string", "How long it lasts if this process dies, such as 90s"),
            optional("label", "string", "What you call yourself"),
            optional("wait", "string", "Wait this long if it is held, such as 30s (at most 1h)"),
        ],
        is_read_only: false,
        call: |session, arguments| Box::pin(leases::acquire(session, arguments)),
    },
    Tool {
        name: "lease_renew",
        description: "Confirm that a lease is still held, and keep it for another TTL. Leases acquired here are renewed by \
                      themselves; this says whether they still are.",
        arguments: &[HELD, TOKEN],
        is_read_only: false,
        call: |session, arguments| Box::pin(leases::renew(session, arguments)),
    },
    Tool {
        name: "lease_release",
        description: "Give a lease back. Releasing twice, or after the loss, changes nothing and says so.",
        arguments: &[HELD, TOKEN, optional("failed", "boolean", "Record that the work failed")],
        is_read_only: false,
        call: |session, arguments| Box::pin(leases::release(session, arguments)),
    },
    Tool {
        name: "lease_inspect",
        description: "Show who holds a lease, since when and until when, and its last transfers. Changes nothing.",
        arguments: &[NAME],
        is_read_only: true,
        call: |session, arguments| Box::pin(leases::inspect(session, arguments)),
    },
    Tool {
        name: "fenced_write",
        description: "Write a file, unless a newer holder of the lease has been there: then nothing is written and the error \
                      has the kind `fenced`. Atomic: readers see the old file or the new one.",
        arguments: &[
            needed("file", "string", "Path below the server's root folder"),
            needed("content", "string", "What the file will have in it"),
            HELD,
            TOKEN,
            optional("once", "boolean", "Admit one write per epoch"),
        ],
        is_read_only: false,
        call: |session, arguments| Box::pin(files::fenced_write(session, arguments)),
    },
    Tool {
        name: "fenced_push",
        description: "Push git branches, unless a newer holder of the lease has pushed to that remote: then nothing is pushed.",
        arguments: &[
            needed("remote", "string", "The remote, such as origin"),
            optional("refspecs", "array", "What to push, such as main"),
            HELD,
            TOKEN,
        ],
        is_read_only: false,
        call: |session, arguments| Box::pin(verbs::PUSH.call(session, arguments)),
    },
    Tool {
        name: "queue_claim",
        description: "Claim the next item of a queue, with its token and payload. It is not renewed by itself: it comes back \
                      to the queue if it is not completed within the TTL, and untried when this connection ends. Status \
                      `none` if there is nothing to claim.",
        arguments: &[
            QUEUE,
            optional("ttl", "string", "How long you have, such as 10m"),
            optional("wait", "string", "Wait this long for an item, such as 30s"),
        ],
        is_read_only: false,
        call: |session, arguments| Box::pin(verbs::QUEUE_CLAIM.call(session, arguments)),
    },
    Tool {
        name: "queue_complete",
        description: "Complete an item that was claimed, by the token that came with it.",
        arguments: &[QUEUE, optional("result", "string", "What the work came to"), HELD, TOKEN],
        is_read_only: false,
        call: |session, arguments| Box::pin(verbs::QUEUE_COMPLETE.call(session, arguments)),
    },
];

pub fn find(name: &str) -> Option<&'static Tool> {
    ALL.iter().find(|tool| tool.name == name)
}

/// The table as `tools/list` gives it.
pub fn list() -> Vec<Value> {
    let described = |argument: &Argument| {
        let mut value = json!({ "type": argument.kind, "description": argument.meaning });
        if argument.kind == "array" {
            value["items"] = json!({ "type": "string" });
        }
        (argument.name.to_owned(), value)
    };
    let listed = |tool: &Tool| {
        let properties: Map<_, _> = tool.arguments.iter().map(described).collect();
        let needed = tool.arguments.iter().filter(|argument| argument.is_needed);
        let required: Vec<_> = needed.map(|argument| argument.name).collect();
        json!({
            "name": tool.name,
            "description": tool.description,
            "inputSchema": {
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": tool.is_read_only, "openWorldHint": false },
        })
    };
    ALL.iter().map(listed).collect()
}

/// Calls a tool. That it failed is a result too, which the caller can read and act upon.
pub async fn call(tool: &Tool, session: &Session, arguments: &Value) -> Value {
    let done = match check(tool, arguments) {
        Ok(()) => (tool.call)(session, arguments).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(value) => json!({
            "content": [{ "type": "text", "text": value.to_string() }],
            "structuredContent": value,
            "isError": false,
        }),
        Err(error) => json!({
            "content": [{ "type": "text", "text": error.to_string() }],
            "structuredContent": { "kind": error.kind().as_str(), "message": error.to_string() },
            "isError": true,
        }),
    }
}

/// The arguments are those of the schema, and of its types.
fn check(tool: &Tool, arguments: &Value) -> Result<()> {
    let Value::Object(given) = arguments else {
        return Err(Error::invalid("arguments", arguments, "use a JSON object"));
    };
    for (name, value) in given {
        let Some(Argument { kind, .. }) = tool.arguments.iter().find(|argument| argument.name == name) else {
            return Err(Error::invalid("argument", name, format!("`{}` has no such argument", tool.name)));
        };
        let fits = match *kind {
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64(),
            "array" => value.as_array().is_some_and(|all| all.iter().all(Value::is_string)),
            _ => false,
        };
        if !fits {
            let shown = leasehold_core::printable(&value.to_string());
            return Err(Error::invalid(name, shown, format!("use a value of type {kind}")));
        }
    }
    match tool.arguments.iter().find(|argument| argument.is_needed && !given.contains_key(argument.name)) {
        Some(missing) => Err(Error::invalid("argument", missing.name, format!("`{}` needs it", tool.name))),
        None => Ok(()),
    }
}

/// A text argument, if it was given.
pub fn text<'a>(arguments: &'a Value, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

/// Whether a switch was given, and is on.
pub fn is_on(arguments: &Value, name: &str) -> bool {
    arguments.get(name).and_then(Value::as_bool).unwrap_or(false)
}
