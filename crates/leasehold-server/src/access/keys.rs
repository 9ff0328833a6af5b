//! The records of keys, in the server's own namespace.
//!
//! Promise: each change is one write, decided on the current record. A key is stored before it is shown. Non-promise: if the
//! process dies in between, the key exists and was never shown; revoke it.

use super::record::{KeyRecord, Made, Origin, Revoked, State, Use};
use super::scope::Scope;
use super::secret::{KeyId, Secret};
use futures_util::future::join_all;
use leasehold_core::cell::{Fate, MAX_ATTEMPTS, Snapshot};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::document::{Document, Edit};
use leasehold_core::hints::{self, Opening};
use leasehold_core::store::{Range, Store};
use leasehold_core::{Anchor, Error, Key, Kind, Label, LeaseName, Nonce, Result, Shelf, Timestamp, Who, Why, codec};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The folders of keys, and of the times at which they were last used: separate, so that using a key never delays revoking it.
pub(super) const KEYS: &str = "key";
pub(super) const USES: &str = "use";
/// Written whenever a key changes, so that one watch covers all of them.
const CHANGES: &str = "changes";
pub(super) const KIND: &str = "key";
const USE_KIND: &str = "key-use";
const CHANGE_KIND: &str = "key-changes";
const PAGE: usize = 200;
/// A use is recorded only if the last recorded one was longer ago than this.
const USE_GRAIN: Duration = Duration::from_secs(60);

/// The records of keys in a store. The store is opened in [`leasehold_stores::Namespace::server`].
#[derive(Debug, Clone)]
pub struct Keys {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

/// A key to be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Its label, for people.
    pub label: Label,
    /// Its scope.
    pub scope: Scope,
    /// How long it is valid; none means for ever.
    pub lasts: Option<Duration>,
    /// The latest time at which it may end, by the store's clock.
    pub not_after: Option<Timestamp>,
    /// The operator or server that makes it.
    pub by: Who,
}

/// How a key is replaced.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// How long the old one is still accepted.
    pub overlap: Duration,
    /// How long the new one is valid; if none, as long as the old one was from its creation.
    pub lasts: Option<Duration>,
    /// The latest time at which the new one may end, by the store's clock.
    pub not_after: Option<Timestamp>,
    /// The operator who asks for it.
    pub by: Who,
}

/// A key as listings show it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The record, which does not contain the key's text.
    pub record: KeyRecord,
    /// When it was last used, to the minute.
    pub used: Option<Timestamp>,
    /// Whether it is in force, by the store's clock.
    pub state: State,
}

/// The origin of a new key.
enum Source {
    Person,
    Token(Origin),
    /// The key that it replaces, and that key's origin.
    Rotation(KeyId, Option<Origin>),
}

impl Source {
    fn parts(self) -> (Option<KeyId>, Option<Origin>) {
        match self {
            Source::Person => (None, None),
            Source::Token(origin) => (None, Some(origin)),
            Source::Rotation(id, origin) => (Some(id), origin),
        }
    }
}

/// A change to the record of a key: the next record; none if there is nothing to do.
type Deciding<'a> = dyn Fn(&Option<KeyRecord>, Timestamp) -> Result<Option<Option<KeyRecord>>> + Sync + 'a;

/// A number that is new with each change of any key.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Changes {
    latest: Option<Nonce>,
}

