//! Records as people and programs see them. The JSON is documented in docs/json.md and stable.

use crate::output::{relative, rfc3339, rough};
use crate::table::Column::{self, State, Text, Whole};
use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{
    Drain, Epoch, FencedMark, FencedWrite, HolderId, Inspection, LeaseName, OperatorMark, Reason, SlotState, Timestamp,
    Token, Transfer, format_duration,
};
use serde_json::{Value, json};
use std::time::Duration;

/// A lease that has been free for this long is not shown by default, and may be forgotten.
pub const IDLE: Duration = Duration::from_secs(86_400);

/// The state of a lease.
pub fn state(lease: &Inspection) -> &'static str {
    if let Some(state) = &lease.record.relocation {
        return state.as_str();
    }
    match (&lease.record.tenure, lease.record.live_tenure(lease.now), &lease.record.paused) {
        (_, Some(_), _) => "held",
        (_, None, Some(_)) => "paused",
        (Some(_), None, None) => "expired",
        (None, None, None) if lease.record.forgotten.is_some() => "forgotten",
        (None, None, None) => "free",
    }
}

/// The same for people, who should also see that nobody will follow the holder, or that an operator waits for it.
fn told_state(lease: &Inspection) -> String {
    let mut told = state(lease).to_owned();
    match told.as_str() {
        "held" if lease.record.paused.is_some() => told.push_str(", paused"),
        // Its holder is still shown, with the time at which it expired.
        "paused" if lease.record.tenure.is_some() => told.insert_str(0, "expired, "),
        _ => {}
    }
    if lease.record.live_drain(lease.now).is_some() {
        told.push_str(", draining");
    }
    told
}

/// A lease as JSON.
pub fn lease_json(lease: &Inspection) -> Value {
    let record = &lease.record;
    json!({
        "name": lease.lease.as_str(),
        "state": state(lease),
        "epoch": record.epoch.get(),
        "lineage": record.lineage.map(|lineage| lineage.to_string()),
        "relocation": record.relocation.as_ref().map(|state| json!({
            "state": state.as_str(),
            "store": state.address().as_str(),
        })),
        "holder": record.tenure.as_ref().map(|t| holder_json(&t.holder)),
        "granted_at": record.tenure.as_ref().map(|t| rfc3339(t.granted_at)),
        "deadline": record.tenure.as_ref().map(|t| rfc3339(t.deadline)),
        "ttl_ms": record.tenure.as_ref().map(|t| t.ttl.get().as_millis() as u64),
        "paused": record.paused.as_ref().map(mark_json),
        "resumed": record.resumed.as_ref().map(mark_json),
        "drain": record.live_drain(lease.now).map(drain_json),
        "forgotten": record.forgotten.as_ref().map(mark_json),
        "progress": record.progress.as_ref().map(|p| json!({
            "at": rfc3339(p.at),
            "epoch": p.epoch.get(),
            "marker": p.marker.as_ref().map(|m| m.as_str()),
            "checkpoint": p.checkpoint.as_ref().map(|c| c.as_str()),
        })),
        "slot": record.slot.map(|mark| json!({
            "at": rfc3339(mark.slot.0),
            "state": slot_state(mark.state),
            "epoch": mark.epoch.get(),
        })),
        "now": rfc3339(lease.now),
    })
}

/// A lease with the last stale writes that were refused, the latest first.
pub fn shown_json(lease: &Inspection, fenced: &[FencedMark]) -> Value {
    let mut value = lease_json(lease);
    value["fenced_writes"] = fenced.iter().rev().map(fenced_json).collect();
    value
}

fn fenced_json(mark: &FencedMark) -> Value {
    json!({
        "at": rfc3339(mark.at),
        "times": mark.times,
        "resource": mark.write.resource.as_str(),
        "held_epoch": mark.write.held.get(),
        "seen_epoch": mark.write.seen.get(),
        "by": mark.write.by.as_ref().map(|by| by.as_str()),
    })
}

