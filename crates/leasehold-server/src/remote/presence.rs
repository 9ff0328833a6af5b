//! Schedulers and workers that report through a server.
//!
//! Promise: a client writes and removes only what it reported with its own key. The record says which key that was, and the time is
//! the store's. An account has a bounded number of records of bounded size, and at most half of those of a host, so it displaces
//! nobody else's. Non-promise: the host, the process and the version are the client's own claims.

use crate::access::{Account, Caller, Verb};
use crate::serve::Problem;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold_core::store::{Change, Range, Swap};
use leasehold_core::{Coordinator, Error, Key, Kind, LeaseName, Line, Revision, Shelf};
use leasehold_stores::Namespace;
use leasehold_work::presence::{Presence, Via, reported};
use ring::digest::{SHA256, digest};

/// The most processes that one account may report; the most of one role and host among these (a host may have twice as many in
/// all); and the most in a namespace.
const MOST_OF_AN_ACCOUNT: usize = 64;
const MOST_OF_A_HOST: usize = 32;
const MOST: usize = 500;

/// Records what a client reports, or removes it if it reports nothing. None if the record belongs to somebody else.
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
    let via = Via { label: caller.label.clone(), key: Line::lossy(caller.key.as_str(), "-"), account: account(caller) };
    let own = reported(text.as_bytes(), key, via, reading.now).map_err(|e| Problem::invalid(e.to_string()))?;
    match &own.queue {
        Some(queue) => caller.may(Verb::Work, namespace, Some(queue))?,
        None if caller.scope().verbs.has(Verb::Hold) => {}
        None => caller.may(Verb::Hold, namespace, None)?,
    }
    if expected.is_none() {
        check_count(caller, coordinator, key).await?;
    }
    let bytes = own.encode()?;
    Ok(Some(store.write(&Change { notify: false, ..Change::put(key, expected, &bytes) }).await?))
}

/// Whether this was reported with the caller's key.
pub(super) fn is_own(caller: &Caller, bytes: &[u8], place: &str) -> bool {
    Presence::decode(bytes, place).is_some_and(|presence| presence.is_of(caller.key.as_str()))
}

/// Identifies all keys that were made for the tokens of one subject.
fn account(caller: &Caller) -> Option<Line<64>> {
    let Account::Origin(origin) = caller.account() else { return None };
    let hash = digest(&SHA256, format!("{}\n{}", origin.issuer, origin.subject).as_bytes());
    Some(Line::lossy(&URL_SAFE_NO_PAD.encode(hash.as_ref()), "-"))
}

/// Refuses one more if the account or the namespace has reached its bound.
async fn check_count(caller: &Caller, coordinator: &Coordinator, key: &Key) -> Result<(), Error> {
    let page = coordinator.store().list(Shelf::Presence, Range::new(None, MOST)).await?;
    let account = account(caller);
    let is_own = |name: &LeaseName, bytes: &[u8]| {
        let found = Presence::decode(bytes, name.as_str());
        found.is_some_and(|presence| presence.is_of_account(caller.key.as_str(), account.as_ref()))
    };
    let own: Vec<&str> =
        page.entries.iter().filter(|(name, value)| is_own(name, &value.bytes)).map(|it| it.0.as_str()).collect();
    let host = |name: &str| name.rsplit_once('/').map(|(host, _)| host.to_owned());
    let of_host = own.iter().filter(|name| host(name) == host(key.name.as_str())).count();
    if own.len() < MOST_OF_AN_ACCOUNT && of_host < MOST_OF_A_HOST && page.entries.len() < MOST {
        return Ok(());
    }
    let message = format!(
        "{} processes of {} are on record, {MOST_OF_AN_ACCOUNT} at most, and {of_host} of them on this host, {MOST_OF_A_HOST} at \
         most",
        own.len(),
        caller.account()
    );
    Err(Error::new(Kind::Unsupported, message))
}
