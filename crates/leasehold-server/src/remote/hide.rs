//! What a caller sees of a record.
//!
//! Promise: the nonces of grants, even of those that are over, are shown only to callers that may hold the lease, work on the
//! item, or operate; and in a proxy's fence to those that may be the proxy. With such a nonce a guard would take the caller for
//! the holder. Names outside the key's scope are left out of the records that it may read, or replaced by [`OUTSIDE`]. Archived
//! history and kept output are shown to those who may know of their lease. Non-promise: everything else in a record is shown to
//! all who may read it.

use super::rules::Subject;
use super::{knows_queue, knows_resource, may_know, presence, takes_part, takes_part_in};
use crate::access::{Caller, Verb};
use leasehold_core::guard::HighWater;
use leasehold_core::item::record::Item;
use leasehold_core::store::Versioned;
use leasehold_core::{Counters, Key, LeaseName, Lineage, Nonce, Ownership, PROXY_FOLDER, Result, Shelf, codec};
use leasehold_guards::stored::{Adoption, FenceRecord};
use leasehold_stores::Namespace;
use leasehold_work::output;
use leasehold_work::queue::shown_in_line;
use leasehold_work::schedule::requests;
use ring::digest::{SHA256, digest};

pub(super) const LEASE: &str = "ownership";
const COUNTERS: &str = "counters";
/// Stands for a lease outside the key's scope, where a record must name one.
pub(super) const OUTSIDE: &str = "a-lease-outside-this-keys-scope";

/// The value as this caller may see it; none if it may not.
pub(super) fn shown(caller: &Caller, ns: &Namespace, key: &Key, value: Versioned) -> Result<Option<Versioned>> {
    let record_name = key.name.as_str();
    let other = |bytes: Vec<u8>, value: Versioned| Ok(Some(Versioned { bytes, ..value }));
    match (key.shelf, Subject::of(key)) {
        // The name of such a record does not say which lease it belongs to; its content does.
        (Shelf::Output, Subject::Lineage(_)) => {
            let lease = output::subject(&value.bytes, record_name)?;
            let is_seen = lease.is_some_and(|lease| may_know(caller, ns, &lease));
            Ok(is_seen.then_some(value))
        }
        (Shelf::Lease, Subject::Name(name)) if !takes_part(caller, ns, Verb::Hold, &name) => {
            // What cannot be read cannot be checked. The error says so instead of the record.
            let record: Ownership = codec::decode(LEASE, &value.bytes, record_name)?;
            other(codec::encode(LEASE, &record.masked(stand_in))?, value)
        }
        (Shelf::Item, Subject::Name(queue)) => match Item::decode(&value.bytes, record_name) {
            Ok(item) => other(item_shown(caller, ns, &queue, item).encode()?, value),
            Err(_) if takes_part(caller, ns, Verb::Work, &queue) => Ok(Some(value)),
            Err(error) => Err(error),
        },
        // An entry may have a copy of its item.
        (Shelf::Line, Subject::Name(queue)) => {
            other(shown_in_line(&value.bytes, record_name, |item| item_shown(caller, ns, &queue, item))?, value)
        }
        (Shelf::Fence, Subject::Name(_)) => {
            let record = fence_shown(caller, ns, key, FenceRecord::decode(&value.bytes, key)?)?;
            other(record.encode()?, value)
        }
        // The same for an archived part of a history.
        (Shelf::History, _) => {
            match leasehold_core::history_subject(&value.bytes, record_name) {
                Ok(Some(lease)) if takes_part_in(caller, ns, &lease) => Ok(Some(value)),
                Ok(Some(lease)) if may_know(caller, ns, &lease) => {
                    other(leasehold_core::masked_history(&value.bytes, record_name, stand_in)?, value)
                }
                Ok(_) => Ok(None),
                // Nobody knows whose it is. Those who may read everything see that it is damaged, but not its content.
                Err(_) => {
                    Ok(caller.may(Verb::Read, ns, None).is_ok().then(|| Versioned { bytes: Vec::new(), ..value }))
                }
            }
        }
        (Shelf::Presence, _) => Ok(Some(value).filter(|value| presence::is_own(caller, &value.bytes, record_name))),
        (Shelf::Request, _) => {
            let bytes = requests::only(&value.bytes, record_name, |job| may_know(caller, ns, job))?;
            Ok(Some(Versioned { bytes, ..value }))
        }
        // A client that counts writes back what it was shown.
        (Shelf::Counters, Subject::Name(name)) if !takes_part(caller, ns, Verb::Hold, &name) => {
            // A damaged one hides no others, and shows nothing.
            let Ok(mut counters) = Counters::decode(&value.bytes, record_name) else { return other(Vec::new(), value) };
            counters.keep_fenced_writes(|mark| knows_resource(caller, ns, mark.write.resource.as_str()));
            other(codec::encode(COUNTERS, &counters)?, value)
        }
        (Shelf::Lease | Shelf::Counters | Shelf::Runs | Shelf::Job | Shelf::Queue, _)
        | (Shelf::Watch | Shelf::Output | Shelf::Probe | Shelf::Namespace, _) => Ok(Some(value)),
        _ => Ok(None),
    }
}

