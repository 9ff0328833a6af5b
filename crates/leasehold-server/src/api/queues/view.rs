//! An item as answers show it. Nothing here lets anybody act as its worker.

use crate::api::asked::Asked;
use crate::api::values::{Draining, Holder, Report, Time, millis, shown};
use crate::remote::{knows_origin, knows_queue};
use leasehold_core::Timestamp;
use leasehold_work::queue::{Event, Item, ItemName, State};
use serde::Serialize;
use utoipa::ToSchema;

/// An item of a queue.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemView {
    /// Its id in the queue.
    pub id: String,
    /// The queue that it is in.
    pub queue: String,
    /// `ready`, `delayed` (not due yet), `claimed`, `done`, `dead`, `cancelled`, or `moving`, `moved`, `arriving` (between stores).
    pub state: &'static str,
    /// The fencing number: what operators' verbs want as the epoch that was seen.
    pub epoch: u64,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// When it was added.
    pub added: Time,
    /// From when on it may be claimed, if it has to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
    /// How often it was claimed since it was added or retried.
    pub tried: u32,
    /// How often it may be claimed at most.
    pub attempts: u32,
    /// The pause after its first failure, in milliseconds; it doubles with each.
    pub backoff_ms: u64,
    /// The worker that has claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Until when, unless renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The latest report of a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Report>,
    /// The request to its worker to finish, while it is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Draining>,
    /// When it was finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// Why it is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The item, and its epoch, whose completion added this one, if the key is for its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// What its completion added, in queues that the key is for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub follow_ups: Vec<String>,
    /// How many bytes it carries.
    pub payload_bytes: usize,
    /// What it carries, if that was asked for and is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The same in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// The result of its completion, if that was asked for and is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The same in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<String>,
    /// The store's time of this read.
    pub now: Time,
}

/// Whether what an item carries is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payloads {
    Shown,
    Hidden,
}

impl From<Option<bool>> for Payloads {
    fn from(asked: Option<bool>) -> Self {
        if asked == Some(true) { Payloads::Shown } else { Payloads::Hidden }
    }
}

impl ItemView {
    pub fn new(asked: &Asked, name: &ItemName, item: &Item, now: Timestamp, payloads: Payloads) -> Self {
        let (caller, ns) = (&asked.caller, &asked.namespace);
        let follow_ups = item.follow_ups.iter().filter(|name| knows_queue(caller, ns, name.queue.as_str()));
        let is_shown = payloads == Payloads::Shown;
        let (payload, payload_base64) = if is_shown { shown(&item.payload) } else { (None, None) };
        let result = item.result.as_ref().filter(|_| is_shown);
        let (result, result_base64) = result.map(shown).unwrap_or_default();
        let tenure = item.tenure();
        ItemView {
            id: name.id.to_string(),
            queue: name.queue.to_string(),
            state: item.word(now),
            epoch: item.epoch.get(),
            priority: item.priority.get(),
            added: item.added.into(),
            due: item.due.filter(|_| item.state == State::Ready).map(Time::from),
            tried: item.tried,
            attempts: item.attempts.most,
            backoff_ms: item.attempts.backoff_ms,
            holder: tenure.map(|tenure| Holder::from(&tenure.holder)),
            deadline: tenure.map(|tenure| tenure.deadline.into()),
            progress: item.progress.as_ref().map(Report::from),
            drain: item.live_drain(now).map(Draining::from),
            finished: item.state.finished_at().map(Time::from),
            why: if let State::Dead { why, .. } = &item.state { Some(why.to_string()) } else { None },
            origin: item.origin.clone().filter(|origin| knows_origin(caller, ns, origin)),
            follow_ups: follow_ups.map(ToString::to_string).collect(),
            payload_bytes: item.payload.bytes().len(),
            payload,
            payload_base64,
            result,
            result_base64,
            now: now.into(),
        }
    }
}

/// What happened to an item.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventView {
    /// When, by the store's clock.
    pub at: Time,
    /// The epoch after it.
    pub epoch: u64,
    /// `claimed`, `expired`, `completed`, `failed`, `returned`, `died`, `retried`, `cancelled`, `handed_off`, `evicted` or `moved`.
    pub what: &'static str,
    /// The worker or operator who did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The reason that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl From<&Event> for EventView {
    fn from(event: &Event) -> Self {
        EventView {
            at: event.at.into(),
            epoch: event.epoch.get(),
            what: event.what.as_str(),
            by: event.by.as_ref().map(ToString::to_string),
            why: event.why.as_ref().map(ToString::to_string),
        }
    }
}

/// A claimed item: what its worker needs.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClaimView {
    /// Its id in the queue.
    pub id: String,
    /// The proof to renew and end it with, and to show to guards. Whoever has it can act as the worker.
    pub token: String,
    /// The epoch of the claim, which guards compare.
    pub epoch: u64,
    /// The first attempt is 1.
    pub attempt: u32,
    /// What it carries, if that is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The same in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// What an earlier attempt left for this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// The store's time when it was claimed, or renewed.
    pub now: Time,
    /// Until when, unless renewed, by the store's clock.
    pub deadline: Time,
    /// How far each renewal moves the deadline.
    pub ttl_ms: u64,
    /// How long it can be trusted, counted from the instant at which this request was sent.
    pub trust_ms: u64,
    /// Who asks the worker to finish, if anybody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Draining>,
}

impl ClaimView {
    pub fn new(asked: &Asked, grant: &leasehold_work::queue::ItemGrant) -> Self {
        let (item, seen) = (grant.item(), grant.seen());
        let (payload, payload_base64) = shown(&item.payload);
        let checkpoint = item.progress.as_ref().and_then(|progress| progress.checkpoint.as_ref());
        ClaimView {
            id: grant.name().id.to_string(),
            token: grant.token().wire(),
            epoch: item.epoch.get(),
            attempt: item.tried,
            payload,
            payload_base64,
            checkpoint: checkpoint.map(|checkpoint| checkpoint.as_str().to_owned()),
            now: seen.anchor.now.into(),
            deadline: item.tenure().map_or(seen.anchor.now, |tenure| tenure.deadline).into(),
            ttl_ms: millis(grant.ttl().get()),
            trust_ms: millis(asked.trust(grant.trust_until())),
            drain: item.live_drain(seen.anchor.now).map(Draining::from),
        }
    }
}
