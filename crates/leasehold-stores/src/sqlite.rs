//! Records in one SQLite file, for the processes of one machine.
//!
//! Promise: one statement per swap, one fsync per commit (WAL, `synchronous=FULL`), so an answered swap survives a power
//! cut; any number of processes may open, create and use the file at once. Non-promise: it does not work on network file
//! systems (WAL needs shared memory) and says so instead of trying. Its clock is the machine's wall clock, as SQLite's
//! own date functions read it: there is only one machine.
//!
//! A revision starts from a random number and goes up by one, so a key that is erased and written again never has an old
//! revision. A short-lived process does not checkpoint when it ends, which would cost two more fsyncs: whoever fills the
//! log past [`CHECKPOINT_PAGES`] does.

use async_trait::async_trait;
use leasehold::store::{
    Capabilities, Class, ClockSource, Page, Reach, Reading, Revision, Store, Swap, Versioned, Watch, Watching,
    refuse_erasing_a_lease,
};
use leasehold::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp};
use leasehold_system::volume::{self, Volume};
use leasehold_system::watch::PathWatch;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Params, params};
use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// `LHLD`: tells our files from other programs' databases.
const APPLICATION_ID: i32 = 0x4c48_4c44;
/// The layout that this version reads and writes.
const FORMAT: i32 = 1;
/// How long a call waits for other processes' writes.
const BUSY: Duration = Duration::from_secs(5);
/// How often a fresh file's set-up is tried while other processes set it up too.
const SETUP_ATTEMPTS: u32 = 50;
/// The log's length, in pages, at which a writer copies it into the file. Every first opener reads the log once, so it
/// is kept short.
const CHECKPOINT_PAGES: i64 = 64;
/// A new file's page holds a whole record with a full history, so that a swap writes one page.
const PAGE_BYTES: i64 = 8192;

/// With row numbers: a table without them moves values of more than a quarter of a page to pages of their own.
const LAYOUT: &str = "CREATE TABLE IF NOT EXISTS record (
    shelf TEXT NOT NULL, name TEXT NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (shelf, name))";

const READ: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER), r.revision, r.value
    FROM (SELECT 1) LEFT JOIN record r ON r.shelf = ?1 AND r.name = ?2";
const INSERT: &str = "INSERT INTO record (shelf, name, revision, value) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO NOTHING RETURNING revision, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
const UPDATE: &str = "UPDATE record SET revision = revision + 1, value = ?4
    WHERE shelf = ?1 AND name = ?2 AND revision = ?3
    RETURNING revision, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
const DELETE: &str = "DELETE FROM record WHERE shelf = ?1 AND name = ?2 AND revision = ?3
    RETURNING revision, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
const LIST: &str = "SELECT name, revision, value FROM record WHERE shelf = ?1 AND name > ?2 ORDER BY name LIMIT ?3";
const NOW: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";

/// A store in one SQLite file. Clones share one connection.
#[derive(Clone)]
pub struct SqliteStore {
    // An asynchronous mutex in front of the blocking pool: waiting calls cost a queue entry, not a thread each.
    room: Arc<Mutex<Room>>,
    path: Arc<Path>,
}

struct Room {
    connection: Connection,
    path: Arc<Path>,
    /// Device and inode of the open file.
    identity: (u64, u64),
}

/// What a failed call leaves unknown.
#[derive(Clone, Copy)]
enum Doing {
    Opening,
    Reading,
    Writing,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteStore({})", self.path.display())
    }
}

impl SqliteStore {
    /// Opens the file, and creates it if it is missing and its folder is there.
    pub async fn open(path: &Path) -> Result<Self> {
        let path: Arc<Path> = path.into();
        let opened = path.clone();
        let room = blocking(Doing::Opening, move || Room::open(opened)).await?;
        Ok(SqliteStore { room: Arc::new(Mutex::new(room)), path })
    }

    async fn with<T: Send + 'static>(
        &self,
        doing: Doing,
        work: impl FnOnce(&mut Room) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut room = self.room.clone().lock_owned().await;
        blocking(doing, move || work(&mut room)).await
    }
}

/// Runs blocking work beside the runtime. It goes on when the caller is dropped: a swap is done or not, never half.
async fn blocking<T: Send + 'static>(doing: Doing, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
        let kind = if let Doing::Writing = doing { Kind::Indeterminate } else { Kind::Unavailable };
        Err(Error::new(kind, "the sqlite call was broken off").with_source(e))
    })
}

