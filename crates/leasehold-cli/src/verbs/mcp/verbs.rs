//! Tools that are verbs of this command: run as `leasehold VERB`, in the name of a lease that is kept here.
//!
//! Promise: arguments cannot become options, for they come after `--` or are refused. A verb that this build does not have
//! is not offered as a tool.

use super::session::Session;
use super::tools::{Tool, text};
use crate::args::Cli;
use crate::context::Target;
use async_trait::async_trait;
use clap::CommandFactory;
use leasehold_core::{Error, Kind, Result};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// One verb as a tool.
pub struct Verb {
    name: &'static str,
    description: &'static str,
    verb: &'static [&'static str],
    /// Name, type, meaning, and whether it is needed; in the order in which the verb takes them.
    arguments: &'static [(&'static str, &'static str, &'static str, bool)],
    /// Further texts, each given as `--name=value`.
    flags: &'static [(&'static str, &'static str)],
    /// Whether it needs a lease.
    fenced: bool,
}

// BEGIN verbs of other branches: each is offered as soon as the command has the verb.
pub const FENCED_PUSH: Verb = Verb {
    name: "fenced_push",
    description: "Push git branches, unless a newer holder of the lease has pushed to that remote: then nothing is pushed.",
    verb: &["push"],
    arguments: &[
        ("remote", "string", "The remote, such as origin", true),
        ("refspecs", "array", "What to push, such as main", false),
    ],
    flags: &[],
    fenced: true,
};

pub const QUEUE_CLAIM: Verb = Verb {
    name: "queue_claim",
    description: "Claim the next item of a queue, with its token and payload. It is not renewed by itself: it comes back \
                  to the queue if it is not completed within the TTL, and untried when this connection ends. Status `none` if there is nothing to claim.",
    verb: &["queue", "claim"],
    arguments: &[("queue", "string", "The queue", true)],
    flags: &[("ttl", "How long you have, such as 10m"), ("wait", "Wait this long for an item, such as 30s")],
    fenced: false,
};

pub const QUEUE_COMPLETE: Verb = Verb {
    name: "queue_complete",
    description: "Complete an item that was claimed, by the token that came with it.",
    verb: &["queue", "complete"],
    arguments: &[("queue", "string", "The queue", true)],
    flags: &[("result", "What the work came to")],
    fenced: true,
};
// END verbs of other branches.

#[async_trait]
impl Tool for Verb {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn arguments(&self) -> (Value, &'static [&'static str]) {
        let mut properties = json!({});
        for (name, kind, meaning, _) in self.arguments {
            properties[*name] = json!({ "type": kind, "description": meaning });
            if *kind == "array" {
                properties[*name]["items"] = json!({ "type": "string" });
            }
        }
        for (name, meaning) in self.flags {
            properties[*name] = json!({ "type": "string", "description": meaning });
        }
        if self.fenced {
            properties["lease"] = json!({ "type": "string", "description": "Name of a lease that was acquired here" });
            properties["token"] = json!({ "type": "string", "description": "The whole token, otherwise" });
        }
        let required: &'static [&'static str] = match self.arguments.first() {
            Some((name, _, _, true)) => std::slice::from_ref(name),
            _ => &[],
        };
        (properties, required)
    }

    fn is_there(&self) -> bool {
        let mut command = Cli::command();
        // Only then do the verbs have verbs of their own.
        command.build();
        self.verb.iter().all(|word| match command.find_subcommand(word).cloned() {
            Some(found) => {
                command = found;
                true
            }
            None => false,
        })
    }

    async fn call(&self, session: &Session, arguments: &Value) -> Result<Value> {
        let mut words: Vec<String> = Vec::new();
        for (name, kind, ..) in self.arguments {
            let given: Vec<&str> = match *kind {
                "array" => arguments[*name].as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
                _ => text(arguments, name).into_iter().collect(),
            };
            for word in given {
                if word.is_empty() || word.starts_with('-') || word.contains('\0') {
                    return Err(Error::invalid(name, word, "it is empty or begins with `-`"));
                }
                words.push(word.to_owned());
            }
        }
        for (name, _) in self.flags {
            words.extend(text(arguments, name).map(|value| format!("--{name}={value}")));
        }
        if words.iter().any(|word| word.contains('\0')) {
            return Err(Error::new(Kind::Invalid, "an argument has a null byte in it"));
        }
        let this = std::env::current_exe().map_err(|e| Error::unavailable("cannot find this command", e))?;
        let mut command = Command::new(this);
        command.arg("--json").args(self.verb).args(words).current_dir(&session.root);
        command.env("LEASEHOLD_STORE", session.context.settings()?.store.value.portable());
        let mut shown = None;
        if self.fenced {
            let token = session.token(text(arguments, "token"), text(arguments, "lease"))?;
            shown = Some(token.clone());
            command.env("LEASEHOLD_TOKEN", token.wire());
            if let Some(spool) = session.spool_of(&token) {
                command.env(crate::context::QUEUE, Target::Spool(spool).portable());
            }
        }
        command.stdin(Stdio::null()).env("GIT_TERMINAL_PROMPT", "0");
        let (items, verb) = (session.items.clone(), self.verb);
        let queue = text(arguments, "queue").unwrap_or_default().to_owned();
        let ran = tokio::task::spawn_blocking(move || {
            let ran = command.output()?;
            // Here, and not where the answer is awaited: a call that was cancelled has claimed all the same.
            if ran.status.success() && verb == QUEUE_CLAIM.verb {
                let printed: Option<Value> = serde_json::from_slice(&ran.stdout).ok();
                let token = printed.and_then(|printed| printed["token"].as_str().and_then(|token| token.parse().ok()));
                token.into_iter().for_each(|token| items.claimed(token, queue.clone()));
            } else if ran.status.success() && verb == QUEUE_COMPLETE.verb {
                shown.iter().for_each(|token| items.completed(token));
            }
            std::io::Result::Ok(ran)
        })
        .await;
        let ran = ran.map_err(|e| Error::unavailable("the verb was broken off", e))?;
        let ran = ran.map_err(|e| Error::unavailable("cannot run this command", e))?;
        let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
        let printed = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
        let printed: Value = serde_json::from_str(&printed).unwrap_or(Value::String(printed));
        match ran.status.code() {
            Some(0) => return Ok(json!({ "status": "done", "output": printed, "notes": said })),
            Some(11) => return Ok(json!({ "status": "none", "output": printed, "notes": said })),
            _ => {}
        }
        let kind = match ran.status.code() {
            Some(12) => Kind::Lost,
            Some(13) => Kind::Fenced,
            Some(64) => Kind::Invalid,
            Some(65) => Kind::Corrupt,
            Some(78) => Kind::Unsupported,
            _ => Kind::Unavailable,
        };
        let last = said.lines().last().unwrap_or("it failed without a word");
        Err(Error::new(kind, last.trim_start_matches("leasehold: ").to_owned()))
    }
}
