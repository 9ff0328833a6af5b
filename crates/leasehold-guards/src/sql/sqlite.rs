//! The guard of a SQLite database: the fence row is checked and moved inside the one write transaction.
//!
//! Promise: no window. Everything is prepared before the transaction begins, so it lasts only as long as the
//! statements do. A killed writer leaves nothing behind. Non-promise: SQLite lets one process write at a time, and a
//! process that is *stopped* in the middle keeps the lock: the next one gets an error after a while. `leasehold run`
//! ends the processes of a lost lease, stopped ones too, before anybody else can acquire it, so under it nobody waits.

use crate::blocking::{blocking, guard_by_blocking_calls};
use crate::observe::write::{WriteStep, reach};
use crate::sql::{
    Dialect, FenceRow, Outcome, Resource, Rows, Script, Settling, Setup, SqlGuard, Statement, TRAIL_CHARS, escaped,
    failed_statement, hex, high_water, judge, no_room, not_removed, not_set_up, one_line, outcome, shown, unknown,
};
use crate::succession::{self, Former, MAX_FORMER_BYTES};
use async_trait::async_trait;
use leasehold_core::guard::{Guard, HighWater, Policy};
use leasehold_core::observe::{Observed, Observer};
use leasehold_core::{Error, Kind, Nonce, Result, Token, Who, Why};
use leasehold_system::critical;
use leasehold_system::volume::SecondName;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for other processes' writes, unless told otherwise.
const BUSY: Duration = Duration::from_secs(5);
/// How often a seal, or a write that tells whether a commit was applied, is tried when the disk fails.
const TRIES: u32 = 3;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource TEXT PRIMARY KEY, lease TEXT NOT NULL, lineage TEXT NOT NULL, epoch INTEGER NOT NULL, nonce TEXT NOT NULL,
    seq INTEGER NOT NULL, trail TEXT NOT NULL DEFAULT '', confirmed TEXT NOT NULL DEFAULT '', adopted TEXT NOT NULL DEFAULT '',
    former TEXT NOT NULL DEFAULT '', admitted INTEGER)";
const READ: &str = "SELECT lease, lineage, epoch, nonce, seq FROM main.leasehold_fence WHERE resource = ?1";
const MOVE: &str = "INSERT INTO main.leasehold_fence (resource, lease, lineage, epoch, nonce, seq, admitted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (resource) DO UPDATE
    SET lease = ?2, lineage = ?3, epoch = ?4, nonce = ?5, seq = ?6, admitted = ?7";
/// The number of a write, at the head of the trail.
const MARK: &str =
    "UPDATE main.leasehold_fence SET trail = rtrim(substr(?2 || ' ' || trail, 1, ?3)) WHERE resource = ?1";
/// Writes the row without changing its meaning: when this commit was answered, what it read is durable.
const CONFIRM: &str = "INSERT INTO main.leasehold_fence (resource, lease, lineage, epoch, nonce, seq, confirmed)
    VALUES (?1, '', '', 0, '', 0, ?2) ON CONFLICT (resource) DO UPDATE SET confirmed = ?2 RETURNING trail";
const NOTE: &str = "UPDATE main.leasehold_fence SET adopted = ?2, former = ?3 WHERE resource = ?1";
const CLOSE: &str = "UPDATE main.leasehold_fence SET admitted = NULL WHERE resource = ?1";
const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// Guards a database file, or a part of it.
#[derive(Debug, Clone)]
pub struct SqliteGuard {
    path: PathBuf,
    resource: Resource,
    policy: Policy,
    busy: Duration,
    steps: Observed<WriteStep>,
}

/// Admits a token inside the caller's own transaction, which should be an immediate one. Call [`close`] before the commit;
/// then the writes and the fence count together. Roll back, and neither does.
///
/// # Errors
/// [`Kind::Fenced`] and the other refusals of [`leasehold_core::guard::admit`]: roll back. [`Kind::Contended`] when others
/// write: begin again.
pub fn admit(
    transaction: &Connection,
    resource: &Resource,
    token: &impl AsRef<Token>,
    policy: Policy,
) -> Result<HighWater> {
    let token = token.as_ref();
    move_fence(transaction, resource, token, Some(policy), Nonce::random(), "this database", resource.as_str())
}

