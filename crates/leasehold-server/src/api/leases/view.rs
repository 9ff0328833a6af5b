//! A lease as answers show it. Nothing here lets anybody act as its holder.

use crate::api::values::{Draining, Holder, Pause, Report, SlotState, Time, millis};
use leasehold_core::{FencedMark, Inspection, Ownership, Timestamp, Transfer};
use serde::Serialize;
use utoipa::ToSchema;

/// A lease.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeaseView {
    /// The name of the lease.
    pub name: String,
    /// `held`, `free`, `expired` (past its deadline, not released), `paused` (and not held), `forgotten`, or `moving`, `moved`,
    /// `arriving` (between stores).
    pub state: &'static str,
    /// The fencing number of the latest transfer: what operators' verbs want as the epoch that was seen.
    pub epoch: u64,
    /// The line of epochs that the number belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// Who holds it, or held it until it expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// When it was acquired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<Time>,
    /// Until when, unless renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// How far each renewal moves the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The pause that keeps new holders out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// The request to the holder to finish, while it is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Draining>,
    /// The latest report of a holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Report>,
    /// The latest scheduled slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotState>,
    /// The last stale writes that were refused, the latest first, at most 16. Told of one lease, and not in listings; without those
    /// to resources that the key is not for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fenced_writes: Vec<FencedWriteView>,
    /// The store's time of this read.
    pub now: Time,
}

/// A stale write that was refused.
#[derive(Debug, Serialize, ToSchema)]
pub struct FencedWriteView {
    /// When it was last refused.
    pub at: Time,
    /// How many times it was refused.
    pub times: u64,
    /// The resource, as its guard names it, such as `file:out.json`.
    pub resource: String,
    /// The epoch of the writer's token.
    pub held_epoch: u64,
    /// The newer epoch: of the resource, or of the lease.
    pub seen_epoch: u64,
    /// Who was refused, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl From<&FencedMark> for FencedWriteView {
    fn from(mark: &FencedMark) -> Self {
        let write = &mark.write;
        FencedWriteView {
            at: mark.at.into(),
            times: mark.times,
            resource: write.resource.to_string(),
            held_epoch: write.held.get(),
            seen_epoch: write.seen.get(),
            by: write.by.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&Inspection> for LeaseView {
    fn from(seen: &Inspection) -> Self {
        LeaseView::new(seen.lease.as_str(), &seen.record, seen.now)
    }
}

impl LeaseView {
    pub fn new(name: &str, record: &Ownership, now: Timestamp) -> Self {
        let tenure = record.tenure.as_ref();
        LeaseView {
            name: name.to_owned(),
            state: state(record, now),
            epoch: record.epoch.get(),
            lineage: record.lineage.map(|lineage| lineage.to_string()),
            holder: tenure.map(|tenure| Holder::from(&tenure.holder)),
            granted: tenure.map(|tenure| tenure.granted_at.into()),
            deadline: tenure.map(|tenure| tenure.deadline.into()),
            ttl_ms: tenure.map(|tenure| millis(tenure.ttl.get())),
            paused: record.paused.as_ref().map(Pause::from),
            drain: record.live_drain(now).map(Draining::from),
            progress: record.progress.as_ref().map(Report::from),
            slot: record.slot.map(SlotState::from),
            fenced_writes: Vec::new(),
            now: now.into(),
        }
    }
}

/// The state of a lease in one word.
pub fn state(record: &Ownership, now: Timestamp) -> &'static str {
    match record {
        Ownership { relocation: Some(relocation), .. } => relocation.as_str(),
        record if record.live_tenure(now).is_some() => "held",
        Ownership { paused: Some(_), .. } => "paused",
        Ownership { forgotten: Some(_), .. } => "forgotten",
        Ownership { tenure: Some(_), .. } => "expired",
        _ => "free",
    }
}

/// Whether a lease is in this state. One that is held may be paused as well.
pub fn is_in(wanted: &str, record: &Ownership, now: Timestamp) -> bool {
    let is_paused = wanted == "paused" && record.paused.is_some() && record.relocation.is_none();
    is_paused || wanted == state(record, now)
}

/// One advance of a lease's epoch.
#[derive(Debug, Serialize, ToSchema)]
pub struct TransferView {
    /// The epoch that began.
    pub epoch: u64,
    /// When, by the store's clock.
    pub at: Time,
    /// `first`, `released`, `expired`, `revoked`, `handed_off`, `recovered`, `advanced`, `rewound` or `triggered`.
    pub reason: &'static str,
    /// Who held it just before, if that tenure had not been released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Holder>,
    /// Who held it from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Holder>,
    /// The operator, if one moved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The operator's reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The scheduled slot that it was for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<Time>,
    /// How long the tenure lasted, once it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_for_ms: Option<u64>,
    /// How it ended: `succeeded`, `failed`, `lost`, `not_started`, `expired` or `evicted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
}

impl From<&Transfer> for TransferView {
    fn from(transfer: &Transfer) -> Self {
        TransferView {
            epoch: transfer.epoch.get(),
            at: transfer.at.into(),
            reason: transfer.reason.as_str(),
            from: transfer.from.as_ref().map(Holder::from),
            to: transfer.to.as_ref().map(Holder::from),
            by: transfer.by.as_ref().map(ToString::to_string),
            why: transfer.why.as_ref().map(ToString::to_string),
            slot: transfer.slot.map(Time::from),
            held_for_ms: transfer.held_for_ms,
            outcome: transfer.outcome.map(|outcome| outcome.as_str()),
        }
    }
}
