//! A notice: a complete message, so that any machine can deliver it.

use super::cause::Cause;
use super::facts::{Detail, Facts, StoreLocation, Subject};
use super::rule::Channel;
use crate::digest::digest;
use crate::schedule::slot_text;
use crate::tally::DeadLetter;
use leasehold_core::{Epoch, Nonce, Slot, Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// How much of the output is included, in bytes.
const TAIL_BYTES: usize = 4 * 1024;
/// How much of that is in the text, in lines.
const TAIL_LINES: usize = 10;

/// A message, and its place in the order of messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The same for the same event, whichever machine noticed it and however often it is delivered.
    pub id: String,
    /// The id of the message about the same name that must arrive first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The JSON body to deliver.
    pub body: Value,
}

impl Notice {
    /// A test message for a channel, from this machine.
    pub fn test(channel: &Channel, host: &str, now: Timestamp) -> Self {
        let name = channel.as_str();
        let body = json!({
            "type": "notify.test",
            "timestamp": slot_text(Slot(now)),
            "text": format!("test from leasehold on {host}: channel {name} works"),
            "data": { "cause": "test", "subject": "notify", "name": name, "look": ["leasehold config"] },
        });
        Notice { id: format!("evt_{}", Nonce::random()), after: None, body }
    }

    /// The kind of the event, such as `job.failed`.
    pub fn kind(&self) -> &str {
        self.body["type"].as_str().unwrap_or_default()
    }

    /// The message for people.
    pub fn text(&self) -> &str {
        self.body["text"].as_str().unwrap_or_default()
    }

    /// Whether it repeats an earlier message.
    pub fn is_reminder(&self) -> bool {
        self.body["data"]["reminder"].is_u64()
    }

    /// The run that it is about, if that ended badly and its output is missing here.
    pub(super) fn wants_output(&self) -> Option<Epoch> {
        let data = &self.body["data"];
        let is_bad = [Cause::Failed, Cause::Lost].iter().any(|cause| data["cause"] == cause.as_str());
        let epoch = data["epoch"].as_u64().filter(|_| is_bad && data["tail"].is_null())?;
        Epoch::new(epoch).ok()
    }

    /// The name of its subject.
    pub fn name(&self) -> &str {
        self.body["data"]["name"].as_str().unwrap_or_default()
    }
}

/// The contents of a notice.
#[derive(Debug, Clone)]
pub(super) struct MessageParts<'a> {
    pub subject: &'a Subject,
    pub facts: &'a Facts,
    pub cause: Cause,
    pub now: Timestamp,
    pub epoch: Option<Epoch>,
    pub slot: Option<Slot>,
    pub item: Option<&'a DeadLetter>,
    /// What is known about the run.
    pub detail: Option<Detail>,
    /// How many such events happened since the last message.
    pub count: u64,
    /// Identifies an event that is not about a state, such as a dead letter.
    pub which: String,
    pub failures: u32,
    pub since: Option<Timestamp>,
    /// When the outage was over; none if it is not.
    pub over_at: Option<Timestamp>,
    pub missed: u64,
    /// The reminder's number; none if this is not a reminder.
    pub reminder: Option<u32>,
    pub is_flapping: bool,
}

