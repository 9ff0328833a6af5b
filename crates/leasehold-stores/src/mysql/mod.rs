//! Records in one table of a MariaDB or MySQL database, for a fleet.
//!
//! Promise: one exchange per read and per swap, each statement its own transaction; the server's clock in UTC, whatever
//! its time zone; no session state that a proxy could lose to ill effect. The table is made by the first write that
//! misses it. Non-promise: the server pushes nothing, so waiters poll once a second; and what a failover to a replica
//! loses is lost here too (`survey` says which settings that hangs on). Reads must go to the server that takes the writes:
//! a proxy that sends them to replicas breaks the contract.
//!
//! The time of an update comes with the server's word that it was done: `LAST_INSERT_ID(…)` is part of that answer, so
//! no second statement has to ask.
//!
//! Statements go as text, with every name and value as a hexadecimal literal: a prepared statement costs a second
//! exchange, and in a literal of digits there is nothing to escape, whatever the character set or SQL mode. Updates are
//! prepared on connections that are used again and again.
//!
//! Every write has a random revision, so none ever comes back, not even after a failover that lost writes.

mod config;
mod connection;
mod error;
mod survey;

use crate::namespace::Namespace;
use crate::phase::Phase;
use crate::revision;
use crate::url::Address;
use async_trait::async_trait;
use config::Config;
use connection::{Answer, Connections};
use error::Stop;
use leasehold_core::store::{
    Beside, Capabilities, Class, ClockSource, Page, Parts, Reach, Reading, Revision, Store, Survey, Swap, Tail,
    Versioned, Watch, Watching, list_by_reading, refuse_beside, refuse_erasing_a_lease,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use mysql_async::{Row, Value};
use std::fmt;
use std::time::Duration;

/// What makes the table, in one line that a person can run too.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS leasehold_record (shelf VARBINARY(64) NOT NULL, \
    name VARBINARY(255) NOT NULL, revision BIGINT UNSIGNED NOT NULL, value MEDIUMBLOB NOT NULL, \
    tail MEDIUMBLOB NOT NULL, PRIMARY KEY (shelf, name)) ENGINE=InnoDB";
/// The start of the statement in milliseconds. Both ends are in UTC, so no time zone comes in: `UNIX_TIMESTAMP(NOW(3))`
/// would read a local time, of which there are two in the hour that is folded when summer time ends.
macro_rules! now {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000"
    };
}

const NOW: &str = now!();
/// Which row an update is of. The revision always changes, so a row that is matched is a row that is affected.
macro_rules! expected {
    () => {
        concat!(" WHERE shelf = ? AND name = ? AND revision = ? AND LAST_INSERT_ID(", now!(), ") > 0")
    };
}

const REPLACE: &str = concat!("UPDATE leasehold_record SET revision = ?, value = ?, tail = ?", expected!());
/// Leaves the tail as it is.
const AMEND: &str = concat!("UPDATE leasehold_record SET revision = ?, value = ?", expected!());
/// InnoDB keeps a column outside of its row if the row would be longer than half a page of 16 KiB, and only then. A tail is
/// made so long: with it inside, every change of the head's length would move thousands of bytes about.
const OUTSIDE: usize = 8_192;
/// Where a tail ends; what follows makes it long.
const END: u8 = 0xff;
/// Without what makes it long.
const TAIL: &str = "TRIM(TRAILING x'00' FROM tail)";

/// A store in one table of a database.
pub struct MysqlStore {
    connections: Connections,
    namespace: Namespace,
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MysqlStore({})", self.connections.place())
    }
}

/// Refuses an address that cannot be meant.
pub fn check(address: &Address) -> Result<()> {
    config::check(address)
}

/// Reads the surroundings (option file, environment) and gives a store. The first call connects.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<MysqlStore> {
    let config = Config::gather(address, &config::Surroundings::of_this_process())?;
    Ok(MysqlStore { connections: Connections::new(config), namespace: namespace.clone() })
}

/// A connection to the database at this address, for what is not a store. Settings and TLS are found as for one.
pub async fn connect(address: &Address) -> Result<mysql_async::Conn> {
    let config = Config::gather(address, &config::Surroundings::of_this_process())?;
    Connections::new(config).single().await
}

impl MysqlStore {
    fn place(&self) -> &str {
        self.connections.place()
    }

    /// `shelf = … AND name = …`.
    fn at(&self, key: &Key) -> String {
        format!("shelf = {} AND name = {}", self.shelf(key.shelf), literal(key.name.as_str().as_bytes()))
    }