/// The lease, as it is after an order; and the epoch that the order itself began or left.
pub fn order_json(lease: &Inspection, ordered: Epoch) -> Value {
    let mut value = lease_json(lease);
    value["ordered_epoch"] = json!(ordered.get());
    value
}

fn slot_state(state: SlotState) -> &'static str {
    match state {
        SlotState::Running => "running",
        SlotState::Done => "done",
        SlotState::Failed => "failed",
        SlotState::Rewound => "rewound",
    }
}

/// A holder as JSON.
pub fn holder_json(holder: &HolderId) -> Value {
    json!({ "label": holder.label().as_str(), "host": holder.host(), "pid": holder.pid(), "nonce": holder.nonce().to_string() })
}

fn mark_json(mark: &OperatorMark) -> Value {
    json!({ "by": mark.by.as_str(), "why": mark.why.as_str(), "at": rfc3339(mark.at) })
}

/// A request to finish as JSON.
pub fn drain_json(drain: &Drain) -> Value {
    let mut value = mark_json(drain.asked());
    value["until"] = json!(rfc3339(drain.until()));
    value
}

/// A transfer as JSON.
pub fn transfer_json(transfer: &Transfer) -> Value {
    json!({
        "epoch": transfer.epoch.get(),
        "at": rfc3339(transfer.at),
        "reason": transfer.reason.as_str(),
        "from": transfer.from.as_ref().map(holder_json),
        "to": transfer.to.as_ref().map(holder_json),
        "by": transfer.by.as_ref().map(|w| w.as_str()),
        "why": transfer.why.as_ref().map(|w| w.as_str()),
        "slot": transfer.slot.map(|s| rfc3339(s.0)),
        "held_for_ms": transfer.held_for_ms,
        "outcome": transfer.outcome.map(|o| o.as_str()),
    })
}

/// A token as JSON: the whole, and its parts.
pub fn token_json(token: &Token) -> Value {
    json!({ "token": token.wire(), "name": token.lease.as_str(), "epoch": token.epoch.get() })
}

/// The columns of [`lease_row`].
pub const LEASE_COLUMNS: [Column; 6] =
    [Whole("NAME"), State("STATE"), Whole("EPOCH"), Text("HOLDER"), Whole("SINCE"), Whole("UNTIL")];

/// A lease as a row.
pub fn lease_row(lease: &Inspection) -> Vec<String> {
    let tenure = lease.record.tenure.as_ref();
    vec![
        lease.lease.to_string(),
        told_state(lease),
        lease.record.epoch.to_string(),
        tenure.map_or("-".into(), |t| t.holder.to_string()),
        tenure.map_or("-".into(), |t| relative(t.granted_at, lease.now)),
        tenure.map_or("-".into(), |t| relative(t.deadline, lease.now)),
    ]
}

/// The columns of [`transfer_row`].
pub const TRANSFER_COLUMNS: [Column; 6] =
    [Whole("EPOCH"), Whole("WHEN"), Text("HOLDER"), Whole("TAKEN"), State("ENDED"), Text("WHY")];

/// How a lease was taken, or what an operator did to it.
fn taken(transfer: &Transfer) -> &'static str {
    match (transfer.reason, &transfer.to) {
        (Reason::First, _) => "first",
        (Reason::Released, _) => "after release",
        (Reason::Expired, _) => "after expiry",
        (Reason::Recovered, _) => "to recover",
        (Reason::HandedOff, _) => "handed off",
        (Reason::Revoked, None) => "revoked",
        (Reason::Revoked, Some(_)) => "after revoke",
        (Reason::Advanced, None) => "advanced",
        (Reason::Advanced, Some(_)) => "after advance",
        (Reason::Rewound, None) => "rewound",
        (Reason::Rewound, Some(_)) => "after rewind",
        (reason, _) => reason.as_str(),
    }
}

