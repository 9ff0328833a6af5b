//! One line from a client: passed on as it came, or answered here.
//!
//! Promise: a line that passes is passed on byte for byte. A line that two parsers could read differently (not JSON, a
//! key twice, a carriage return inside, a null byte) does not pass. Non-promise: what a tool does is not controlled,
//! only whether it is called.

use super::Closed;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt;

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const REFUSED: i64 = -32000;
/// Only requests of 2026-07-28 and later have it in their `_meta`; their results say their type.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The most messages in one batch.
const MAX_BATCH: usize = 1000;

/// Which tools are gated.
#[derive(Debug, Clone, Default)]
pub struct Judge {
    tools: HashSet<String>,
}

/// What becomes of a line.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It is passed on as it came.
    Pass,
    /// It does not; this is the answer, if one is due.
    Answer(Option<Value>),
}

impl Judge {
    /// Gates these tools, or all of them if none is named.
    pub fn new(tools: impl IntoIterator<Item = String>) -> Self {
        Judge { tools: tools.into_iter().collect() }
    }

    /// Judges one line, without its line break. `check` is asked only for gated calls.
    pub fn judge(&self, line: &[u8], check: impl Fn() -> Result<(), Closed>) -> Verdict {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) {
            return Verdict::Pass;
        }
        if line.iter().any(|byte| matches!(byte, b'\r' | 0)) {
            return refuse(INVALID_REQUEST, "a carriage return or null byte inside a line; send one message per line");
        }
        match serde_json::from_slice::<Line>(line) {
            Ok(Line::One(message)) => self.judge_one(&message, check),
            Ok(Line::Batch(batch)) => self.judge_batch(&batch, check),
            Err(error) if error.is_data() => refuse(INVALID_REQUEST, &error.to_string()),
            Err(error) => refuse(PARSE_ERROR, &format!("not JSON: {error}")),
        }
    }

    /// The answer to a line that was too long to be read. `setting` is what sets the limit.
    pub fn too_long(limit: usize, setting: &str) -> Value {
        error(&Value::Null, INVALID_REQUEST, &format!("a line of more than {limit} bytes ({setting})"))
    }

    fn is_gated(&self, message: &Message) -> bool {
        message.method.as_deref() == Some("tools/call")
            && (self.tools.is_empty() || message.params.tool.as_ref().is_none_or(|tool| self.tools.contains(tool)))
    }

    fn judge_one(&self, message: &Message, check: impl Fn() -> Result<(), Closed>) -> Verdict {
        if !self.is_gated(message) {
            return Verdict::Pass;
        }
        match check() {
            Ok(()) => Verdict::Pass,
            Err(closed) => Verdict::Answer(message.id.as_ref().map(|id| refusal(id, message, &closed))),
        }
    }

    /// A batch passes as a whole or not at all: it has one answer, and that comes from one side.
    fn judge_batch(&self, batch: &[Message], check: impl Fn() -> Result<(), Closed>) -> Verdict {
        if !batch.iter().any(|message| self.is_gated(message)) {
            return Verdict::Pass;
        }
        let Err(closed) = check() else { return Verdict::Pass };
        let answers: Vec<Value> = batch
            .iter()
            .filter_map(|message| {
                let id = message.id.as_ref()?;
                message.method.as_ref()?;
                Some(match self.is_gated(message) {
                    true => refusal(id, message, &closed),
                    false => error(id, REFUSED, "refused together with a tool call in the same batch; send it alone"),
                })
            })
            .collect();
        Verdict::Answer((!answers.is_empty()).then_some(Value::Array(answers)))
    }
}