/// Ends what [`admit`] began: without it, protected tables stay open to everybody until the next admit.
pub fn close(transaction: &Connection, resource: &Resource) -> Result<()> {
    let closed = transaction.execute(CLOSE, params![resource.as_str()]);
    closed.map(drop).map_err(|e| failed(e, "this database", resource.as_str()))
}

fn move_fence(
    db: &Connection,
    resource: &Resource,
    token: &Token,
    policy: Option<Policy>,
    write: Nonce,
    location: &str,
    shown: &str,
) -> Result<HighWater> {
    if db.is_autocommit() {
        let message = format!("resource=`{shown}`: there is no transaction to admit into; begin an immediate one");
        return Err(Error::new(Kind::Invalid, message));
    }
    let fail = |e| failed(e, location, shown);
    let high = high_water(shown, read(db, resource).map_err(fail)?)?;
    let next = judge(shown, high.as_ref(), token, policy)?;
    set_fence(db, resource, &next, policy.map(|_| 1))?.map_err(fail)?;
    if policy.is_some() {
        db.execute(MARK, params![resource.as_str(), write.to_string(), TRAIL_CHARS as i64]).map_err(fail)?;
    }
    Ok(next)
}

fn set_fence(
    db: &Connection,
    resource: &Resource,
    next: &HighWater,
    admitted: Option<i64>,
) -> Result<rusqlite::Result<usize>> {
    let number = |n: u64| i64::try_from(n).map_err(|_| Error::invalid("token's sequence", n, "use at most 2^63 - 1"));
    let (epoch, seq) = (number(next.epoch.get())?, number(next.seq)?);
    let (lease, lineage, nonce) = (next.lease.as_str(), next.lineage.to_string(), next.nonce.to_string());
    Ok(db.execute(MOVE, params![resource.as_str(), lease, lineage, epoch, nonce, seq, admitted]))
}

fn read(db: &Connection, resource: &Resource) -> rusqlite::Result<Option<FenceRow>> {
    let mut statement = db.prepare_cached(READ)?;
    statement
        .query_row(params![resource.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .optional()
}

/// The text in one column of the fence row; empty if there is no row.
fn column(db: &Connection, resource: &Resource, name: &str) -> rusqlite::Result<String> {
    let sql = format!("SELECT {name} FROM main.leasehold_fence WHERE resource = ?1");
    let found = db.query_row(&sql, params![resource.as_str()], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or_default())
}

/// Whether a commit failed before anything was written.
fn is_refused(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull))
}

/// The driver's error as ours; nothing was committed.
fn failed(error: rusqlite::Error, location: &str, resource: &str) -> Error {
    if error.to_string().contains("no such table: main.leasehold_fence") {
        return not_set_up(resource, location);
    }
    let fail = |kind, what: &str| Error::new(kind, format!("{what}: resource=`{resource}`"));
    let error_ = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => fail(
            Kind::Contended,
            "another process is in the middle of a write, or was stopped there; continue or end it, and try again",
        ),
        Some(ErrorCode::DiskFull) => fail(Kind::Unavailable, "the disk is full, nothing was changed"),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => fail(Kind::Corrupt, "the database is damaged"),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            fail(Kind::Unsupported, "the database, or its folder, cannot be opened for writing")
        }
        _ => fail(Kind::Unavailable, "the database refused it, nothing was changed"),
    };
    error_.with_source(one_line(&error.to_string()))
}

impl SqliteGuard {
    /// A guard for a resource of the database in this file.
    pub fn new(path: impl Into<PathBuf>, resource: Resource, policy: Policy) -> Self {
        SqliteGuard { path: path.into(), resource, policy, busy: BUSY, steps: Observed::NOBODY }
    }

    /// The same guard; it waits this long for other processes' writes.
    #[must_use]
    pub const fn waiting(mut self, busy: Duration) -> Self {
        self.busy = busy;
        self
    }

