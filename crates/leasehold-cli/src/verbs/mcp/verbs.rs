//! Tools that are verbs of this command: run as `leasehold VERB`, in the name of a lease that is kept here.
//!
//! Promise: arguments cannot become options, for they come after `--` or are refused.

use super::session::Session;
use super::tools::text;
use crate::context::{QUEUE, Target};
use leasehold_core::{Error, Kind, Result};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// One verb as a tool.
pub struct Verb {
    words: &'static [&'static str],
    /// In the order in which the verb takes them.
    positional: &'static [&'static str],
    /// Each given as `--name=value`.
    flags: &'static [&'static str],
    /// Whether it needs a lease.
    is_fenced: bool,
}

pub const PUSH: Verb = Verb { words: &["push"], positional: &["remote", "refspecs"], flags: &[], is_fenced: true };
pub const QUEUE_CLAIM: Verb =
    Verb { words: &["queue", "claim"], positional: &["queue"], flags: &["ttl", "wait"], is_fenced: false };
pub const QUEUE_COMPLETE: Verb =
    Verb { words: &["queue", "complete"], positional: &["queue"], flags: &["result"], is_fenced: true };

impl Verb {
    pub async fn call(&self, session: &Session, arguments: &Value) -> Result<Value> {
        let mut words: Vec<String> = Vec::new();
        for name in self.positional {
            let given: Vec<&str> = match &arguments[*name] {
                Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
                word => word.as_str().into_iter().collect(),
            };
            for word in given {
                if word.is_empty() || word.starts_with('-') || word.contains('\0') {
                    return Err(Error::invalid(name, word, "it is empty or begins with `-`"));
                }
                words.push(word.to_owned());
            }
        }
        for name in self.flags {
            words.extend(text(arguments, name).map(|value| format!("--{name}={value}")));
        }
        if words.iter().any(|word| word.contains('\0')) {
            return Err(Error::new(Kind::Invalid, "an argument has a null byte in it"));
        }
        let this = std::env::current_exe().map_err(|e| Error::unavailable("cannot find this command", e))?;
        let mut command = Command::new(this);
        command.arg("--json").args(self.words).args(words).current_dir(&session.root);
        command.env("LEASEHOLD_STORE", session.context.settings()?.store.value.portable());
        let mut shown = None;
        if self.is_fenced {
            let token = session.token(text(arguments, "token"), text(arguments, "lease"))?;
            shown = Some(token.clone());
            command.env("LEASEHOLD_TOKEN", token.wire());
            if let Some(spool) = session.spool_of(&token) {
                command.env(QUEUE, Target::Spool(spool).portable());
            }
        }
        command.stdin(Stdio::null()).env("GIT_TERMINAL_PROMPT", "0");
        let (items, verb) = (session.items.clone(), self.words);
        let queue = text(arguments, "queue").unwrap_or_default().to_owned();
        let ran = tokio::task::spawn_blocking(move || {
            let ran = command.output()?;
            // Here, and not where the answer is awaited: a call that was cancelled has claimed all the same.
            if ran.status.success() && verb == QUEUE_CLAIM.words {
                let printed: Option<Value> = serde_json::from_slice(&ran.stdout).ok();
                let token = printed.and_then(|printed| printed["token"].as_str().and_then(|token| token.parse().ok()));
                token.into_iter().for_each(|token| items.claimed(token, queue.clone()));
            } else if ran.status.success() && verb == QUEUE_COMPLETE.words {
                shown.iter().for_each(|token| items.completed(token));
            }
            std::io::Result::Ok(ran)
        })
        .await;
        let ran = ran.map_err(|e| Error::unavailable("the verb was cancelled", e))?;
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
