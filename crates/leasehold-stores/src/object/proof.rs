//! The proof that a server enforces conditions, made before the first record of a namespace is written.
//!
//! Promise: a server that ignores a condition, in single requests or in a race, is refused, and the error names the
//! condition; then no record is written. Success is recorded in an object for each endpoint, so that later processes
//! only read that. Non-promise: a server that fails in one race of a thousand may pass; `doctor` tests longer.

use super::connection::in_time;
use super::{BucketNamespace, Put};
use crate::object::config::Service;
use futures_util::future::join_all;
use leasehold_core::store::Revision;
use leasehold_core::{Error, Kind, Nonce, Result};
use object_store::ObjectStoreExt;
use object_store::path::Path;

/// How many writers race for one object, and in how many rounds.
const RACERS: usize = 16;
const ROUNDS: usize = 4;

/// A condition that a server may ignore.
#[derive(Debug, Clone, Copy)]
enum Condition {
    Absent,
    Unchanged,
}

impl BucketNamespace {
    /// The path of the recorded proof.
    pub(super) fn marker(&self) -> Path {
        self.folder.clone().join("proof").join(self.bucket.label.as_str())
    }

    /// Checks, once, that the server enforces conditions.
    pub(super) async fn prove(&self) -> Result<()> {
        self.proven.get_or_try_init(|| self.prove_now()).await.copied()
    }

    async fn prove_now(&self) -> Result<()> {
        let marker = self.marker();
        if self.get(&marker).await?.0.is_some() {
            return Ok(());
        }
        let scratch = self.folder.clone().join("scratch").join(Nonce::random().to_string());
        let mut used = Vec::new();
        let verdict = self.try_out(&scratch, &mut used).await;
        // Scratch objects that cannot be deleted, for example without the permission, do no harm.
        let deletions = used.iter().map(|path| in_time(self.bucket.cloud.delete(path)));
        join_all(deletions).await;
        verdict?;
        let words = format!("conditional writes proven with {RACERS} writers in {ROUNDS} races of each kind\n");
        // Refused if another process was faster, which is fine.
        self.put(&marker, None, Nonce::random(), Some(words.as_bytes())).await.map(drop)
    }

    async fn try_out(&self, scratch: &Path, used: &mut Vec<Path>) -> Result<()> {
        let mut used_path = |name: String| {
            let path = scratch.clone().join(name);
            used.push(path.clone());
            path
        };
        let (present, absent) = (used_path("present".into()), used_path("absent".into()));
        self.one_by_one(&present, &absent).await?;
        for round in 0..ROUNDS {
            let path = used_path(format!("race-{round}"));
            let created = self.race(&path, None).await?;
            self.race(&path, Some(&created)).await?;
        }
        Ok(())
    }

    async fn one_by_one(&self, present: &Path, absent: &Path) -> Result<()> {
        let write = |path, expected| self.put(path, expected, Nonce::random(), Some(b"proof".as_slice()));
        let Put::Done { revision: first, .. } = write(present, None).await? else {
            return Err(self.unfit(Condition::Absent, "it refuses to create an object that does not exist"));
        };
        if let Put::Done { .. } = write(present, None).await? {
            return Err(self.unfit(Condition::Absent, "it created an object that exists"));
        }
        let Put::Done { revision: second, .. } = write(present, Some(&first)).await? else {
            return Err(self.unfit(Condition::Unchanged, "it refuses to replace an object that is as expected"));
        };
        if first == second {
            return Err(self.unfit(Condition::Unchanged, "it gives two writes one revision"));
        }
        if let Put::Done { .. } = write(present, Some(&first)).await? {
            return Err(self.unfit(Condition::Unchanged, "it replaced an object that has changed"));
        }
        if let Put::Done { .. } = write(absent, Some(&second)).await? {
            return Err(self.unfit(Condition::Unchanged, "it replaced an object that does not exist"));
        }
        match self.get(present).await?.0 {
            Some(stored) if stored.revision == second => Ok(()),
            _ => Err(self.unfit(Condition::Unchanged, "a write that it refused was done, or one that it did was not")),
        }
    }

    /// All write at once, with the same expectation. Returns the revision of the one that succeeded.
    async fn race(&self, path: &Path, expected: Option<&Revision>) -> Result<Revision> {
        let condition = if expected.is_none() { Condition::Absent } else { Condition::Unchanged };
        let write = || self.put(path, expected, Nonce::random(), Some(b"race".as_slice()));
        let mut winners = Vec::new();
        let mut undecided = 0;
        for outcome in join_all((0..RACERS).map(|_| write())).await {
            match outcome {
                Ok(Put::Done { revision, .. }) => winners.push(revision),
                Ok(Put::Refused) => {}
                Err(e) if matches!(e.kind(), Kind::Contended | Kind::Unavailable | Kind::Indeterminate) => {
                    undecided += 1
                }
                Err(e) => return Err(e),
            }
        }
        let found = self.get(path).await?.0.map(|stored| stored.revision);
        match (winners.as_slice(), found) {
            ([winner], Some(found)) if *winner == found => Ok(found),
            // The winner's answer may be among those that were lost.
            ([], Some(found)) if undecided > 0 && expected != Some(&found) => Ok(found),
            ([], _) if undecided > 0 => {
                let message = format!(
                    "{} could not be put to the test: {undecided} writes were undecided",
                    self.bucket.display_name
                );
                Err(Error::new(Kind::Unavailable, message))
            }
            ([_], _) => Err(self.unfit(condition, "a write that it refused was done, in a race of several")),
            (winners, _) => {
                let what = format!("of {RACERS} simultaneous writes {} were done instead of one", winners.len());
                Err(self.unfit(condition, &what))
            }
        }
    }

    fn unfit(&self, condition: Condition, what: &str) -> Error {
        let header = match (self.bucket.service, condition) {
            (Service::Google, Condition::Absent) => "x-goog-if-generation-match: 0",
            (Service::Google, Condition::Unchanged) => "x-goog-if-generation-match",
            (_, Condition::Absent) => "If-None-Match: *",
            (_, Condition::Unchanged) => "If-Match",
        };
        let message = format!(
            "{} does not enforce `{header}`: {what}; leases would have several holders, so nothing is written; use a \
             server with conditional writes",
            self.bucket.display_name
        );
        Error::new(Kind::Unsupported, message)
    }
}
