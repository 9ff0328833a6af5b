//! The board: judges what is known, writes down what is to be told, and puts it where it is delivered from.
//!
//! Promise: what is to be told is in the name's record by the same write that says it was judged, and stays there until it is in
//! the channel's queue, under a key of its own: whoever comes by next finishes what a machine that died had begun.

use super::facts::{Detail, Facts, Subject};
use super::notice::Notice;
use super::rule::{Channel, Rule};
use super::standing::Standing;
use crate::output::{self, Ring};
use crate::queue::{Attempts, DedupeKey, NewItem, Payload, Queue};
use leasehold_core::cell::{Fate, MAX_ATTEMPTS, Seen};
use leasehold_core::document::{Document, Edit};
use leasehold_core::{Coordinator, Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const KIND: &str = "watch";
/// How often a message is tried; the pauses double up to an hour, so that is a day.
const ATTEMPTS: Attempts = Attempts { most: 30, backoff_ms: 5_000 };
/// How many messages wait in one record at most: the oldest go first.
const MOST_WAITING: usize = 8;

/// What was told about one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Watched {
    /// By channel.
    #[serde(default)]
    standings: BTreeMap<String, Standing>,
    /// What is to be put into queues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outbox: Vec<Outgoing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Outgoing {
    channel: String,
    notice: Notice,
}

impl Watched {
    /// With what these rules make of the facts; none if that changes nothing.
    pub fn judged(&self, subject: &Subject, rules: &[Rule], facts: &Facts, now: Timestamp) -> Option<Self> {
        let mut next = self.clone();
        for rule in rules.iter().filter(|rule| rule.is_about(subject)) {
            let channel = rule.channel.as_str();
            let before = self.standings.get(channel);
            let (standing, notices) = Standing::judge(before, subject, rule, facts, now);
            let is_new = match before {
                Some(before) => standing.differs(before),
                None => !standing.is_plain() || rule.needs_baseline(subject),
            };
            if is_new {
                next.standings.insert(channel.to_owned(), standing);
            }
            let waiting = notices.into_iter().map(|notice| Outgoing { channel: channel.to_owned(), notice });
            next.outbox.extend(waiting);
        }
        let surplus = next.outbox.len().saturating_sub(MOST_WAITING);
        next.outbox.drain(..surplus);
        (next != *self).then_some(next)
    }

    #[cfg(test)]
    pub fn take_outbox(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.outbox).into_iter().map(|waiting| waiting.notice).collect()
    }

    pub fn has_waiting(&self) -> bool {
        !self.outbox.is_empty()
    }
}

/// The rules in force, and the store.
#[derive(Debug, Clone)]
pub struct Board {
    coordinator: Coordinator,
    rules: Arc<Vec<Rule>>,
}

impl Board {
    /// For these rules.
    pub fn new(coordinator: Coordinator, rules: Vec<Rule>) -> Self {
        Board { coordinator, rules: Arc::new(rules) }
    }

    /// Its rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The store's verbs.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Where a channel's messages wait.
    pub fn queue(&self, channel: &Channel) -> Result<Queue> {
        Ok(Queue::new(self.coordinator.store().clone(), channel.queue()?))
    }

    /// Whether any rule is about this one.
    pub fn watches(&self, subject: &Subject) -> bool {
        self.rules.iter().any(|rule| rule.is_about(subject))
    }

    /// With the exit code and the last lines of the newest run if that ended badly, as far as the store has them: whoever ran
    /// it may be gone.
    pub async fn with_output(&self, lease: &LeaseName, facts: Facts) -> Facts {
        let (Some(epoch), Some(lineage)) = (facts.unknown_output(), facts.lineage) else { return facts };
        let found = output::find(&self.coordinator, &Ring::of_lease(lineage, 1), lease, epoch).await;
        let Ok(Some(found)) = found else { return facts };
        let known = facts.detail_of(epoch).cloned().unwrap_or_default();
        let (exit_code, tail) = (known.exit_code.or(found.exit), Some(found.tail));
        facts.with_detail(Some(Detail { epoch, exit_code, tail, ..known }))
    }

    /// Judges what is known of a name; what is to be told is in its queue then.
    pub async fn judge(&self, subject: &Subject, facts: &Facts) -> Result<()> {
        if !self.watches(subject) {
            return Ok(());
        }
        let decide = |before: &Watched, now| Ok(before.judged(subject, &self.rules, facts, now));
        // Judged twice, it changes nothing: so one whose answer was lost is made again.
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let before = self.document(subject)?.change(self.coordinator.clock().as_ref(), &edit).await?;
        let Seen { record, anchor, .. } = before;
        let written = record.judged(subject, &self.rules, facts, anchor.now).unwrap_or(record);
        if written.has_waiting() { self.post(subject, written).await } else { Ok(()) }
    }

    /// Puts what waits into the queues, and then takes it out of the record.
    async fn post(&self, subject: &Subject, watched: Watched) -> Result<()> {
        for Outgoing { channel, notice } in &watched.outbox {
            let body = serde_json::to_vec(notice).map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
            let key: DedupeKey = notice.id.parse()?;
            let new =
                NewItem { payload: Payload::new(body)?, key: Some(key), attempts: ATTEMPTS, ..NewItem::default() };
            self.queue(&channel.parse()?)?.add(new).await?;
        }
        let posted = |before: &Watched, _| {
            let mut next = before.clone();
            next.outbox.retain(|waiting| !watched.outbox.contains(waiting));
            Ok((next != *before).then_some(next))
        };
        let edit = Edit { decide: &posted, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        self.document(subject)?.change(self.coordinator.clock().as_ref(), &edit).await.map(drop)
    }

    fn document(&self, subject: &Subject) -> Result<Document<'_, Watched>> {
        let key = Key::new(Shelf::Watch, &subject.key()?);
        let what = format!("what was told about `{}`", subject.name());
        Ok(Document::new(self.coordinator.store().as_ref(), key, KIND, what).at_home())
    }
}
