//! Records in one table of a PostgreSQL database, for a fleet.
//!
//! Promise: one statement and one round trip per call, each a transaction of its own with
//! `synchronous_commit` on, so an answered swap is flushed (and replicated, where the server replicates
//! synchronously). Only a primary is read. Nothing depends on a session, so a pooler in transaction
//! mode may be in between. Time is the server's `clock_timestamp()`. Non-promise: with an asynchronous
//! standby, an acknowledged swap may be lost in a failover; [`Store::survey`] reports that.
//!
//! Every write has a random revision, so none is used twice, even after a failover that lost writes. The first write
//! that finds the table missing creates it. Hints are notifications. They are sent only if a listener wants them (see
//! `watch`), because a notification makes all commits wait for each other.

mod config;
mod connection;
mod direct;
mod error;
mod statements;
mod survey;
mod tls;
mod watch;

use crate::phase::Phase;
use crate::url::{Address, Namespace};
use async_trait::async_trait;
use config::Config;
use connection::{Connections, Params};
use error::CallError;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use statements::Statements;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use watch::Watchers;

/// How often a write is repeated that the server certainly rolled back: because the table was missing or being created
/// by another process, or because of another write, at a stricter isolation level than ours.
const ATTEMPTS: usize = 8;

/// A store in one table. Clones share the connections.
#[derive(Clone)]
pub struct PostgresStore {
    connections: Arc<Connections>,
    statements: Arc<Statements>,
    watchers: Arc<Watchers>,
    namespace: Namespace,
    /// Whether a survey has shown it to be of class A.
    proven: Arc<AtomicBool>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresStore({}, {})", self.connections.config.shown, self.namespace)
    }
}

/// Refuses an address that cannot be used, before anything is opened.
pub fn check(address: &Address) -> Result<()> {
    config::check(address)
}

/// A connection to the database at this address, for uses other than a store. Settings and TLS are found in the same way.
pub async fn connect(address: &Address) -> Result<tokio_postgres::Client> {
    let connections = Connections::new(Arc::new(Config::read(address, |name| std::env::var(name).ok())?));
    connections.connect().await.map(connection::Connection::into_client).map_err(CallError::into_error)
}

/// Takes the settings from the address, the environment and the files they name. The first call connects.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<PostgresStore> {
    let config = Arc::new(Config::read(address, |name| std::env::var(name).ok())?);
    let statements = Arc::new(Statements::new(&config.table));
    let connections = Arc::new(Connections::new(config));
    let watchers =
        Arc::new(Watchers::new(connections.clone(), statements::channel(&connections.config.table, namespace)));
    Ok(PostgresStore { connections, statements, watchers, namespace: namespace.clone(), proven: Arc::default() })
}

impl PostgresStore {
    /// Reads; none if there is no table.
    async fn look(&self, sql: &str, params: &Params<'_>) -> Result<Option<Vec<Row>>> {
        match self.connections.read(sql, params).await {
            Ok(rows) => Ok(Some(rows)),
            Err(CallError::MissingTable) => Ok(None),
            Err(error) => Err(error.into_error()),
        }
    }

    /// The server's time, where there is no table.
    async fn now(&self) -> Result<Timestamp> {
        let rows = self.connections.read(statements::NOW, &[]).await.map_err(CallError::into_error)?;
        rows.first().map_or_else(|| Err(unexpected_answer("it reported no time")), |row| timestamp(row, 0))
    }

