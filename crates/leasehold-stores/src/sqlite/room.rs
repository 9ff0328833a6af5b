//! The open database: its statements, and what its errors mean.

use crate::namespace::Namespace;
use leasehold::store::{Class, Page, Reading, Revision, Survey, Swap, Versioned};
use leasehold::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use rusqlite::{Connection, ErrorCode, Params, params};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for other processes' writes.
pub(super) const BUSY: Duration = Duration::from_secs(5);

const READ: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER), r.revision, r.value
    FROM (SELECT 1) LEFT JOIN record r ON r.shelf = ?1 AND r.name = ?2";
pub(super) const INSERT: &str = "INSERT INTO record (shelf, name, revision, value) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO NOTHING RETURNING revision, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
pub(super) const UPDATE: &str = "UPDATE record SET revision = revision + 1, value = ?4
    WHERE shelf = ?1 AND name = ?2 AND revision = ?3
    RETURNING revision, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
pub(super) const DELETE: &str = "DELETE FROM record WHERE shelf = ?1 AND name = ?2 AND revision = ?3
    RETURNING revision, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
const LIST: &str = "SELECT name, revision, value FROM record WHERE shelf = ?1 AND name > ?2 ORDER BY name LIMIT ?3";
const NOW: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";

/// A connection, and the file it was opened on.
pub(super) struct Room {
    pub(super) connection: Connection,
    pub(super) path: Arc<Path>,
    pub(super) namespace: Namespace,
    /// Device and inode of the open file.
    pub(super) identity: (u64, u64),
}

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
            let mut statement = self.connection.prepare_cached(READ)?;
            statement.query_row(params![self.namespace.shelf(key.shelf), key.name.as_str()], |row| {
                let revision: Option<i64> = row.get(1)?;
                let value = match revision {
                    Some(revision) => Some(versioned(revision, row.get(2)?)),
                    None => None,
                };
                Ok(Reading { value, now: timestamp(row.get(0)?) })
            })
        };
        read().map_err(|e| failed(e, Doing::Reading, &self.path))
    }

    /// Runs one writing statement to its very end, which is where it commits: a row alone is no proof.
    pub(super) fn write(&self, sql: &str, params: impl Params) -> Result<Swap> {
        self.check_identity()?;
        let write = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            let mut rows = statement.query(params)?;
            let Some(row) = rows.next()? else { return Ok(Swap::Mismatch) };
            let (revision, now): (i64, i64) = (row.get(0)?, row.get(1)?);
            while rows.next()?.is_some() {}
            Ok(Swap::Done { revision: Revision(revision.to_string()), now: timestamp(now) })
        };
        write().map_err(|e| failed(e, Doing::Writing, &self.path))
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
            // One transaction: the time belongs to the entries.
            let snapshot = self.connection.unchecked_transaction()?;
            let now = snapshot.prepare_cached(NOW)?.query_row([], |row| row.get(0))?;
            let mut statement = snapshot.prepare_cached(LIST)?;
            let limit = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
            let rows = statement
                .query_map(params![self.namespace.shelf(shelf), after.map_or("", LeaseName::as_str), limit], |row| {
                    Ok((row.get::<_, String>(0)?, versioned(row.get(1)?, row.get(2)?)))
                })?;
            Ok((rows.collect::<rusqlite::Result<Vec<_>>>()?, timestamp(now)))
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

fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn versioned(revision: i64, bytes: Vec<u8>) -> Versioned {
    Versioned { bytes, revision: Revision(revision.to_string()) }
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
