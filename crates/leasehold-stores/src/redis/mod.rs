//! Records in Redis or Valkey: one server, a cluster, or a primary that sentinels name.
//!
//! Promise: one script per operation, run as one step by the server that has the namespace, with that server's own
//! clock and in one round trip; nothing is read from a replica and nothing ever expires. Non-promise: Redis replicates
//! after it has answered, and by default syncs to disk once a second. After a failover or a crash an acknowledged epoch
//! may be issued again (class B), unless the server is configured as `survey` advises.
//!
//! `wait_replicas=N` makes every swap wait for N replicas, in the same round trip; with fewer, the answer is *unknown*.
//! A read then waits as well: otherwise a read after an unknown write could rely on what only the primary has.
//!
//! A revision is random, not a counter: a server that went back in time would
//! issue a counter's number again, for another value.

mod config;
mod connection;
mod error;
mod statements;
mod survey;
mod watch;

use crate::phase::Phase;
use crate::url::{Address, Namespace};
use ::redis::Value;
use async_trait::async_trait;
use config::Config;
use connection::{Call, Confirm, Connections};
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The largest page: a script blocks all other clients while it runs.
const MAX_PAGE: usize = 1_000;
/// A page ends after about this many bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// A store in Redis or Valkey. Clones share one connection.
#[derive(Clone)]
pub struct RedisStore {
    connections: Arc<Connections>,
    namespace: Namespace,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({}, {})", self.connections.config.name, self.namespace)
    }
}

/// Refuses an address, judged by its text alone.
pub fn check(address: &Address) -> Result<()> {
    Config::parse(address).map(drop)
}

/// Opens the store. The first call connects.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<RedisStore> {
    let config = Config::load(address, |name| std::env::var(name).ok())?;
    Ok(RedisStore { connections: Connections::new(config), namespace: namespace.clone() })
}

impl RedisStore {
    fn records(&self, shelf: Shelf) -> String {
        statements::records(&self.namespace, shelf)
    }

    fn names(&self, shelf: Shelf) -> String {
        statements::names(&self.namespace, shelf)
    }

    fn channel(&self, key: &Key) -> String {
        statements::channel(&self.namespace, key)
    }

    /// Runs a script that writes. Its answer is the time, or nil on a mismatch.
    async fn change(&self, call: Call<'_>, revision: Revision) -> Result<Swap> {
        match self.connections.call(call, Phase::Writing, Confirm::ByReplicas).await? {
            Value::Nil => Ok(Swap::Mismatch),
            now => Ok(Swap::Done { revision, now: self.time(Some(&now), Phase::Writing)? }),
        }
    }

    /// The server's time.
    fn time(&self, told: Option<&Value>, phase: Phase) -> Result<Timestamp> {
        match told {
            Some(Value::Int(ms)) => {
                u64::try_from(*ms).map(Timestamp::from_millis).map_err(|_| self.unexpected_answer(phase))
            }
            _ => Err(self.unexpected_answer(phase)),
        }
    }

    fn versioned(&self, key: impl fmt::Display, record: &[u8]) -> Result<Versioned> {
        let parts = record.iter().position(|byte| *byte == b'\n').map(|at| (&record[..at], &record[at + 1..]));
        let revision =
            parts.and_then(|(revision, _)| std::str::from_utf8(revision).ok()).filter(|text| !text.is_empty());
        match (revision, parts) {
            (Some(revision), Some((_, bytes))) => {
                Ok(Versioned { bytes: bytes.to_vec(), revision: Revision(revision.to_owned()) })
            }
            _ => {
                let what =
                    format!("the record `{key}` in {} is damaged; it was left as it is", self.connections.config.name);
                Err(Error::new(Kind::Corrupt, what))
            }
        }
    }

    /// The error for an answer that none of our scripts gives.
    fn unexpected_answer(&self, phase: Phase) -> Error {
        let kind = if phase == Phase::Writing { Kind::Indeterminate } else { Kind::Corrupt };
        Error::new(
            kind,
            format!("{} gave an answer that leasehold's script does not give", self.connections.config.name),
        )
    }