/// A transfer of this lease as a row, with times relative to that of the look.
pub fn transfer_row(transfer: &Transfer, lease: &Inspection) -> Vec<String> {
    let now = lease.now;
    let current = lease.record.tenure.as_ref().filter(|_| transfer.epoch == lease.record.epoch);
    let ended = match (&transfer.to, transfer.held_for_ms, transfer.outcome) {
        (None, _, _) => "-".into(),
        (_, Some(ms), Some(outcome)) => format!("{} after {}", outcome.as_str(), rough(Duration::from_millis(ms))),
        _ => match current {
            Some(tenure) if tenure.deadline <= now => {
                format!("expired {}, end not reported", relative(tenure.deadline, now))
            }
            _ => "not yet".into(),
        },
    };
    let why = match (&transfer.by, &transfer.why) {
        (Some(by), Some(why)) => format!("{why} ({by})"),
        _ => String::new(),
    };
    vec![
        transfer.epoch.to_string(),
        relative(transfer.at, now),
        transfer.to.as_ref().map_or("nobody".into(), ToString::to_string),
        taken(transfer).into(),
        ended,
        why,
    ]
}

/// Why a lease was not granted, in one line.
pub fn refusal_line(lease: &LeaseName, refusal: &Refusal, now: Timestamp) -> String {
    match refusal {
        Refusal::Held { tenure, epoch } => format!(
            "`{lease}` has been held by {} for {} (epoch {epoch}); expires in {} unless renewed",
            tenure.holder,
            rough(now.saturating_since(tenure.granted_at)),
            rough(tenure.deadline.saturating_since(now)),
        ),
        Refusal::Paused(mark) => {
            format!("`{lease}` was paused by {}, {}: {}", mark.by, relative(mark.at, now), mark.why)
        }
        Refusal::Draining(drain) => format!(
            "`{lease}` is kept for {}, who asked its holder to finish {}: {}; that ends {}",
            drain.asked().by,
            relative(drain.asked().at, now),
            drain.asked().why,
            relative(drain.until(), now),
        ),
        Refusal::TooSoon { began, until } => {
            let (began, left) = (relative(*began, now), rough(until.saturating_since(now)));
            format!("the last run of `{lease}` began {began}; the next may begin in {left} (--min-interval)")
        }
        Refusal::Recent { since } => {
            let since = relative(*since, now);
            format!("`{lease}` was held until {since}, and is forgotten only after a day; nothing changed")
        }
        Refusal::Forgotten(mark) => {
            format!("`{lease}` was forgotten by {}, {}: {}", mark.by, relative(mark.at, now), mark.why)
        }
        Refusal::NotHeld => format!("nobody holds `{lease}`"),
        Refusal::AlreadyRun(mark) => {
            format!("`{lease}` has run slot {} already, under epoch {}", rfc3339(mark.slot.0), mark.epoch)
        }
        Refusal::Interrupted(mark) => format!(
            "slot {} of `{lease}` was interrupted under epoch {}: it is run again, or given up, before a newer one",
            rfc3339(mark.slot.0),
            mark.epoch
        ),
        Refusal::Lost { seen, .. } => format!("`{lease}` was lost before it was held: seen={seen}"),
        Refusal::AlreadyReleased { outcome } => format!("`{lease}` was already released ({})", outcome.as_str()),
        Refusal::NeverHeld => {
            format!("nobody has ever held a lease `{lease}`; `leasehold ls` lists the leases there are")
        }
        Refusal::NotPaused => format!("`{lease}` is not paused"),
        Refusal::NoSlot => format!("`{lease}` has no slot to complete"),
        Refusal::Changed { expected, seen } => format!(
            "`{lease}` has changed: the order was decided on epoch {expected}, and it is at epoch {seen} now; nothing changed, \
             look again"
        ),
        Refusal::RequestExpired { .. } => format!("`{lease}`: the request for this run was not taken up in time"),
        Refusal::OtherPause(mark) => format!(
            "`{lease}` was paused again by {}, {}: {}; nothing changed, look again",
            mark.by,
            relative(mark.at, now),
            mark.why
        ),
        Refusal::Elsewhere(state) => format!("`{lease}` is {state}"),
        Refusal::NotMoving { epoch, .. } => {
            format!("`{lease}` is not on its way to another store; its epoch is {epoch}")
        }
        Refusal::OtherLineage { .. } => {
            format!("`{lease}` is another lease than the one of this name in the other store")
        }
        Refusal::LineageFixed { lineage: Some(lineage) } => {
            format!(
                "an operator gave `{lease}` the lineage {lineage} before, and that can be done once; nothing changed"
            )
        }
        Refusal::LineageFixed { lineage: None } => format!("`{lease}` has no lineage"),
        Refusal::Exhausted => format!("`{lease}` has no epochs left"),
        Refusal::TooFar { most } => format!(
            "`{lease}` cannot be moved that far: epochs do not come back, and an advance may go past {most} at most, so that \
             enough of them are left; nothing was changed"
        ),
    }
}

