//! JSON-RPC 2.0 as MCP has it: one message per line.
//!
//! Promise: whatever comes is a message, a batch of them, or an error reply that says what is wrong; never a panic.

use serde_json::{Value, json};

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;

/// A request, or a notification if it has no id. A response to a request of ours has no method, and is nothing.
#[derive(Debug)]
pub struct Message {
    pub id: Option<Value>,
    pub method: String,
    pub params: Value,
}

/// What is sent back.
#[derive(Debug)]
pub struct Reply {
    id: Value,
    outcome: Result<Value, Value>,
}

impl Reply {
    pub fn result(id: Value, result: Value) -> Self {
        Reply { id, outcome: Ok(result) }
    }

    pub fn error(id: Value, code: i64, message: &str) -> Self {
        Reply { id, outcome: Err(json!({ "code": code, "message": message })) }
    }

    /// An error with more about it, for programs.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        if let Err(error) = &mut self.outcome {
            error["data"] = data;
        }
        self
    }

    pub fn json(self) -> Value {
        match self.outcome {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": self.id, "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": self.id, "error": error }),
        }
    }
}

/// Reads one line: a message, a batch of them, or nothing.
pub fn parse(line: &[u8]) -> Result<Vec<Message>, Reply> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| Reply::error(Value::Null, PARSE_ERROR, &format!("not JSON: {error}")))?;
    match value {
        Value::Array(all) if all.is_empty() => Err(Reply::error(Value::Null, INVALID_REQUEST, "an empty batch")),
        Value::Array(all) => {
            let messages: Result<Vec<_>, _> = all.into_iter().map(message).collect();
            Ok(messages?.into_iter().flatten().collect())
        }
        one => Ok(message(one)?.into_iter().collect()),
    }
}

fn message(value: Value) -> Result<Option<Message>, Reply> {
    let wrong = |id: &Value, what: &str| Err(Reply::error(id.clone(), INVALID_REQUEST, what));
    let Value::Object(mut map) = value else { return wrong(&Value::Null, "a message is a JSON object") };
    let id = map.remove("id");
    let shown = match &id {
        Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
        None | Some(Value::Null) => Value::Null,
        Some(_) => return wrong(&Value::Null, "an id is a string or a number"),
    };
    if map.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return wrong(&shown, "jsonrpc must be \"2.0\"");
    }
    let method = match map.remove("method") {
        Some(Value::String(method)) => method,
        None if map.contains_key("result") || map.contains_key("error") => return Ok(None),
        _ => return wrong(&shown, "method must be a string"),
    };
    let params = map.remove("params").unwrap_or(Value::Null);
    if !matches!(params, Value::Object(_) | Value::Null) {
        return Err(Reply::error(shown, INVALID_PARAMS, "params must be an object"));
    }
    Ok(Some(Message { id: id.filter(|id| !id.is_null()), method, params }))
}
