//! Tools that are verbs of this command: run as `leasehold VERB`, in the name of a lease that is kept here.
//!
//! Promise: arguments cannot become options, for they come after `--name=` or are refused; paths stay below the root.

use super::era::Era;
use super::files::below;
use super::session::Items;
use super::tools::Call;
use crate::context::{QUEUE, Target};
use crate::exit::Exit;
use leasehold_core::{Error, Kind, Result, Token};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What the name of a spool begins with.
const SPOOL: &str = "spool:";

/// One verb as a tool.
pub struct Verb {
    words: &'static [&'static str],
    /// In the order in which the verb takes them.
    positional: &'static [&'static str],
    /// Those of them that are paths below the root.
    paths: &'static [&'static str],
    /// Each given as `--name=value`, with a hyphen for each underscore.
    flags: &'static [&'static str],
    /// Each given as `--name` if it is on.
    switches: &'static [&'static str],
    /// What it reads on standard input.
    input: Option<&'static str>,
    /// Whether it needs a lease.
    is_fenced: bool,
    /// What it does to an item.
    item: Claim,
}

/// What becomes of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    None,
    Begins,
    Ends,
}

const PLAIN: Verb = Verb {
    words: &[],
    positional: &[],
    paths: &[],
    flags: &[],
    switches: &[],
    input: None,
    is_fenced: false,
    item: Claim::None,
};

pub const HAND_OFF: Verb =
    Verb { words: &["hand-off"], positional: &["lease"], flags: &["to", "why", "ttl", "by", "if_epoch"], ..PLAIN };
pub const PUSH: Verb =
    Verb { words: &["push"], positional: &["remote", "refspecs"], switches: &["rebase"], is_fenced: true, ..PLAIN };
pub const PUBLISH: Verb = Verb {
    words: &["publish"],
    positional: &["folder", "target"],
    paths: &["folder", "target"],
    is_fenced: true,
    ..PLAIN
};
pub const QUEUE_ADD: Verb = Verb {
    words: &["queue", "add"],
    positional: &["queue"],
    flags: &["key", "priority", "delay", "attempts"],
    input: Some("payload"),
    ..PLAIN
};
pub const QUEUE_CLAIM: Verb = Verb {
    words: &["queue", "claim"],
    positional: &["queue"],
    flags: &["ttl", "label", "wait"],
    item: Claim::Begins,
    ..PLAIN
};
pub const QUEUE_COMPLETE: Verb = Verb {
    words: &["queue", "complete"],
    positional: &["queue"],
    flags: &["result"],
    is_fenced: true,
    item: Claim::Ends,
    ..PLAIN
};
pub const QUEUE_FAIL: Verb = Verb {
    words: &["queue", "fail"],
    positional: &["queue"],
    flags: &["why", "retry_in"],
    switches: &["for_good"],
    is_fenced: true,
    item: Claim::Ends,
    ..PLAIN
};

impl Verb {
    pub async fn call(&self, call: &Call<'_>) -> Result<Value> {
        call.wait()?;
        let token = if self.is_fenced { Some(call.token()?) } else { None };
        let command = self.command(call, token.as_ref())?;
        let input = self.input.and_then(|name| call.text(name)).map(str::to_owned);
        let queue = call.text("queue").unwrap_or_default().to_owned();
        let (items, item, era) = (call.session.items.clone(), self.item, call.era);
        let ran = tokio::task::spawn_blocking(move || {
            let ran = run(command, input)?;
            // Here, and not where the answer is awaited: a call that was cancelled has claimed all the same.
            if ran.status.success() {
                item.note(&items, &ran.stdout, token, queue, era);
            }
            std::io::Result::Ok(ran)
        })
        .await;
        let ran = ran.map_err(|e| Error::unavailable("the verb was cancelled", e))?;
        answer(&ran.map_err(|e| Error::unavailable("cannot run this command", e))?)
    }

    fn command(&self, call: &Call<'_>, token: Option<&Token>) -> Result<Command> {
        let (session, words) = (call.session, self.arguments(call)?);
        let this = std::env::current_exe().map_err(|e| Error::unavailable("cannot find this command", e))?;
        let mut command = Command::new(this);
        command.arg("--json").args(self.words).args(words).current_dir(&session.root);
        command.env("LEASEHOLD_STORE", session.context.settings()?.store.value.portable());
        if let Some(token) = token {
            command.env("LEASEHOLD_TOKEN", token.wire());
            if let Some(spool) = session.spool_of(token) {
                command.env(QUEUE, Target::Spool(spool).portable());
            }
        }
        command.env("GIT_TERMINAL_PROMPT", "0");
        Ok(command)
    }