    fn shelf(&self, shelf: Shelf) -> String {
        literal(self.namespace.shelf(shelf).as_bytes())
    }

    /// Runs one writing statement, and asks the time in the same exchange.
    async fn write(&self, sql: &str) -> Result<Written> {
        let answer = self.connections.exchange(Phase::Writing, &format!("{sql}; SELECT {NOW}")).await?;
        self.written(answer, |answer| self.now(answer.sets.get(1)))
    }

    /// Runs one update, whose answer tells the time by itself: as the number that was inserted last.
    async fn update(&self, sql: &'static str, values: Vec<Value>) -> Result<Written> {
        let answer = self.connections.update(sql, values).await?;
        self.written(answer, |answer| answer.inserted.map(Timestamp::from_millis).ok_or_else(|| self.timeless()))
    }

    fn written(&self, mut answer: Answer, now: impl Fn(&Answer) -> Result<Timestamp>) -> Result<Written> {
        match answer.stopped.take() {
            None => {}
            // The statement itself was refused: nothing was written.
            Some(stop) if answer.sets.is_empty() => {
                return match stop {
                    Stop::NoTable => Ok(Written::NoTable),
                    Stop::Taken => Ok(Written::Not),
                    Stop::NotPermitted(error) | Stop::ReadOnly(error) | Stop::Failed(error) => Err(error),
                };
            }
            Some(stop) => {
                let message = format!("{} answered a write by half", self.place());
                return Err(Error::new(Kind::Indeterminate, message).with_source(stop.into_error(self.place())));
            }
        }
        if answer.affected == 0 {
            return Ok(Written::Not);
        }
        now(&answer).map(Written::At).map_err(|e| {
            Error::new(Kind::Indeterminate, format!("{} did not tell the time of a write", self.place())).with_source(e)
        })
    }

    async fn make_table(&self) -> Result<()> {
        match self.connections.exchange(Phase::Preparing, TABLE).await?.stopped {
            None => Ok(()),
            Some(Stop::NotPermitted(error)) => {
                let message = format!(
                    "{} has no table for leases, and this user may not make it; let one who may run: {TABLE}",
                    self.place()
                );
                Err(Error::new(Kind::Unsupported, message).with_source(error))
            }
            Some(stop) => Err(stop.into_error(self.place())),
        }
    }

    /// Asks the time and one question that gives rows; none if the table was never made.
    async fn ask(&self, sql: &str) -> Result<(Timestamp, Vec<Row>)> {
        let Answer { mut sets, stopped, .. } =
            self.connections.exchange(Phase::Reading, &format!("SELECT {NOW}; {sql}")).await?;
        match stopped {
            None | Some(Stop::NoTable) => {}
            Some(stop) => return Err(stop.into_error(self.place())),
        }
        let now = self.now(sets.first())?;
        Ok((now, if sets.len() > 1 { sets.swap_remove(1) } else { Vec::new() }))
    }

    fn now(&self, set: Option<&Vec<Row>>) -> Result<Timestamp> {
        let ms: Option<u64> = set.and_then(|rows| rows.first()).and_then(|row| row.get_opt(0)?.ok());
        ms.map(Timestamp::from_millis).ok_or_else(|| self.timeless())
    }

    fn timeless(&self) -> Error {
        self.strange("a time that is none")
    }

    fn versioned(&self, row: &mut Row, at: usize) -> Result<Versioned> {
        let revision: Option<u64> = row.get_opt(at).and_then(std::result::Result::ok);
        let mut part = |at| row.take_opt::<Vec<u8>, _>(at).and_then(std::result::Result::ok);
        let (Some(revision), Some(head), Some(tail)) = (revision, part(at + 1), part(at + 2)) else {
            return Err(self.strange("a record of no form"));
        };
        // One that an earlier build wrote has no end of ours.
        let tail = tail.strip_suffix(&[END]).unwrap_or(&tail);
        Ok(Versioned::parted(head, tail, Revision(revision.to_string())))
    }

    fn strange(&self, what: &str) -> Error {
        Error::new(Kind::Corrupt, format!("{} gave {what}; is leasehold_record another program's table?", self.place()))
    }
}

/// What became of a writing statement.
enum Written {
    At(Timestamp),
    /// No row was as expected.
    Not,
    NoTable,
}

/// A revision that this store never gave stands for no value at all.
fn number(revision: &Revision) -> Option<u64> {
    revision.0.parse().ok()
}

/// A tail, so long that it does not stay in its row; none stays none.
fn outside(tail: &[u8]) -> Vec<u8> {
    let mut long = tail.to_vec();
    if !tail.is_empty() {
        long.push(END);
        long.resize(long.len().max(OUTSIDE), 0);
    }
    long
}