impl Room {
    fn open(path: Arc<Path>) -> Result<Self> {
        prepare_folder(&path)?;
        create_if_missing(&path)?;
        let metadata = std::fs::metadata(&path).map_err(|e| unusable(e, &path))?;
        if !metadata.is_file() {
            let message = format!("{} is not a file; give `sqlite:/path/file.db`", path.display());
            return Err(Error::new(Kind::Invalid, message));
        }
        let identity = (metadata.dev(), metadata.ino());
        let connection = connect(&path).map_err(|e| failed(e, Doing::Opening, &path))?;
        let room = Room { connection, path, identity };
        room.set_up()?;
        Ok(room)
    }

    /// Brings a new file into our layout; of an existing one only checks that it is ours.
    fn set_up(&self) -> Result<()> {
        for attempt in 1.. {
            match self.try_set_up() {
                Ok(done) => return done,
                // Turning a new file to WAL fails at once, whatever the timeout, while others do the same.
                Err(e) if is_busy(&e) && attempt < SETUP_ATTEMPTS => std::thread::sleep(Duration::from_millis(20)),
                Err(e) => return Err(failed(e, Doing::Opening, &self.path)),
            }
        }
        unreachable!("the loop above only ends by returning")
    }

    fn try_set_up(&self) -> rusqlite::Result<Result<()>> {
        let db = &self.connection;
        let number = |pragma: &str| db.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
        let found = (number("application_id")?, number("user_version")?);
        let refuse = |kind, what: String| Ok(Err(Error::new(kind, format!("{} {what}", self.path.display()))));
        match found {
            (APPLICATION_ID, FORMAT) => {}
            (APPLICATION_ID, newer) if newer > FORMAT => {
                let what = format!("has format {newer}, this leasehold knows up to {FORMAT}; upgrade leasehold");
                return refuse(Kind::Unsupported, what);
            }
            (0, 0) => {
                let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
                if tables > 0 && !db.table_exists(None, "record")? {
                    return refuse(Kind::Invalid, "is another program's database; give a file of its own".into());
                }
            }
            _ => return refuse(Kind::Invalid, "is another program's database; give a file of its own".into()),
        }
        let mode: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        if mode != "wal" {
            // Counts for an empty file only.
            db.pragma_update(None, "page_size", PAGE_BYTES)?;
            let mode: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
            if mode != "wal" {
                let what = format!("cannot be kept in WAL mode (it stays in `{mode}`); use another folder");
                return refuse(Kind::Unsupported, what);
            }
        }
        if found == (0, 0) {
            db.execute_batch(&format!(
                "BEGIN IMMEDIATE; {LAYOUT}; PRAGMA application_id = {APPLICATION_ID};
                 PRAGMA user_version = {FORMAT}; COMMIT"
            ))
            .inspect_err(|_| {
                let _ = db.execute_batch("ROLLBACK");
            })?;
        }
        Ok(Ok(()))
    }