    /// The words of the command line, after the verb's own.
    fn arguments(&self, call: &Call<'_>) -> Result<Vec<String>> {
        let mut words: Vec<String> = Vec::new();
        for name in self.positional {
            let given: Vec<&str> = match &call.arguments[*name] {
                Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
                word => word.as_str().into_iter().collect(),
            };
            for word in given {
                if word.is_empty() || word.starts_with('-') {
                    return Err(Error::invalid(name, word, "it is empty or begins with `-`"));
                }
                let path = self.paths.contains(name).then(|| below(&call.session.root, name, word)).transpose()?;
                words.push(match (path, word.strip_prefix(SPOOL).filter(|_| *name == "queue")) {
                    (Some(path), _) => path.display().to_string(),
                    (None, Some(folder)) => format!("{SPOOL}{}", spool(&call.session.root, word, folder)?.display()),
                    (None, None) => word.to_owned(),
                });
            }
        }
        for name in self.flags {
            let value = match &call.arguments[*name] {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => continue,
            };
            words.push(format!("--{}={value}", name.replace('_', "-")));
        }
        let on = self.switches.iter().filter(|name| call.is_on(name));
        words.extend(on.map(|name| format!("--{}", name.replace('_', "-"))));
        if words.iter().any(|word| word.contains('\0')) {
            return Err(Error::new(Kind::Invalid, "an argument has a null byte in it"));
        }
        Ok(words)
    }
}

/// A spool is a folder that is made and written to: below the root, or that of the `work` which this server is part of.
fn spool(root: &Path, queue: &str, folder: &str) -> Result<PathBuf> {
    if std::env::var(QUEUE).is_ok_and(|own| own == queue) {
        return Ok(PathBuf::from(folder));
    }
    let relative = Path::new(folder).strip_prefix(root).ok().and_then(Path::to_str).unwrap_or(folder);
    below(root, "queue", relative)
}

impl Claim {
    fn note(self, items: &Items, printed: &[u8], shown: Option<Token>, queue: String, era: Era) {
        match self {
            Claim::None => {}
            Claim::Begins => {
                let printed: Option<Value> = serde_json::from_slice(printed).ok();
                let token = printed.and_then(|printed| printed["token"].as_str().and_then(|token| token.parse().ok()));
                token.into_iter().for_each(|token| items.claimed(token, queue.clone(), era));
            }
            Claim::Ends => shown.iter().for_each(|token| items.ended(token)),
        }
    }
}

fn run(mut command: Command, input: Option<String>) -> std::io::Result<Output> {
    let Some(input) = input else { return command.stdin(Stdio::null()).output() };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut to) = child.stdin.take() {
        // A verb that refuses its arguments reads nothing, and says why.
        let _ = to.write_all(input.as_bytes());
    }
    child.wait_with_output()
}

/// What the verb came to.
fn answer(ran: &Output) -> Result<Value> {
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    let printed = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    let printed = match printed.is_empty() {
        true => Value::Null,
        false => serde_json::from_str(&printed).unwrap_or(Value::String(printed)),
    };
    let code = ran.status.code().and_then(|code| u8::try_from(code).ok());
    let ended = |exit: Exit| code == Some(exit.code());
    if ended(Exit::Done) {
        return Ok(json!({ "status": "done", "output": printed, "notes": said }));
    }
    if ended(Exit::Held) {
        return Ok(json!({ "status": "none", "output": printed, "notes": said }));
    }
    let kinds = [
        (Exit::Lost, Kind::Lost),
        (Exit::Fenced, Kind::Fenced),
        (Exit::Usage, Kind::Invalid),
        (Exit::Corrupt, Kind::Corrupt),
        (Exit::Unknown, Kind::Indeterminate),
        (Exit::Unreported, Kind::Indeterminate),
        (Exit::Misconfigured, Kind::Unsupported),
    ];
    let kind = kinds.into_iter().find(|(exit, _)| ended(*exit)).map_or(Kind::Unavailable, |(_, kind)| kind);
    let last = said.lines().last().unwrap_or("it failed without a word");
    Err(Error::new(kind, last.trim_start_matches("leasehold: ").to_owned()))
}