/// Bytes as SQL: only digits, so there is nothing to escape.
fn literal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text.push('\'');
    text
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
            durability: "InnoDB commit, flushed before each answer as innodb_flush_log_at_trx_commit=1 says",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let sql = format!("SELECT revision, value, {TAIL} FROM leasehold_record WHERE {}", self.at(key));
        let (now, mut rows) = self.ask(&sql).await?;
        let value = rows.first_mut().map(|row| self.versioned(row, 0)).transpose()?;
        Ok(Reading { value, now })
    }

    async fn swap_parts(&self, key: &Key, expected: Option<&Revision>, next: Parts<'_>) -> Result<Swap> {
        let fresh = revision::fresh();
        let (shelf, name) = (self.namespace.shelf(key.shelf), key.name.as_str());
        let written = match expected {
            None => {
                let [shelf, name, head] = [shelf.as_bytes(), name.as_bytes(), next.head].map(literal);
                let columns = "leasehold_record (shelf, name, revision, value, tail)";
                let tail = literal(&outside(next.tail()));
                let sql = format!("INSERT INTO {columns} VALUES ({shelf}, {name}, {fresh}, {head}, {tail})");
                match self.write(&sql).await? {
                    Written::NoTable => {
                        self.make_table().await?;
                        self.write(&sql).await?
                    }
                    written => written,
                }
            }
            Some(expected) => {
                let Some(revision) = number(expected) else { return Ok(Swap::Mismatch) };
                let mut values = vec![Value::Int(fresh), Value::Bytes(next.head.to_vec())];
                let sql = match next.tail {
                    Tail::New(tail) => {
                        values.push(Value::Bytes(outside(tail)));
                        REPLACE
                    }
                    Tail::Kept(_) => AMEND,
                };
                values.extend([Value::from(&*shelf), Value::from(name), Value::UInt(revision)]);
                self.update(sql, values).await?
            }
        };
        match (written, expected) {
            (Written::At(now), _) => Ok(Swap::Done { revision: Revision(fresh.to_string()), now }),
            (Written::NoTable, None) => {
                let message = format!("the table leasehold_record of {} was dropped again at once", self.place());
                Err(Error::new(Kind::Unavailable, message))
            }
            (Written::Not | Written::NoTable, _) => Ok(Swap::Mismatch),
        }
    }

    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let sql = format!(
            "SELECT name, revision, value, {TAIL} FROM leasehold_record WHERE shelf = {} AND name > {} ORDER BY name LIMIT {}",
            self.shelf(shelf),
            literal(after.map_or("", LeaseName::as_str).as_bytes()),
            limit.saturating_add(1),
        );
        let (now, mut rows) = self.ask(&sql).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let mut entries = Vec::with_capacity(rows.len());
        for mut row in rows {
            let name: Option<String> = row.get_opt(0).and_then(std::result::Result::ok);
            let name = LeaseName::new(name.unwrap_or_default())
                .map_err(|e| self.strange("a record of no lease").with_source(e))?;
            entries.push((name, self.versioned(&mut row, 1)?));
        }
        Ok(Page { entries, more, now })
    }

    async fn list_skipping(&self, shelf: Shelf, after: Option<&LeaseName>, skip: usize, limit: usize) -> Result<Page> {
        list_by_reading(self, shelf, after, skip, limit).await
    }

    fn writes_beside(&self) -> bool {
        false
    }

    async fn swap_beside(
        &self,
        key: &Key,
        _expected: Option<&Revision>,
        _next: &[u8],
        _beside: Beside<'_>,
    ) -> Result<Swap> {
        refuse_beside(self, key)
    }

    async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        refuse_erasing_a_lease(key)?;
        let Some(revision) = number(expected) else { return Ok(Swap::Mismatch) };
        let sql = format!("DELETE FROM leasehold_record WHERE {} AND revision = {revision}", self.at(key));
        Ok(match self.write(&sql).await? {
            Written::At(now) => Swap::Done { revision: expected.clone(), now },
            Written::Not | Written::NoTable => Swap::Mismatch,
        })
    }

    async fn watch(&self, _key: &Key) -> Result<Watch> {
        Ok(Watch::silent())
    }

    async fn survey(&self) -> Result<Survey> {
        survey::look(&self.connections).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_is_only_digits() {
        assert_eq!(literal(b""), "x''");
        assert_eq!(literal(b"a'; DROP"), "x'61273b2044524f50'");
        assert_eq!(literal(&[0, 255]), "x'00ff'");
    }
}
