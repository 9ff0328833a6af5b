//! What is known of a name when it is judged, as far as it may have to be told.

use crate::schedule::{Journal, Plan, Schedule};
use crate::tally::DeadLetter;
use leasehold_core::item::QueueName;
use leasehold_core::{Epoch, LeaseName, Lineage, Outcome, Ownership, Result, Slot, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How many missed slots are counted one by one.
const COUNTED: usize = 1_000;

/// How long a machine may take to tell how its own run ended.
const FRESH: Duration = Duration::from_secs(5);

/// What somebody is told about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A lease with slots.
    Job(LeaseName),
    /// Any other lease.
    Lease(LeaseName),
    /// A queue.
    Queue(QueueName),
    /// A spool: by its lineage, because machines may have mounted it in different places, and as people call it here.
    Spool(Lineage, String),
}

impl Subject {
    /// A lease, which is a job's if it was ever claimed for a slot.
    pub fn of(lease: &LeaseName, record: &Ownership) -> Self {
        if record.slot.is_some() { Subject::Job(lease.clone()) } else { Subject::Lease(lease.clone()) }
    }

    /// Whether it is somebody's: leases of our own, and those under which slots of the past are claimed, are not.
    pub fn is_told_of(lease: &LeaseName) -> bool {
        lease.folder() != Some(leasehold_core::PROXY_FOLDER) && !lease.as_str().contains("/backfill/")
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Subject::Job(name) | Subject::Lease(name) => name.as_str(),
            Subject::Queue(name) => name.as_str(),
            Subject::Spool(_, name) => name,
        }
    }

    /// The word in JSON.
    pub const fn word(&self) -> &'static str {
        match self {
            Subject::Job(_) => "job",
            Subject::Lease(_) => "lease",
            Subject::Queue(_) | Subject::Spool(..) => "queue",
        }
    }

    /// Where its record is. No lease has the name of a queue's, or of a spool's.
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
    pub slot: Option<Slot>,
    pub outcome: Outcome,
    pub at: Timestamp,
}

/// What only the machine that ran it knows of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// The run's epoch.
    pub epoch: Epoch,
    /// The exit code.
    pub exit_code: Option<u8>,
    /// How long it ran.
    pub ran_for_ms: Option<u64>,
    /// The last lines of its output.
    pub tail: Option<String>,
}

/// Slots that were not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missed {
    pub last: Slot,
    pub count: u64,
}

/// What is known of a name.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub(super) lineage: Option<Lineage>,
    /// Oldest first.
    pub(super) ends: Vec<End>,
    /// The newest slot that was claimed.
    pub(super) claimed: Option<Slot>,
    /// Spans of slots that are dropped or will be: the first and the last of each.
    pub(super) dropped: Vec<(Slot, Slot)>,
    pub(super) schedule: Option<Arc<Schedule>>,
    pub(super) late: Option<Slot>,
    /// How many stale writes were refused so far, and how many of them just now.
    pub(super) fenced: Option<(u64, u64)>,
    pub(super) dead: Vec<DeadLetter>,
    /// Whether those were looked for, so that some may be old.
    pub(super) is_survey: bool,
    pub(super) detail: Option<Detail>,
}

impl Facts {
    /// Of a lease, at the store's time.
    pub fn of_lease(record: &Ownership, now: Timestamp) -> Self {
        let transfers = record.transfers.iter().filter(|transfer| transfer.to.is_some());
        let mut ends: Vec<End> = transfers
            .filter_map(|transfer| {
                let at = transfer.at.plus(Duration::from_millis(transfer.held_for_ms.unwrap_or(0)));
                Some(End { epoch: transfer.epoch, slot: transfer.slot, outcome: transfer.outcome?, at })
            })
            .collect();
        // A machine that died says nothing, and perhaps nobody has come after it.
        let last = record.transfers.last().filter(|transfer| transfer.outcome.is_none());
        let ran_out = record.tenure.as_ref().filter(|_| record.live_tenure(now).is_none());
        if let (Some(last), Some(tenure)) = (last, ran_out) {
            ends.push(End { epoch: last.epoch, slot: last.slot, outcome: Outcome::Expired, at: tenure.deadline });
        }
        let claimed = record.slot.map(|mark| mark.slot);
        Facts { lineage: record.lineage, ends, claimed, ..Facts::default() }
    }

    /// Of a queue: items that became dead letters just now.
    pub fn of_queue(dead: Vec<DeadLetter>) -> Self {
        Facts { dead, ..Facts::default() }
    }

    /// Of a queue: all its dead letters, new and old, the oldest first.
    pub fn of_survey(dead: Vec<DeadLetter>) -> Self {
        Facts { dead, is_survey: true, ..Facts::default() }
    }

    /// With what this machine knows of a run.
    #[must_use]
    pub fn with_detail(self, detail: Option<Detail>) -> Self {
        Facts { detail, ..self }
    }

    /// With how many stale writes were refused so far, and how many of them are known to be new.
    #[must_use]
    pub fn with_fenced(self, total: u64, new: u64) -> Self {
        Facts { fenced: Some((total, new)), ..self }
    }

    /// With what became of a job's slots: those that its journal or the plan drops, and the one that is late.
    #[must_use]
    pub fn with_slots(self, schedule: &Arc<Schedule>, journal: &Journal, plan: &Plan, late: Option<Slot>) -> Self {
        let written =
            journal.entries.iter().filter(|entry| entry.fate.is_missed()).map(|entry| (entry.slot, entry.end()));
        let planned = plan.due.dropped.iter().map(|dropped| (dropped.first, dropped.last));
        let dropped = written.chain(planned).collect();
        Facts { dropped, late, schedule: Some(schedule.clone()), ..self }
    }

    /// The slots that were missed after this one.
    pub(super) fn missed_after(&self, after: Option<Slot>) -> Option<Missed> {
        let schedule = self.schedule.as_ref()?;
        let spans = self.dropped.iter().filter(|(_, last)| after.is_none_or(|after| *last > after));
        let last = spans.clone().map(|(_, last)| *last).max()?;
        let mut slots = BTreeSet::new();
        for (first, last) in spans {
            let is_new = after.is_none_or(|after| *first > after);
            slots.extend(is_new.then_some(*first));
            let from = after.filter(|_| !is_new).map_or(first.0, |after| after.0);
            slots.extend(schedule.between(from, last.0).take(COUNTED));
        }
        Some(Missed { last, count: slots.len().max(1) as u64 })
    }

    /// Without the ends of the last moments: whoever ran it knows more of it, and is about to tell.
    #[must_use]
    pub(super) fn without_fresh(mut self, now: Timestamp) -> Self {
        self.ends.retain(|end| now.saturating_since(end.at) >= FRESH);
        self
    }

    /// The newest run that ended badly, unless its last lines are known.
    pub(super) fn unknown_output(&self) -> Option<Epoch> {
        let bad = self.ends.last().filter(|end| matches!(end.outcome, Outcome::Failed | Outcome::Lost))?;
        let is_known = self.detail_of(bad.epoch).is_some_and(|detail| detail.tail.is_some());
        (!is_known).then_some(bad.epoch)
    }

    pub(super) fn detail_of(&self, epoch: Epoch) -> Option<&Detail> {
        self.detail.as_ref().filter(|detail| detail.epoch == epoch)
    }
}
