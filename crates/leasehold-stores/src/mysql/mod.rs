//! Records in one table of a MariaDB or MySQL database, for a fleet.
//!
//! Promise: one exchange per read and per write, each statement its own transaction; the server's clock in UTC,
//! whatever its time zone; no session state that a proxy could lose. The first write that finds no table creates it.
//! Non-promise: the server cannot push, so waiters poll once a second; and what a failover to a replica loses is lost
//! here too (`survey` reports the settings that decide that). Reads must go to the server that takes the writes: a
//! proxy that sends them to replicas breaks the contract.
//!
//! The answer to a write contains its time, in `LAST_INSERT_ID(…)`, so no
//! second statement is needed. A read has the time in its first row.
//!
//! Parameters are bound. The driver prepares a statement when a connection first runs it, which costs one more
//! exchange, and caches it per connection; so there are few statements.
//!
//! Every write has a random revision, so none is used twice, even after a failover that lost writes.

mod config;
mod connection;
mod error;
mod statements;
mod survey;

use crate::phase::Phase;
use crate::url::{Address, Namespace};
use async_trait::async_trait;
use config::Config;
use connection::{Answer, Connections};
use error::Stop;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use mysql_async::{Row, Value};
use statements::{INSERT, LIST, NOW, READ, TABLE, UPDATE};
use std::fmt;
use std::time::Duration;

/// A store in one table of a database.
pub struct MysqlStore {
    connections: Connections,
    namespace: Namespace,
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MysqlStore({})", self.connections.endpoint())
    }
}

/// Refuses an address, judged by its text alone.
pub fn check(address: &Address) -> Result<()> {
    config::check(address)
}

/// Reads the option file and the environment. The first call connects.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<MysqlStore> {
    let config = Config::gather(address, &config::Environment::of_this_process())?;
    Ok(MysqlStore { connections: Connections::new(config), namespace: namespace.clone() })
}

/// A connection to the database at this address, for uses other than a store.
/// Settings and TLS are found in the same way.
pub async fn connect(address: &Address) -> Result<mysql_async::Conn> {
    let config = Config::gather(address, &config::Environment::of_this_process())?;
    Connections::new(config).single().await
}

impl MysqlStore {
    fn endpoint(&self) -> &str {
        self.connections.endpoint()
    }

    /// Runs one insert or update.
    async fn execute(&self, sql: &'static str, values: Vec<Value>) -> Result<Written> {
        let answer = self.connections.exchange(Phase::Writing, sql, values).await?;
        self.written(answer, |answer| answer.inserted.map(Timestamp::from_millis).ok_or_else(|| self.missing_time()))
    }

    fn written(&self, mut answer: Answer, now: impl Fn(&Answer) -> Result<Timestamp>) -> Result<Written> {
        match answer.stopped.take() {
            None => {}
            // The statement was refused: nothing was written.
            Some(stop) if answer.sets.is_empty() => {
                return match stop {
                    Stop::NoTable => Ok(Written::NoTable),
                    Stop::Taken => Ok(Written::Not),
                    Stop::NotPermitted(error) | Stop::ReadOnly(error) | Stop::Failed(error) => Err(error),
                };
            }
            Some(stop) => {
                let message = format!("{} answered only half of a write", self.endpoint());
                return Err(Error::new(Kind::Indeterminate, message).with_source(stop.into_error(self.endpoint())));
            }
        }
        if answer.affected == 0 {
            return Ok(Written::Not);
        }
        now(&answer).map(Written::At).map_err(|e| {
            Error::new(Kind::Indeterminate, format!("{} did not report the time of a write", self.endpoint()))
                .with_source(e)
        })
    }

    async fn make_table(&self) -> Result<()> {
        match self.connections.exchange(Phase::Preparing, TABLE, Vec::new()).await?.stopped {
            None => Ok(()),
            Some(Stop::NotPermitted(error)) => {
                let message = format!(
                    "{} has no table for leases, and this user may not make it; let one who may run: {TABLE}",
                    self.endpoint()
                );
                Err(Error::new(Kind::Unsupported, message).with_source(error))
            }
            Some(stop) => Err(stop.into_error(self.endpoint())),
        }
    }

    /// The time, and the rows that follow it; no rows if the table does not exist.
    async fn ask(&self, sql: &'static str, values: Vec<Value>) -> Result<(Timestamp, Vec<Row>)> {
        let mut answer = self.connections.exchange(Phase::Reading, sql, values).await?;
        if let Some(Stop::NoTable) = answer.stopped {
            answer = self.connections.exchange(Phase::Reading, &format!("SELECT {NOW}"), Vec::new()).await?;
        }
        if let Some(stop) = answer.stopped {
            return Err(stop.into_error(self.endpoint()));
        }
        let now = self.now(answer.sets.first())?;
        let rows = answer.sets.into_iter().next().unwrap_or_default();
        Ok((now, rows.into_iter().skip(1).collect()))
    }

    fn now(&self, set: Option<&Vec<Row>>) -> Result<Timestamp> {
        let ms: Option<u64> = set.and_then(|rows| rows.first()).and_then(|row| row.get_opt(0)?.ok());
        ms.map(Timestamp::from_millis).ok_or_else(|| self.missing_time())
    }

