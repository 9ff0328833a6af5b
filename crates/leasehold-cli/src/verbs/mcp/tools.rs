//! The tools: one table. To add one, write its file and put it here.

use super::session::Session;
use super::{files, leases, verbs};
use async_trait::async_trait;
use leasehold_core::{Error, Result};
use serde_json::{Value, json};

/// What a client can ask for.
#[async_trait]
pub trait Tool: Send + Sync {
    /// As clients call it.
    fn name(&self) -> &'static str;
    /// For whoever decides to call it.
    fn description(&self) -> &'static str;
    /// The JSON schema of its arguments' properties, and which of them are needed.
    fn arguments(&self) -> (Value, &'static [&'static str]);
    /// Whether it changes nothing.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Whether this build has it.
    fn is_there(&self) -> bool {
        true
    }
    /// Does it.
    async fn call(&self, session: &Session, arguments: &Value) -> Result<Value>;
}

const ALL: &[&dyn Tool] = &[
    &leases::Acquire,
    &leases::Renew,
    &leases::Release,
    &leases::Inspect,
    &files::FencedWrite,
    &verbs::FENCED_PUSH,
    &verbs::QUEUE_CLAIM,
    &verbs::QUEUE_COMPLETE,
];

pub fn find(name: &str) -> Option<&'static dyn Tool> {
    ALL.iter().copied().find(|tool| tool.name() == name && tool.is_there())
}

/// The table as `tools/list` gives it.
pub fn list() -> Vec<Value> {
    let there = ALL.iter().filter(|tool| tool.is_there());
    there
        .map(|tool| {
            let (properties, required) = tool.arguments();
            json!({
                "name": tool.name(),
                "description": tool.description(),
                "inputSchema": {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                },
                "annotations": { "readOnlyHint": tool.is_read_only(), "openWorldHint": false },
            })
        })
        .collect()
}

/// Calls a tool. That it failed is a result too, which the caller can read and act upon.
pub async fn call(tool: &dyn Tool, session: &Session, arguments: &Value) -> Value {
    let done = match check(tool, arguments) {
        Ok(()) => tool.call(session, arguments).await,
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
fn check(tool: &dyn Tool, arguments: &Value) -> Result<()> {
    let (properties, required) = tool.arguments();
    let Value::Object(given) = arguments else {
        return Err(Error::invalid("arguments", arguments, "use a JSON object"));
    };
    for (name, value) in given {
        let Some(wanted) = properties.get(name) else {
            return Err(Error::invalid("argument", name, format!("`{}` has no such argument", tool.name())));
        };
        let kind = wanted["type"].as_str().unwrap_or_default();
        let fits = match kind {
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
    for name in required {
        if !given.contains_key(*name) {
            return Err(Error::invalid("argument", name, format!("`{}` needs it", tool.name())));
        }
    }
    Ok(())
}

/// A text argument, if it was given.
pub fn text<'a>(arguments: &'a Value, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}
