//! Which part of a key's scope a record belongs to, and which verb a change needs. Pure.
//!
//! Promise: every record has one subject, and nobody may read a record without one. Every name that a request touches is checked,
//! including the queues that a completion adds to.

use crate::access::{Caller, Denied, Verb};
use crate::api::cursor::Beginnings;
use crate::serve::Problem;
use leasehold_core::item::ItemName;
use leasehold_core::item::protocol::Request as ItemRequest;
use leasehold_core::lease::protocol::Request as LeaseRequest;
use leasehold_core::wire;
use leasehold_core::{Key, LeaseName, Shelf};
use leasehold_stores::Namespace;

/// The subject of a record: what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// The lease, job or queue of this name.
    Name(String),
    /// Known by a lineage, which is no secret, because tokens and fences contain it. The record's content says whose it is.
    Lineage(String),
    /// Readable with any key for the namespace: the store's time, whether the namespace was moved, and requests for runs.
    Anybody,
    /// The client that wrote it, as its content says.
    Writer,
    /// Not accessible to clients.
    Nobody,
}

impl Subject {
    pub(super) fn of(key: &Key) -> Self {
        let name = key.name.as_str();
        let first = || name.split('/').next().unwrap_or(name).to_owned();
        let second = || name.split('/').nth(1).unwrap_or_default().to_owned();
        match key.shelf {
            Shelf::Lease | Shelf::Counters | Shelf::Runs | Shelf::Job => Subject::Name(name.to_owned()),
            Shelf::Queue | Shelf::Item | Shelf::Line => Subject::Name(first()),
            Shelf::Watch | Shelf::Output if key.name.folder() == Some(LeaseName::ITEMS) => Subject::Name(second()),
            Shelf::Watch => Subject::Name(name.to_owned()),
            Shelf::Output | Shelf::History => Subject::Lineage(first()),
            // `http/RESOURCE`, `mcp/RESOURCE`.
            Shelf::Fence => Subject::Name(name.split_once('/').map_or(name, |(_, resource)| resource).to_owned()),
            // The requests that are shown are filtered by job.
            Shelf::Probe | Shelf::Namespace | Shelf::Request => Subject::Anybody,
            Shelf::Presence => Subject::Writer,
            _ => Subject::Nobody,
        }
    }

    /// Refuses a caller who may not read the record of this key.
    pub(super) fn may_read(&self, caller: &Caller, namespace: &Namespace, key: &Key) -> Result<(), Problem> {
        match self {
            Subject::Name(name) => Ok(may_look(caller, namespace, key, name)?),
            Subject::Lineage(_) | Subject::Anybody | Subject::Writer => Ok(caller.enters(namespace)?),
            Subject::Nobody => Err(wire::direct(key).into()),
        }
    }
}

/// A caller may read what it takes part in, because its client decides on that record. A key for holding leases sees no items, and
/// one for working on items sees no leases.
fn may_look(caller: &Caller, namespace: &Namespace, key: &Key, name: &str) -> Result<(), Denied> {
    // The verb of those who take part comes first: their commands read before they do anything.
    let verbs: &'static [Verb] = if is_of_items(key) {
        &[Verb::Work, Verb::Read, Verb::Operate]
    } else {
        &[Verb::Hold, Verb::Read, Verb::Operate]
    };
    caller.enters(namespace)?;
    if !verbs.iter().any(|verb| caller.scope().verbs.has(*verb)) {
        return Err(caller.may_not_look(verbs));
    }
    may_any(caller, verbs, namespace, name)
}

/// Whether a record is about a queue, and not about a lease or a job.
fn is_of_items(key: &Key) -> bool {
    match key.shelf {
        Shelf::Queue | Shelf::Item | Shelf::Line => true,
        Shelf::Watch | Shelf::Output => key.name.folder() == Some(LeaseName::ITEMS),
        _ => false,
    }
}

/// Whether the caller may use one of these verbs. If not, the refusal is about a verb that its key has, if it has one of them.
fn may_any(caller: &Caller, verbs: &[Verb], namespace: &Namespace, name: &str) -> Result<(), Denied> {
    let own = verbs.iter().find(|verb| caller.scope().verbs.has(**verb)).or(verbs.first());
    own.map_or(Ok(()), |verb| caller.may(*verb, namespace, Some(name)))
}

/// Whether a shelf may be listed from this key on. The entries that are shown are filtered by name.
pub(super) fn may_list(caller: &Caller, ns: &Namespace, shelf: Shelf, start: Option<&Key>) -> Result<(), Denied> {
    caller.enters(ns)?;
    match (shelf, start.map(Subject::of)) {
        // From a lineage on, and only that lineage's entries.
        (Shelf::History | Shelf::Output, Some(Subject::Lineage(_))) => Ok(()),
        (Shelf::Item | Shelf::Line, Some(Subject::Name(queue))) => {
            start.map_or(Ok(()), |key| may_look(caller, ns, key, &queue))
        }
        (Shelf::History, _) => caller.may(Verb::Read, ns, None),
        (Shelf::Fence | Shelf::Probe | Shelf::Namespace | Shelf::Request, _) => caller.may(Verb::Read, ns, None),
        _ => Ok(()),
    }
}

/// Whether an entry of a listing is shown.
pub(super) fn is_listed(caller: &Caller, namespace: &Namespace, key: &Key, start: Option<&Key>) -> bool {
    match Subject::of(key) {
        Subject::Name(name) => may_look(caller, namespace, key, &name).is_ok(),
        Subject::Lineage(lineage) => {
            let is_asked_for = start.map(Subject::of) == Some(Subject::Lineage(lineage));
            is_asked_for || caller.may(Verb::Read, namespace, None).is_ok()
        }
        Subject::Anybody | Subject::Writer => true,
        Subject::Nobody => false,
    }
}