    /// Runs one writing statement, and repeats it while the server certainly rolled it back. If the table is missing,
    /// an `INSERT` creates it; other statements cannot match.
    async fn execute(&self, sql: &str, params: &Params<'_>, missing: Missing) -> Result<Swap> {
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 1 {
                tokio::time::sleep(Duration::from_millis(5 << attempt)).await;
            }
            match self.connections.ask(Phase::Writing, sql, params).await {
                Ok(rows) => return rows.first().map_or(Ok(Swap::Mismatch), done),
                Err(CallError::MissingTable) => match missing {
                    Missing::Mismatch => return Ok(Swap::Mismatch),
                    Missing::Make => last = self.make_table().await?,
                },
                Err(CallError::Overtaken(error)) => last = Some(error),
                Err(error) => return Err(error.into_error()),
            }
        }
        Err(last.unwrap_or_else(|| unexpected_answer("its table appears and disappears")))
    }

    /// Notifies this handle's own watchers of a swap that was applied.
    fn told(&self, key: &Key, swap: Swap) -> Swap {
        if let Swap::Done { .. } = &swap {
            self.watchers.echo(key);
        }
        swap
    }

    /// Creates the table. Returns the error that another process doing the same at that time may cause.
    async fn make_table(&self) -> Result<Option<Error>> {
        let table = &self.connections.config.table;
        match self.connections.ask(Phase::Preparing, &table.ddl(), &[]).await {
            Ok(_) => Ok(None),
            Err(CallError::Overtaken(error)) => Ok(Some(error)),
            Err(error) => Err(error.into_error()),
        }
    }
}

/// What a write does if the table is missing.
#[derive(Clone, Copy)]
enum Missing {
    Make,
    Mismatch,
}

fn done(row: &Row) -> Result<Swap> {
    // The answer is complete, so the write was applied, even if the answer cannot be parsed.
    let revision: i64 = row.try_get(0).map_err(|_| unread())?;
    let now = timestamp(row, 1).map_err(|_| unread())?;
    Ok(Swap::Done { revision: Revision(revision.to_string()), now })
}

fn unread() -> Error {
    Error::new(Kind::Indeterminate, "the postgres server's answer to a write makes no sense")
}

fn unexpected_answer(what: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the postgres server's answer makes no sense: {what}"))
}

fn timestamp(row: &Row, at: usize) -> Result<Timestamp> {
    let time: SystemTime = row.try_get(at).map_err(|_| unexpected_answer("no time in it"))?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(0)))
}

