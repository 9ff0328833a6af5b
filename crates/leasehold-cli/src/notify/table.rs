//! A `[[notify]]` table, checked.
//!
//! Promise: every field is parsed once, here; a wrong one is refused with the table, the field, its value and the allowed form.
//! A secret is neither shown nor kept in the settings; it is read from a file or a variable.

use super::target::{Target, Webhook};
use crate::outbound;
use leasehold_core::{Error, Kind, NamePattern, Result, parse_duration};
use leasehold_work::notify::{Cause, Channel, Rule};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A table as it is written.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotifyTable {
    name: Option<String>,
    on: Vec<String>,
    jobs: Vec<String>,
    queues: Vec<String>,
    names: Vec<String>,
    after: Option<i64>,
    recovered_after: Option<i64>,
    remind: Option<String>,
    command: Option<Vec<String>>,
    webhook: Option<String>,
    secret_file: Option<PathBuf>,
    secret_env: Option<String>,
}

impl std::fmt::Debug for NotifyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A webhook's URL is a secret as often as not.
        f.debug_struct("NotifyTable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The tables of a file, and where that is.
#[derive(Debug, Clone, Default)]
pub struct NotifyTables {
    pub tables: Vec<NotifyTable>,
    pub file: PathBuf,
}

impl NotifyTables {
    /// The rules, and how each channel is told.
    pub fn read(&self) -> Result<Vec<(Rule, Target)>> {
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let mut read: Vec<(Rule, Target)> = Vec::with_capacity(self.tables.len());
        for (table, number) in self.tables.iter().zip(1..) {
            let place =
                table.name.clone().map_or_else(|| format!("notify {number}"), |name| format!("notify `{name}`"));
            let blame = |e: Error| {
                let place = format!("invalid settings `{}`: {place}", self.file.display());
                Error::new(e.kind(), format!("{place}: {e}"))
            };
            let (rule, target) = parse(table, folder).map_err(blame)?;
            if read.iter().any(|(other, _)| other.channel == rule.channel) {
                let message = "there is another of this name, or with this target; give each a `name` of its own";
                return Err(blame(Error::new(Kind::Invalid, message)));
            }
            read.push((rule, target));
        }
        Ok(read)
    }
}

fn parse(table: &NotifyTable, folder: &Path) -> Result<(Rule, Target)> {
    let target = target(table, folder)?;
    let channel = match &table.name {
        Some(name) => name.parse()?,
        None => Channel::of_target(&target.identity()),
    };
    if table.on.is_empty() {
        let known = Cause::ALL.map(Cause::as_str).join(", ");
        return Err(wrong("on", &format!("give a list of events: {known}")));
    }
    let causes: Vec<Cause> = table.on.iter().map(|word| field("on", word.parse())).collect::<Result<_>>()?;
    if causes.iter().all(|cause| *cause == Cause::Recovered) {
        return Err(wrong("on", "`recovered` goes with what it recovers from, such as `failed`"));
    }
    let patterns = |name: &str, texts: &[String]| -> Result<Vec<NamePattern>> {
        texts.iter().map(|text| field(name, text.parse())).collect()
    };
    let remind = field("remind", table.remind.as_deref().map(parse_duration).transpose())?;
    if remind.is_some_and(|every| every < Duration::from_secs(1)) {
        return Err(wrong("remind", "use 1s or more, such as 4h"));
    }
    let rule = Rule {
        channel,
        on: causes.into_iter().collect(),
        jobs: patterns("jobs", &table.jobs)?,
        queues: patterns("queues", &table.queues)?,
        names: patterns("names", &table.names)?,
        after: count("after", table.after)?,
        recovered_after: count("recovered_after", table.recovered_after)?,
        remind,
    };
    Ok((rule, target))
}

fn target(table: &NotifyTable, folder: &Path) -> Result<Target> {
    match (&table.command, &table.webhook) {
        (Some(words), None) => {
            if table.secret_file.is_some() || table.secret_env.is_some() {
                return Err(wrong("secret_file", "a secret goes with `webhook`"));
            }
            if words.first().is_none_or(String::is_empty) || words.iter().any(|word| word.contains('\0')) {
                return Err(wrong("command", "give a list that is not empty: the program and its arguments"));
            }
            Ok(Target::Command { words: words.clone(), folder: folder.to_path_buf() })
        }
        (None, Some(url)) => {
            let url = field("webhook", url.parse())?;
            outbound::check("webhook")?;
            let secret = match secret(table, folder)? {
                Some(text) => Some(text.parse()?),
                None => None,
            };
            Ok(Target::Webhook(Webhook { url, secret }))
        }
        _ => Err(wrong("command", "give either `command`, a list, or `webhook`, a URL")),
    }
}

/// What signs a webhook; nothing if none is named, as for a chat's incoming webhook.
fn secret(table: &NotifyTable, folder: &Path) -> Result<Option<String>> {
    match (&table.secret_file, &table.secret_env) {
        (None, None) => Ok(None),
        (Some(path), None) => {
            let path = folder.join(path);
            let text = std::fs::read_to_string(&path).map_err(|e| {
                let message = format!("field `secret_file`: cannot read `{}`", path.display());
                Error::new(Kind::Unsupported, message).with_source(e)
            })?;
            Ok(Some(text))
        }
        (None, Some(name)) => match std::env::var(name) {
            Ok(text) if !text.is_empty() => Ok(Some(text)),
            _ => {
                let message =
                    format!("field `secret_env`: the environment has no variable `{name}`, or it is not text");
                Err(Error::new(Kind::Unsupported, message))
            }
        },
        (Some(_), Some(_)) => Err(wrong("secret_env", "give either `secret_file` or `secret_env`")),
    }
}

fn count(name: &str, number: Option<i64>) -> Result<u32> {
    match number.unwrap_or(1) {
        number @ 1..=1_000 => Ok(number as u32),
        number => Err(Error::invalid(name, number, "use 1 to 1000")),
    }
}

fn wrong(name: &str, what: &str) -> Error {
    Error::new(Kind::Invalid, format!("field `{name}`: {what}"))
}

fn field<T>(name: &str, parsed: Result<T>) -> Result<T> {
    parsed.map_err(|e| Error::new(e.kind(), format!("field `{name}`: {e}")))
}