impl Keys {
    /// The keys in this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Keys { store, clock: Arc::new(SystemClock) }
    }

    /// The store that they are in.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The same, with another clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Keys { clock, ..self }
    }

    /// The same, through another handle of their store.
    pub(crate) fn on(self, store: Arc<dyn Store>) -> Self {
        Keys { store, ..self }
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn grain(&self) -> Duration {
        self.store.capabilities().clock.grain()
    }

    /// Whether the store answers.
    pub(crate) async fn check(&self) -> Result<()> {
        self.now().await.map(|_| ())
    }

    /// The store's time, not behind its clock when this returns.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        let asked = self.clock.now();
        let now = self.store.read(&Key::new(Shelf::Access, &LeaseName::new(CHANGES)?)).await?.now;
        Ok(Anchor { now, asked }.at_latest(self.clock.now(), self.grain()))
    }

    /// Makes a key. Its text is in the answer and nowhere else.
    pub async fn create(&self, wanted: NewKey) -> Result<(Secret, KeyRecord)> {
        let secret = Secret::random(wanted.scope.verbs);
        let record = self.add(&secret, &wanted, Source::Person).await?;
        self.tell().await;
        Ok((secret, record))
    }

    /// The same for the bearer of a token, without a hint to other servers: none can have looked for so new a key.
    pub(crate) async fn exchange(&self, wanted: NewKey, origin: Origin) -> Result<(Secret, KeyRecord)> {
        let secret = Secret::random(wanted.scope.verbs);
        let record = self.add(&secret, &wanted, Source::Token(origin)).await?;
        Ok((secret, record))
    }

    /// Whether there is no key yet.
    pub async fn is_empty(&self) -> Result<bool> {
        let after = LeaseName::new(KEYS)?;
        let page = self.store.list(Shelf::Access, Range::new(Some(&after), 1)).await?;
        Ok(!page.entries.iter().any(|(name, _)| name.folder() == Some(KEYS)))
    }

    /// Makes the first key, which may do everything, if there is none and no other server is faster.
    pub async fn bootstrap(&self, by: Who) -> Result<Option<(Secret, KeyRecord)>> {
        let secret = Keys::first_secret()?;
        Ok(self.bootstrap_as(&secret, by).await?.map(|record| (secret, record)))
    }

    /// A text for the first key, which is not valid yet.
    pub fn first_secret() -> Result<Secret> {
        Ok(Secret::with_id(Scope::everything()?.verbs, &KeyId::first()))
    }

    /// Makes the first key with this text, if there is none. Repeating it changes nothing. None if there are other keys.
    pub async fn bootstrap_as(&self, secret: &Secret, by: Who) -> Result<Option<KeyRecord>> {
        if !self.is_empty().await? {
            let found = self.look(&secret.id()).await?.record;
            return Ok(found.filter(|record| record.hash == secret.hash()));
        }
        let scope = Scope::everything()?;
        let wanted = NewKey { label: Label::new("bootstrap")?, scope, lasts: None, not_after: None, by };
        match self.add(secret, &wanted, Source::Person).await {
            Ok(record) => {
                self.tell().await;
                Ok(Some(record))
            }
            // Another server was faster, and has shown it.
            Err(error) if error.kind() == Kind::Contended => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn add(&self, secret: &Secret, wanted: &NewKey, source: Source) -> Result<KeyRecord> {
        let (rotated_from, origin) = source.parts();
        let (id, hash) = (secret.id(), secret.hash());
        let is_ours = |stored: &Option<KeyRecord>| stored.as_ref().is_some_and(|record| record.hash == hash);
        let record = |now: Timestamp| KeyRecord {
            id: id.clone(),
            label: wanted.label.clone(),
            hash: hash.clone(),
            scope: wanted.scope.clone(),
            created: Made { by: wanted.by.clone(), at: now },
            expires: wanted.lasts.map(|lasts| now.plus(lasts)).into_iter().chain(wanted.not_after).min(),
            revoked: None,
            rotated_from: rotated_from.clone(),
            rotated_to: None,
            origin: origin.clone(),
        };
        let decide = |stored: &Option<KeyRecord>, now: Timestamp| match stored {
            Some(_) if is_ours(stored) => Ok(None),
            Some(_) => Err(Error::new(Kind::Contended, format!("there is a key {id} already; try again"))),
            None => Ok(Some(Some(record(now)))),
        };
        let fate = |seen: &Option<KeyRecord>| if is_ours(seen) { Fate::Applied } else { Fate::NotApplied };
        let before = self.change(&id, &decide, &fate).await?;
        Ok(before.record.unwrap_or_else(|| record(before.anchor.now)))
    }

    /// Revokes a key. Repeating it changes nothing.
    pub async fn revoke(&self, id: &KeyId, by: &Who, why: &Why) -> Result<KeyRecord> {
        let decide = |stored: &Option<KeyRecord>, now: Timestamp| {
            let record = stored.as_ref().ok_or_else(|| missing(id))?;
            let revoked = Some(Revoked { by: by.clone(), why: why.clone(), at: now });
            Ok(record.revoked.is_none().then(|| Some(KeyRecord { revoked, ..record.clone() })))
        };
        // A second attempt finds it revoked, and does nothing.
        self.change(id, &decide, &|_| Fate::NotApplied).await?;
        self.tell().await;
        self.one(id).await
    }

    /// Replaces a key by a new one with the same scope. The old one stays valid for a while.
    pub async fn rotate(&self, id: &KeyId, rotation: &Rotation) -> Result<(Secret, KeyRecord)> {
        let seen = self.document(id)?.look(self.clock.now()).await?;
        let (old, now) = (seen.record.ok_or_else(|| missing(id))?, seen.anchor.now);
        check_rotatable(&old, now)?;
        let as_before = old.expires.map(|expires| expires.saturating_since(old.created.at));
        let lasts = rotation.lasts.or(as_before);
        let (label, scope, by) = (old.label.clone(), old.scope.clone(), rotation.by.clone());
        let wanted = NewKey { label, scope, lasts, not_after: rotation.not_after, by };
        let secret = Secret::random(wanted.scope.verbs);
        let source = Source::Rotation(id.clone(), old.origin.clone());
        let (record, new) = (self.add(&secret, &wanted, source).await?, secret.id());
        let decide = |stored: &Option<KeyRecord>, now: Timestamp| {
            let record = stored.as_ref().ok_or_else(|| missing(id))?;
            if record.rotated_to.as_ref() == Some(&new) {
                return Ok(None);
            }
            check_rotatable(record, now)?;
            let end = now.plus(rotation.overlap);
            let expires = Some(record.expires.map_or(end, |expires| expires.min(end)));
            Ok(Some(Some(KeyRecord { expires, rotated_to: Some(new.clone()), ..record.clone() })))
        };
        let is_done = |seen: &Option<KeyRecord>| seen.as_ref().is_some_and(|r| r.rotated_to.as_ref() == Some(&new));
        let fate = |seen: &Option<KeyRecord>| if is_done(seen) { Fate::Applied } else { Fate::NotApplied };
        if let Err(error) = self.change(id, &decide, &fate).await {
            // It was never shown, so nobody can use it.
            let why = Why::new(format!("the rotation of {id} failed"))?;
            let _ = self.revoke(&new, &rotation.by, &why).await;
            return Err(error);
        }
        self.tell().await;
        Ok((secret, record))
    }

    /// The record of a key.
    pub async fn one(&self, id: &KeyId) -> Result<KeyRecord> {
        self.look(id).await?.record.ok_or_else(|| missing(id))
    }

    pub(crate) async fn look(&self, id: &KeyId) -> Result<Snapshot<Option<KeyRecord>>> {
        self.document(id)?.look(self.clock.now()).await
    }

    /// Every key, by id, and the store's time. A damaged record is an error of its own and hides no other.
    pub async fn list(&self) -> Result<(Vec<Result<Listed>>, Timestamp)> {
        let (mut keys, mut uses) = (Vec::new(), HashMap::new());
        let mut after: Option<LeaseName> = None;
        let now = loop {
            let page = self.store.list(Shelf::Access, Range::new(after.as_ref(), PAGE)).await?;
            for (name, value) in &page.entries {
                let text = name.as_str();
                match text.split_once('/') {
                    Some((KEYS, _)) => keys.push(codec::decode::<KeyRecord>(KIND, &value.bytes, text)),
                    Some((USES, id)) => {
                        // Without it, the key is shown as never used.
                        let used = codec::decode::<Use>(USE_KIND, &value.bytes, text).unwrap_or_default();
                        uses.insert(id.to_owned(), used);
                    }
                    _ => {}
                }
            }
            after = page.entries.last().map(|(name, _)| name.clone());
            if !page.more || after.is_none() {
                break page.now;
            }
        };
        let listed = |record: KeyRecord| {
            let used = uses.get(record.id.as_str()).and_then(|used| used.at);
            Listed { used, state: record.state(now), record }
        };
        Ok((keys.into_iter().map(|record| record.map(listed)).collect(), now))
    }

    /// The keys after an id, in order, where the next page begins, and the store's time. Damaged records are left out.
    pub(crate) async fn page(
        &self,
        after: Option<&KeyId>,
        limit: usize,
    ) -> Result<(Vec<Listed>, Option<KeyId>, Timestamp)> {
        let after = after.map_or_else(|| LeaseName::new(KEYS), |id| id.record(KEYS))?;
        let page = self.store.list(Shelf::Access, Range::new(Some(&after), limit)).await?;
        let (now, is_full) = (page.now, page.more);
        let (mut found, mut last, mut is_all) = (Vec::new(), None, !is_full);
        for (name, value) in page.entries {
            let Some((KEYS, id)) = name.as_str().split_once('/') else {
                // The shelf has other records after the keys.
                is_all = true;
                break;
            };
            last = id.parse::<KeyId>().ok();
            if let Ok(record) = codec::decode::<KeyRecord>(KIND, &value.bytes, name.as_str()) {
                found.push(record);
            }
        }
        let uses = join_all(found.iter().map(|record| self.last_use(&record.id))).await;
        let listed = found.into_iter().zip(uses);
        let listed = listed.map(|(record, used)| Listed { used, state: record.state(now), record }).collect();
        Ok((listed, last.filter(|_| !is_all), now))
    }

    /// When a key was last used, if that can be read.
    async fn last_use(&self, id: &KeyId) -> Option<Timestamp> {
        let key = Key::new(Shelf::Access, &id.record(USES).ok()?);
        let value = self.store.read(&key).await.ok()?.value?;
        codec::decode::<Use>(USE_KIND, &value.bytes, key.name.as_str()).ok()?.at
    }

    /// The ids of up to `most` keys, in whatever state they are.
    pub(crate) async fn ids(&self, most: usize) -> Result<Vec<KeyId>> {
        let (mut ids, mut after) = (Vec::new(), LeaseName::new(KEYS)?);
        loop {
            let page = self.store.list(Shelf::Access, Range::new(Some(&after), PAGE)).await?;
            let keys = page.entries.iter().map_while(|(name, _)| match name.as_str().split_once('/') {
                Some((KEYS, id)) => Some(id),
                _ => None,
            });
            let before = ids.len();
            ids.extend(keys.filter_map(|id| id.parse::<KeyId>().ok()));
            match page.entries.last() {
                // The shelf has other records after the keys.
                Some((last, _)) if page.more && ids.len() > before && ids.len() < most => after = last.clone(),
                _ => break,
            }
        }
        ids.truncate(most);
        Ok(ids)
    }

    /// Records that a key is used, unless that was recorded recently.
    pub(crate) async fn record_use(&self, id: &KeyId) -> Result<()> {
        let key = Key::new(Shelf::Access, &id.record(USES)?);
        let document = Document::<Use>::new(self.store.as_ref(), key, USE_KIND, format!("the last use of key {id}"));
        let is_recent = |used: &Use, now: Timestamp| used.at.is_some_and(|at| now.saturating_since(at) < USE_GRAIN);
        let decide = |used: &Use, now: Timestamp| Ok((!is_recent(used, now)).then_some(Use { at: Some(now) }));
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: 3 };
        document.change(self.clock.as_ref(), &edit).await.map(|_| ())
    }

    /// Hints when any key may have changed.
    pub(crate) fn watch(&self) -> Result<Opening> {
        Ok(hints::watch(self.store.clone(), Key::new(Shelf::Access, &LeaseName::new(CHANGES)?)))
    }

    /// Hints at a change. If the hint is lost, servers notice the change when they next read the key.
    async fn tell(&self) {
        let Ok(name) = LeaseName::new(CHANGES) else { return };
        let key = Key::new(Shelf::Access, &name);
        let document = Document::<Changes>::new(self.store.as_ref(), key, CHANGE_KIND, "the mark of changes".into());
        let latest = Nonce::random();
        let decide = |_: &Changes, _: Timestamp| Ok(Some(Changes { latest: Some(latest) }));
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: 3 };
        let _ = document.change(self.clock.as_ref(), &edit).await;
    }

    async fn change(
        &self,
        id: &KeyId,
        decide: &Deciding<'_>,
        fate: &(dyn Fn(&Option<KeyRecord>) -> Fate + Sync),
    ) -> Result<Snapshot<Option<KeyRecord>>> {
        let edit = Edit { decide, fate, attempts: MAX_ATTEMPTS };
        self.document(id)?.change(self.clock.as_ref(), &edit).await
    }

    fn document(&self, id: &KeyId) -> Result<Document<'_, Option<KeyRecord>>> {
        let key = Key::new(Shelf::Access, &id.record(KEYS)?);
        Ok(Document::new(self.store.as_ref(), key, KIND, format!("key {id}")))
    }
}

fn missing(id: &KeyId) -> Error {
    Error::invalid("key id", id, "there is no such key; `leasehold key ls` lists them")
}

fn check_rotatable(record: &KeyRecord, now: Timestamp) -> Result<()> {
    let id = &record.id;
    let why = match (record.state(now), &record.rotated_to) {
        (State::Active, None) => return Ok(()),
        (State::Active, Some(next)) => format!("it was rotated to {next} before; rotate that one"),
        (State::Expired(_), _) => "it has expired; create a new key".to_owned(),
        (State::Revoked(_), _) => "it was revoked; create a new key".to_owned(),
    };
    Err(Error::invalid("key id", id, why))
}