/// The value in a row's columns from `at` on; none if they are null.
fn versioned(row: &Row, at: usize) -> Result<Option<Versioned>> {
    let revision: Option<i64> = row.try_get(at).map_err(|_| unexpected_answer("no revision in it"))?;
    let Some(revision) = revision else { return Ok(None) };
    let bytes: Vec<u8> = row.try_get(at + 1).map_err(|_| unexpected_answer("no value in it"))?;
    Ok(Some(Versioned { bytes, revision: Revision(revision.to_string()) }))
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "postgres",
            // A standby may lack an acknowledged swap; only a survey can tell.
            class: if self.proven.load(Ordering::Relaxed) { Class::A } else { Class::B },
            clock: ClockSource::Store { grain: Duration::from_millis(1) },
            reach: Reach::Network,
            watch: if self.watchers.is_pooled() { Watching::None } else { Watching::Hints },
            writes_along: true,
            by_verbs: false,
            durability: "the commit is flushed on the server, and on its synchronous standbys if it has any",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let (namespace, shelf, name) = (self.namespace.as_str(), key.shelf.as_str(), key.name.as_str());
        let params: &Params<'_> = &[(&namespace, Type::TEXT), (&shelf, Type::TEXT), (&name, Type::TEXT)];
        let Some(rows) = self.look(&self.statements.read, params).await? else {
            return Ok(Reading { value: None, now: self.now().await? });
        };
        let row = rows.first().ok_or_else(|| unexpected_answer("it has no row"))?;
        Ok(Reading { value: versioned(row, 2)?, now: timestamp(row, 0)? })
    }

    /// One statement, even if other records change too: one round trip, and no session is needed.
    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let Change { key, next, along, notify, .. } = *change;
        let (revision, missing) = match change.expected.map(Revision::number::<i64>) {
            Some(None) => return Ok(Swap::Mismatch),
            Some(revision) => (revision, Missing::Mismatch),
            None => (None, Missing::Make),
        };
        let (namespace, shelf, name) = (self.namespace.as_str(), key.shelf.as_str(), key.name.as_str());
        let (fresh, value) = (Revision::random_number(), next.value().unwrap_or_default());
        let tag = notify.then(|| self.watchers.tag(key));
        let (tag, channel) = (tag.as_ref().map(|tag| tag.number), tag.as_ref().map(|tag| tag.channel));
        let parts = |key: &'_ Key| (key.shelf.as_str(), key.name.as_str().to_owned());
        let (gone_shelf, gone_name) = along.erase.map(parts).unwrap_or_default();
        let (put_shelf, put_name) = along.put.map(|(key, _)| parts(key)).unwrap_or_default();
        let put = along.put.map_or(&b""[..], |(_, bytes)| bytes);
        // Each statement takes as many of these as it needs.
        let params: &Params<'_> = &[
            (&namespace, Type::TEXT),
            (&shelf, Type::TEXT),
            (&name, Type::TEXT),
            (&revision, Type::INT8),
            (&tag, Type::INT8),
            (&channel, Type::TEXT),
            (&value, Type::BYTEA),
            (&fresh, Type::INT8),
            (&gone_shelf, Type::TEXT),
            (&gone_name, Type::TEXT),
            (&put_shelf, Type::TEXT),
            (&put_name, Type::TEXT),
            (&put, Type::BYTEA),
        ];
        let statements = &self.statements;
        let (sql, params) = match (next, revision) {
            (Next::Erase, _) => (&*statements.delete, &params[..6]),
            (Next::Put(_), _) if along.is_some() => (statements.along(revision.is_some(), &along), params),
            (Next::Put(_), None) => (&*statements.insert, &params[..8]),
            (Next::Put(_), Some(_)) if notify => (&*statements.update, &params[..8]),
            (Next::Put(_), Some(_)) => {
                let renewed = [&params[..4], &params[6..8]].concat();
                return self.execute(&statements.renew, &renewed, missing).await;
            }
        };
        let swap = self.execute(sql, params, missing).await?;
        Ok(if notify { self.told(key, swap) } else { swap })
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let Range { after, until, skip, limit } = range;
        let (namespace, shelf) = (self.namespace.as_str(), shelf.as_str());
        let after = after.map_or("", LeaseName::as_str);
        let until = until.map_or(statements::AFTER_ALL_NAMES, LeaseName::as_str);
        let more_than_asked = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
        let skip = i64::try_from(skip).unwrap_or(i64::MAX);
        let params: &Params<'_> = &[
            (&namespace, Type::TEXT),
            (&shelf, Type::TEXT),
            (&after, Type::TEXT),
            (&more_than_asked, Type::INT8),
            (&until, Type::TEXT),
            (&skip, Type::INT8),
        ];
        let (sql, params) = match skip {
            0 => (&self.statements.list, &params[..5]),
            _ => (&self.statements.list_skipping, params),
        };
        let Some(rows) = self.look(sql, params).await? else {
            return Ok(Page { entries: Vec::new(), more: false, now: self.now().await? });
        };
        let now = rows.first().map_or_else(|| Err(unexpected_answer("it has no row")), |row| timestamp(row, 0))?;
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(value) = versioned(row, 2)? else { break };
            let name: &str = row.try_get(4).map_err(|_| unexpected_answer("no name in it"))?;
            let name = LeaseName::new(name).map_err(|e| {
                let table = &self.connections.config.table;
                Error::new(Kind::Corrupt, format!("table {table} has a record with an invalid name")).with_source(e)
            })?;
            entries.push((name, value));
        }
        Ok(Page::of(entries, limit, now))
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        Ok(self.watchers.clone().watch(key).await)
    }

    async fn survey(&self) -> Result<Survey> {
        let rows = self.connections.read(statements::SURVEY, &[]).await.map_err(CallError::into_error)?;
        let row = rows.first().ok_or_else(|| unexpected_answer("it has no row"))?;
        let survey = survey::judge(
            &survey::ServerSettings::from_row(row).ok_or_else(|| unexpected_answer("settings are missing"))?,
        );
        self.proven.store(survey.class == Class::A, Ordering::Relaxed);
        Ok(survey)
    }
}
