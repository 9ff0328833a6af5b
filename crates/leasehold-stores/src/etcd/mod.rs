//! Records in etcd v3, through its JSON gateway.
//!
//! Promise: a swap is one transaction that compares the key's `mod_revision`, a number of the whole cluster that is
//! never used twice. Reads are linearizable. An answered write is in the write-ahead logs of most members, fsynced, so
//! epochs rise through crash and failover. Keys are `/leasehold/NAMESPACE/SHELF/NAME`, without an etcd lease, so
//! nothing expires. To notify watchers, the same transaction puts an empty value under
//! `/leasehold/NAMESPACE/news/SHELF/NAME`, so that renewals wake nobody.
//! Non-promise: the clock is the `Date` header of the member that answered, cut to whole seconds. If members' clocks
//! differ, a lease may expire earlier or later by that difference (the fence holds).
//!
//! `etcd://host:2379,host2:2379` or, with TLS, `etcds://host:2379?cacert=FILE&cert=FILE&key=FILE`. Without a host, the
//! endpoints are those of `ETCDCTL_ENDPOINTS`, else `127.0.0.1:2379`. `ETCDCTL_USER`, `ETCDCTL_PASSWORD`,
//! `ETCDCTL_CACERT`, `ETCDCTL_CERT` and `ETCDCTL_KEY` apply where the URL says nothing.

mod config;
mod connection;
mod error;
mod survey;
mod watch;
mod wire;

use crate::http::Answer;
use crate::phase::Phase;
use crate::url::{Address, Namespace};
use async_trait::async_trait;
use config::Config;
use connection::{Connections, Reply};
use error::Cause;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use wire::{Pair, Ranged, Swapped, base64};

/// The largest page: etcd's limit is a signed 64-bit number.
const MAX_KEYS: usize = i64::MAX as usize;

/// The resolution of the `Date` header.
const GRAIN: Duration = Duration::from_secs(1);

/// A store in an etcd cluster. Clones share connections.
#[derive(Clone)]
pub struct EtcdStore {
    connections: Arc<Connections>,
    /// `/leasehold/NAMESPACE/`
    prefix: Arc<str>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({}, {})", self.connections, self.prefix)
    }
}

/// Refuses an address that this store could not use. Nothing is read or connected.
pub fn check(address: &Address) -> Result<()> {
    config::check(address)
}

/// Reads the certificates. The first call connects.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<EtcdStore> {
    let config = Config::gather(address, &|name| std::env::var(name).ok())?;
    let connections = Arc::new(Connections::new(config)?);
    Ok(EtcdStore { connections, prefix: format!("/leasehold/{namespace}/").into() })
}

impl EtcdStore {
    fn shelf(&self, shelf: Shelf) -> String {
        format!("{}{}/", self.prefix, shelf.as_str())
    }

    fn key(&self, key: &Key) -> String {
        format!("{}{}", self.shelf(key.shelf), key.name)
    }

    /// The key that is written to notify watchers of a record.
    fn news(&self, key: &Key) -> String {
        format!("{}news/{}/{}", self.prefix, key.shelf.as_str(), key.name)
    }

    async fn range(&self, body: &Value) -> Result<(Ranged, leasehold_core::Timestamp)> {
        let (answer, endpoint) = match self.connections.call("kv/range", body, Phase::Reading).await? {
            Reply::Answer(answer, endpoint) => (answer, endpoint),
            Reply::Refused(error) => return Err(error.to_error(Phase::Reading)),
        };
        Ok((parsed(&answer, Phase::Reading, endpoint)?, answer.now))
    }

    /// The present record, if any, and the time.
    async fn find(&self, key: &str) -> Result<(Option<Versioned>, leasehold_core::Timestamp)> {
        let (found, now) = self.range(&json!({ "key": base64(key) })).await?;
        Ok((found.kvs.into_iter().next().map(Pair::versioned), now))
    }

