//! A document: a record that is one value under one key, and is changed by a plain function.
//!
//! Promise: those of [`crate::cell`]. Non-promise: a missing key is not an error; it reads as the default record.

use crate::cell::{Applied, Cell, Decision, Fate, Protocol, Row, Snapshot, Start};
use crate::clock::{Clock, Moment};
use crate::codec;
use crate::error::{Error, Kind, Result};
use crate::grant::Anchor;
use crate::migration;
use crate::name::Key;
use crate::store::Store;
use crate::time::Timestamp;
use serde::{Serialize, de::DeserializeOwned};
use std::marker::PhantomData;

/// Where a document is stored.
#[derive(Debug)]
pub struct Document<'a, R> {
    store: &'a dyn Store,
    key: Key,
    kind: &'static str,
    what: String,
    checks_namespace: bool,
    record: PhantomData<fn() -> R>,
}

/// A change to a document.
pub struct Edit<'a, R> {
    /// The changed document; none if there is nothing to do, an error if the change is refused.
    pub decide: &'a (dyn Fn(&R, Timestamp) -> Result<Option<R>> + Sync),
    /// Whether a change without an answer was applied, judged by the document as it is now.
    pub fate: &'a (dyn Fn(&R) -> Fate + Sync),
    /// How many times it may be decided.
    pub attempts: u32,
}

impl<'a, R: Clone + Default + Serialize + DeserializeOwned + Send + Sync> Document<'a, R> {
    /// The document under this key. `kind` is the word in its header line, and `what` its name in messages.
    pub fn new(store: &'a dyn Store, key: Key, kind: &'static str, what: String) -> Self {
        Document { store, key, kind, what, checks_namespace: false, record: PhantomData }
    }

    /// The same, but it is not created in a namespace that is moving or has moved to another store.
    #[must_use]
    pub fn unless_moved(self) -> Self {
        Document { checks_namespace: true, ..self }
    }

    /// Reads the document without changing it. `asked` is the present moment.
    pub async fn look(&self, asked: Moment) -> Result<Snapshot<R>> {
        let reading = self.store.read(&self.key).await?;
        let decode = |bytes: &[u8]| codec::decode(self.kind, bytes, self.key.name.as_str());
        let record = reading.value.as_ref().map(|value| decode(&value.bytes)).transpose()?.unwrap_or_default();
        let revision = reading.value.map(|value| value.revision);
        Ok(Snapshot::new(record, revision, Anchor { now: reading.now, asked }))
    }

    /// Changes the document; returns what was read before.
    pub async fn change(self, clock: &dyn Clock, edit: &Edit<'_, R>) -> Result<Snapshot<R>> {
        let (store, what) = (self.store, self.what.clone());
        match Cell::new(self, store, clock).apply(edit, Start::Read, &mut None).await? {
            Applied::Yes { before, .. } => Ok(before.into_owned()),
            Applied::No { refusal, .. } => Err(refusal),
            Applied::Overtaken | Applied::Missing => Err(Error::new(Kind::Contended, format!("{what} has changed"))),
        }
    }
}

impl<R: Clone + Send + Sync> Protocol for Edit<'_, R> {
    type Record = R;
    type Refusal = Error;

    fn decide(&self, record: &R, now: Timestamp) -> Decision<R, Error> {
        match (self.decide)(record, now) {
            Ok(next) => next.map_or(Decision::AlreadyApplied, |next| Decision::Write(Box::new(next))),
            Err(refusal) => Decision::Refuse(refusal),
        }
    }

    fn fate(&self, _: &R, seen: &R) -> Fate {
        (self.fate)(seen)
    }

    fn memory(_: &R, _: &R) -> String {
        "others have written it since".into()
    }

    fn attempts(&self) -> u32 {
        self.attempts
    }

    fn needs_confirmation(&self) -> bool {
        false
    }
}

impl<R: Clone + Default + Serialize + DeserializeOwned + Send + Sync> Row for Document<'_, R> {
    type Record = R;

    fn what(&self) -> String {
        self.what.clone()
    }

    async fn read(&self, asked: Moment) -> Result<Option<Snapshot<R>>> {
        self.look(asked).await.map(Some)
    }

    async fn write(&mut self, seen: &Snapshot<R>, next: R, asked: Moment) -> Result<Option<Snapshot<R>>> {
        if self.checks_namespace && seen.revision.is_none() {
            migration::look(self.store).await?.check(&self.what)?;
        }
        let swap = self.store.document(&self.key, seen.revision.as_ref(), &codec::encode(self.kind, &next)?).await?;
        Ok(Snapshot::after(swap, next, asked))
    }
}
