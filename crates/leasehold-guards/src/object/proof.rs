//! The proof that a server enforces conditions, made before an object gets its first fence.
//!
//! Promise: a server that ignores a condition, in sequence or in a race, is refused. Only scratch objects beside the
//! object are written. Non-promise: a server that fails one race in a thousand may pass; `leasehold doctor` tries
//! longer.

use super::{ObjectGuard, condition};
use leasehold_core::guard::Guard;
use leasehold_core::{Error, Kind, Nonce, Result};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutResult};
use tokio::task::JoinSet;

/// How many create one object at once.
const RACERS: usize = 8;

impl ObjectGuard {
    /// Makes sure that the server enforces conditions.
    pub(super) async fn prove(&self) -> Result<()> {
        let name = |what: &str| Path::from(format!("{}.leasehold-probe-{}-{what}", self.key, Nonce::random()));
        let (one, raced) = (name("one"), name("raced"));
        let verdict = async {
            self.one_by_one(&one).await?;
            self.race(&raced).await
        };
        let verdict = verdict.await;
        for scratch in [&one, &raced] {
            // Scratch that cannot be deleted, for example for lack of permission, does no harm.
            let _ = self.store.delete(scratch).await;
        }
        verdict
    }

    /// Writes a body of its own; none if the server refused.
    async fn scribble(&self, key: &Path, mode: PutMode) -> Result<Option<PutResult>> {
        // Creating needs no object, so then the bucket was not found.
        let needs_object = matches!(mode, PutMode::Update(_));
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.store.put_opts(key, Nonce::random().to_string().into(), options).await {
            Ok(done) => Ok(Some(done)),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(None),
            Err(object_store::Error::NotFound { .. }) if needs_object => Ok(None),
            Err(e) => Err(super::failure(&e, &self.resource(), Kind::Unavailable)),
        }
    }

    async fn one_by_one(&self, key: &Path) -> Result<()> {
        let Some(first) = self.scribble(key, PutMode::Create).await? else {
            return Err(self.unfit("it refuses to create an object that does not exist"));
        };
        if self.scribble(key, PutMode::Create).await?.is_some() {
            return Err(self.unfit("it created an object that exists"));
        }
        let stale = condition(first.e_tag, first.version);
        if self.scribble(key, PutMode::Update(stale.clone())).await?.is_none() {
            return Err(self.unfit("it refuses to replace an object that is as expected"));
        }
        if self.scribble(key, PutMode::Update(stale)).await?.is_some() {
            return Err(self.unfit("it replaced an object that has changed"));
        }
        Ok(())
    }

    async fn race(&self, key: &Path) -> Result<()> {
        let mut racers = JoinSet::new();
        for _ in 0..RACERS {
            let (guard, key) = (self.clone(), key.clone());
            racers.spawn(async move { guard.scribble(&key, PutMode::Create).await });
        }
        let mut winners = 0;
        while let Some(done) = racers.join_next().await {
            // One without an answer may have won; that proves nothing against the server.
            winners += usize::from(matches!(done, Ok(Ok(Some(_)))));
        }
        if winners > 1 {
            return Err(self.unfit(&format!("of {RACERS} simultaneous creations {winners} succeeded instead of one")));
        }
        Ok(())
    }

    fn unfit(&self, what: &str) -> Error {
        let message = format!(
            "the server does not enforce conditions: resource=`{}`: {what}; a stale writer could not be refused, so nothing \
             is written; use a server with conditional writes",
            self.resource()
        );
        Error::new(Kind::Unsupported, message)
    }
}