/// A refused write, in one line.
fn fenced_line(mark: &FencedMark, now: Timestamp) -> String {
    let FencedWrite { held, seen, resource, by } = &mark.write;
    let times = if mark.times > 1 { format!(" ({} times)", mark.times) } else { String::new() };
    let by = by.as_ref().map(|by| format!(", by {by}")).unwrap_or_default();
    format!("{}{times}: {resource}, epoch {held} where {seen} was there{by}", relative(mark.at, now))
}

/// A lease in full, for people, with the last stale writes that were refused.
pub fn lease_page(lease: &Inspection, fenced: &[FencedMark]) -> String {
    let (record, now) = (&lease.record, lease.now);
    let mut rows: Vec<(&str, String)> =
        vec![("name", lease.lease.to_string()), ("state", told_state(lease)), ("epoch", record.epoch.to_string())];
    if let Some(tenure) = &record.tenure {
        rows.push(("holder", tenure.holder.to_string()));
        let both = |at: Timestamp| format!("{} ({})", relative(at, now), rfc3339(at));
        rows.extend([("since", both(tenure.granted_at)), ("until", both(tenure.deadline))]);
        rows.push(("ttl", format_duration(tenure.ttl.get())));
    }
    rows.extend(record.lineage.map(|lineage| ("lineage", lineage.to_string())));
    rows.extend(record.relocation.as_ref().map(|state| ("store", state.to_string())));
    for (word, mark) in [("paused", &record.paused), ("resumed", &record.resumed), ("forgotten", &record.forgotten)] {
        let told = |mark: &OperatorMark| format!("{} by {}: {}", relative(mark.at, now), mark.by, mark.why);
        rows.extend(mark.as_ref().map(|mark| (word, told(mark))));
    }
    if let Some(drain) = record.live_drain(now) {
        let (asked, until) = (relative(drain.asked().at, now), relative(drain.until(), now));
        rows.push(("draining", format!("asked {asked} by {}: {}; ends {until}", drain.asked().by, drain.asked().why)));
    }
    if let Some(progress) = &record.progress {
        let marker = progress.marker.as_ref().map_or("(no marker)", |m| m.as_str());
        rows.push(("progress", format!("{marker}, {} under epoch {}", relative(progress.at, now), progress.epoch)));
        if let Some(checkpoint) = &progress.checkpoint {
            rows.push(("checkpoint", leasehold_core::printable(checkpoint.as_str())));
        }
    }
    if let Some(mark) = record.slot {
        rows.push(("slot", format!("{} {} under epoch {}", rfc3339(mark.slot.0), slot_state(mark.state), mark.epoch)));
    }
    if let Some(last) = record.transfers.last() {
        rows.push(("last", format!("{}, {}", taken(last), relative(last.at, now))));
    }
    rows.extend(fenced.iter().rev().map(|mark| ("refused", fenced_line(mark, now))));
    rows.into_iter().map(|(key, value)| format!("{key:<10}  {value}\n")).collect()
}
