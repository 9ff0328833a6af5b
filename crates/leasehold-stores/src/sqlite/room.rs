//! The open database: its statements, and what its errors mean.

use crate::namespace::Namespace;
use leasehold::store::{Class, Page, Reading, Revision, Survey, Swap, Versioned};
use leasehold::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use leasehold_system::clock;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Params, Transaction, TransactionBehavior, params};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for other processes' writes.
pub(super) const BUSY: Duration = Duration::from_secs(5);

const READ: &str = "SELECT r.revision, r.value, t.value FROM record r LEFT JOIN tail t USING (shelf, name)
    WHERE r.shelf = ?1 AND r.name = ?2";
pub(super) const INSERT: &str = "INSERT INTO record (shelf, name, revision, value) VALUES (?1, ?2, ?5, ?4)
    ON CONFLICT DO NOTHING";
pub(super) const UPDATE: &str = "UPDATE record SET revision = ?5, value = ?4
    WHERE shelf = ?1 AND name = ?2 AND revision = ?3";
pub(super) const DELETE: &str = "DELETE FROM record WHERE shelf = ?1 AND name = ?2 AND revision = ?3";
const LIST: &str = "SELECT r.name, r.revision, r.value, t.value FROM record r LEFT JOIN tail t USING (shelf, name)
    WHERE r.shelf = ?1 AND r.name > ?2 ORDER BY r.name LIMIT ?3";
const SET_TAIL: &str = "INSERT INTO tail (shelf, name, value) VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET value = excluded.value";
const DROP_TAIL: &str = "DELETE FROM tail WHERE shelf = ?1 AND name = ?2";

/// A connection, and the file it was opened on.
pub(super) struct Room {
    pub(super) connection: Connection,
    pub(super) path: Arc<Path>,
    pub(super) namespace: Namespace,
    /// Device and inode of the open file.
    pub(super) identity: (u64, u64),
}

/// Whose tail a write replaces, and with what; none if it stays.
pub(super) type NewTail<'a> = Option<(&'a Key, &'a [u8])>;

/// What a failed call leaves unknown.
#[derive(Clone, Copy)]
pub(super) enum Doing {
    Opening,
    Reading,
    Writing,
}

impl Room {
    pub(super) fn read(&self, key: &Key) -> Result<Reading> {
        let read = || {
            // Told before it is read: a tenure is not taken for over because this process slept in between.
            let now = now();
            let mut statement = self.connection.prepare_cached(READ)?;
            let value = statement
                .query_row(params![self.namespace.shelf(key.shelf), key.name.as_str()], |row| {
                    Ok(versioned(row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .optional()?;
            Ok(Reading { value, now })
        };
        read().map_err(|e| failed(e, Doing::Reading, &self.path))
    }

    /// Runs one statement that writes at most one row; `revision` is the one it has then.
    pub(super) fn write(&self, sql: &str, revision: i64, params: impl Params, tail: NewTail<'_>) -> Result<Swap> {
        self.check_identity()?;
        let now = now();
        let write = || match tail {
            None => self.connection.prepare_cached(sql)?.execute(params),
            Some((key, tail)) => {
                let together = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
                let written = self.connection.prepare_cached(sql)?.execute(params)?;
                if written > 0 {
                    let (shelf, name) = (self.namespace.shelf(key.shelf), key.name.as_str());
                    match tail {
                        [] => self.connection.prepare_cached(DROP_TAIL)?.execute(params![shelf, name])?,
                        _ => self.connection.prepare_cached(SET_TAIL)?.execute(params![shelf, name, tail])?,
                    };
                }
                together.commit()?;
                Ok(written)
            }
        };
        match write().map_err(|e| failed(e, Doing::Writing, &self.path))? {
            0 => Ok(Swap::Mismatch),
            _ => Ok(Swap::Done { revision: Revision(revision.to_string()), now }),
        }
    }

    /// What this connection's settings are, as SQLite itself tells.
    pub(super) fn survey(&mut self) -> Result<Survey> {
        let look = || {
            let journal: String = self.connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            let synchronous: i64 = self.connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
            Ok(Survey::plain(Class::A).fine("journal_mode", journal).fine("synchronous", synchronous.to_string()))
        };
        look().map_err(|e| failed(e, Doing::Reading, &self.path))
    }

    /// A file that was moved or replaced under us would take writes that nobody else ever sees.
    fn check_identity(&self) -> Result<()> {
        let place = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => Ok(()),
            Ok(_) => Err(Error::new(Kind::Unavailable, format!("{place} was replaced by another file; start again"))),
            Err(e) => Err(Error::unavailable(format!("{place} was moved away; start again"), e)),
        }
    }

    pub(super) fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let list = || {
            let now = now();
            let mut statement = self.connection.prepare_cached(LIST)?;
            let limit = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
            let rows = statement
                .query_map(params![self.namespace.shelf(shelf), after.map_or("", LeaseName::as_str), limit], |row| {
                    Ok((row.get::<_, String>(0)?, versioned(row.get(1)?, row.get(2)?, row.get(3)?)))
                })?;
            Ok((rows.collect::<rusqlite::Result<Vec<_>>>()?, now))
        };
        let (rows, now) = list().map_err(|e| failed(e, Doing::Reading, &self.path))?;
        let more = rows.len() > limit;
        let mut entries = Vec::with_capacity(rows.len().min(limit));
        for (name, value) in rows.into_iter().take(limit) {
            let name = LeaseName::new(name).map_err(|e| {
                Error::new(Kind::Corrupt, format!("{} has a record of no lease", self.path.display())).with_source(e)
            })?;
            entries.push((name, value));
        }
        Ok(Page { entries, more, now })
    }
}

/// The machine's wall clock: the same that SQLite's date functions read, and cheaper to ask.
fn now() -> Timestamp {
    Timestamp::from_millis(clock::wall_ms())
}

fn versioned(revision: i64, head: Vec<u8>, tail: Option<Vec<u8>>) -> Versioned {
    Versioned::parted(head, &tail.unwrap_or_default(), Revision(revision.to_string()))
}

/// The driver's error as ours: what is surely not applied is told apart from what may be.
pub(super) fn failed(error: rusqlite::Error, doing: Doing, path: &Path) -> Error {
    let place = path.display();
    let (kind, what) = match (error.sqlite_error_code(), doing) {
        (Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked), _) => {
            (Kind::Unavailable, format!("{place} was busy for {} s; try again", BUSY.as_secs()))
        }
        (Some(ErrorCode::DiskFull), _) => {
            (Kind::Unavailable, format!("no space left for {place}; nothing was changed, free some and try again"))
        }
        (Some(ErrorCode::NotADatabase), _) => {
            (Kind::Corrupt, format!("{place} is not a leasehold database; it was left as it is"))
        }
        (Some(ErrorCode::DatabaseCorrupt), _) => {
            (Kind::Corrupt, format!("{place} is damaged; it was left as it is, restore it from a backup"))
        }
        (Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen), _) => (
            Kind::Unsupported,
            format!("cannot write {place} and the log beside it; make file and folder writable for this user"),
        ),
        (_, Doing::Writing) => (Kind::Indeterminate, format!("writing {place} failed midway")),
        (_, Doing::Opening) => (Kind::Unavailable, format!("cannot open {place}")),
        (_, Doing::Reading) => (Kind::Unavailable, format!("cannot read {place}")),
    };
    Error::new(kind, what).with_source(error)
}
