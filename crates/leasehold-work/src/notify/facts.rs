//! The facts about a name that messages may depend on.

use crate::schedule::{Journal, Plan, Schedule};
use crate::tally::DeadLetter;
use leasehold_core::item::QueueName;
use leasehold_core::{Epoch, LeaseName, Lineage, Outcome, Ownership, Reason, Result, Slot, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The most missed slots that are counted one by one.
const COUNTED: usize = 1_000;

/// How long a machine may take to report how its own run ended.
const FRESH: Duration = Duration::from_secs(5);

/// What a message is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A lease that was claimed for slots.
    Job(LeaseName),
    /// Any other lease.
    Lease(LeaseName),
    /// A queue in the store.
    Queue(QueueName),
    /// A spool: its lineage, because machines may mount it in different places, and its name here.
    Spool(Lineage, String),
}

impl Subject {
    /// A lease, which is a job's if it was ever claimed for a slot.
    pub fn of(lease: &LeaseName, record: &Ownership) -> Self {
        if record.slot.is_some() { Subject::Job(lease.clone()) } else { Subject::Lease(lease.clone()) }
    }

    /// Whether people are notified about it: not for our own internal leases,
    /// nor for those under which past slots are claimed.
    pub fn is_reported(lease: &LeaseName) -> bool {
        lease.folder() != Some(leasehold_core::PROXY_FOLDER) && !crate::schedule::is_backfill(lease)
    }

    /// The name of the lease, job or queue.
    pub fn name(&self) -> &str {
        match self {
            Subject::Job(name) | Subject::Lease(name) => name.as_str(),
            Subject::Queue(name) => name.as_str(),
            Subject::Spool(_, name) => name,
        }
    }

    /// The word for its type in JSON.
    pub const fn word(&self) -> &'static str {
        match self {
            Subject::Job(_) => "job",
            Subject::Lease(_) => "lease",
            Subject::Queue(_) | Subject::Spool(..) => "queue",
        }
    }

    /// The key of its record. No lease has the same name as the record of a queue or a spool.
    pub(super) fn key(&self) -> Result<LeaseName> {
        match self {
            Subject::Job(name) | Subject::Lease(name) => Ok(name.clone()),
            Subject::Queue(name) => LeaseName::new(format!("{}/{name}", LeaseName::ITEMS)),
            Subject::Spool(lineage, _) => LeaseName::new(format!("{}/{lineage}", LeaseName::SPOOL_ITEMS)),
        }
    }
}

/// How a tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub epoch: Epoch,
    /// When the tenure began. It distinguishes two tenures of one epoch, which a restored store may have.
    pub granted: Timestamp,
    pub slot: Option<Slot>,
    pub outcome: Outcome,
    pub at: Timestamp,
}

/// What only the machine that ran it knows about a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Detail {
    /// The run's epoch.
    pub epoch: Epoch,
    /// The command's exit code, 128 + n for a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// How long it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran_for_ms: Option<u64>,
    /// Why it was ended, if it did not end by itself, for example because it stalled or ran for too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether its output is stored, so that `logs` finds it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_kept: bool,
    /// The last lines of its output.
    #[serde(skip)]
    pub tail: Option<String>,
}

impl Detail {
    /// Fills in from `other`, which is about the same run.
    #[must_use]
    pub fn or(self, other: Detail) -> Self {
        Detail {
            epoch: self.epoch,
            exit_code: self.exit_code.or(other.exit_code),
            ran_for_ms: self.ran_for_ms.or(other.ran_for_ms),
            why: self.why.or(other.why),
            is_kept: self.is_kept || other.is_kept,
            tail: self.tail.or(other.tail),
        }
    }
}

/// Where the records are, for readers of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreLocation {
    /// The store's URL, without secrets; none if every command finds the store by itself.
    pub store: Option<String>,
    /// The machine that created the message; none if it does not matter.
    pub host: Option<String>,
    /// Whether the store is only on that machine.
    pub is_local: bool,
}

/// Slots that were not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missed {
    pub last: Slot,
    pub count: u64,
}

/// The facts about a name.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub(super) lineage: Option<Lineage>,
    /// The store's time; none if no fact lies in the future.
    pub(super) now: Option<Timestamp>,
    /// How its tenures ended, oldest first.
    pub(super) ends: Vec<End>,
    /// Outages that began by this time are over without a message: the lease was forgotten then, or the job is retired
    /// by now.
    pub(super) over_by: Option<Timestamp>,
    /// The newest slot that was claimed.
    pub(super) claimed: Option<Slot>,
    /// Spans of slots that are dropped or will be: the first and the last slot of each.
    pub(super) dropped: Vec<(Slot, Slot)>,
    pub(super) schedule: Option<Arc<Schedule>>,
    pub(super) late: Option<Slot>,
    /// How many stale writes were refused in total, and how many of them just now.
    pub(super) fenced: Option<(u64, u64)>,
    pub(super) dead: Vec<DeadLetter>,
    /// Whether `dead` has all dead letters, so that some may be old.
    pub(super) is_survey: bool,
    pub(super) details: Vec<Detail>,
    pub(super) location: StoreLocation,
}