    /// The same guard, watched at every stage.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer<WriteStep>>) -> Self {
        self.steps = Observed::by(observer);
        self
    }

    /// The database file, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn resource_now(&self) -> String {
        format!("{}#{}", self.location(), self.resource)
    }

    fn location(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn open(&self, may_create: bool) -> Result<Connection> {
        reach(&self.steps, WriteStep::Connect, &self.resource())?;
        let create = if may_create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
        let fail = |e| failed(e, &self.location(), &self.resource());
        if let Ok(Some(second)) = SecondName::of(&self.path) {
            // A file with a second name has a second log, and so a second fence.
            let message =
                format!("refused, nothing was written: resource=`{}`: {}", self.resource(), second.advice(&self.path));
            return Err(Error::new(Kind::Unsupported, message));
        }
        let db = Connection::open_with_flags(&self.path, flags).map_err(fail)?;
        db.busy_timeout(self.busy).map_err(fail)?;
        // What was answered must survive a crash of the machine.
        db.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
        Ok(db)
    }

    /// [`Guard::seal`] for callers that may block.
    pub fn seal_now(&self, token: &Token) -> Result<HighWater> {
        let db = self.open(false)?;
        let seal = || move_fence(&db, &self.resource, token, None, Nonce::random(), &self.location(), &self.resource());
        self.settle(&db, seal)
    }

    /// [`Adopt::adopt`](leasehold_core::guard::Adopt::adopt) for callers that may block.
    pub fn adopt_now(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
        let shown = self.resource();
        let fail = |e| failed(e, &self.location(), &shown);
        succession::adopt(&shown, Some(from), from, token)?;
        let db = self.open(false)?;
        self.settle(&db, || {
            let high = high_water(&shown, read(&db, &self.resource).map_err(fail)?)?;
            let next = succession::adopt(&shown, high.as_ref(), from, token)?;
            let former = Former::read(&shown, &column(&db, &self.resource, "former").map_err(fail)?)?;
            let former = former.given(&shown, from, token, MAX_FORMER_BYTES)?.to_string();
            set_fence(&db, &self.resource, &next, None)?.map_err(fail)?;
            let note = succession::note(from, by, why);
            db.execute(NOTE, params![self.resource.as_str(), note, former]).map_err(fail)?;
            Ok(next)
        })
    }

    /// [`Guard::high_water`] for callers that may block.
    pub fn high_water_now(&self) -> Result<Option<HighWater>> {
        let db = self.open(false)?;
        high_water(
            &self.resource(),
            read(&db, &self.resource).map_err(|e| failed(e, &self.location(), &self.resource()))?,
        )
    }

    /// [`SqlGuard::run`] for callers that may block.
    pub fn run_now(&self, token: &Token, script: &Script) -> Result<Outcome> {
        let db = self.open(false)?;
        let write = Nonce::random();
        let (location, shown) = (self.location(), self.resource());
        let fail = |e| failed(e, &location, &shown);
        let mut before = String::new();
        let ((high, counts, rows), lost) = self.within(&db, || {
            before = column(&db, &self.resource, "trail").map_err(fail)?;
            let high = move_fence(&db, &self.resource, token, Some(self.policy), write, &location, &shown)?;
            // A savepoint ends with its transaction, so it tells whether the transaction is still the same.
            db.execute_batch(&format!("SAVEPOINT leasehold_{write}")).map_err(fail)?;
            let (counts, rows) = self.apply(&db, script)?;
            db.execute_batch(&format!("RELEASE leasehold_{write}")).map_err(|_| escaped(&shown))?;
            db.execute(CLOSE, params![self.resource.as_str()]).map_err(fail)?;
            Ok((high, counts, rows))
        })?;
        if let Some(cause) = lost {
            drop(db);
            self.resolve(write, &before, &cause)?;
        }
        Ok(Outcome { high, counts, rows })
    }

    /// Acts in one transaction. If anything fails, it is rolled back. If it is unknown whether the commit was done,
    /// the reason is given.
    fn within<T>(&self, db: &Connection, act: impl FnOnce() -> Result<T>) -> Result<(T, Option<String>)> {
        let (location, shown) = (self.location(), self.resource());
        let fail = |e| failed(e, &location, &shown);
        reach(&self.steps, WriteStep::Admit, &shown)?;
        let _inside = critical::enter();
        db.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        let tried = act().and_then(|done| {
            reach(&self.steps, WriteStep::Commit, &shown)?;
            match db.execute_batch("COMMIT") {
                Ok(()) => Ok((done, reach(&self.steps, WriteStep::Reply, &shown).err().map(|lost| lost.to_string()))),
                // Not begun, or given up before the end was written.
                Err(e) if is_refused(&e) || !db.is_autocommit() => Err(fail(e)),
                // It failed while it was written, and may still be found on disk after a crash.
                Err(e) => Ok((done, Some(e.to_string()))),
            }
        });
        if tried.is_err() && !db.is_autocommit() {
            let _ = db.execute_batch("ROLLBACK");
        }
        tried
    }

    /// Repeats what only moves the fence, until that was answered.
    fn settle(&self, db: &Connection, act: impl Fn() -> Result<HighWater>) -> Result<HighWater> {
        let mut settling = Settling::default();
        for _ in 0..TRIES {
            if let Some(settled) = settling.add(self.within(db, &act)) {
                return settled;
            }
        }
        Err(settling.given_up(&self.resource(), "the disk accepts no write"))
    }

    /// A new write replaces what was left in the log. When it was answered, what the row says is durable.
    fn resolve(&self, write: Nonce, before: &str, cause: &str) -> Result<()> {
        for _ in 0..TRIES {
            if reach(&self.steps, WriteStep::ReadBack, &self.resource()).is_err() {
                break;
            }
            let confirmed = self.open(false).and_then(|db| {
                let fail = |e| failed(e, &self.location(), &self.resource());
                self.within(&db, || {
                    let number = Nonce::random().to_string();
                    let read = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
                    db.query_row(CONFIRM, params![self.resource.as_str(), number], read).map_err(fail)
                })
            });
            if let Ok((trail, None)) = confirmed {
                return outcome(&self.resource(), &trail, write, before, cause);
            }
        }
        Err(unknown(&self.resource(), "the disk accepts no new write", cause))
    }

    fn apply(&self, db: &Connection, script: &Script) -> Result<(Vec<u64>, Rows)> {
        let (mut counts, mut rows) = (Vec::new(), Rows::default());
        for statement in script.statements() {
            reach(&self.steps, WriteStep::Apply, &self.resource())?;
            let (count, given) = run_one(db, statement).map_err(|e| match e.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => no_room(&self.resource(), statement, e),
                _ => failed_statement(&self.resource(), statement, e),
            })?;
            if db.is_autocommit() {
                return Err(escaped(&self.resource()));
            }
            counts.push(count);
            rows = given.unwrap_or(rows);
        }
        Ok((counts, rows))
    }

    fn lines(&self, setup: &Setup) -> Vec<String> {
        let mut lines = vec![TABLE.to_owned()];
        let name = |table: &crate::sql::Name, event: &str| {
            table.derived(&format!("leasehold_{}", event.to_lowercase()), Dialect::Sqlite)
        };
        for table in setup.protect.iter().chain(&setup.unprotect) {
            lines.extend(EVENTS.iter().map(|event| format!("DROP TRIGGER IF EXISTS {}", name(table, event))));
        }
        let resource = self.resource.as_str().replace('\'', "''");
        for table in &setup.protect {
            for event in EVENTS {
                lines.push(format!(
                    "CREATE TRIGGER {} BEFORE {event} ON {} WHEN NOT EXISTS (SELECT 1 FROM leasehold_fence WHERE resource = \
                     '{resource}' AND admitted = 1) BEGIN SELECT RAISE(ABORT, 'write refused: this transaction was not \
                     admitted by its leasehold guard; use leasehold sql'); END",
                    name(table, event),
                    table.quoted(Dialect::Sqlite),
                ));
            }
        }
        lines
    }

    fn remove_now(&self, whole: bool) -> Result<()> {
        let db = self.open(false)?;
        let fail = |e: rusqlite::Error| not_removed(&self.resource(), e);
        let _inside = critical::enter();
        db.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        db.execute("DELETE FROM main.leasehold_fence WHERE resource = ?1", params![self.resource.as_str()])
            .map_err(fail)?;
        let others = "SELECT (SELECT count(*) FROM main.leasehold_fence) + (SELECT count(*) FROM main.sqlite_master WHERE type \
                      = 'trigger' AND sql LIKE '%leasehold_fence%')";
        if whole && db.query_row(others, [], |row| row.get::<_, i64>(0)).map_err(fail)? == 0 {
            db.execute_batch("DROP TABLE main.leasehold_fence").map_err(fail)?;
        }
        db.execute_batch("COMMIT").map_err(fail)
    }

    fn init_now(&self, setup: &Setup) -> Result<()> {
        let db = self.open(true)?;
        let fail = |e: rusqlite::Error| {
            let busy = e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
            let message = format!("cannot set up the guard, nothing was changed: resource=`{}`", self.resource());
            let kind = if busy { Kind::Contended } else { Kind::Unsupported };
            Error::new(kind, message).with_source(one_line(&e.to_string()))
        };
        let _inside = critical::enter();
        db.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        for line in self.lines(setup) {
            db.execute_batch(&line).map_err(fail)?;
        }
        db.execute_batch("COMMIT").map_err(fail)
    }
}

