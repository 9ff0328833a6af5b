//! The board: judges the facts about a name, records the messages that follow,
//! and puts them into the queues from which they are delivered.
//!
//! Promise: a message is in the name's record by the same write that marks its facts as judged. It stays there until it
//! is in the channel's queue, under a key of its own: if a machine dies in between, any other finishes.

use super::facts::{Detail, Facts, StoreLocation, Subject};
use super::notice::Notice;
use super::rule::{Channel, Rule};
use super::rule_state::RuleState;
use crate::output::{self, Ring, RunOutput};
use crate::queue::{Attempts, DedupeKey, ItemId, NewItem, Payload, Queue, State};
use leasehold_core::cell::{Fate, MAX_ATTEMPTS, Snapshot};
use leasehold_core::document::{Document, Edit};
use leasehold_core::item::protocol::Order;
use leasehold_core::{Coordinator, Epoch, Error, Key, Kind, LeaseName, Result, Shelf, Timestamp, Who, Why, codec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const KIND: &str = "watch";
/// How often a message is tried. The pauses double up to an hour, so that is about a day.
const ATTEMPTS: Attempts = Attempts { most: 30, backoff_ms: 5_000 };
/// The most messages that wait in one record. When it is full, other channels are judged after these are in their
/// queues. If one channel alone has more, its oldest are dropped.
const MAX_WAITING: usize = 8;

/// Refuses bytes that are not such a record.
pub(crate) fn check(bytes: &[u8], name: &str) -> Result<()> {
    codec::decode::<Watched>(KIND, bytes, name).map(drop)
}

/// What was judged and told about one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Watched {
    /// One state for each channel.
    #[serde(default)]
    standings: BTreeMap<String, RuleState>,
    /// Messages that are not yet in their queues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outbox: Vec<Outgoing>,
    /// A spool's name for people; its key is its lineage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spool: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Outgoing {
    channel: String,
    notice: Notice,
}

impl Watched {
    /// The record after these rules have judged the facts, as far as there is
    /// room for their messages; none if nothing changes.
    pub fn judged(&self, subject: &Subject, rules: &[Rule], facts: &Facts, now: Timestamp) -> Option<Self> {
        let mut next = self.clone();
        for rule in rules.iter().filter(|rule| rule.is_about(subject)) {
            let channel = rule.channel.as_str();
            let before = self.standings.get(channel);
            let (state, mut notices) = RuleState::judge(before, subject, rule, facts, now);
            notices.drain(..notices.len().saturating_sub(MAX_WAITING));
            if next.outbox.len() + notices.len() > MAX_WAITING {
                continue;
            }
            let is_new = match before {
                Some(before) => state.differs(before),
                // What is over leaves nothing to compare with.
                None => !state.is_plain() || (rule.needs_baseline(subject) && facts.over_by.is_none()),
            };
            if is_new {
                next.standings.insert(channel.to_owned(), state);
            }
            let waiting = notices.into_iter().map(|notice| Outgoing { channel: channel.to_owned(), notice });
            next.outbox.extend(waiting);
        }
        if let Subject::Spool(_, name) = subject
            && !next.standings.is_empty()
        {
            next.spool.get_or_insert_with(|| name.clone());
        }
        (next != *self).then_some(next)
    }

    #[cfg(test)]
    pub fn take_outbox(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.outbox).into_iter().map(|waiting| waiting.notice).collect()
    }

    pub fn has_waiting(&self) -> bool {
        !self.outbox.is_empty()
    }

    pub fn has_outage(&self) -> bool {
        self.standings.values().any(RuleState::has_outage)
    }

    fn holds_back(&self) -> bool {
        self.standings.values().any(RuleState::holds_back)
    }

    /// The queue or the spool that the record is about; none if it is about a lease.
    fn subject(&self, key: &LeaseName) -> Option<Subject> {
        let (folder, name) = key.as_str().split_once('/')?;
        match folder {
            LeaseName::ITEMS => Some(Subject::Queue(name.parse().ok()?)),
            LeaseName::SPOOL_ITEMS => Some(Subject::Spool(name.parse().ok()?, self.spool.clone()?)),
            _ => None,
        }
    }
}

/// The rules in force, and the store.
#[derive(Debug, Clone)]
pub struct Board {
    coordinator: Coordinator,
    rules: Arc<Vec<Rule>>,
    location: StoreLocation,
}

impl Board {
    /// A board with these rules. `location` is where messages say to look.
    pub fn new(coordinator: Coordinator, rules: Vec<Rule>, location: StoreLocation) -> Self {
        Board { coordinator, rules: Arc::new(rules), location }
    }

    /// The rules in force.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The coordinator of the store.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The queue in which a channel's messages wait.
    pub fn queue(&self, channel: &Channel) -> Result<Queue> {
        Ok(Queue::new(self.coordinator.store().clone(), channel.queue()?))
    }

    /// Whether any rule is about this subject.
    pub fn watches(&self, subject: &Subject) -> bool {
        self.rules.iter().any(|rule| rule.is_about(subject))
    }

    /// Adds the exit codes and last lines of the runs that messages are about, as far as the store has them: the
    /// machine that ran them may be gone, and a reminder comes long after.
    async fn with_output(&self, subject: &Subject, mut facts: Facts, next: &Watched) -> Facts {
        let (Subject::Job(lease) | Subject::Lease(lease)) = subject else { return facts };
        let wanted: Vec<Epoch> = next.outbox.iter().filter_map(|waiting| waiting.notice.wants_output()).collect();
        let Some(lineage) = facts.lineage.filter(|_| !wanted.is_empty()) else { return facts };
        let Ok(all) = output::list(&self.coordinator, &Ring::of_lease(lease, lineage, 1)).await else { return facts };
        for found in all.into_iter().filter(|found| wanted.contains(&found.epoch)) {
            let RunOutput { epoch, exit: exit_code, why, bytes, tail, .. } = found;
            let (tail, is_kept) = (Some(tail).filter(|tail| !tail.is_empty()), bytes > 0);
            facts = facts.with_detail(Some(Detail { epoch, exit_code, ran_for_ms: None, why, is_kept, tail }));
        }
        facts
    }

