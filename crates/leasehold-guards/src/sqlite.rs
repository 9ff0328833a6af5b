//! The guard of a SQLite database: the fence row is checked and moved inside the one write transaction.
//!
//! Promise: no window; everything is ready before the transaction begins, so it lasts as long as the statements do; a
//! killed writer leaves nothing behind. Non-promise: SQLite lets one process write at a time, and nobody can take that from
//! a process that is *stopped* in the middle: the next one is told so after a while. `leasehold run` ends the processes of
//! a lost lease before anybody else can have it, stopped ones too, so under it nobody waits.

use crate::blocking::blocking;
use crate::sql::{
    Dialect, FenceRow, Outcome, Resource, Rows, Script, Setup, SqlGuard, Statement, escaped, failed_statement, hex,
    high_water, judge, no_room, not_removed, not_set_up, one_line, shown,
};
use crate::stages::{Stage, Stages, Watched};
use async_trait::async_trait;
use leasehold::guard::{Guard, HighWater, Policy, Strength};
use leasehold::{Error, Kind, Nonce, Result, Token};
use leasehold_system::critical;
use leasehold_system::volume::SecondName;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for other processes' writes, unless told otherwise.
const BUSY: Duration = Duration::from_secs(5);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource TEXT PRIMARY KEY, lease TEXT NOT NULL, lineage TEXT NOT NULL, epoch INTEGER NOT NULL, nonce TEXT NOT NULL,
    seq INTEGER NOT NULL, admitted INTEGER)";
const READ: &str = "SELECT lease, lineage, epoch, nonce, seq FROM main.leasehold_fence WHERE resource = ?1";
const MOVE: &str = "INSERT INTO main.leasehold_fence (resource, lease, lineage, epoch, nonce, seq, admitted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (resource) DO UPDATE
    SET lease = ?2, lineage = ?3, epoch = ?4, nonce = ?5, seq = ?6, admitted = ?7";
const CLOSE: &str = "UPDATE main.leasehold_fence SET admitted = NULL WHERE resource = ?1";
const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// Guards a database file, or a part of it.
#[derive(Debug, Clone)]
pub struct SqliteGuard {
    path: PathBuf,
    resource: Resource,
    policy: Policy,
    busy: Duration,
    stages: Watched,
}

/// Admits a token inside the caller's own transaction, which should be an immediate one. Call [`close`] before the commit;
/// then the writes and the fence count together. Roll back, and neither does.
///
/// # Errors
/// [`Kind::Fenced`] and the other refusals of [`leasehold::guard::admit`]: roll back. [`Kind::Contended`] when others
/// write: begin again.
pub fn admit(transaction: &Connection, resource: &Resource, token: &Token, policy: Policy) -> Result<HighWater> {
    move_fence(transaction, resource, token, Some(policy), "this database", resource.as_str())
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
    place: &str,
    shown: &str,
) -> Result<HighWater> {
    if db.is_autocommit() {
        let message = format!("resource=`{shown}`: there is no transaction to admit into; begin an immediate one");
        return Err(Error::new(Kind::Invalid, message));
    }
    let fail = |e| failed(e, place, shown);
    let high = high_water(shown, read(db, resource).map_err(fail)?)?;
    let next = judge(shown, high.as_ref(), token, policy)?;
    let number = |n: u64| i64::try_from(n).map_err(|_| Error::invalid("token's sequence", n, "use at most 2^63 - 1"));
    let (epoch, seq) = (number(next.epoch.get())?, number(next.seq)?);
    let admitted = policy.map(|_| 1);
    let (lease, lineage, nonce) = (next.lease.as_str(), next.lineage.to_string(), next.nonce.to_string());
    db.execute(MOVE, params![resource.as_str(), lease, lineage, epoch, nonce, seq, admitted]).map_err(fail)?;
    Ok(next)
}