    /// One page, and the last name that was read.
    async fn page(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<(Page, Option<LeaseName>)> {
        let least = after.map_or_else(|| "-".to_owned(), |name| format!("({name}"));
        let words = [least, limit.min(MAX_PAGE).to_string(), PAGE_BYTES.to_string()];
        let call = Call::Script {
            script: &statements::LIST,
            keys: &[self.records(shelf), self.names(shelf)],
            args: &words.each_ref().map(String::as_bytes),
        };
        let Value::Array(fields) = self.connections.call(call, Phase::Reading, Confirm::No).await? else {
            return Err(self.unexpected_answer(Phase::Reading));
        };
        let now = self.time(fields.first(), Phase::Reading)?;
        let more = fields.get(1) == Some(&Value::BulkString(b"1".into()));
        let (mut entries, mut last) = (Vec::new(), None);
        for entry in fields.get(2..).unwrap_or_default().chunks_exact(2) {
            let Value::BulkString(name) = &entry[0] else { return Err(self.unexpected_answer(Phase::Reading)) };
            let name = LeaseName::new(String::from_utf8_lossy(name)).map_err(|e| {
                let what = format!("{} has a record with an invalid name", self.connections.config.name);
                Error::new(Kind::Corrupt, what).with_source(e)
            })?;
            // A name without a record is left by a write that the server stopped midway.
            if let Value::BulkString(record) = &entry[1] {
                entries.push((name.clone(), self.versioned(Key::new(shelf, &name), record)?));
            }
            last = Some(name);
        }
        Ok((Page { entries, more, now }, last))
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "redis",
            class: Class::B,
            clock: ClockSource::Store { grain: Duration::from_millis(1) },
            reach: Reach::Network,
            watch: Watching::Hints,
            writes_along: false,
            by_verbs: false,
            durability: match self.connections.config.wait {
                Some(_) => "as the server's `appendfsync` says, and the named number of replicas has it in memory",
                None => "as the server's `appendfsync` says; replicas get it later",
            },
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let again = if self.connections.config.wait.is_some() { "1" } else { "0" };
        let call = Call::Script {
            script: &statements::READ,
            keys: &[self.records(key.shelf)],
            args: &[key.name.as_str().as_bytes(), again.as_bytes()],
        };
        let Value::Array(fields) = self.connections.call(call, Phase::Reading, Confirm::ByReplicas).await? else {
            return Err(self.unexpected_answer(Phase::Reading));
        };
        let value = match fields.get(1) {
            Some(Value::BulkString(record)) => Some(self.versioned(key, record)?),
            Some(Value::Nil) => None,
            _ => return Err(self.unexpected_answer(Phase::Reading)),
        };
        Ok(Reading { value, now: self.time(fields.first(), Phase::Reading)? })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let key = change.key;
        let expected = match change.expected {
            // Not a revision of ours.
            Some(revision) if revision.0.is_empty() || revision.0.contains('\n') => return Ok(Swap::Mismatch),
            Some(revision) => format!("{}\n", revision.0),
            None => String::new(),
        };
        let (name, channel) = (key.name.as_str(), if change.notify { self.channel(key) } else { String::new() });
        let mut keys = vec![self.records(key.shelf), self.names(key.shelf)];
        match change.next {
            Next::Put(value) => {
                if change.expected.is_some() {
                    keys.pop();
                }
                let revision = Nonce::random().to_string();
                let record = [revision.as_bytes(), b"\n", value].concat();
                let args = &[name.as_bytes(), expected.as_bytes(), &record, channel.as_bytes()];
                let call = Call::Script { script: &statements::SWAP, keys: &keys, args };
                self.change(call, Revision(revision)).await
            }
            Next::Erase => {
                let args = &[name.as_bytes(), expected.as_bytes(), channel.as_bytes()];
                let call = Call::Script { script: &statements::ERASE, keys: &keys, args };
                self.change(call, change.expected.cloned().unwrap_or(Revision(String::new()))).await
            }
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        let mut after = range.after.cloned();
        loop {
            let (page, last) = self.page(shelf, after.as_ref(), range.limit).await?;
            let page = page.until(range.until);
            // A page must have an entry if there are more.
            if !page.entries.is_empty() || !page.more || last.is_none() {
                return Ok(page);
            }
            after = last;
        }
    }

    /// Changes are published on a channel of the record.
    async fn watch(&self, key: &Key) -> Result<Watch> {
        let (sender, watch) = Watch::channel();
        self.connections.subscribe(&self.channel(key), sender).await;
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        survey::survey(self).await
    }
}