impl Facts {
    /// The facts about a lease, at the store's time.
    pub fn of_lease(record: &Ownership, now: Timestamp) -> Self {
        let transfers = record.transfers.iter().filter(|transfer| transfer.to.is_some());
        let mut ends: Vec<End> = transfers
            .filter_map(|transfer| {
                let at = transfer.at.plus(Duration::from_millis(transfer.held_for_ms.unwrap_or(0)));
                // Whether the new holder ever renewed is no longer known once somebody else has held the lease.
                let outcome = match (transfer.outcome?, transfer.reason) {
                    (Outcome::Expired, Reason::HandedOff) => Outcome::NotStarted,
                    (outcome, _) => outcome,
                };
                Some(End { epoch: transfer.epoch, granted: transfer.at, slot: transfer.slot, outcome, at })
            })
            .collect();
        // A machine that died reports nothing, and perhaps nobody has acquired the lease since.
        let last = record.transfers.last().filter(|transfer| transfer.outcome.is_none());
        let ran_out = record.tenure.as_ref().filter(|_| record.live_tenure(now).is_none());
        if let (Some(last), Some(tenure)) = (last, ran_out) {
            // A hand-off whose new holder never came concerns the operator. It is not a run.
            let is_taken_up = tenure.deadline > tenure.granted_at.plus(tenure.ttl.get());
            let is_unused = last.reason == Reason::HandedOff && !is_taken_up;
            let outcome = if is_unused { Outcome::NotStarted } else { Outcome::Expired };
            ends.push(End { epoch: last.epoch, granted: last.at, slot: last.slot, outcome, at: tenure.deadline });
        }
        let claimed = record.slot.map(|mark| mark.slot);
        let over_by = record.forgotten.as_ref().map(|mark| mark.at);
        Facts { lineage: record.lineage, now: Some(now), ends, over_by, claimed, ..Facts::default() }
    }

    /// Adds that the job was published and is no longer, at the store's time.
    #[must_use]
    pub(super) fn retired(self, now: Timestamp) -> Self {
        Facts { over_by: Some(now), ..self }
    }

    /// The facts about a queue: items that became dead letters just now.
    pub fn of_queue(dead: Vec<DeadLetter>) -> Self {
        Facts { dead, ..Facts::default() }
    }

    /// The facts about a queue: all its dead letters, new and old, oldest first.
    pub fn of_survey(dead: Vec<DeadLetter>) -> Self {
        Facts { dead, is_survey: true, ..Facts::default() }
    }

    /// Adds what this machine knows about a run.
    #[must_use]
    pub fn with_detail(mut self, detail: Option<Detail>) -> Self {
        let Some(detail) = detail else { return self };
        match self.details.iter_mut().find(|known| known.epoch == detail.epoch) {
            Some(known) => *known = std::mem::take(known).or(detail),
            None => self.details.push(detail),
        }
        self
    }

    /// Adds how many stale writes were refused in total, and how many of them are known to be new.
    #[must_use]
    pub fn with_fenced(self, total: u64, new: u64) -> Self {
        Facts { fenced: Some((total, new)), ..self }
    }

    /// Adds what became of a job's slots: those that its journal or the plan drops, and the one that is late.
    #[must_use]
    pub fn with_slots(self, schedule: &Arc<Schedule>, journal: &Journal, plan: &Plan, late: Option<Slot>) -> Self {
        let written =
            journal.entries.iter().filter(|entry| entry.fate.is_missed()).map(|entry| (entry.slot, entry.end()));
        let planned = plan.due.dropped.iter().map(|dropped| (dropped.first, dropped.last));
        let dropped = written.chain(planned).collect();
        Facts { dropped, late, schedule: Some(schedule.clone()), ..self }
    }

    /// The slots that were missed after this one. Slots that were dropped while
    /// the store's clock was ahead count as missed when their time comes.
    pub(super) fn missed_after(&self, after: Option<Slot>) -> Option<Missed> {
        let schedule = self.schedule.as_ref()?;
        let latest = self.now.and_then(|now| schedule.latest(now));
        let past = |(first, last): &(Slot, Slot)| (*first, latest.map_or(*last, |latest| latest.min(*last)));
        let spans = self.dropped.iter().map(past).filter(|(first, last)| first <= last);
        let spans = spans.filter(|(_, last)| after.is_none_or(|after| *last > after));
        let last = spans.clone().map(|(_, last)| last).max()?;
        let mut slots = BTreeSet::new();
        for (first, last) in spans {
            let is_new = after.is_none_or(|after| first > after);
            slots.extend(is_new.then_some(first));
            let from = after.filter(|_| !is_new).map_or(first.0, |after| after.0);
            slots.extend(schedule.between(from, last.0).take(COUNTED));
        }
        Some(Missed { last, count: slots.len().max(1) as u64 })
    }