fn read(db: &Connection, resource: &Resource) -> rusqlite::Result<Option<FenceRow>> {
    let mut statement = db.prepare_cached(READ)?;
    statement
        .query_row(params![resource.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .optional()
}

/// The driver's error as ours; nothing was committed.
fn failed(error: rusqlite::Error, place: &str, resource: &str) -> Error {
    if error.to_string().contains("no such table: main.leasehold_fence") {
        return not_set_up(resource, place);
    }
    let fail = |kind, what: &str| Error::new(kind, format!("{what}: resource=`{resource}`"));
    let error_ = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => fail(
            Kind::Contended,
            "another process is in the middle of a write, or stopped there; continue or end it, and try again",
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
        SqliteGuard { path: path.into(), resource, policy, busy: BUSY, stages: Watched::default() }
    }

    /// The same guard, that waits so long for other processes' writes.
    #[must_use]
    pub const fn waiting(mut self, busy: Duration) -> Self {
        self.busy = busy;
        self
    }

    /// The same guard, watched at every stage.
    #[must_use]
    pub fn with_stages(mut self, stages: Arc<dyn Stages>) -> Self {
        self.stages = Watched::by(stages);
        self
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn place(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn open(&self, may_create: bool) -> Result<Connection> {
        self.stages.reach(Stage::Connect, &self.resource())?;
        let create = if may_create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
        let fail = |e| failed(e, &self.place(), &self.resource());
        if let Ok(Some(second)) = SecondName::of(&self.path) {
            // Under another name there is another log, and in it another fence.
            let message =
                format!("refused, nothing was written: resource=`{}`: {}", self.resource(), second.advice(&self.path));
            return Err(Error::new(Kind::Unsupported, message));
        }
        let db = Connection::open_with_flags(&self.path, flags).map_err(fail)?;
        db.busy_timeout(self.busy).map_err(fail)?;
        // What was admitted and answered is there after a crash of the machine.
        db.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
        Ok(db)
    }

    /// [`Guard::seal`] for callers that may block.
    pub fn seal_now(&self, token: &Token) -> Result<HighWater> {
        let db = self.open(false)?;
        self.within(&db, token, None, || Ok(())).map(|(high, ())| high)
    }

    /// [`Guard::high_water`] for callers that may block.
    pub fn high_water_now(&self) -> Result<Option<HighWater>> {
        let db = self.open(false)?;
        high_water(&self.resource(), read(&db, &self.resource).map_err(|e| failed(e, &self.place(), &self.resource()))?)
    }

    /// [`SqlGuard::run`] for callers that may block.
    pub fn run_now(&self, token: &Token, script: &Script) -> Result<Outcome> {
        let db = self.open(false)?;
        let (high, (counts, rows)) = self.within(&db, token, Some(self.policy), || self.apply(&db, script))?;
        Ok(Outcome { high, counts, rows })
    }

    /// Admits and acts in one transaction. Whatever fails on the way is rolled back.
    fn within<T>(
        &self,
        db: &Connection,
        token: &Token,
        policy: Option<Policy>,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<(HighWater, T)> {
        let (place, shown) = (self.place(), self.resource());
        let fail = |e| failed(e, &place, &shown);
        let mark = format!("leasehold_{}", Nonce::random());
        self.stages.reach(Stage::Admit, &shown)?;
        let _inside = critical::enter();
        db.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        let tried = (|| {
            let high = move_fence(db, &self.resource, token, policy, &place, &shown)?;
            // A savepoint goes with its transaction: that is how we know that it is still the same.
            db.execute_batch(&format!("SAVEPOINT {mark}")).map_err(fail)?;
            let done = act()?;
            self.stages.reach(Stage::Commit, &shown)?;
            db.execute_batch(&format!("RELEASE {mark}")).map_err(|_| escaped(&shown))?;
            db.execute(CLOSE, params![self.resource.as_str()]).map_err(fail)?;
            db.execute_batch("COMMIT").map_err(fail)?;
            Ok((high, done))
        })();
        if tried.is_err() && !db.is_autocommit() {
            let _ = db.execute_batch("ROLLBACK");
        }
        tried
    }

    fn apply(&self, db: &Connection, script: &Script) -> Result<(Vec<u64>, Rows)> {
        let (mut counts, mut rows) = (Vec::new(), Rows::default());
        for statement in script.statements() {
            self.stages.reach(Stage::Apply, &self.resource())?;
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

#[async_trait]
impl Guard for SqliteGuard {
    fn resource(&self) -> String {
        format!("{}#{}", self.place(), self.resource)
    }

    fn strength(&self) -> Strength {
        Strength::Atomic
    }

    async fn seal(&self, token: &Token) -> Result<HighWater> {
        let (guard, token) = (self.clone(), token.clone());
        blocking(move || guard.seal_now(&token)).await
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        let guard = self.clone();
        blocking(move || guard.high_water_now()).await
    }
}

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
