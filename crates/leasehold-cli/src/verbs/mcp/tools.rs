//! What a tool is, how it is described to each generation of clients, and how it is called.
//!
//! Promise: a call whose arguments do not fit the schema changes nothing, and its error lists the arguments; every answer,
//! a failure too, fits the tool's output schema.

use super::era::Era;
use super::schemas;
use super::session::Session;
use super::table::ALL;
use leasehold_core::{Error, Kind, Result, Token, parse_duration};
use serde_json::{Map, Value, json};
use std::pin::Pin;
use std::time::Duration;

/// Hosts give a call up after a while, and would never learn of a grant that comes later.
const LONGEST_WAIT: Duration = Duration::from_secs(90);

pub type Called<'a> = Pin<Box<dyn Future<Output = Result<Value>> + Send + 'a>>;

/// What a client can ask for.
pub struct Tool {
    /// As clients call it.
    pub name: &'static str,
    /// For the model that decides whether to call it.
    pub description: &'static str,
    /// What is added to that in a session, and what without one.
    pub keeping: Option<(&'static str, &'static str)>,
    pub arguments: &'static [Argument],
    /// The outcomes, as schemas; failures are added to them.
    pub outcomes: fn() -> Vec<Value>,
    pub effect: Effect,
    pub call: for<'a> fn(&'a Call<'a>) -> Called<'a>,
}

/// What a call does to the world, for clients that ask people first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// It adds, or changes what is the caller's own.
    Own,
    /// It replaces what is there, or takes something from somebody.
    Others,
}

/// An argument of a tool, by its JSON type.
pub struct Argument {
    pub name: &'static str,
    pub kind: &'static str,
    pub meaning: &'static str,
    pub given: Given,
}

/// When an argument is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    Always,
    Maybe,
    /// If at all, then in a session: it names what is kept there.
    MaybeInSession,
    /// In a session it may be left out, elsewhere nothing else says what is meant.
    AlwaysWithoutSession,
}

impl Argument {
    fn is_there(&self, era: Era) -> bool {
        era == Era::Session || self.given != Given::MaybeInSession
    }

    fn is_needed(&self, era: Era) -> bool {
        match self.given {
            Given::Always => true,
            Given::Maybe | Given::MaybeInSession => false,
            Given::AlwaysWithoutSession => era == Era::Stateless,
        }
    }

    fn schema(&self) -> Value {
        let mut value = json!({ "type": self.kind, "description": self.meaning });
        if self.kind == "array" {
            value["items"] = json!({ "type": "string" });
        } else if self.kind == "integer" {
            value["minimum"] = json!(0);
        }
        value
    }
}

/// One call of a tool.
pub struct Call<'a> {
    pub session: &'a Session,
    pub arguments: &'a Value,
    pub era: Era,
}

impl<'a> Call<'a> {
    /// A text argument, if it was given.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        text(self.arguments, name)
    }

    /// Whether a switch was given, and is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.arguments.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A number, if it was given.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.arguments.get(name).and_then(Value::as_u64)
    }

    /// The token that is meant: the one that was given, or that of a lease that is kept here.
    pub fn token(&self) -> Result<Token> {
        self.session.token(self.text("token"), self.text("lease"))
    }

    /// How long to wait at most.
    pub fn wait(&self) -> Result<Option<Duration>> {
        let Some(text) = self.text("wait") else { return Ok(None) };
        let wait = parse_duration(text)?;
        if wait > LONGEST_WAIT {
            return Err(Error::invalid(
                "wait",
                text,
                "use at most 90s, for clients give up on longer calls; then call again",
            ));
        }
        Ok(Some(wait))
    }
}

/// A text argument, if it was given.
pub fn text<'a>(arguments: &'a Value, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

/// The table as `tools/list` gives it.
pub fn list(era: Era) -> Vec<Value> {
    ALL.iter().map(|tool| tool.listed(era)).collect()
}

/// Calls a tool. That it failed is a result too, which the caller can read and act upon.
pub async fn call(tool: &Tool, call: &Call<'_>) -> Value {
    let done = match tool.check(call) {
        Ok(()) => (tool.call)(call).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(value) => json!({
            "content": [{ "type": "text", "text": value.to_string() }],
            "structuredContent": value,
            "isError": false,
        }),
        Err(error) => {
            let (kind, message) = (error.kind(), error.to_string());
            let text = match kind {
                Kind::Invalid => message.clone(),
                _ => format!("{message}. {}: {}", kind.as_str(), next(kind)),
            };
            json!({
                "content": [{ "type": "text", "text": text }],
                "structuredContent": { "kind": kind.as_str(), "message": message, "next": next(kind) },
                "isError": true,
            })
        }
    }
}

/// What the caller should do about a failure.
const fn next(kind: Kind) -> &'static str {
    match kind {
        Kind::Lost => "this is not yours any more; stop the work, write nothing more, and report it",
        Kind::Fenced => {
            "somebody newer has taken over and nothing was changed; stop the work, do not retry, and report it"
        }
        Kind::Indeterminate => "it may or may not have been done; look before you try again",
        Kind::Moved => "use the store that the message names",
        Kind::Invalid => "correct the call",
        Kind::Unsupported => "this set-up cannot do it; tell the person who runs it",
        Kind::Corrupt | Kind::Regressed => "stop, and tell the person who runs this",
        _ => "nothing was changed; try again later",
    }
}

impl Tool {
    fn offered(&self, era: Era) -> impl Iterator<Item = &'static Argument> {
        self.arguments.iter().filter(move |argument| argument.is_there(era))
    }

    fn listed(&self, era: Era) -> Value {
        let mut description = self.description.to_owned();
        if let Some((in_session, without)) = self.keeping {
            description.push(' ');
            description.push_str(if era == Era::Session { in_session } else { without });
        }
        let properties: Map<_, _> =
            self.offered(era).map(|argument| (argument.name.to_owned(), argument.schema())).collect();
        let required: Vec<_> =
            self.offered(era).filter(|argument| argument.is_needed(era)).map(|argument| argument.name).collect();
        json!({
            "name": self.name,
            "description": description,
            "inputSchema": {
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            },
            "outputSchema": schemas::any_of((self.outcomes)()),
            "annotations": {
                "readOnlyHint": self.effect == Effect::Nothing,
                "destructiveHint": self.effect == Effect::Others,
                "openWorldHint": false,
            },
        })
    }

    /// The arguments are those of the schema, and of its types.
    fn check(&self, call: &Call<'_>) -> Result<()> {
        let (era, arguments) = (call.era, call.arguments);
        let Value::Object(given) = arguments else {
            return Err(Error::invalid("arguments", arguments, "use a JSON object"));
        };
        for (name, value) in given {
            let Some(Argument { kind, .. }) = self.offered(era).find(|argument| argument.name == name) else {
                return Err(Error::invalid(
                    "argument",
                    name,
                    format!("`{}` has no such one; {}", self.name, self.known(era)),
                ));
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
        match self.offered(era).find(|argument| argument.is_needed(era) && !given.contains_key(argument.name)) {
            Some(missing) => {
                let form = format!("`{}` needs it; {}", self.name, self.known(era));
                Err(Error::invalid("argument", missing.name, form))
            }
            None => Ok(()),
        }
    }

    /// The arguments that there are, in words.
    fn known(&self, era: Era) -> String {
        let named = |argument: &Argument| {
            let mark = if argument.is_needed(era) { " (needed)" } else { "" };
            format!("`{}`{mark}", argument.name)
        };
        format!("it takes {}", self.offered(era).map(named).collect::<Vec<_>>().join(", "))
    }
}
