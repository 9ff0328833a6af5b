//! What a caller is shown of a record.
//!
//! Promise: the nonce of a grant that is in force is shown only to those who may hold that lease, work on that item, or operate, and in a
//! proxy's fence to who may be that proxy: with it a guard would take them for the holder. An archived part of a history, and kept
//! output, are shown to those who may know of their lease. Non-promise: everything else that a record says is shown to whoever
//! may read it.

use super::rules::Subject;
use super::{may_know, takes_part, takes_part_in};
use crate::access::{Caller, Verb};
use leasehold_core::guard::HighWater;
use leasehold_core::item::record::{Item, KIND as ITEM};
use leasehold_core::store::Versioned;
use leasehold_core::{Error, Key, Kind, Nonce, Ownership, PROXY_FOLDER, Result, Shelf, codec};
use leasehold_guards::stored::FenceRecord;
use leasehold_stores::Namespace;
use leasehold_work::output;
use leasehold_work::schedule::requests;

const LEASE: &str = "ownership";
const FENCE: &str = "fence";

/// The value as this caller may see it; none if it may not.
pub(super) fn shown(caller: &Caller, ns: &Namespace, key: &Key, value: Versioned) -> Result<Option<Versioned>> {
    let place = key.name.as_str();
    match (key.shelf, Subject::of(key)) {
        // The name of such a record does not tell whose it is, so its content does.
        (Shelf::Output, Subject::Lineage(_)) => {
            let lease = output::subject(&value.bytes, place)?;
            let is_seen = lease.is_some_and(|lease| may_know(caller, ns, &lease));
            Ok(is_seen.then_some(value))
        }
        (Shelf::Lease, Subject::Name(name)) if !takes_part(caller, ns, Verb::Hold, &name) => {
            // What cannot be read cannot be checked. The error says so instead of the record.
            let record: Ownership = codec::decode(LEASE, &value.bytes, place)?;
            hidden(LEASE, value, record.tenure.map(|tenure| tenure.holder.nonce)).map(Some)
        }
        (Shelf::Item, Subject::Name(name)) if !takes_part(caller, ns, Verb::Work, &name) => {
            let item = Item::decode(&value.bytes, place)?;
            hidden(ITEM, value, item.tenure().map(|tenure| tenure.holder.nonce)).map(Some)
        }
        (Shelf::Fence, Subject::Name(resource)) => {
            let record = FenceRecord::decode(&value.bytes, key)?;
            // A proxy sees the tokens of those who write through it anyway.
            let is_proxy = key.name.as_str().starts_with("http/")
                && caller.may(Verb::Hold, ns, Some(&format!("{PROXY_FOLDER}/{resource}"))).is_ok();
            let is_hidden = |high: &HighWater| !is_proxy && !takes_part_in(caller, ns, &high.lease);
            let shown = hidden(FENCE, value, record.high.filter(is_hidden).map(|high| high.nonce))?;
            hidden(FENCE, shown, record.by.filter(|_| !is_proxy).map(|(_, nonce)| nonce)).map(Some)
        }
        // So does that of an archived part of a history.
        (Shelf::History, _) => {
            let is_seen = match leasehold_core::history_subject(&value.bytes, place) {
                Ok(lease) => lease.is_some_and(|lease| may_know(caller, ns, &lease)),
                // Whose it is cannot be told: the damage is shown to those who may read everything.
                Err(_) => caller.may(Verb::Read, ns, None).is_ok(),
            };
            Ok(is_seen.then_some(value))
        }
        (Shelf::Request, _) => {
            let bytes = requests::only(&value.bytes, place, |job| may_know(caller, ns, job))?;
            Ok(Some(Versioned { bytes, ..value }))
        }
        (Shelf::Lease | Shelf::Item | Shelf::Counters | Shelf::Runs | Shelf::Job | Shelf::Queue | Shelf::Line, _)
        | (Shelf::Watch | Shelf::Output | Shelf::Probe | Shelf::Namespace, _) => Ok(Some(value)),
        _ => Ok(None),
    }
}

/// The record with another nonce wherever this one stands: in the tenure, and in the transfer that began it.
fn hidden(kind: &str, value: Versioned, nonce: Option<Nonce>) -> Result<Versioned> {
    let Some(nonce) = nonce else { return Ok(value) };
    let corrupt = || Error::new(Kind::Corrupt, format!("{kind} record is not text"));
    let text = String::from_utf8(value.bytes).map_err(|e| corrupt().with_source(e))?;
    let (_, body) = text.split_once('\n').ok_or_else(corrupt)?;
    let body = body.replace(&nonce.to_string(), &Nonce::from_u128(0).to_string());
    let record: serde_json::Value = serde_json::from_str(&body).map_err(|e| corrupt().with_source(e))?;
    Ok(Versioned { bytes: codec::encode(kind, &record)?, revision: value.revision })
}
