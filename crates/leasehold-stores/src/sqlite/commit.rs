//! Changes: what a swap or an erasure writes, and how several are made durable at once.
//!
//! Promise: each change is made completely or not at all, and is answered after it is durable. Changes that wait at the
//! same time share one transaction, and so one fsync. If that fails before the commit, each is tried on its own, so
//! that no change fails because of another. Non-promise: concurrent changes have no order.

use super::error::failed;
use super::statements::{Database, now};
use crate::phase::Phase;
use leasehold_core::store::{Revision, Swap};
use leasehold_core::{Error, Key, Result, Timestamp};
use leasehold_system::critical;
use rusqlite::{OptionalExtension, ToSql, Transaction, TransactionBehavior, params};

const INSERT: &str = "INSERT INTO record (shelf, name, revision, value) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
const UPDATE: &str = "UPDATE record SET revision = ?3, value = ?4 WHERE shelf = ?1 AND name = ?2 AND revision = ?5";
const DELETE: &str = "DELETE FROM record WHERE shelf = ?1 AND name = ?2 AND revision = ?3";
const TAKE_OUT: &str = "DELETE FROM record WHERE shelf = ?1 AND name = ?2";
const REVISION: &str = "SELECT revision FROM record WHERE shelf = ?1 AND name = ?2";

/// A change to be made.
pub(super) struct Pending {
    pub(super) key: Key,
    /// The revision that the record must have; none if it must not exist.
    pub(super) expected: Option<i64>,
    /// The new value and revision; none if the record is to be erased.
    pub(super) next: Option<(Vec<u8>, i64)>,
    /// Another record to erase, and one to add, in the same step.
    pub(super) erased: Option<Key>,
    pub(super) put: Option<(Key, Vec<u8>)>,
}

impl Pending {
    fn is_one_statement(&self) -> bool {
        self.erased.is_none() && self.put.is_none()
    }

    fn answer(&self, is_written: bool, now: Timestamp) -> Swap {
        // An erasure is answered with the revision that was erased.
        let revision = self.next.as_ref().map(|(_, fresh)| *fresh).or(self.expected);
        match revision {
            Some(revision) if is_written => Swap::Done { revision: Revision(revision.to_string()), now },
            _ => Swap::Mismatch,
        }
    }
}

impl Database {
    /// Makes all changes that can be made. Returns an answer for each, in the same order.
    pub(super) fn make(&self, changes: &[Pending]) -> Vec<Result<Swap>> {
        let _inside = critical::enter();
        match changes {
            [_, _, ..] => match self.make_together(changes) {
                Ok(answers) => answers,
                // Nothing was committed.
                Err(Undone) => changes.iter().map(|change| self.make_one(change)).collect(),
            },
            _ => changes.iter().map(|change| self.make_one(change)).collect(),
        }
    }

    fn make_together(&self, changes: &[Pending]) -> std::result::Result<Vec<Result<Swap>>, Undone> {
        self.check_identity().map_err(|_| Undone)?;
        let failed = |e| failed(e, Phase::Writing, &self.path);
        // The same error for all, so that nobody waits for the file again.
        let all = |e: Error| changes.iter().map(|_| Err(Error::new(e.kind(), e.to_string()))).collect();
        let together = match Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate) {
            Ok(together) => together,
            Err(e) => return Ok(all(failed(e))),
        };
        let mut answers = Vec::with_capacity(changes.len());
        for change in changes {
            let now = now();
            let is_written = self.write(change).map_err(|_| Undone)?;
            answers.push(Ok(change.answer(is_written, now)));
        }
        if answers.iter().all(|answer| matches!(answer, Ok(Swap::Mismatch))) {
            return Ok(answers);
        }
        // If the commit fails, mismatches get the error too: another change of this transaction may have caused them.
        Ok(together.commit().map_or_else(|e| all(failed(e)), |()| answers))
    }

    fn make_one(&self, change: &Pending) -> Result<Swap> {
        self.check_identity()?;
        let now = now();
        let write = || {
            if change.is_one_statement() {
                return self.write(change);
            }
            // A mismatch is found without waiting for the lock.
            let (shelf, name) = (self.namespace.shelf(change.key.shelf), change.key.name.as_str());
            let mut look = self.connection.prepare_cached(REVISION)?;
            let found: Option<i64> = look.query_row(params![shelf, name], |row| row.get(0)).optional()?;
            if found != change.expected {
                return Ok(false);
            }
            let together = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
            let is_written = self.write(change)?;
            if is_written {
                together.commit()?;
            }
            Ok(is_written)
        };
        let is_written = write().map_err(|e| failed(e, Phase::Writing, &self.path))?;
        Ok(change.answer(is_written, now))
    }

    /// Writes the change, inside the caller's transaction.
    fn write(&self, change: &Pending) -> rusqlite::Result<bool> {
        let Pending { key, expected, next, erased, put } = change;
        let run = |sql: &str, key: &Key, more: &[&dyn ToSql]| {
            let (shelf, name) = (self.namespace.shelf(key.shelf), key.name.as_str());
            let mut params: Vec<&dyn ToSql> = vec![&shelf, &name];
            params.extend_from_slice(more);
            self.connection.prepare_cached(sql)?.execute(&params[..])
        };
        let written = match (next, expected) {
            (Some((value, fresh)), None) => run(INSERT, key, params![fresh, value])?,
            (Some((value, fresh)), Some(expected)) => run(UPDATE, key, params![fresh, value, expected])?,
            (None, expected) => run(DELETE, key, params![expected])?,
        };
        if written == 0 {
            return Ok(false);
        }
        if let Some(gone) = erased {
            run(TAKE_OUT, gone, &[])?;
        }
        if let (Some((put, bytes)), Some((_, fresh))) = (put, next) {
            run(INSERT, put, params![fresh, bytes])?;
        }
        Ok(true)
    }
}

/// The changes were not made together.
struct Undone;
