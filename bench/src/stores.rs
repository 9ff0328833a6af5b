//! Leases per second in each store, beside its raw driver making as many durable writes of the same size.
//!
//! The raw drivers decide nothing, check nothing and remember no history: they are what the disk allows.

use crate::measure::{Contestant, contest};
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use leasehold_core::store::Store;
use leasehold_core::{Acquired, Ask, Coordinator, Grant, HolderId, Key, LeaseName, Outcome, Released, Shelf, Ttl};
use rusqlite::{Connection, params};
use std::fs::{File, hard_link, remove_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

const DEMAND: Demand = Demand::AtLeastTheSpeed(0.7);
/// One turn; enough that reading the clock does not matter.
const OPERATIONS: u32 = 10;
/// How many files the raw driver leaves in its folder: as many as ours.
const VERSIONS_KEPT: u64 = leasehold_stores::dir::VERSIONS_KEPT;
/// So many tenures fill a record's history, after which its size stays.
const TENURES: u32 = 40;

/// Measures both stores; each of the four contests takes as long as the limit says.
pub fn compare(scratch: &Scratch, limit: Duration) -> Result<Vec<Row>> {
    // As the command has it: one thread, and the blocking pool beside it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for scheme in ["sqlite", "dir"] {
        let folder = scratch.folder(&format!("store-{scheme}"))?;
        let url = format!("{scheme}:{}", folder.join("ours").display()).parse()?;
        let store = runtime.block_on(leasehold_stores::open(&url))?;
        let ours = Ours::new(&runtime, store)?;
        let size = ours.record_bytes()?;
        let mut raw: Box<dyn Raw> = match scheme {
            "sqlite" => Box::new(RawSqlite::new(&folder.join("raw"), size)?),
            _ => Box::new(RawDir::new(folder.join("raw"), size)?),
        };
        rows.extend(ours.rows_against(scheme, &mut *raw, limit)?);
    }
    Ok(rows)
}

struct Ours<'a> {
    runtime: &'a Runtime,
    leases: Coordinator,
    name: LeaseName,
    ttl: Ttl,
}

impl<'a> Ours<'a> {
    fn new(runtime: &'a Runtime, store: Arc<dyn Store>) -> Result<Self> {
        let ours = Ours { runtime, leases: Coordinator::new(store), name: "job".parse()?, ttl: "90s".parse()? };
        for _ in 0..TENURES {
            ours.acquire_and_release()?;
        }
        Ok(ours)
    }

    fn acquire(&self) -> Result<Box<Grant>> {
        let ask = Ask::new(HolderId::new(None), self.ttl);
        match self.runtime.block_on(self.leases.acquire(&self.name, &ask))? {
            Acquired::Granted(grant) => Ok(grant),
            Acquired::Refused { refusal, .. } => bail!("refused: {refusal:?}"),
        }
    }

    fn acquire_and_release(&self) -> Result<()> {
        let grant = self.acquire()?;
        let released = self.runtime.block_on(self.leases.release(&grant, Outcome::Succeeded))?;
        ensure!(released == Released::Now, "not released: {released:?}");
        Ok(())
    }

    fn record_bytes(&self) -> Result<usize> {
        let key = Key::new(Shelf::Lease, &self.name);
        let reading = self.runtime.block_on(self.leases.store().read(&key))?;
        let value = reading.value.context("the lease has no record")?;
        Ok(value.bytes.len())
    }

    fn rows_against(&self, scheme: &str, raw: &mut dyn Raw, limit: Duration) -> Result<Vec<Row>> {
        let [ours, peer] = contest(
            limit,
            [
                Contestant::new("acquire and release", OPERATIONS, || {
                    (0..OPERATIONS).try_for_each(|_| self.acquire_and_release())
                }),
                Contestant::new("two raw writes", OPERATIONS, || (0..2 * OPERATIONS).try_for_each(|_| raw.write())),
            ],
        )?;
        let what = format!("acquire + release ({scheme})");
        let tenures = Row::new(what, "2 raw writes", Unit::PerSecond, ours, Some(peer), DEMAND);
        let mut grant = self.acquire()?;
        let [ours, peer] = contest(
            limit,
            [
                Contestant::new("renew", OPERATIONS, || {
                    (0..OPERATIONS).try_for_each(|_| Ok(self.runtime.block_on(self.leases.renew(&mut grant, None))?))
                }),
                Contestant::new("raw write", OPERATIONS, || (0..OPERATIONS).try_for_each(|_| raw.write())),
            ],
        )?;
        let what = format!("renew ({scheme})");
        let renewals = Row::new(what, "1 raw write", Unit::PerSecond, ours, Some(peer), DEMAND);
        Ok(vec![tenures, renewals])
    }
}

/// One durable write, as lean as the driver allows.
trait Raw {
    fn write(&mut self) -> Result<()>;
}

struct RawSqlite {
    connection: Connection,
    revision: i64,
    value: Vec<u8>,
}

impl RawSqlite {
    fn new(file: &Path, size: usize) -> Result<Self> {
        let connection = Connection::open(file)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch("CREATE TABLE record (name TEXT PRIMARY KEY, revision INTEGER, value BLOB)")?;
        let value = vec![b'x'; size];
        connection.execute("INSERT INTO record VALUES ('job', 0, ?1)", params![value])?;
        Ok(RawSqlite { connection, revision: 0, value })
    }
}

impl Raw for RawSqlite {
    fn write(&mut self) -> Result<()> {
        // Otherwise SQLite sees that most of the value stays, and skips the pages that hold it.
        self.value.fill(self.revision as u8);
        let sql = "UPDATE record SET revision = ?1 + 1, value = ?2 WHERE name = 'job' AND revision = ?1";
        let changed = self.connection.prepare_cached(sql)?.execute(params![self.revision, self.value])?;
        ensure!(changed == 1, "the raw row was not there");
        self.revision += 1;
        Ok(())
    }
}

struct RawDir {
    folder: PathBuf,
    number: u64,
    value: Vec<u8>,
}

impl RawDir {
    fn new(folder: PathBuf, size: usize) -> Result<Self> {
        std::fs::create_dir(&folder)?;
        std::fs::create_dir(folder.join("versions"))?;
        Ok(RawDir { folder, number: 0, value: vec![b'x'; size] })
    }
}

impl Raw for RawDir {
    fn write(&mut self) -> Result<()> {
        self.number += 1;
        let (staged, versions) = (self.folder.join("staged"), self.folder.join("versions"));
        let mut file = File::create_new(&staged)?;
        file.write_all(&self.value)?;
        file.sync_all()?;
        hard_link(&staged, versions.join(self.number.to_string()))?;
        File::open(&versions)?.sync_all()?;
        remove_file(&staged)?;
        // Whoever numbers files must take old ones away, or the folder grows for ever.
        if let Some(old) = self.number.checked_sub(VERSIONS_KEPT).filter(|old| *old > 0) {
            remove_file(versions.join(old.to_string()))?;
        }
        Ok(())
    }
}