    /// Judges the facts about a name. Afterwards the messages are in their queues.
    pub async fn judge(&self, subject: &Subject, facts: &Facts) -> Result<()> {
        self.judge_at(subject, facts, &self.location).await
    }

    async fn judge_at(&self, subject: &Subject, facts: &Facts, location: &StoreLocation) -> Result<()> {
        let rules = self.rules.iter().filter(|rule| rule.is_about(subject)).count();
        // One round for messages that waited before; each further round handles at least one rule.
        for _ in 0..=rules {
            if rules == 0 || !self.judge_once(subject, facts, location).await? {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether messages were put into queues, so that there is room for more.
    async fn judge_once(&self, subject: &Subject, facts: &Facts, location: &StoreLocation) -> Result<bool> {
        let clock = self.coordinator.clock().clone();
        let Snapshot { record, anchor, .. } = self.document(subject)?.look(clock.now()).await?;
        let Some(next) = record.judged(subject, &self.rules, facts, anchor.now) else {
            return self.post(subject, record).await;
        };
        let facts = self.with_output(subject, facts.clone(), &next).await;
        let facts = Facts { location: location.clone(), ..facts };
        let decide = |before: &Watched, now| Ok(before.judged(subject, &self.rules, &facts, now));
        // Judging twice changes nothing, so a write without an answer is repeated.
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let before = self.document(subject)?.change(clock.as_ref(), &edit).await?;
        let Snapshot { record, anchor, .. } = before;
        let written = record.judged(subject, &self.rules, &facts, anchor.now).unwrap_or(record);
        self.post(subject, written).await
    }

    /// Sends messages about dead letters that were held back for a while, or whose sender died before they were in
    /// their queue. Any queue's: its own worker may be gone.
    pub(super) async fn report_held_back(&self, key: &LeaseName, watched: &Watched) -> Result<()> {
        let is_wanted = watched.holds_back() || watched.has_waiting();
        let Some(subject) = watched.subject(key).filter(|_| is_wanted) else { return Ok(()) };
        let nothing_new = Facts::of_queue(Vec::new());
        let Snapshot { record, anchor, .. } = self.document(&subject)?.look(self.coordinator.clock().now()).await?;
        let is_due = record.judged(&subject, &self.rules, &nothing_new, anchor.now).is_some();
        if !is_due && !record.has_waiting() {
            return Ok(());
        }
        let mut location = self.location.clone();
        let facts = match &subject {
            Subject::Queue(name) if is_due => {
                let queue = Queue::new(self.coordinator.store().clone(), name.clone());
                Facts::of_survey(queue.dead_letters(&mut Vec::new()).await?)
            }
            Subject::Queue(_) => nothing_new,
            _ => {
                // The spool may be on another machine than this one.
                location.host = None;
                nothing_new
            }
        };
        self.judge_at(&subject, &facts, &location).await
    }

    /// Puts waiting messages into their queues, then removes them from the record. Returns whether there were any.
    async fn post(&self, subject: &Subject, watched: Watched) -> Result<bool> {
        if !watched.has_waiting() {
            return Ok(false);
        }
        for Outgoing { channel, notice } in &watched.outbox {
            let body = serde_json::to_vec(notice).map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
            let key: DedupeKey = notice.id.parse()?;
            let new =
                NewItem { payload: Payload::new(body)?, key: Some(key), attempts: ATTEMPTS, ..NewItem::default() };
            let queue = self.queue(&channel.parse()?)?;
            if notice.is_reminder() {
                withdraw_reminder(&queue, notice).await;
            }
            queue.add(new).await?;
        }
        let posted = |before: &Watched, _| {
            let mut next = before.clone();
            next.outbox.retain(|waiting| !watched.outbox.contains(waiting));
            Ok((next != *before).then_some(next))
        };
        let edit = Edit { decide: &posted, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        self.document(subject)?.change(self.coordinator.clock().as_ref(), &edit).await.map(|_| true)
    }

    fn document(&self, subject: &Subject) -> Result<Document<'_, Watched>> {
        let key = Key::new(Shelf::Watch, &subject.key()?);
        let what = format!("what was told about `{}`", subject.name());
        Ok(Document::new(self.coordinator.store().as_ref(), key, KIND, what).unless_moved())
    }
}

/// Cancels the previous reminder if nobody has begun to deliver it: of several that wait, only the newest is useful.
/// Best effort: what is not cancelled is delivered.
async fn withdraw_reminder(queue: &Queue, notice: &Notice) {
    let Some(key) = notice.after.as_deref().and_then(|after| after.parse().ok()) else { return };
    let id = ItemId::keyed(&key);
    let Ok(seen) = queue.inspect(&id).await else { return };
    let before: Option<Notice> = serde_json::from_slice(seen.item.payload.bytes()).ok();
    if matches!(seen.item.state, State::Ready) && before.is_some_and(|before| before.is_reminder()) {
        let (by, why) = (Who::lossy("leasehold", "leasehold"), Why::lossy("a newer reminder waits", "newer"));
        let _ = queue.operate(&id, by, why, Some(seen.item.epoch), Order::Cancel).await;
    }
}