/// The mask of a nonce: the same for equal nonces, so that one grant stays recognisable, and it cannot be reversed.
fn stand_in(nonce: Nonce) -> Nonce {
    let digest = digest(&SHA256, &nonce.as_u128().to_be_bytes());
    let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
    Nonce::from_u128(u128::from_be_bytes(first))
}

fn item_shown(caller: &Caller, ns: &Namespace, queue: &str, mut item: Item) -> Item {
    item.origin = item.origin.filter(|origin| knows_origin(caller, ns, origin));
    item.follow_ups.retain(|name| knows_queue(caller, ns, name.queue.as_str()));
    item.outbox.retain(|follow_up| knows_queue(caller, ns, follow_up.name.queue.as_str()));
    if takes_part(caller, ns, Verb::Work, queue) { item } else { item.masked(stand_in) }
}

/// Whether the caller may know of the item that such an origin names: `QUEUE/ID@EPOCH`.
pub(crate) fn knows_origin(caller: &Caller, ns: &Namespace, origin: &str) -> bool {
    origin.split_once('/').is_some_and(|(queue, _)| knows_queue(caller, ns, queue))
}

fn fence_shown(caller: &Caller, ns: &Namespace, key: &Key, record: FenceRecord) -> Result<FenceRecord> {
    // A proxy sees the tokens of those who write through it anyway.
    if is_proxy(caller, ns, key) {
        return Ok(record);
    }
    let outside: LeaseName = OUTSIDE.parse()?;
    let high = record.high.map(|high| match &high.lease {
        lease if !may_know(caller, ns, lease) => {
            HighWater { lease: outside, lineage: Lineage::from_u128(0), nonce: stand_in(high.nonce), ..high }
        }
        lease if !takes_part_in(caller, ns, lease) => HighWater { nonce: stand_in(high.nonce), ..high },
        _ => high,
    });
    let adopted = known_adoptions(caller, ns, &record.adopted);
    Ok(FenceRecord { high, adopted, by: record.by.map(|(epoch, nonce)| (epoch, stand_in(nonce))), ..record })
}

fn is_proxy(caller: &Caller, ns: &Namespace, key: &Key) -> bool {
    let resource = key.name.as_str().strip_prefix("http/");
    resource.is_some_and(|resource| caller.may(Verb::Hold, ns, Some(&format!("{PROXY_FOLDER}/{resource}"))).is_ok())
}

/// The refused writes by leases that the caller may know of.
pub(super) fn known_adoptions(caller: &Caller, ns: &Namespace, adopted: &[Adoption]) -> Vec<Adoption> {
    adopted.iter().filter(|adoption| may_know(caller, ns, adoption.lease())).cloned().collect()
}
