//! A `[[notify]]` table, checked.
//!
//! Promise: every field is parsed once, here; a wrong one is refused with the table, the field, its value and the allowed form.
//! A secret is neither shown nor kept in the settings; it is read from a file or a variable.

use super::target::{Target, Webhook};
use crate::outbound;
use crate::toml_reader::{RawTables, read_table};
use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Kind, NamePattern, Result, parse_duration, printable};
use leasehold_work::notify::{Cause, Channel, Rule};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A table as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NotifyTable {
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

/// A rule, and the target of its channel.
pub type Told = (Rule, Target);

/// The tables of a file, and where that is.
#[derive(Debug, Clone, Default)]
pub struct NotifyTables {
    pub tables: RawTables,
    pub file: PathBuf,
}

impl NotifyTables {
    /// The rules, and the target of each channel, if all of them are valid.
    pub fn read(&self) -> Result<Vec<Told>> {
        let (read, wrong) = self.read_each();
        wrong.into_iter().next().map_or(Ok(read), Err)
    }

    /// The same, if the programs that they name are here too.
    pub fn check(&self) -> Result<Vec<Told>> {
        let told = self.read()?;
        let file = self.file.display();
        for (rule, target) in &told {
            let blame = |e: Error| {
                let channel = rule.channel.as_str();
                Error::new(e.kind(), format!("invalid settings `{file}`: notify `{channel}`: {e}"))
            };
            target.check().map_err(blame)?;
        }
        Ok(told)
    }

    /// The rules of the valid tables. For each of the others a line says what is wrong; they send nothing.
    pub fn read_or_say(&self) -> Vec<Told> {
        let (read, wrong) = self.read_each();
        for error in wrong {
            tracing::warn!(%error, "{error}; this table sends no notifications");
        }
        read
    }

    /// The rules of the valid tables, and what is wrong with the others.
    pub fn read_each(&self) -> (Vec<Told>, Vec<Error>) {
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let file = self.file.display();
        let tables = match self.tables.value() {
            None => return (Vec::new(), Vec::new()),
            Some(toml::Value::Array(tables)) => tables.as_slice(),
            Some(_) => {
                let message =
                    format!("invalid settings `{file}`: `notify` is a list of tables; begin each with [[notify]]");
                return (Vec::new(), vec![Error::new(Kind::Invalid, message)]);
            }
        };
        let (mut read, mut wrong): (Vec<Told>, Vec<Error>) = (Vec::with_capacity(tables.len()), Vec::new());
        for (table, number) in tables.iter().zip(1..) {
            let what = called(table, number);
            let blame = |e: Error| Error::new(e.kind(), format!("invalid settings `{file}`: {what}: {e}"));
            match one(table, folder) {
                Ok((rule, _)) if read.iter().any(|(other, _)| other.channel == rule.channel) => {
                    let message = "there is another of this name, or with this target; give each a `name` of its own";
                    wrong.push(blame(Error::new(Kind::Invalid, message)));
                }
                Ok(told) => read.push(told),
                Err(error) => wrong.push(blame(error)),
            }
        }
        (read, wrong)
    }
}

/// How a table is called in messages, right or wrong: by its name, or by its number and what may be seen of where it delivers to.
fn called(table: &toml::Value, number: usize) -> String {
    let text = |field: &str| table.get(field).and_then(toml::Value::as_str);
    if let Some(name) = text("name") {
        return format!("notify `{}`", printable(name));
    }
    let program = table.get("command").and_then(|words| words.get(0)).and_then(toml::Value::as_str);
    // What is no URL may be a secret in the wrong place.
    let url: Option<WebUrl> = text("webhook").and_then(|url| url.parse().ok());
    match (program, url) {
        (Some(program), _) => format!("notify {number} (command {})", printable(program)),
        (None, Some(url)) => format!("notify {number} (webhook to {})", url.host()),
        (None, None) => format!("notify {number}"),
    }
}

fn one(table: &toml::Value, folder: &Path) -> Result<Told> {
    let table: NotifyTable = read_table(table)?;
    parse(&table, folder)
}

fn parse(table: &NotifyTable, folder: &Path) -> Result<Told> {
    let target = target(table, folder)?;
    let channel = match &table.name {
        Some(name) => name.parse()?,
        None => Channel::of_target(&target.word(), &target.identity()),
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