    /// Runs these operations if the key has this `mod_revision`; 0 stands for a missing key.
    async fn transact(&self, key: &str, expected: u64, success: &[Value]) -> Result<Swap> {
        let compare = json!({
            "key": base64(key), "target": "MOD", "result": "EQUAL", "mod_revision": expected.to_string(),
        });
        let body = json!({ "compare": [compare], "success": success });
        let error = match self.connections.call("kv/txn", &body, Phase::Writing).await? {
            Reply::Answer(answer, endpoint) => {
                let swapped: Swapped = parsed(&answer, Phase::Writing, endpoint)?;
                // The gateway omits `succeeded` if the condition did not hold.
                return Ok(if swapped.succeeded {
                    Swap::Done { revision: Revision(swapped.header.revision.to_string()), now: answer.now }
                } else {
                    Swap::Mismatch
                });
            }
            Reply::Refused(error) => error,
        };
        // The write that fills the quota is applied *and* answered with this error: only a read shows whether this was
        // that write. The answer comes after the write was applied, so the read sees it.
        if error.cause == Cause::NoSpace
            && let Ok((found, _)) = self.find(key).await
            && found.and_then(|value| value.revision.number()).unwrap_or(0) == expected
        {
            return Err(error.to_error(Phase::Reading));
        }
        Err(error.to_error(Phase::Writing))
    }
}

/// Reads the JSON of an answer with status 200.
fn parsed<T: DeserializeOwned>(answer: &Answer, phase: Phase, endpoint: &str) -> Result<T> {
    serde_json::from_slice(&answer.body).map_err(|e| {
        let message = format!("{endpoint} gave an answer that is not etcd's; give the address of etcd's client port");
        Error::new(phase.unanswered(), message).with_source(e)
    })
}

fn put(key: &str, value: &[u8]) -> Value {
    json!({ "request_put": { "key": base64(key), "value": base64(value) } })
}

fn delete(key: &str) -> Value {
    json!({ "request_delete_range": { "key": base64(key) } })
}

#[async_trait]
impl Store for EtcdStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "etcd",
            class: Class::A,
            clock: ClockSource::Store { grain: GRAIN },
            reach: Reach::Network,
            watch: Watching::Hints,
            writes_along: false,
            by_verbs: false,
            durability: "write-ahead log of most members, fsynced before each answer",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let (value, now) = self.find(&self.key(key)).await?;
        Ok(Reading { value, now })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let expected = match change.expected.map(Revision::number::<NonZeroU64>) {
            None => 0,
            Some(None) => return Ok(Swap::Mismatch),
            Some(Some(number)) => number.get(),
        };
        let (key, news) = (self.key(change.key), self.news(change.key));
        let success = match change.next {
            Next::Put(value) if change.notify => vec![put(&key, value), put(&news, b"")],
            Next::Put(value) => vec![put(&key, value)],
            // Erasing notifies too, by deleting the key.
            Next::Erase => vec![delete(&key), delete(&news)],
        };
        self.transact(&key, expected, &success).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        let shelf = self.shelf(shelf);
        // The first key after a name is the name with a zero byte.
        let begin = range.after.map_or_else(|| shelf.clone(), |name| format!("{shelf}{name}\0"));
        let end = format!("{}0", shelf.trim_end_matches('/'));
        let body = json!({
            "key": base64(&begin), "range_end": base64(&end), "sort_order": "ASCEND", "sort_target": "KEY",
            // The answer says whether there is more, so the limit is enough. 0 would mean all.
            "limit": range.limit.clamp(1, MAX_KEYS).to_string(),
        });
        let (found, now) = self.range(&body).await?;
        let more = found.more || found.kvs.len() > range.limit;
        let mut entries = Vec::new();
        for pair in found.kvs.into_iter().take(range.limit) {
            let key = String::from_utf8_lossy(&pair.key.0);
            let name = LeaseName::new(key.strip_prefix(&shelf).unwrap_or(&key)).map_err(|e| {
                let message = format!("etcd has a key below `{shelf}` that is no lease; delete it with etcdctl");
                Error::new(Kind::Corrupt, message).with_source(e)
            })?;
            entries.push((name, pair.versioned()));
        }
        Ok(Page { entries, more, now }.until(range.until))
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        Ok(watch::watch(&self.connections, &self.news(key)).await)
    }

    async fn survey(&self) -> Result<Survey> {
        survey::survey(&self.connections).await
    }
}
