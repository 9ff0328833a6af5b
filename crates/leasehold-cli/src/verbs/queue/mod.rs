//! `queue`: adding to a queue, looking at it, and operating on its items.

mod add;
mod hold;
mod look;
mod operate;
mod tend;
pub mod view;

use super::coordinator;
use crate::args::{Common, Queue as Args, QueueVerb};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result, parse_duration};
use leasehold_work::backlog::{Addition, read_bounded};
use leasehold_work::queue::{Attempts, DedupeKey, ItemId, NewItem, Payload, Priority, Queue, QueueName};
use leasehold_work::spool::{Presence, Spool};
use serde::Deserialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub async fn queue(common: &Common, args: Args) -> Result<Exit> {
    match args.verb {
        QueueVerb::Add(args) => add::add(common, args).await,
        QueueVerb::Ls(args) => look::ls(common, &args).await,
        QueueVerb::Show(args) => look::show(common, &args).await,
        QueueVerb::Claim(args) => hold::claim(common, &args).await,
        QueueVerb::Progress(args) => hold::progress(common, args).await,
        QueueVerb::Complete(args) => hold::complete(common, args).await,
        QueueVerb::Fail(args) => hold::fail(common, &args).await,
        QueueVerb::Retry(args) => operate::retry(common, &args).await,
        QueueVerb::Cancel(args) => operate::cancel(common, &args).await,
        QueueVerb::HandOff(args) => operate::hand_off(common, &args).await,
        QueueVerb::Janitor(args) => tend::janitor(common, &args).await,
        QueueVerb::Purge(args) => tend::purge(common, &args).await,
    }
}

/// What a queue's name on the command line stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A queue in the store.
    Queue(QueueName),
    /// A folder.
    Spool(PathBuf),
}

impl Target {
    pub fn parse(text: &str) -> Result<Self> {
        let Some(path) = text.strip_prefix("spool:") else { return Ok(Target::Queue(text.parse()?)) };
        let refuse = |what: &str| Error::invalid("queue name", text, format!("{what}; use spool:/path/to/folder"));
        if path.is_empty() || path.chars().any(char::is_control) {
            return Err(refuse("the path is empty, or has a control character"));
        }
        if path == "~" || path.starts_with("~/") {
            return Err(refuse("`~` is not expanded here"));
        }
        let absolute = std::path::absolute(path).map_err(|e| refuse("the path cannot be resolved").with_source(e))?;
        Ok(Target::Spool(absolute))
    }

    /// For another process's command line.
    pub fn portable(&self) -> String {
        match self {
            Target::Queue(name) => name.to_string(),
            Target::Spool(path) => format!("spool:{}", path.display()),
        }
    }

    /// What has to be made before there can be anything in it, if it is not there.
    fn missing(&self, settings: &Settings) -> Result<Option<String>> {
        let store = &settings.store.value;
        Ok(match self {
            Target::Queue(_) => store.is_missing().then(|| format!("store at `{store}`")),
            Target::Spool(path) => {
                (Presence::at(path)? != Presence::Spool).then(|| format!("spool at `{}`", path.display()))
            }
        })
    }
}

/// An open queue.
pub enum Open {
    /// In the store.
    Queue(Queue),
    /// A folder.
    Spool(Spool),
}

/// Does the same with whichever it is.
macro_rules! with_backlog {
    ($open:expr, $backlog:ident => $does:expr) => {
        match $open {
            $crate::verbs::queue::Open::Queue($backlog) => $does,
            $crate::verbs::queue::Open::Spool($backlog) => $does,
        }
    };
}
pub(crate) use with_backlog;

impl Open {
    /// Opens it, and makes what is missing.
    pub async fn new(settings: &Settings, target: &Target) -> Result<Self> {
        match target {
            Target::Queue(name) => Ok(Open::Queue(Queue::new(store(settings).await?, name.clone()))),
            Target::Spool(path) => {
                let is_missing = target.missing(settings)?.is_some();
                let spool = Spool::open(path)?;
                if is_missing {
                    let shown = path.display();
                    output::say(&format!(
                        "made a new spool at `{shown}`; if other machines share it, see that it is mounted here"
                    ));
                }
                Ok(Open::Spool(spool))
            }
        }
    }

    /// The same for those who ask for what a missing one cannot have.
    pub async fn existing(settings: &Settings, target: &Target) -> Result<Self> {
        match target.missing(settings)? {
            Some(what) => Err(Error::new(Kind::Invalid, format!("there is no {what}"))),
            None => Open::new(settings, target).await,
        }
    }
}

pub async fn store(settings: &Settings) -> Result<std::sync::Arc<dyn leasehold_core::Store>> {
    Ok(coordinator(settings).await?.store().clone())
}

/// Names an item's or a file's trouble, which stops nobody.
pub fn say_error(error: &Error) {
    output::say(&error.to_string());
}

fn id_of(text: &str) -> Result<ItemId> {
    text.parse()
}

fn open_file(path: &Path, flag: &str) -> Result<File> {
    File::open(path)
        .map_err(|e| Error::new(Kind::Invalid, format!("cannot read {flag} `{}`", path.display())).with_source(e))
}

/// One line of a file of follow-ups.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FollowUpLine {
    payload: String,
    queue: Option<QueueName>,
    priority: Option<Priority>,
    delay: Option<String>,
    key: Option<DedupeKey>,
    attempts: Option<u32>,
    backoff: Option<String>,
}

/// The lines of a file of follow-ups; a missing or empty file has none.
fn follow_up_lines(path: &Path) -> Result<Vec<FollowUpLine>> {
    let bytes = match File::open(path) {
        Ok(file) => read_bounded(file, 1 << 20, "the follow-ups")?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            let message = format!("cannot read the follow-ups `{}`", path.display());
            return Err(Error::new(Kind::Invalid, message).with_source(e));
        }
    };
    let refuse = |what: String| {
        let form = r#"use one JSON object per line, such as {"payload": "...", "queue": "next", "delay": "10s"}"#;
        Error::new(Kind::Invalid, format!("invalid follow-ups: {what}; {form}"))
    };
    let wrong = |number: usize, error: &serde_json::Error| {
        if !error.is_data() {
            return refuse(format!("line {number} is not JSON"));
        }
        // Each line is a document of its own, in which the error is always in the first line.
        let what = error.to_string();
        refuse(format!("line {number}: {}", what.rsplit_once(" at line ").map_or(&*what, |(what, _)| what)))
    };
    let text = String::from_utf8(bytes).map_err(|_| refuse("they are not text".into()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| serde_json::from_str(line).map_err(|e| wrong(at + 1, &e))).collect()
}

/// What a file of follow-ups asks to be added.
pub fn follow_ups(path: &Path) -> Result<Vec<Addition>> {
    let of = |line: FollowUpLine| {
        let item = NewItem {
            priority: line.priority.unwrap_or_default(),
            delay: line.delay.as_deref().map_or(Ok(Duration::ZERO), parse_duration)?,
            attempts: attempts(line.attempts, line.backoff.as_deref())?,
            payload: Payload::new(line.payload)?,
            key: line.key,
        };
        Ok(Addition { queue: line.queue, item })
    };
    follow_up_lines(path)?.into_iter().map(of).collect()
}

fn attempts(most: Option<u32>, backoff: Option<&str>) -> Result<Attempts> {
    let default = Attempts::default();
    let backoff_ms = match backoff {
        Some(text) => u64::try_from(parse_duration(text)?.as_millis()).unwrap_or(u64::MAX),
        None => default.backoff_ms,
    };
    Ok(Attempts { most: most.unwrap_or(default.most).max(1), backoff_ms })
}