impl MessageParts<'_> {
    /// The message to deliver.
    pub fn notice(&self) -> Notice {
        let (subject, name) = (self.subject.word(), self.subject.name());
        let detail = self.detail.as_ref();
        let down_for = self.since.map(|since| self.over_at.unwrap_or(self.now).saturating_since(since));
        let of_item = self.item.and_then(|item| item.tail.as_deref());
        let tail = detail.and_then(|detail| detail.tail.as_deref()).or(of_item).map(|tail| end_of(tail, TAIL_BYTES));
        let data = json!({
            "cause": self.cause,
            "subject": subject,
            "name": name,
            "epoch": self.epoch,
            "slot": self.slot.map(slot_text),
            "item": self.item.map(|item| item.id.as_str()),
            "why": self.item.and_then(|item| item.why.as_ref()).map(|why| why.as_str()).or(self.why()),
            "count": self.count,
            "exit_code": detail.and_then(|detail| detail.exit_code),
            "ran_for_ms": detail.and_then(|detail| detail.ran_for_ms),
            "failures": self.failures,
            "missed": self.missed,
            "down_since": self.since.map(|since| slot_text(Slot(since))),
            "down_for_ms": down_for.map(|down_for| down_for.as_millis() as u64),
            "reminder": self.reminder,
            "flapping": self.is_flapping,
            "tail": tail,
            "look": self.look(),
        });
        let body = json!({
            "type": format!("{subject}.{}", self.cause.as_str()),
            "timestamp": slot_text(Slot(self.now)),
            "text": self.text(detail, down_for, tail),
            "data": data,
        });
        Notice { id: self.id(), after: None, body }
    }

    /// Depends on the event only, not on who noticed it, or when.
    fn id(&self) -> String {
        let lineage = self.facts.lineage.map(|lineage| lineage.to_string()).unwrap_or_default();
        // The message after flapping is a new one, even though it is about the same end.
        let quiet = if self.is_flapping { " flapping" } else { "" };
        let which = match (self.reminder, self.cause) {
            (Some(number), _) => format!("still {number} {:?}", self.since.map(Timestamp::as_millis)),
            (None, Cause::Missed | Cause::Late) => {
                format!("slot {}{quiet}", self.slot.map(slot_text).unwrap_or_default())
            }
            (None, Cause::Fenced | Cause::DeadLetter) => self.which.clone(),
            (None, _) => {
                let granted = self.epoch.and_then(|epoch| self.facts.granted(epoch)).map(Timestamp::as_millis);
                format!("epoch {} {granted:?}{quiet}", self.epoch.unwrap_or_default())
            }
        };
        let parts = [lineage.as_str(), self.subject.word(), self.subject.name(), self.cause.as_str(), which.as_str()];
        format!("evt_{:032x}", digest(parts))
    }

    fn why(&self) -> Option<&str> {
        self.detail.as_ref()?.why.as_deref().filter(|_| self.cause != Cause::Recovered)
    }

    /// The commands that show more: `logs` only if output is stored.
    fn look(&self) -> Vec<String> {
        let name = quoted(self.subject.name());
        // A slot may have had several runs; by the slot, `logs` finds the last one.
        let kept = self.detail.as_ref().filter(|detail| detail.is_kept).map(|detail| match self.slot {
            Some(slot) if self.cause != Cause::Lost => format!("logs {name} {}", slot_text(slot)),
            _ => format!("logs {name} {}", detail.epoch),
        });
        let commands = match (self.subject, kept, self.item) {
            (Subject::Queue(_) | Subject::Spool(..), _, Some(item)) => {
                let logs = item.tail.as_ref().map(|_| format!("logs {name} {}", item.id));
                logs.into_iter().chain([format!("queue show {name} {}", item.id)]).collect()
            }
            (Subject::Queue(_) | Subject::Spool(..), ..) => vec![format!("queue ls {name}")],
            // No scheduler has recorded these.
            (Subject::Job(_), ..) if matches!(self.cause, Cause::Missed | Cause::Late) => {
                vec!["check --missed".into(), format!("runs {name}")]
            }
            (Subject::Job(_), kept, _) => kept.into_iter().chain([format!("runs {name}")]).collect(),
            (Subject::Lease(_), kept, _) => kept.into_iter().chain([format!("history {name}")]).collect(),
        };
        let store = self.facts.location.store.as_ref().filter(|_| !matches!(self.subject, Subject::Spool(..)));
        let store = store.map(|store| format!(" --store {}", quoted(store))).unwrap_or_default();
        commands.into_iter().map(|command| format!("leasehold {command}{store}")).collect()
    }

    /// The machine on which to run them, if not every machine will do.
    fn look_on(&self) -> Option<&str> {
        let StoreLocation { host, is_local, .. } = &self.facts.location;
        host.as_deref().filter(|_| *is_local || matches!(self.subject, Subject::Spool(..)))
    }

    fn text(&self, detail: Option<&Detail>, down_for: Option<Duration>, tail: Option<&str>) -> String {
        let name = self.subject.name();
        let slot = self.slot.map(|slot| format!(" for slot {}", slot_text(slot))).unwrap_or_default();
        let more = |what: &str| if self.count > 1 { format!(" ({} {what})", self.count) } else { String::new() };
        let why = self.why().map(|why| format!(": {why}")).unwrap_or_default();
        let mut text = match (self.reminder, self.cause) {
            (Some(_), Cause::Failed | Cause::Lost) if !why.is_empty() => format!("{name} is still down{why}"),
            (Some(_), Cause::Failed) => {
                let code = detail.and_then(|detail| detail.exit_code).map(|code| format!(": exit code {code}"));
                format!("{name} is still down{}", code.unwrap_or_default())
            }
            (Some(_), _) => format!("{name} is still down"),
            (None, Cause::Failed) => {
                let code = detail.and_then(|detail| detail.exit_code).map(|code| format!(" with exit code {code}"));
                format!("{name} failed{}{slot}{why}", code.unwrap_or_default())
            }
            (None, Cause::Lost) if !why.is_empty() => format!("{name} lost its lease{slot}{why}"),
            (None, Cause::Lost) => format!("{name} lost its lease{slot}, or its machine died"),
            (None, Cause::Fenced) => {
                format!("a stale write of {name} was refused{}", more("refusals since the last message"))
            }
            (None, Cause::Missed) => {
                format!("{name} missed a slot: nobody ran {}", self.slot.map(slot_text).unwrap_or_default())
            }
            (None, Cause::Late) => {
                format!("{name} is late: nobody runs slot {}", self.slot.map(slot_text).unwrap_or_default())
            }
            (None, Cause::DeadLetter) => {
                let why = |item: &DeadLetter| item.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                let item = self.item.map(|item| format!(": {}{}", item.id, why(item))).unwrap_or_default();
                format!("queue {name} has a dead letter{}{item}", more("since the last message"))
            }
            (None, Cause::Recovered) => format!("{name} has recovered{slot}"),
        };
        if self.failures > 1 && self.cause != Cause::Recovered {
            text.push_str(&format!("; {} failures in a row", self.failures));
        }
        if let Some(down_for) = down_for.filter(|down_for| down_for.as_secs() > 0) {
            let down_for = format_duration(Duration::from_secs(down_for.as_secs()));
            let was = if self.cause == Cause::Recovered { "it was down for" } else { "down for" };
            text.push_str(&format!("; {was} {down_for}"));
        }
        match self.missed {
            0 => {}
            1 => text.push_str("; 1 slot missed"),
            missed => text.push_str(&format!("; {missed} slots missed")),
        }
        if self.is_flapping {
            text.push_str("; it keeps failing and recovering: no more messages until it is steady");
        }
        if let Some(tail) = tail.filter(|tail| !tail.trim().is_empty() && self.cause != Cause::Recovered) {
            let lines: Vec<&str> = tail.trim_end().lines().collect();
            let lines = &lines[lines.len().saturating_sub(TAIL_LINES)..];
            text.push_str(&format!("\n```\n{}\n```", lines.join("\n").replace("```", "'''")));
        }
        let on = self.look_on().map(|host| format!(" on {host}")).unwrap_or_default();
        for command in self.look() {
            text.push_str(&format!("\nlook{on}: {command}"));
        }
        text
    }
}

/// Quoted as one word for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The last bytes of a text, beginning at a character.
fn end_of(text: &str, most: usize) -> &str {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}
