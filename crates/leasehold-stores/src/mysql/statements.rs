//! The table, and every statement on it.

/// The statement that creates the table, in one line that a person can run too.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS leasehold_record (shelf VARBINARY(64) NOT NULL, \
    name VARBINARY(255) NOT NULL, revision BIGINT UNSIGNED NOT NULL, value MEDIUMBLOB NOT NULL, \
    PRIMARY KEY (shelf, name)) ENGINE=InnoDB";
/// The time at which the statement began, in milliseconds. Both ends are in UTC, so no time zone is involved:
/// `UNIX_TIMESTAMP(NOW(3))` would read a local time, which is ambiguous in the hour that repeats when summer time ends.
macro_rules! now {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000"
    };
}

pub(super) const NOW: &str = now!();
/// Returns the time, then the record if there is one.
pub(super) const READ: &str = concat!(
    "SELECT ",
    now!(),
    ", NULL, NULL, NULL UNION ALL \
     SELECT NULL, name, revision, value FROM leasehold_record WHERE shelf = ? AND name = ?"
);
/// Returns the time, then the records.
pub(super) const LIST: &str = concat!(
    "SELECT ",
    now!(),
    ", NULL, NULL, NULL UNION ALL \
     (SELECT NULL, name, revision, value FROM leasehold_record WHERE shelf = ? AND name > ? ORDER BY name LIMIT ?)"
);
pub(super) const INSERT: &str = concat!(
    "INSERT INTO leasehold_record (shelf, name, revision, value) VALUES (?, ?, IF(LAST_INSERT_ID(",
    now!(),
    ") > 0, ?, 0), ?)"
);
/// The revision always changes, so every matched row counts as affected.
pub(super) const UPDATE: &str = concat!(
    "UPDATE leasehold_record SET revision = ?, value = ? \
     WHERE shelf = ? AND name = ? AND revision = ? AND LAST_INSERT_ID(",
    now!(),
    ") > 0"
);