    fn missing_time(&self) -> Error {
        self.unexpected_answer("no time")
    }

    fn versioned(&self, row: &mut Row) -> Result<Versioned> {
        let revision: Option<u64> = row.get_opt(2).and_then(std::result::Result::ok);
        let bytes = row.take_opt::<Vec<u8>, _>(3).and_then(std::result::Result::ok);
        let (Some(revision), Some(bytes)) = (revision, bytes) else {
            return Err(self.unexpected_answer("a malformed record"));
        };
        Ok(Versioned { bytes, revision: Revision(revision.to_string()) })
    }

    async fn put(&self, key: &Key, expected: Option<u64>, value: &[u8]) -> Result<Swap> {
        let fresh = Revision::random_number();
        let (shelf, name) = (Value::from(&*self.namespace.shelf(key.shelf)), Value::from(key.name.as_str()));
        let written = match expected {
            None => {
                let values = vec![shelf, name, Value::Int(fresh), Value::from(value)];
                match self.execute(INSERT, values.clone()).await? {
                    Written::NoTable => {
                        self.make_table().await?;
                        self.execute(INSERT, values).await?
                    }
                    written => written,
                }
            }
            Some(expected) => {
                let values = vec![Value::Int(fresh), Value::from(value), shelf, name, Value::UInt(expected)];
                self.execute(UPDATE, values).await?
            }
        };
        match (written, expected) {
            (Written::At(now), _) => Ok(Swap::Done { revision: Revision(fresh.to_string()), now }),
            (Written::NoTable, None) => {
                let message = format!("the table leasehold_record of {} was dropped again at once", self.endpoint());
                Err(Error::new(Kind::Unavailable, message))
            }
            (Written::Not | Written::NoTable, _) => Ok(Swap::Mismatch),
        }
    }

    async fn erase(&self, key: &Key, expected: u64) -> Result<Swap> {
        // The answer to a DELETE has no time, so a SELECT follows in the same exchange,
        // which takes no parameters. Nothing needs escaping: names and namespaces have
        // only letters, digits and a few characters without a meaning in SQL.
        let (shelf, name) = (self.namespace.shelf(key.shelf), &key.name);
        let row = format!("shelf = '{shelf}' AND name = '{name}' AND revision = {expected}");
        let sql = format!("DELETE FROM leasehold_record WHERE {row}; SELECT {NOW}");
        let answer = self.connections.exchange(Phase::Writing, &sql, Vec::new()).await?;
        Ok(match self.written(answer, |answer| self.now(answer.sets.get(1)))? {
            Written::At(now) => Swap::Done { revision: Revision(expected.to_string()), now },
            Written::Not | Written::NoTable => Swap::Mismatch,
        })
    }

    fn unexpected_answer(&self, what: &str) -> Error {
        Error::new(
            Kind::Corrupt,
            format!("{} gave {what}; is leasehold_record another program's table?", self.endpoint()),
        )
    }
}

/// The result of a writing statement.
enum Written {
    At(Timestamp),
    /// No row matched.
    Not,
    NoTable,
}

#[async_trait]
impl Store for MysqlStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "mysql",
            class: Class::A,
            clock: ClockSource::Store { grain: Duration::from_millis(1) },
            reach: Reach::Network,
            watch: Watching::None,
            writes_along: false,
            by_verbs: false,
            durability: "InnoDB commit, flushed before each answer as innodb_flush_log_at_trx_commit=1 says",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let shelf = self.namespace.shelf(key.shelf);
        let (now, mut rows) = self.ask(READ, vec![Value::from(&*shelf), Value::from(key.name.as_str())]).await?;
        let value = rows.first_mut().map(|row| self.versioned(row)).transpose()?;
        Ok(Reading { value, now })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        match (change.next, change.expected.map(Revision::number)) {
            (_, Some(None)) => Ok(Swap::Mismatch),
            (Next::Put(value), expected) => self.put(change.key, expected.flatten(), value).await,
            (Next::Erase, expected) => self.erase(change.key, expected.flatten().unwrap_or_default()).await,
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        let Range { after, until, limit, .. } = range;
        let shelf = self.namespace.shelf(shelf);
        let after = after.map_or("", LeaseName::as_str);
        let (now, rows) = self
            .ask(LIST, vec![Value::from(&*shelf), Value::from(after), Value::from(limit.saturating_add(1))])
            .await?;
        let mut entries = Vec::with_capacity(rows.len());
        for mut row in rows {
            let name: Option<String> = row.get_opt(1).and_then(std::result::Result::ok);
            let name = LeaseName::new(name.unwrap_or_default())
                .map_err(|e| self.unexpected_answer("a record with an invalid name").with_source(e))?;
            entries.push((name, self.versioned(&mut row)?));
        }
        Ok(Page::of(entries, limit, now).until(until))
    }

    async fn watch(&self, _key: &Key) -> Result<Watch> {
        Ok(Watch::silent())
    }

    async fn survey(&self) -> Result<Survey> {
        survey::look(&self.connections).await
    }
}
