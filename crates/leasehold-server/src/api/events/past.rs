//! What a record says about the past: each thing that happened has its time in it.

use super::EventData;
use leasehold_core::{LeaseName, Outcome, Ownership, Reason, Timestamp, Transfer};
use leasehold_work::schedule::Journal;
use std::time::Duration;

/// What was found.
#[derive(Debug)]
pub enum Past {
    /// All of it, by time.
    All(Vec<EventData>),
    /// There are more records than are gone through for one client.
    TooMany,
}

/// From just after one time up to another.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub after: Timestamp,
    pub until: Timestamp,
}

impl Span {
    fn has(self, at: Timestamp) -> bool {
        at > self.after && at <= self.until
    }
}

fn event(what: &'static str, name: &LeaseName, epoch: u64, at: Timestamp) -> EventData {
    let name = Some(name.to_string());
    EventData {
        what,
        name,
        epoch: Some(epoch),
        at_ms: at.as_millis(),
        holder: None,
        by: None,
        why: None,
        slot_ms: None,
    }
}

/// What happened to a lease in this time, as far as its record remembers. What it no longer does is a `reset` of that name.
pub fn of_lease(name: &LeaseName, record: &Ownership, span: Span, found: &mut Vec<EventData>) {
    if let Some(first) = record.transfers.first()
        && span.has(first.at)
        && first.epoch <= record.archived.max(record.dropped)
        && first.reason != Reason::First
    {
        let why = Some("its record no longer remembers all that happened; read its history".to_owned());
        found.push(EventData { why, ..event("reset", name, first.epoch.get(), first.at) });
    }
    for transfer in &record.transfers {
        of_transfer(name, transfer, span, found);
    }
    let epoch = record.epoch.get();
    if let Some(tenure) = record.tenure.as_ref().filter(|tenure| span.has(tenure.deadline)) {
        let holder = Some(tenure.holder.label().to_string());
        let why = Some(Outcome::Expired.as_str().to_owned());
        found.push(EventData { holder, why, ..event("expired", name, epoch, tenure.deadline) });
    }
    let drain = record.drain.as_ref().map(|drain| drain.asked());
    for (what, mark) in [("paused", record.paused.as_ref()), ("resumed", record.resumed.as_ref()), ("draining", drain)]
    {
        if let Some(mark) = mark.filter(|mark| span.has(mark.at)) {
            let (by, why) = (Some(mark.by.to_string()), Some(mark.why.to_string()));
            found.push(EventData { by, why, ..event(what, name, epoch, mark.at) });
        }
    }
    if let Some(progress) = record.progress.as_ref().filter(|progress| span.has(progress.at)) {
        let why = progress.marker.as_ref().map(ToString::to_string);
        found.push(EventData { why, ..event("progress", name, progress.epoch.get(), progress.at) });
    }
}

fn of_transfer(name: &LeaseName, transfer: &Transfer, span: Span, found: &mut Vec<EventData>) {
    let holder = transfer.to.as_ref().map(|to| to.label().to_string());
    if span.has(transfer.at) {
        let what = match transfer.reason {
            Reason::Revoked if transfer.by.is_some() => "revoked",
            Reason::HandedOff => "handed_off",
            Reason::Advanced if transfer.by.is_some() => "advanced",
            Reason::Rewound if transfer.by.is_some() => "rewound",
            _ => "acquired",
        };
        let by = transfer.by.as_ref().map(ToString::to_string);
        let why = transfer.why.as_ref().map_or_else(|| transfer.reason.as_str().to_owned(), ToString::to_string);
        let own = event(what, name, transfer.epoch.get(), transfer.at);
        found.push(EventData { holder: holder.clone(), by, why: Some(why), ..own });
    }
    // Of one that was evicted, what evicted it tells.
    let (Some(outcome), Some(held_for_ms)) = (transfer.outcome, transfer.held_for_ms) else { return };
    let at = transfer.at.plus(Duration::from_millis(held_for_ms));
    if outcome != Outcome::Evicted && span.has(at) {
        let what = if outcome == Outcome::Expired { "expired" } else { "released" };
        let why = Some(outcome.as_str().to_owned());
        found.push(EventData { holder, why, ..event(what, name, transfer.epoch.get(), at) });
    }
}

/// What became of a job's slots in this time.
pub fn of_job(name: &LeaseName, journal: &Journal, span: Span, found: &mut Vec<EventData>) {
    for entry in &journal.entries {
        let at = entry.at.plus(Duration::from_millis(entry.ran_for_ms.unwrap_or(0)));
        if span.has(at) {
            let own = event("run", name, entry.epoch.map_or(0, |epoch| epoch.get()), at);
            let (why, slot_ms) = (Some(entry.fate.as_str().to_owned()), Some(entry.slot.0.as_millis()));
            found.push(EventData { why, slot_ms, ..own });
        }
    }
}
