//! `queue`: adding to a queue, looking at it, and operating on its items.

mod add;
mod hold;
mod listing;
mod look;
mod operate;
mod retry;
mod tend;
pub mod view;

use super::write::{open, unreadable};
use crate::args::QueueVerb;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result, parse_duration};
use leasehold_work::backlog::{Addition, read_bounded};
use leasehold_work::queue::{Attempts, DedupeKey, NewItem, Payload, Priority, QueueName};
use serde::Deserialize;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

pub async fn queue(context: &Context, verb: QueueVerb) -> Result<Exit> {
    match verb {
        QueueVerb::Add(args) => add::add(context, args).await,
        QueueVerb::Ls(args) => look::ls(context, &args).await,
        QueueVerb::Show(args) => look::show(context, &args).await,
        QueueVerb::Claim(args) => hold::claim(context, &args).await,
        QueueVerb::Progress(args) => hold::progress(context, &args).await,
        QueueVerb::Complete(args) => hold::complete(context, args).await,
        QueueVerb::Fail(args) => hold::fail(context, &args).await,
        QueueVerb::Retry(args) => operate::retry(context, &args).await,
        QueueVerb::Cancel(args) => operate::cancel(context, &args).await,
        QueueVerb::HandOff(args) => operate::hand_off(context, &args).await,
        QueueVerb::Janitor(args) => tend::janitor(context, &args).await,
        QueueVerb::Purge(args) => tend::purge(context, &args).await,
    }
}

/// Names an item's or a file's trouble, which stops nobody.
pub fn say_error(error: &Error) {
    output::warn(&error.to_string());
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
        Err(e) => return Err(unreadable(path, "the follow-ups ", e)),
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