    /// Without the ends of the last moments: the machine that ran them knows more, and is about to report.
    #[must_use]
    pub(super) fn without_fresh(mut self, now: Timestamp) -> Self {
        self.ends.retain(|end| now.saturating_since(end.at) >= FRESH);
        self
    }

    /// When the tenure of this epoch began, if known.
    pub(super) fn granted(&self, epoch: Epoch) -> Option<Timestamp> {
        self.ends.iter().find(|end| end.epoch == epoch).map(|end| end.granted)
    }

    pub(super) fn detail_of(&self, epoch: Epoch) -> Option<&Detail> {
        self.details.iter().find(|detail| detail.epoch == epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::Watched;
    use super::super::cause::Cause;
    use super::super::tests::rule;
    use super::*;
    use leasehold_core::lease::protocol::{Decision, Order, Request, decide};
    use leasehold_core::{Claim, HolderId, Nonce, Ttl};

    const TTL_MS: u64 = 60_000;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + ms)
    }

    fn write(record: &Ownership, request: &Request, now: Timestamp) -> Ownership {
        match decide(record, request, now) {
            Decision::Write(next) => *next,
            other => panic!("{other:?}"),
        }
    }

    fn ttl() -> Ttl {
        Ttl::new(Duration::from_millis(TTL_MS)).unwrap()
    }

    fn acquire() -> Request {
        let (lineage, holder) = (Lineage::from_u128(1), HolderId::new(None));
        Request::Acquire { lineage, holder, ttl: ttl(), slot: None, spacing: None, requested: None }
    }

    fn hand_off() -> Request {
        Request::Operate {
            by: "ann".parse().unwrap(),
            why: "by hand".parse().unwrap(),
            nonce: Nonce::random(),
            lineage: Lineage::from_u128(1),
            expected: None,
            order: Order::HandOff { to: HolderId::new(None), ttl: ttl() },
        }
    }

    fn claim(record: &Ownership) -> Claim {
        Claim { epoch: record.epoch, nonce: record.tenure.as_ref().unwrap().holder.nonce() }
    }

    /// The ids of the messages about this record at that time, each with its kind.
    fn told(record: &Ownership, now: Timestamp) -> Vec<(String, String)> {
        let subject = Subject::Lease("nightly".parse().unwrap());
        let rules = [rule(&[Cause::Failed, Cause::Lost])];
        let judged = Watched::default().judged(&subject, &rules, &Facts::of_lease(record, now), now);
        let notices = judged.map(|mut watched| watched.take_outbox()).unwrap_or_default();
        notices.iter().map(|notice| (notice.kind().to_owned(), notice.id.clone())).collect()
    }

    #[test]
    fn a_hand_off_that_nobody_took_up_is_not_a_lost_run() {
        let given = write(&write(&Ownership::default(), &acquire(), at(0)), &hand_off(), at(1));
        assert!(told(&given, at(2 * TTL_MS)).is_empty());
        // The same after somebody else has acquired it.
        let since = write(&given, &acquire(), at(2 * TTL_MS));
        assert!(told(&since, at(2 * TTL_MS)).is_empty());
        // But if the new holder renewed before it disappeared, the run was lost.
        let renewed = Request::Renew { claim: claim(&given), ttl: ttl(), progress: None };
        let renewed = write(&given, &renewed, at(10));
        let kinds: Vec<String> = told(&renewed, at(2 * TTL_MS)).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, ["lease.lost"]);
    }

    #[test]
    fn two_runs_of_one_epoch_after_a_restore_are_reported_under_two_ids_and_one_under_one() {
        // Both are continued from the same copy of a store.
        let fail = |granted: u64| {
            let held = write(&Ownership::default(), &acquire(), at(granted));
            let release = Request::Release { claim: claim(&held), outcome: Outcome::Failed };
            write(&held, &release, at(granted + 5))
        };
        let (before, after) = (fail(0), fail(1_000));
        assert_eq!((before.epoch, before.lineage), (after.epoch, after.lineage));
        assert_eq!(told(&before, at(5_000)), told(&before, at(9_000)));
        assert_ne!(told(&before, at(5_000)), told(&after, at(5_000)));
        // The id does not depend on whether anybody has noticed that it expired.
        let gone = write(&Ownership::default(), &acquire(), at(0));
        let noticed = write(&gone, &acquire(), at(2 * TTL_MS));
        assert_eq!(told(&gone, at(3 * TTL_MS)), told(&noticed, at(2 * TTL_MS)));
        assert_eq!(told(&gone, at(3 * TTL_MS)).len(), 1);
    }
}