    fn read(&self, key: &Key) -> Result<Reading> {
        let read = || {
            let mut statement = self.connection.prepare_cached(READ)?;
            statement.query_row(params![key.shelf.as_str(), key.name.as_str()], |row| {
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
    fn write(&self, sql: &str, params: impl Params) -> Result<Swap> {
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

    /// A file that was moved or replaced under us would take writes that nobody else ever sees.
    fn check_identity(&self) -> Result<()> {
        let place = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => Ok(()),
            Ok(_) => Err(Error::new(Kind::Unavailable, format!("{place} was replaced by another file; start again"))),
            Err(e) => Err(Error::unavailable(format!("{place} was moved away; start again"), e)),
        }
    }

    fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let list = || {
            // One transaction: the time belongs to the entries.
            let snapshot = self.connection.unchecked_transaction()?;
            let now = snapshot.prepare_cached(NOW)?.query_row([], |row| row.get(0))?;
            let mut statement = snapshot.prepare_cached(LIST)?;
            let limit = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
            let rows = statement
                .query_map(params![shelf.as_str(), after.map_or("", LeaseName::as_str), limit], |row| {
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

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Plans do not depend on what is bound: otherwise SQLite prepares a kept statement anew for every key.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    Ok(connection)
}

/// Makes this user's state directory if the file belongs there; any other folder must exist, and be local.
fn prepare_folder(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    if leasehold_system::paths::state_dir().is_ok_and(|state| state == folder) {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|e| Error::unavailable(format!("cannot create the folder {}", folder.display()), e))?;
    }
    let kind = volume::of(folder).map_err(|e| {
        Error::new(Kind::Invalid, format!("cannot open the folder {}; create it first", folder.display()))
            .with_source(e)
    })?;
    let network = match kind {
        Volume::Local => return Ok(()),
        Volume::Network(name) => name,
        Volume::Unknown => "fuse or other non-local",
    };
    let message = format!(
        "{} is on a file system of kind {network}, where sqlite cannot keep its promises; use `dir:{}/leasehold` instead",
        path.display(),
        folder.display()
    );
    Err(Error::new(Kind::Unsupported, message))
}

/// Makes the file, for this user only, if it is missing; SQLite takes an empty file for a new database.
///
/// The file gets its name after it was closed: closing any descriptor of a database drops all locks that this process
/// has on it, and another connection of this process may have some.
fn create_if_missing(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!("-{}", Nonce::random()));
    let fresh = PathBuf::from(fresh);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).map_err(|e| unusable(e, path))?;
    let linked = std::fs::hard_link(&fresh, path);
    let _ = std::fs::remove_file(&fresh);
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(unusable(e, path)),
        _ => Ok(()),
    }
}

fn unusable(error: io::Error, path: &Path) -> Error {
    let place = path.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(Kind::Unsupported, format!("cannot create {place}; its folder must be writable for this user"))
                .with_source(error)
        }
        _ => Error::unavailable(format!("cannot open {place}"), error),
    }
}

fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn versioned(revision: i64, bytes: Vec<u8>) -> Versioned {
    Versioned { bytes, revision: Revision(revision.to_string()) }
}

/// A revision that this store never gave stands for no value at all.
fn number(revision: &Revision) -> Option<i64> {
    revision.0.parse().ok()
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The driver's error as ours: what is surely not applied is told apart from what may be.
fn failed(error: rusqlite::Error, doing: Doing, path: &Path) -> Error {
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

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sqlite",
            class: Class::A,
            clock: ClockSource::Store { grain: Duration::from_millis(1) },
            reach: Reach::Host,
            watch: Watching::Hints,
            durability: "write-ahead log, one fsync before each answer",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let key = key.clone();
        self.with(Doing::Reading, move |room| room.read(&key)).await
    }

    async fn swap(&self, key: &Key, expected: Option<&Revision>, next: &[u8]) -> Result<Swap> {
        let (sql, revision) = match expected {
            // 62 random bits: the sum with any number of swaps still fits.
            None => (INSERT, (Nonce::random().as_u128() >> 66) as i64),
            Some(expected) => match number(expected) {
                Some(revision) => (UPDATE, revision),
                None => return Ok(Swap::Mismatch),
            },
        };
        let (key, next) = (key.clone(), next.to_vec());
        self.with(Doing::Writing, move |room| {
            room.write(sql, params![key.shelf.as_str(), key.name.as_str(), revision, next])
        })
        .await
    }

    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let after = after.cloned();
        self.with(Doing::Reading, move |room| room.list(shelf, after.as_ref(), limit)).await
    }

    async fn erase(&self, key: &Key, expected: &Revision) -> Result<Swap> {
        refuse_erasing_a_lease(key)?;
        let Some(revision) = number(expected) else { return Ok(Swap::Mismatch) };
        let key = key.clone();
        self.with(Doing::Writing, move |room| {
            room.write(DELETE, params![key.shelf.as_str(), key.name.as_str(), revision])
        })
        .await
    }

    /// Every process's commit writes to the log beside the file, so a write there is a hint for every key.
    async fn watch(&self, _key: &Key) -> Result<Watch> {
        let mut log = self.path.as_os_str().to_owned();
        log.push("-wal");
        let Ok(mut log) = PathWatch::content(&PathBuf::from(log)) else { return Ok(Watch::silent()) };
        let (sender, watch) = Watch::channel();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    changed = log.changed() => if changed.is_err() { return },
                }
                let _ = sender.try_send(());
            }
        });
        Ok(watch)
    }
}
