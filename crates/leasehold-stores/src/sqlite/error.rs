//! The meaning of the driver's errors: it separates what was certainly not applied from what may have been.

use super::blocker::blocker;
use super::statements::BUSY;
use crate::phase::Phase;
use leasehold_core::{Error, Kind};
use rusqlite::ErrorCode;
use std::path::Path;

/// How many files must be available: the database, its log, the log's index, and some that SQLite needs besides.
const FILES_OF_A_DATABASE: usize = 8;

/// The driver's error as ours.
pub(super) fn failed(error: rusqlite::Error, phase: Phase, path: &Path) -> Error {
    let shown = path.display();
    let (kind, what) = match (error.sqlite_error_code(), phase) {
        (Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed), _) => {
            let who = blocker(path).map_or_else(
                || {
                    "try again, and if that persists look for a stopped process or a frozen container that uses it"
                        .into()
                },
                |blocker| blocker.to_string(),
            );
            (Kind::Unavailable, format!("{shown} was busy for {} s, nothing was changed: {who}", BUSY.as_secs()))
        }
        (Some(ErrorCode::DiskFull), _) => {
            (Kind::Unavailable, format!("no space left for {shown}; nothing was changed, free some and try again"))
        }
        (Some(ErrorCode::NotADatabase), _) => {
            (Kind::Corrupt, format!("{shown} is not a leasehold database; it was left as it is"))
        }
        (Some(ErrorCode::DatabaseCorrupt), _) => {
            (Kind::Corrupt, format!("{shown} is damaged; it was left as it is, restore it from a backup"))
        }
        (Some(ErrorCode::CannotOpen), Phase::Connecting | Phase::Reading | Phase::Preparing) if is_out_of_files() => {
            let what = format!("cannot open {shown}: this process has too many files open; nothing was changed");
            (Kind::Unavailable, what)
        }
        (Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen), _) => (
            Kind::Unsupported,
            format!("cannot write {shown} and the log beside it; make file and folder writable for this user"),
        ),
        (_, Phase::Writing) => (Kind::Indeterminate, format!("writing {shown} failed midway")),
        (_, Phase::Connecting) => (Kind::Unavailable, format!("cannot open {shown}")),
        (_, Phase::Reading | Phase::Preparing) => (Kind::Unavailable, format!("cannot read {shown}")),
    };
    Error::new(kind, what).with_source(error)
}

/// Whether too few files can be opened now for a database, which has a log and
/// an index beside it. SQLite does not report why it cannot open one.
fn is_out_of_files() -> bool {
    let some: Vec<_> = (0..FILES_OF_A_DATABASE).map(|_| std::fs::File::open("/dev/null")).collect();
    some.iter().flatten().count() < FILES_OF_A_DATABASE
}