/// A refused call as its caller reads it: a tool's result that is an error, with both numbers.
fn refusal(id: &Value, call: &Message, closed: &Closed) -> Value {
    let numbers = json!({
        "kind": closed.kind.as_str(),
        "held": closed.held.get(),
        "seen": closed.seen.map(leasehold_core::Epoch::get),
    });
    let mut result = json!({
        "content": [{ "type": "text", "text": closed.message }],
        "isError": true,
        "_meta": { "leasehold/refusal": numbers },
    });
    if call.params.is_typed {
        result["resultType"] = json!("complete");
    }
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

fn refuse(code: i64, message: &str) -> Verdict {
    Verdict::Answer(Some(error(&Value::Null, code, message)))
}

enum Line {
    One(Message),
    Batch(Vec<Message>),
}

/// The parts of a message that matter here.
#[derive(Default)]
struct Message {
    id: Option<Value>,
    method: Option<String>,
    params: Params,
}

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lines;
        impl<'de> Visitor<'de> for Lines {
            type Value = Line;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON-RPC message, or a batch of them")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Line, A::Error> {
                Messages.visit_map(map).map(Line::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Line, A::Error> {
                let mut batch = Vec::new();
                while let Some(message) = seq.next_element::<Message>()? {
                    if batch.len() == MAX_BATCH {
                        return Err(A::Error::custom(format!("a batch of more than {MAX_BATCH} messages")));
                    }
                    batch.push(message);
                }
                Ok(Line::Batch(batch))
            }
        }
        deserializer.deserialize_any(Lines)
    }
}

struct Messages;

impl<'de> Visitor<'de> for Messages {
    type Value = Message;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
        let mut message = Message::default();
        let mut seen = [false; 3];
        while let Some(key) = map.next_key::<String>()? {
            let index = match key.as_str() {
                "id" => 0,
                "method" => 1,
                "params" => 2,
                other => {
                    check_key(other, &["id", "method", "params"]).map_err(A::Error::custom)?;
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(A::Error::custom(format!("key `{key}` is there twice")));
            }
            match index {
                0 => message.id = Some(id(map.next_value()?).map_err(A::Error::custom)?),
                1 => message.method = map.next_value::<Value>()?.as_str().map(str::to_owned),
                _ => message.params = map.next_value()?,
            }
        }
        Ok(message)
    }
}

/// Refuses a key that some readers take for one of ours: they do not mind its case, or what comes after a zero byte.
fn check_key(key: &str, ours: &[&str]) -> Result<(), String> {
    let start = key.split('\0').next().unwrap_or_default();
    // By way of upper case, which has no second form of `s` and `k`.
    let folded = start.to_uppercase().to_lowercase();
    match ours.iter().find(|name| **name == folded) {
        Some(name) => Err(format!("a key could be taken for `{name}`, and is not")),
        None => Ok(()),
    }
}

fn id(id: Value) -> Result<Value, &'static str> {
    match id {
        Value::String(_) | Value::Number(_) | Value::Null => Ok(id),
        _ => Err("an id is a string or a number"),
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Messages)
    }
}

/// The parts of parameters that matter here.
#[derive(Default)]
struct Params {
    /// The `name`, if there is one that is a text.
    tool: Option<String>,
    /// Whether the caller wants its results to say their type.
    is_typed: bool,
}

impl<'de> Deserialize<'de> for Params {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Params;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("parameters: an object or an array")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Params, A::Error> {
                let (mut params, mut seen) = (Params::default(), false);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "name" if std::mem::replace(&mut seen, true) => {
                            return Err(A::Error::custom("key `name` is there twice"));
                        }
                        "name" => params.tool = map.next_value::<Value>()?.as_str().map(str::to_owned),
                        "_meta" => params.is_typed |= map.next_value::<Value>()?.get(VERSION_KEY).is_some(),
                        other => {
                            check_key(other, &["name", "_meta"]).map_err(A::Error::custom)?;
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(params)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Params, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Params::default())
            }

            fn visit_unit<E>(self) -> Result<Params, E> {
                Ok(Params::default())
            }
        }
        deserializer.deserialize_any(Parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_some_readers_read_otherwise_is_answered_and_not_passed() {
        let judge = Judge::new(vec!["write_file".into()]);
        let passes = |line: &str| matches!(judge.judge(line.as_bytes(), || panic!("it is not gated")), Verdict::Pass);
        assert!(passes(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#));
        assert!(passes(r#"{"id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"Name":1}}}"#));
        for line in [
            r#"{"id":1,"Method":"tools/call","params":{"name":"write_file"}}"#,
            r#"{"id":1,"method":"ping","METHOD":"tools/call","params":{"name":"write_file"}}"#,
            r#"{"id":1,"method":"tools/call","params":{"name":"read_file","Name":"write_file"}}"#,
            r#"{"id":1,"method":"tools/call","params":{"name":"read_file"},"paramſ":{"name":"write_file"}}"#,
            "{\"id\":1,\"method\":\"ping\",\"method\0\":\"tools/call\"}",
        ] {
            assert!(!passes(line), "{line}");
        }
    }
}
