//! Opening: as little work as possible on a file of ours, and safe on a new one that several processes open at once.

use super::error::failed;
use super::statements::{BUSY, Database, refuse};
use crate::phase::Phase;
use crate::url::Namespace;
use leasehold_core::{Error, Kind, Nonce, Result};
use leasehold_system::clock::{self, Moment};
use leasehold_system::volume::{self, SecondName, Volume};
use leasehold_system::{critical, rename};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::cell::Cell;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `LHLD`: tells our files from other programs' databases.
const APPLICATION_ID: i32 = 0x4c48_4c44;
/// The layout that this version reads and writes.
const FORMAT: i32 = 1;
/// The log's length, in pages, at which a writer copies it into the file. The
/// first process that opens the file reads the log, so it is kept short.
const CHECKPOINT_PAGES: i64 = 192;
/// Most records fit into one page of a new file, so that each is written in one page.
const PAGE_BYTES: i64 = 4096;

/// With row ids: a table without them moves values of more than a quarter of a page to pages of their own.
const LAYOUT: &str = "CREATE TABLE IF NOT EXISTS record (
    shelf TEXT NOT NULL, name TEXT NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (shelf, name))";

/// About how long a writer waits for another, at first and at most. The wait doubles with every attempt, so that the
/// more writers there are, the less often each tries. A try takes several system calls: with 64 processes and at most 4
/// ms, each tried 114 times for one write, which took more processor time than the writes.
const FIRST_WAIT: Duration = Duration::from_micros(100);
const LONGEST_WAIT: Duration = Duration::from_millis(32);
/// The pause between two attempts to set up a new file while other processes do so too.
const SETUP_PAUSE: Duration = Duration::from_millis(20);

impl Database {
    /// Opens the file, and creates it if it is missing and its folder exists.
    pub(super) fn open(path: Arc<Path>, namespace: Namespace) -> Result<Self> {
        prepare_folder(&path)?;
        create_if_missing(&path)?;
        let metadata = std::fs::metadata(&path).map_err(|e| unusable(e, &path))?;
        if !metadata.is_file() {
            let message = format!("{} is not a file; give `sqlite:/path/file.db`", path.display());
            return Err(Error::new(Kind::Invalid, message));
        }
        // If the kernel cannot list mounts, only hard links are checked.
        refuse(&path, SecondName::of(&path).unwrap_or_else(|_| SecondName::by_link(&metadata)))?;
        let identity = (metadata.dev(), metadata.ino());
        let connection = {
            let _inside = critical::enter();
            connect(&path).map_err(|e| failed(e, Phase::Connecting, &path))?
        };
        let database = Database { connection, path, namespace, identity, log: Cell::new(None), closing: None };
        database.set_up()?;
        Ok(database)
    }

    /// Sets up a new file. For any other, it only checks that it is ours.
    fn set_up(&self) -> Result<()> {
        let give_up = clock::now() + BUSY;
        loop {
            let tried = {
                let _inside = critical::enter();
                self.try_set_up()
            };
            match tried {
                Ok(done) => return done,
                // Switching a new file to WAL fails at once, whatever the timeout, while others do the same.
                Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && clock::now() < give_up => {
                    std::thread::sleep(SETUP_PAUSE);
                }
                Err(e) => return Err(failed(e, Phase::Connecting, &self.path)),
            }
        }
    }

    fn try_set_up(&self) -> rusqlite::Result<Result<()>> {
        let db = &self.connection;
        // One snapshot: a file that another process is setting up must not look like another program's.
        let (found, tables) = {
            let snapshot = db.unchecked_transaction()?;
            let number = |pragma: &str| snapshot.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
            let tables: i64 = snapshot.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            ((number("application_id")?, number("user_version")?), tables)
        };
        let refuse = |kind, what: String| Ok(Err(Error::new(kind, format!("{} {what}", self.path.display()))));
        match found {
            (APPLICATION_ID, FORMAT) => {}
            (APPLICATION_ID, newer) if newer > FORMAT => {
                let what = format!("has format {newer}, this leasehold knows up to {FORMAT}; upgrade leasehold");
                return refuse(Kind::Unsupported, what);
            }
            (0, 0) if tables == 0 => {}
            _ => return refuse(Kind::Invalid, "is another program's database; give a file of its own".into()),
        }
        let mode: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        if mode != "wal" {
            // This affects only an empty file.
            db.pragma_update(None, "page_size", PAGE_BYTES)?;
            let mode: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
            if mode != "wal" {
                let what = format!("cannot be kept in WAL mode (it stays in `{mode}`); use another folder");
                return refuse(Kind::Unsupported, what);
            }
        }
        if found != (APPLICATION_ID, FORMAT) {
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
}

thread_local! {
    /// When this thread began to wait for another connection's write.
    static WAITING_SINCE: Cell<Moment> = Cell::new(clock::now());
}

/// Waits for another connection's write; returns whether to keep waiting. SQLite's own waits grow to a tenth of a
/// second, a hundred times as long as a write takes: with many writers, most of the time nobody would write.
fn wait(so_far: i32) -> bool {
    let now = clock::now();
    if so_far == 0 {
        WAITING_SINCE.set(now);
    }
    let longest = FIRST_WAIT.saturating_mul(1 << so_far.clamp(0, 10)).min(LONGEST_WAIT);
    let share = (Nonce::random().as_u128() & 0xff) as u32;
    std::thread::sleep(longest * (64 + share) / 320);
    // A waiter holds no lock that others wait for. The time for which the process is stopped does not count.
    if critical::let_pause_pass() {
        WAITING_SINCE.set(clock::now());
        return true;
    }
    now.saturating_since(WAITING_SINCE.get()) < BUSY
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait))?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Plans must not depend on bound values: otherwise SQLite prepares a cached statement again for every key.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // On macOS a plain fsync stops at the drive's cache. Elsewhere these settings do nothing.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    Ok(connection)
}

/// Creates this user's state directory if the file belongs there. Any other folder must exist and be local.
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

/// Creates the file, for this user only, if it is missing. To SQLite an empty file is a new database.
///
/// The file gets its name after it was closed: closing any descriptor of a database drops all locks that this process
/// has on it, and another connection may have some. It is renamed, not linked, so that it never has two names: a
/// process that is killed between link and unlink would leave a file that is refused.
fn create_if_missing(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!("-{}", Nonce::random()));
    let fresh = PathBuf::from(fresh);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).map_err(|e| unusable(e, path))?;
    let named = rename::without_replacing(&fresh, path);
    if named.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    match named {
        // Not every file system can (ZFS before 2.2). SQLite itself closes a file only if no locks are dropped by that.
        // For a moment the file is readable for others, and empty.
        Err(e) if e.kind() == io::ErrorKind::Unsupported => {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
            Connection::open_with_flags(path, flags).map_err(|e| failed(e, Phase::Connecting, path))?;
            std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(|e| unusable(e, path))
        }
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(unusable(e, path)),
        _ => Ok(()),
    }
}

fn unusable(error: io::Error, path: &Path) -> Error {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(Kind::Unsupported, format!("cannot create {shown}; its folder must be writable for this user"))
                .with_source(error)
        }
        _ => Error::unavailable(format!("cannot open {shown}"), error),
    }
}