fn run_one(db: &Connection, statement: &Statement) -> rusqlite::Result<(u64, Option<Rows>)> {
    let mut prepared = db.prepare(&statement.text)?;
    if prepared.column_count() == 0 {
        return Ok((prepared.execute([])? as u64, None));
    }
    let columns: Vec<String> = prepared.column_names().map(ToOwned::to_owned).collect();
    let mut values = Vec::new();
    let mut rows = prepared.query([])?;
    while let Some(row) = rows.next()? {
        let mut fields = Vec::with_capacity(columns.len());
        for at in 0..columns.len() {
            fields.push(match row.get_ref(at)? {
                ValueRef::Null => None,
                ValueRef::Integer(n) => Some(n.to_string()),
                ValueRef::Real(n) => Some(n.to_string()),
                ValueRef::Text(bytes) => Some(shown(bytes)),
                ValueRef::Blob(bytes) => Some(hex(bytes)),
            });
        }
        values.push(fields);
    }
    Ok((values.len() as u64, Some(Rows { columns, values })))
}

guard_by_blocking_calls!(SqliteGuard);

#[async_trait]
impl SqlGuard for SqliteGuard {
    async fn remove(&self, whole: bool) -> Result<()> {
        let guard = self.clone();
        blocking(move || guard.remove_now(whole)).await
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn statements(&self, setup: &Setup) -> String {
        self.lines(setup).iter().map(|line| format!("{line};\n")).collect()
    }

    async fn init(&self, setup: &Setup) -> Result<()> {
        let (guard, setup) = (self.clone(), setup.clone());
        blocking(move || guard.init_now(&setup)).await
    }

    async fn run(&self, token: &Token, script: &Script) -> Result<Outcome> {
        let (guard, token, script) = (self.clone(), token.clone(), script.clone());
        blocking(move || guard.run_now(&token, &script)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_without_a_fence_is_told_from_one_without_another_table() {
        let db = Connection::open_in_memory().unwrap();
        let refused = |table: &str| {
            let error = db.prepare(&format!("SELECT 1 FROM {table}")).map(drop).unwrap_err();
            assert_eq!(error.to_string(), format!("no such table: {table}"));
            failed(error, "sqlite:x", "r")
        };
        assert_eq!(refused("main.leasehold_fence").to_string(), not_set_up("r", "sqlite:x").to_string());
        assert_eq!(refused("main.other").kind(), Kind::Unavailable);
    }
}
