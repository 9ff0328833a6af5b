//! The open database, and its statements.

use super::error::failed;
use crate::phase::Phase;
use crate::url::Namespace;
use leasehold_core::store::{Class, Page, Range, Reading, Revision, Survey, Versioned};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use leasehold_system::volume::SecondName;
use leasehold_system::{clock, critical};
use rusqlite::{Connection, OptionalExtension, params};
use std::cell::Cell;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for other processes' writes.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// `~` is higher than every character of a name.
const AFTER_ALL_NAMES: &str = "~";
const READ: &str = "SELECT revision, value FROM record WHERE shelf = ?1 AND name = ?2";
const LIST: &str = "SELECT name, revision, value FROM record
    WHERE shelf = ?1 AND name > ?2 AND name < ?5 ORDER BY name LIMIT ?3 OFFSET ?4";

/// A connection, and the file it was opened on.
pub(super) struct Database {
    pub(super) connection: Connection,
    pub(super) path: Arc<Path>,
    pub(super) namespace: Namespace,
    /// Device and inode of the open file.
    pub(super) identity: (u64, u64),
    /// The same of its log, once this connection has it open. SQLite removes it only when the last connection closes.
    pub(super) log: Cell<Option<(u64, u64)>>,
    /// Set while the connection is closed, which takes locks too. The last
    /// field, so that it is dropped after the connection.
    pub(super) closing: Option<critical::Inside>,
}

impl Drop for Database {
    fn drop(&mut self) {
        self.closing = Some(critical::enter());
    }
}

impl Database {
    pub(super) fn read(&self, key: &Key) -> Result<Reading> {
        self.in_place()?;
        let read = || {
            // Taken before the read: if this process was suspended in between, a tenure does not look expired.
            let now = now();
            let _inside = critical::enter();
            let mut statement = self.connection.prepare_cached(READ)?;
            let value = statement
                .query_row(params![self.namespace.shelf(key.shelf), key.name.as_str()], |row| {
                    Ok(versioned(row.get(0)?, row.get(1)?))
                })
                .optional()?;
            Ok(Reading { value, now })
        };
        let reading = read().map_err(|e| failed(e, Phase::Reading, &self.path))?;
        if self.log.get().is_none() {
            self.log.set(self.log_in_place());
        }
        Ok(reading)
    }

    /// This connection's settings, according to SQLite.
    pub(super) fn survey(&mut self) -> Result<Survey> {
        let look = || {
            let _inside = critical::enter();
            let journal: String = self.connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            let synchronous: i64 = self.connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
            let survey = Survey::plain(Class::A).fine("names", "one: no hard link, not mounted by itself");
            Ok(survey.fine("journal_mode", journal).fine("synchronous", synchronous.to_string()))
        };
        look().map_err(|e| failed(e, Phase::Reading, &self.path))
    }

    /// Refuses a file that was moved or replaced: nobody else would ever see what is written to the old one.
    pub(super) fn check_identity(&self) -> Result<()> {
        refuse(&self.path, SecondName::by_link(&self.in_place()?))
    }

    /// The metadata of the open file, if it is still at its path. What is read
    /// from a file that was moved or replaced is stale.
    fn in_place(&self) -> Result<Metadata> {
        let shown = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => {
                if self.log.get().is_some() && self.log.get() != self.log_in_place() {
                    let message = format!(
                        "the log of {shown}, `-wal`, was removed or replaced under this process, as by a copy that was put back: \
                         what is written here is lost; end every process that uses the store, then start again"
                    );
                    return Err(Error::new(Kind::Unavailable, message));
                }
                Ok(found)
            }
            Ok(_) => Err(Error::new(
                Kind::Unavailable,
                format!(
                    "{shown} was replaced by another file; bring the first one back, or restart this process to use the new one"
                ),
            )),
            Err(e) => {
                Err(Error::unavailable(format!("{shown} was moved away; bring it back, and it is used again"), e))
            }
        }
    }

    /// Device and inode of the log that is there now.
    fn log_in_place(&self) -> Option<(u64, u64)> {
        let mut path = self.path.as_os_str().to_owned();
        path.push("-wal");
        std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }

    pub(super) fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.in_place()?;
        let Range { after, until, skip, limit } = range;
        let list = || {
            let now = now();
            let _inside = critical::enter();
            let mut statement = self.connection.prepare_cached(LIST)?;
            let limit = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
            let skip = i64::try_from(skip).unwrap_or(i64::MAX);
            let after = after.map_or("", LeaseName::as_str);
            let until = until.map_or(AFTER_ALL_NAMES, LeaseName::as_str);
            let rows = statement.query_map(params![self.namespace.shelf(shelf), after, limit, skip, until], |row| {
                Ok((row.get::<_, String>(0)?, versioned(row.get(1)?, row.get(2)?)))
            })?;
            Ok((rows.collect::<rusqlite::Result<Vec<_>>>()?, now))
        };
        let (rows, now) = list().map_err(|e| failed(e, Phase::Reading, &self.path))?;
        let mut entries = Vec::with_capacity(rows.len());
        for (name, value) in rows {
            let name = LeaseName::new(name).map_err(|e| {
                Error::new(Kind::Corrupt, format!("{} has a record with an invalid name", self.path.display()))
                    .with_source(e)
            })?;
            entries.push((name, value));
        }
        Ok(Page::of(entries, limit, now))
    }
}

/// Refuses a file that has a second name: SQLite names the log after the file,
/// so under each name leases would be granted that are held under the other.
pub(super) fn refuse(path: &Path, second: Option<SecondName>) -> Result<()> {
    let Some(second) = second else { return Ok(()) };
    let message = format!("nothing was changed, leases would be granted twice: {}", second.advice(path));
    Err(Error::new(Kind::Unsupported, message))
}

/// The machine's wall clock: the same clock that SQLite's date functions read, at less cost.
pub(super) fn now() -> Timestamp {
    Timestamp::from_millis(clock::wall_ms())
}

fn versioned(revision: i64, bytes: Vec<u8>) -> Versioned {
    Versioned { bytes, revision: Revision(revision.to_string()) }
}
