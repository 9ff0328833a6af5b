//! Schedulers and workers that report through a server.
//!
//! Promise: a client writes and removes what it reported with its own key, and nothing else; the record says which key that was,
//! and the time is the store's. A key has a bounded number of them, of bounded size. Non-promise: the host, the process and the
//! version are the client's word.

use crate::access::{Caller, Verb};
use crate::serve::Problem;
use leasehold_core::store::{Change, Range, Swap};
use leasehold_core::{Coordinator, Error, Key, Kind, Line, Revision, Shelf};
use leasehold_stores::Namespace;
use leasehold_work::presence::{Presence, Via, reported};

/// How many processes one key puts on record, and how many there are in a namespace before no more are put there.
const MOST_OF_A_KEY: usize = 64;
const MOST: usize = 500;

/// Records what a client reports, or removes it if it reports nothing. None if somebody else has the place.
pub(super) async fn change(
    caller: &Caller,
    namespace: &Namespace,
    coordinator: &Coordinator,
    key: &Key,
    expected: Option<&Revision>,
    text: Option<&str>,
) -> Result<Option<Swap>, Problem> {
    let store = coordinator.store();
    let reading = store.read(key).await?;
    let found = reading.value.as_ref();
    if found.map(|value| &value.revision) != expected
        || !found.is_none_or(|value| is_own(caller, &value.bytes, key.name.as_str()))
    {
        return Ok(None);
    }
    let Some(text) = text else {
        let Some(revision) = expected else { return Ok(None) };
        return Ok(Some(store.write(&Change { notify: false, ..Change::erase(key, revision) }).await?));
    };
    let via = Via { label: caller.label.clone(), key: Line::lossy(caller.key.as_str(), "-") };
    let own = reported(text.as_bytes(), key, via, reading.now).map_err(|e| Problem::invalid(e.to_string()))?;
    match &own.queue {
        Some(queue) => caller.may(Verb::Work, namespace, Some(queue))?,
        None if caller.scope().verbs.has(Verb::Hold) => {}
        None => caller.may(Verb::Hold, namespace, None)?,
    }
    if expected.is_none() {
        check_count(caller, coordinator).await?;
    }
    let bytes = own.encode()?;
    Ok(Some(store.write(&Change { notify: false, ..Change::put(key, expected, &bytes) }).await?))
}

/// Whether this was reported with the caller's key.
pub(super) fn is_own(caller: &Caller, bytes: &[u8], place: &str) -> bool {
    Presence::decode(bytes, place).is_some_and(|presence| presence.is_of(caller.key.as_str()))
}

/// Refuses one more if the key, or the namespace, has as many as it may.
async fn check_count(caller: &Caller, coordinator: &Coordinator) -> Result<(), Error> {
    let page = coordinator.store().list(Shelf::Presence, Range::new(None, MOST)).await?;
    let own = page.entries.iter().filter(|(name, value)| is_own(caller, &value.bytes, name.as_str())).count();
    if own < MOST_OF_A_KEY && page.entries.len() < MOST {
        return Ok(());
    }
    let message = format!("{own} processes with key {} are on record, {MOST_OF_A_KEY} at most", caller.key);
    Err(Error::new(Kind::Unsupported, message))
}
