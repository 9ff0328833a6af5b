//! What is in a folder, to tell whether a command changed anything: every file's bytes, and of a database its rows,
//! because its pages and its log move when it is merely opened.

use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// One thing in a folder.
#[derive(Clone, PartialEq, Eq)]
pub enum Thing {
    Folder,
    Link(PathBuf),
    Bytes(Vec<u8>),
    Database { version: i64, rows: Vec<(String, String, i64, Vec<u8>)> },
}

impl fmt::Debug for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thing::Folder => f.write_str("folder"),
            Thing::Link(to) => write!(f, "link to {}", to.display()),
            Thing::Bytes(bytes) => write!(f, "{} bytes {:.300}", bytes.len(), String::from_utf8_lossy(bytes)),
            Thing::Database { version, rows } => {
                write!(f, "database {version}")?;
                rows.iter().try_for_each(|(shelf, name, revision, value)| {
                    write!(f, " {shelf}:{name}@{revision} {:.300}", String::from_utf8_lossy(value))
                })
            }
        }
    }
}

/// Everything below a folder.
pub type State = BTreeMap<PathBuf, Thing>;

pub fn state(folder: &Path) -> State {
    let mut all = State::new();
    gather(folder, &mut all);
    all
}

fn gather(folder: &Path, all: &mut State) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // They come and go as a database is opened and closed, by this very look too.
        if name.ends_with(".db-wal") || name.ends_with(".db-shm") {
            continue;
        }
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_symlink() {
            all.insert(path.clone(), Thing::Link(std::fs::read_link(&path).unwrap()));
        } else if kind.is_dir() {
            all.insert(path.clone(), Thing::Folder);
            gather(&path, all);
        } else {
            let thing = database(&path).unwrap_or_else(|| Thing::Bytes(std::fs::read(&path).unwrap()));
            all.insert(path, thing);
        }
    }
}

fn database(path: &Path) -> Option<Thing> {
    if path.extension().is_none_or(|e| e != "db") {
        return None;
    }
    let db = connect(path).ok()?;
    let version = db.pragma_query_value(None, "user_version", |row| row.get(0)).ok()?;
    let mut query = db.prepare("SELECT shelf, name, revision, value FROM record ORDER BY shelf, name").ok()?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).ok()?;
    Some(Thing::Database { version, rows: rows.collect::<Result<_, _>>().unwrap() })
}

/// The database at a path that exists.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
}

/// What is there now and was not so before, or the other way round.
pub fn changes(before: &State, after: &State) -> Vec<String> {
    let mut found = Vec::new();
    for (path, thing) in after {
        match before.get(path) {
            None => found.push(format!("new: {} {thing:?}", path.display())),
            Some(old) if old != thing => found.push(format!("changed: {} {old:?} to {thing:?}", path.display())),
            Some(_) => {}
        }
    }
    found.extend(before.keys().filter(|p| !after.contains_key(*p)).map(|p| format!("gone: {}", p.display())));
    found
}

/// The newest version file of a record in a directory store.
pub fn newest_version(store: &Path, shelf: &str, lease: &str) -> PathBuf {
    let folder = store.join(shelf).join(lease);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.pop().unwrap()
}

/// Rewrites a lease's record in either store, as a failing disk or a careless hand would.
pub fn tamper(home: &super::Home, lease: &str, how: impl Fn(&mut Vec<u8>)) {
    tamper_with(home, "lease", lease, how);
}

/// The same for any shelf.
pub fn tamper_with(home: &super::Home, shelf: &str, lease: &str, how: impl Fn(&mut Vec<u8>)) {
    match home.store.split_once(':').unwrap() {
        ("dir", path) => {
            let file = newest_version(Path::new(path), shelf, lease);
            let mut bytes = std::fs::read(&file).unwrap();
            how(&mut bytes);
            std::fs::write(file, bytes).unwrap();
        }
        (_, path) => {
            let db = connect(Path::new(path)).unwrap();
            let read = "SELECT value FROM record WHERE shelf = ?1 AND name = ?2";
            let mut bytes: Vec<u8> = db.query_row(read, [shelf, lease], |row| row.get(0)).unwrap();
            how(&mut bytes);
            let write = "UPDATE record SET value = ?3 WHERE shelf = ?1 AND name = ?2";
            assert_eq!(db.execute(write, rusqlite::params![shelf, lease, bytes]).unwrap(), 1);
        }
    }
}

/// Where in a record the header of the ownership record begins: a version file has a header of its own before it.
pub fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|w| w == part).unwrap()
}