/// Whether nothing on a shelf is hidden from the caller.
pub(super) fn sees_all(caller: &Caller, ns: &Namespace, shelf: Shelf) -> bool {
    let verbs: &[Verb] = match shelf {
        Shelf::Presence => &[],
        Shelf::Lease | Shelf::Counters | Shelf::Runs | Shelf::Job => &[Verb::Read, Verb::Hold, Verb::Operate],
        Shelf::Queue | Shelf::Item | Shelf::Line => &[Verb::Read, Verb::Work, Verb::Operate],
        _ => &[Verb::Read],
    };
    verbs.iter().any(|verb| caller.may(*verb, ns, None).is_ok())
}

/// The prefixes of the names that the caller may see on a shelf; none if names there do not say that.
fn beginnings(caller: &Caller, shelf: Shelf) -> Option<Beginnings> {
    let is_known = matches!(
        shelf,
        Shelf::Lease | Shelf::Counters | Shelf::Runs | Shelf::Job | Shelf::Queue | Shelf::Item | Shelf::Line
    );
    is_known.then(|| Beginnings::of(caller.scope()))
}

/// Where a listing may begin instead of at the first name: just before those that the caller may see.
pub(super) fn begins(caller: &Caller, shelf: Shelf) -> Option<LeaseName> {
    beginnings(caller, shelf)?.first()
}

/// Where a listing continues after this name: there, or just before the next names that the caller may see. None if there are none.
pub(super) fn continues_at(caller: &Caller, shelf: Shelf, name: &LeaseName) -> Option<LeaseName> {
    match beginnings(caller, shelf) {
        Some(beginnings) => beginnings.after(name),
        None => Some(name.clone()),
    }
}

/// What a change needs: one of these verbs, on each of these names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) verbs: &'static [Verb],
    pub(super) names: Vec<String>,
}

const HOLD: &[Verb] = &[Verb::Hold];
const WORK: &[Verb] = &[Verb::Work];
const OPERATE: &[Verb] = &[Verb::Operate];
const HOLD_OR_WORK: &[Verb] = &[Verb::Hold, Verb::Work];
const HOLD_OR_OPERATE: &[Verb] = &[Verb::Hold, Verb::Operate];
const WORK_OR_OPERATE: &[Verb] = &[Verb::Work, Verb::Operate];

impl Needs {
    /// What this change of this record needs; none if no client may ask for it.
    pub(super) fn of(key: &Key, verb: &wire::Verb) -> Option<Self> {
        let own = match Subject::of(key) {
            Subject::Name(name) => vec![name],
            Subject::Lineage(_) if key.shelf == Shelf::Output => Vec::new(),
            Subject::Writer => Vec::new(),
            _ => return None,
        };
        let needs = |verbs| Some(Needs { verbs, names: own.clone() });
        match (key.shelf, verb) {
            (Shelf::Lease, wire::Verb::Lease(LeaseRequest::Operate { .. })) => needs(OPERATE),
            (Shelf::Lease, wire::Verb::Lease(_)) => needs(HOLD),
            (Shelf::Lease, wire::Verb::Confirm) => needs(HOLD_OR_OPERATE),
            (Shelf::Item, wire::Verb::Confirm) => needs(WORK_OR_OPERATE),
            (Shelf::Item, wire::Verb::Item(request)) => match &**request {
                ItemRequest::Operate { .. } => needs(OPERATE),
                ItemRequest::Complete { follow_ups, .. } => {
                    let added = follow_ups.iter().map(|follow_up| follow_up.name.queue.to_string());
                    Some(Needs { verbs: WORK, names: own.into_iter().chain(added).collect() })
                }
                _ => needs(WORK),
            },
            (Shelf::Item, wire::Verb::Add(_) | wire::Verb::TakeBack) => needs(WORK),
            (Shelf::Item, wire::Verb::Purge) => needs(OPERATE),
            (Shelf::Fence, wire::Verb::Document { .. }) => needs(HOLD),
            (Shelf::Presence, wire::Verb::Document { .. } | wire::Verb::Purge) => needs(HOLD_OR_WORK),
            (
                Shelf::Counters | Shelf::Runs | Shelf::Job | Shelf::Watch | Shelf::Output,
                wire::Verb::Document { .. },
            ) => needs(if is_of_items(key) { WORK_OR_OPERATE } else { HOLD_OR_OPERATE }),
            _ => None,
        }
    }

    pub(super) fn check(&self, caller: &Caller, namespace: &Namespace) -> Result<(), Denied> {
        caller.enters(namespace)?;
        // Even where the content says whose it is, the caller must have one of these verbs.
        if !self.verbs.iter().any(|verb| caller.scope().verbs.has(*verb)) {
            self.verbs.first().map_or(Ok(()), |verb| caller.may(*verb, namespace, None))?;
        }
        self.names.iter().try_for_each(|name| may_any(caller, self.verbs, namespace, name))
    }
}

/// The name of the lease or the queue that an item's or a lease's token is about.
pub(crate) fn name_of(lease: &LeaseName) -> String {
    let parts: Vec<&str> = lease.as_str().split('/').collect();
    match parts[..] {
        [LeaseName::ITEMS, queue, _] => queue.to_owned(),
        _ => lease.as_str().to_owned(),
    }
}

/// The item with this record, if the name is an item's.
pub(super) fn item_of(key: &Key) -> Option<ItemName> {
    (key.shelf == Shelf::Item).then(|| ItemName::from_record(&key.name)).flatten()
}
