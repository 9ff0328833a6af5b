//! The guard of one object in a bucket: the fence is in its metadata, and every put is under a condition.
//!
//! Promise: a write is one read and one conditional put, or only the put if this guard wrote last. The service
//! decides, so there is no window if every write has its own tag (Azure's ETags, Google's generations) or gets one by
//! a salt. A put without an answer counts once its number was read back and a new put in its place was answered. A
//! server that ignores conditions is refused before an object gets its first fence. Non-promise: S3's ETag is that of
//! the content, and the same content has the same ETag. Without a salt a stale put succeeds while the content is byte
//! for byte what its writer last saw, and the guard says *check-then-act*. A put without the guard removes the fence.

mod error;
mod proof;
mod salt;
mod unanswered;

pub use salt::{Salt, content_type_of};

use self::error::failure;
use self::unanswered::Unanswered;
use crate::observe::write::{WriteStep, reach};
use crate::succession::{self, Former};
use async_trait::async_trait;
use bytes::Bytes;
use leasehold_core::guard::{self, Adopt, Guard, HighWater, Policy, Strength};
use leasehold_core::observe::{Observed, Observer};
use leasehold_core::{Error, Kind, Nonce, Result, Token, Who, Why};
use leasehold_system::sync::Mutex;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The most that an object may hold: it is kept in memory and put at once.
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// The name of the fence in an object's metadata. Azure allows letters only, more or less.
const FENCE: &str = "leaseholdfence";
/// The name of the salt there.
const SALT: &str = "leaseholdsalt";
/// Who gave the object to another lease, and why: until the next put.
const ADOPTED: &str = "leaseholdadopted";
/// The leases that had the object before. It goes with every put.
const FORMER: &str = "leaseholdformer";
/// All metadata of an object together may have 2 KB.
const FORMER_CHARS: usize = 700;
/// Services allow 2 KiB for all of it.
const ADOPTED_CHARS: usize = 800;
/// The content type of a sealed object that nobody has written yet.
const SEALED: &str = "application/x-leasehold-sealed";

const LOOK: Duration = Duration::from_secs(15);
const PUT: Duration = Duration::from_secs(120);
/// The pauses before each try of a put, in milliseconds.
const PAUSES: [u64; 6] = [0, 10, 30, 80, 200, 400];

/// The key that a URL's path names.
///
/// # Errors
/// [`Kind::Invalid`] for one that is empty, or has `.`, `..` or an empty part, which servers and tools take in various ways.
pub fn key(path: &str) -> Result<Path> {
    let refuse = |what: &str| Error::invalid("key", path, what);
    if path.is_empty() {
        return Err(refuse("name a key after the bucket: s3://bucket/key"));
    }
    if path.starts_with('/') || path.ends_with('/') {
        return Err(refuse("no `/` at either end"));
    }
    Path::parse(path).map_err(|_| refuse("no empty part, `.` or `..`, no control or reserved character"))
}

/// What a service's tag tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tags {
    /// Each write has a tag of its own: Azure, Google.
    OfTheWrite,
    /// Equal contents have equal tags: S3, and most services with its API.
    OfTheContent,
}

/// Guards one object.
#[derive(Clone)]
pub struct ObjectGuard {
    store: Arc<dyn ObjectStore>,
    key: Path,
    resource: String,
    tags: Tags,
    salt: Salt,
    policy: Policy,
    steps: Observed<WriteStep>,
    /// The object as this guard left it: the next put need not look first.
    left: Arc<Mutex<Option<(UpdateVersion, HighWater, Former)>>>,
}

impl fmt::Debug for ObjectGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectGuard({})", self.resource)
    }
}

/// An object as it was found.
struct StoredObject {
    version: UpdateVersion,
    high: Option<HighWater>,
    former: Former,
    /// The number of the put that made it.
    write: Option<Nonce>,
    attributes: Attributes,
    /// Only if it was asked for, and without the salt.
    body: Option<Bytes>,
}

/// What a put is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intent {
    /// A new content.
    Put,
    /// The same content, under a newer fence; nothing is put if it is there already.
    Seal,
    /// The same content, under another lease's fence.
    Adopt,
}

/// What is to be put.
struct Payload {
    body: Bytes,
    attributes: Attributes,
    /// None if it is as it was.
    former: Option<Former>,
}

fn condition(e_tag: Option<String>, version: Option<String>) -> UpdateVersion {
    UpdateVersion { e_tag, version }
}

/// A text for a header: special characters are `%` and two digits, and its length is limited.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for byte in text.bytes() {
        if plain.len() > ADOPTED_CHARS {
            break;
        }
        match byte {
            b' '..=b'~' if byte != b'%' => plain.push(char::from(byte)),
            _ => plain.push_str(&format!("%{byte:02X}")),
        }
    }
    plain
}

async fn in_time<T>(
    limit: Duration,
    resource: &str,
    unknown: Kind,
    call: impl Future<Output = object_store::Result<T>>,
) -> Result<object_store::Result<T>> {
    timeout(limit, call)
        .await
        .map_err(|_| Error::new(unknown, format!("no answer within {} s: resource=`{resource}`", limit.as_secs())))
}

impl ObjectGuard {
    /// A guard for the object at `key`; `resource` is its name for messages, such as `s3://bucket/key`. The store must not
    /// retry by itself: a conditional put that is sent again after it was done looks refused.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for an empty key.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        key: Path,
        resource: impl Into<String>,
        tags: Tags,
        policy: Policy,
    ) -> Result<Self> {
        let resource = resource.into();
        if key.as_ref().is_empty() {
            return Err(Error::invalid("object", resource, "name a key after the bucket: s3://bucket/key"));
        }
        let (salt, steps, left) = (Salt::None, Observed::NOBODY, Arc::default());
        Ok(ObjectGuard { store, key, resource, tags, salt, policy, steps, left })
    }

    /// The same guard, that makes every body unique where the service's tags are those of the content.
    #[must_use]
    pub const fn salted(mut self, salt: Salt) -> Self {
        self.salt = salt;
        self
    }

    /// The same guard, watched at every stage.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer<WriteStep>>) -> Self {
        self.steps = Observed::by(observer);
        self
    }

    /// Puts the object, unless a newer epoch has been there.
    pub async fn put(&self, token: &impl AsRef<Token>, body: Bytes, content_type: &str) -> Result<HighWater> {
        let token = token.as_ref();
        if body.len() > MAX_BODY_BYTES {
            let allowed = format!("at most {} MiB", MAX_BODY_BYTES >> 20);
            return Err(Error::invalid("body", format!("{} bytes", body.len()), allowed));
        }
        let attributes = Attributes::from_iter([(Attribute::ContentType, content_type.to_owned())]);
        let payload = Payload { body, attributes, former: None };
        let judge = |high: Option<&HighWater>| {
            guard::admit(high, token, self.policy).map_err(|rejection| rejection.into_error(&self.resource))
        };
        self.swap(Intent::Put, judge, |_| {
            Ok(Payload { body: payload.body.clone(), attributes: payload.attributes.clone(), former: None })
        })
        .await
    }

    /// Deletes the object and its fence with it. Only for scratch names: a stale writer that comes later creates it again.
    pub async fn remove(&self) -> Result<()> {
        let gone = in_time(LOOK, &self.resource, Kind::Unavailable, self.store.delete(&self.key)).await?;
        gone.map_err(|e| failure(&e, &self.resource, Kind::Unavailable))
    }

    /// Looks, judges and puts, until the service has decided.
    async fn swap(
        &self,
        intent: Intent,
        judge: impl Fn(Option<&HighWater>) -> Result<HighWater>,
        payload: impl Fn(Option<&StoredObject>) -> Result<Payload>,
    ) -> Result<HighWater> {
        // What was put without an answer: under which numbers, as what, and the tag under which the last of them may land.
        let mut unanswered = Unanswered::default();
        let mut left = if intent == Intent::Put { self.left() } else { None };
        for pause in PAUSES {
            if pause > 0 {
                sleep(Duration::from_millis(pause)).await;
            }
            let is_looked_up = left.is_none();
            let found = match left.take() {
                Some(left) => Some(left),
                None => self.look_again(intent != Intent::Put, unanswered.high.is_some()).await?,
            };
            let version = found.as_ref().map_or_else(|| condition(None, None), |found| found.version.clone());
            // Ours is visible. It counts when a new put in its place was answered.
            let seen = found.as_ref().and_then(|found| found.write).filter(|write| unanswered.writes.contains(write));
            if seen.is_none() && intent != Intent::Seal && unanswered.is_overtaken_at(&version) {
                let why = "no answer to a put; others have written since, so whether it was applied is not known";
                return Err(self.given_up(Kind::Indeterminate, why));
            }
            let high = found.as_ref().and_then(|found| found.high.as_ref());
            let next = match (seen, &unanswered.high) {
                (Some(_), Some(high)) => high.clone(),
                _ => match judge(high) {
                    Ok(next) => next,
                    // What we remember may be old. Only what the service has refuses a token.
                    Err(_) if !is_looked_up => continue,
                    Err(refused) => return Err(refused),
                },
            };
            if intent == Intent::Seal && seen.is_none() && high == Some(&next) {
                let former = found.map(|found| found.former).unwrap_or_default();
                return Ok(self.leave(version, next, former));
            }
            if high.is_none() && unanswered.high.is_none() {
                self.prove().await?;
            }
            let write = Nonce::random();
            let payload = payload(found.as_ref())?;
            let former = payload.former.clone();
            let former = former.or_else(|| found.as_ref().map(|found| found.former.clone())).unwrap_or_default();
            let (body, options) = self.options(found.as_ref(), payload, &former, &next, write);
            reach(&self.steps, WriteStep::Put, &self.resource)?;
            let call = self.store.put_opts(&self.key, body.into(), options);
            match in_time(PUT, &self.resource, Kind::Indeterminate, call).await {
                Ok(Ok(done)) => return Ok(self.leave(condition(done.e_tag, done.version), next, former)),
                // 412 means that somebody was faster, 409 that nothing was decided: read again.
                Ok(Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. }
                    | object_store::Error::NotModified { .. },
                )) => {}
                Ok(Err(object_store::Error::NotFound { .. })) if found.is_some() => {}
                Ok(Err(e)) => {
                    let error = failure(&e, &self.resource, Kind::Indeterminate);
                    match (error.kind(), &unanswered.high) {
                        (Kind::Indeterminate, _) => unanswered.add(write, next, version),
                        (_, None) => return Err(error),
                        // Refused, but it is still unknown whether the one before was applied.
                        _ => {}
                    }
                }
                Err(_) => unanswered.add(write, next, version),
            }
        }
        Err(match unanswered.high {
            Some(_) => {
                self.given_up(Kind::Indeterminate, "the service did not answer; whether it was applied is not known")
            }
            None => self.given_up(Kind::Contended, "others kept writing first; try again"),
        })
    }

    fn given_up(&self, kind: Kind, what: &str) -> Error {
        Error::new(kind, format!("{what}: resource=`{}`", self.resource))
    }

    /// The object as this guard left it. Not used where equal contents have equal tags: there an old tag proves less
    /// than a fresh one.
    fn left(&self) -> Option<StoredObject> {
        let left = self.left.lock().take();
        let (version, high, former) = left.filter(|_| matches!(self.strength(), Strength::Atomic))?;
        Some(StoredObject { version, high: Some(high), former, write: None, attributes: Attributes::new(), body: None })
    }

    fn leave(&self, version: UpdateVersion, high: HighWater, former: Former) -> HighWater {
        let has_tag = version.e_tag.is_some() || version.version.is_some();
        *self.left.lock() = has_tag.then(|| (version, high.clone(), former));
        high
    }

    /// Reads the object. If a put is pending, a failure leaves its outcome unknown.
    async fn look_again(&self, with_body: bool, is_pending: bool) -> Result<Option<StoredObject>> {
        if !is_pending {
            reach(&self.steps, WriteStep::Look, &self.resource)?;
            return self.look(with_body).await;
        }
        let looked = match reach(&self.steps, WriteStep::ReadBack, &self.resource) {
            Ok(()) => self.look(with_body).await,
            Err(e) => Err(e),
        };
        looked.map_err(|e| {
            let what = "no answer to a put, and it cannot be looked up, so whether it was applied is not known";
            self.given_up(Kind::Indeterminate, what).with_source(e)
        })
    }

    fn options(
        &self,
        found: Option<&StoredObject>,
        payload: Payload,
        former: &Former,
        next: &HighWater,
        write: Nonce,
    ) -> (Bytes, PutOptions) {
        let Payload { body, mut attributes, .. } = payload;
        let former = former.to_string();
        if !former.is_empty() {
            attributes.insert(Attribute::Metadata(FORMER.into()), former.into());
        }
        let token = next.token();
        attributes.insert(Attribute::Metadata(FENCE.into()), format!("{}:{write}", token.wire()).into());
        let salt = if self.tags == Tags::OfTheContent { self.salt } else { Salt::None };
        attributes.remove(&Attribute::Metadata(SALT.into()));
        if salt == Salt::Blank {
            attributes.insert(Attribute::Metadata(SALT.into()), "blank".into());
        }
        let mode = found.map_or(PutMode::Create, |found| PutMode::Update(found.version.clone()));
        (salt.add(body, write), PutOptions { mode, attributes, ..PutOptions::default() })
    }

    async fn look(&self, with_body: bool) -> Result<Option<StoredObject>> {
        let options = GetOptions { head: !with_body, ..GetOptions::default() };
        let once = || in_time(LOOK, &self.resource, Kind::Unavailable, self.store.get_opts(&self.key, options.clone()));
        let answer = match once().await? {
            // A pooled connection may have gone stale; asking again changes nothing.
            Err(object_store::Error::Generic { .. }) => once().await?,
            answer => answer,
        };
        let got = match answer {
            Ok(got) => got,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(failure(&e, &self.resource, Kind::Unavailable)),
        };
        let metadata = |name: &'static str| {
            got.attributes.get(&Attribute::Metadata(name.into())).map(|value| String::from(&**value))
        };
        let fence = metadata(FENCE).map(|text| self.fence_of(&text)).transpose()?;
        let former = Former::read(&self.resource, &metadata(FORMER).unwrap_or_default())?;
        let is_salted = metadata(SALT).is_some();
        let version = condition(got.meta.e_tag.clone(), got.meta.version.clone());
        if version.e_tag.is_none() && version.version.is_none() {
            let message = format!("the service gives no ETag: resource=`{}`", self.resource);
            return Err(Error::new(Kind::Unsupported, message));
        }
        let attributes = got.attributes.clone();
        let body = if with_body {
            if got.meta.size > MAX_BODY_BYTES as u64 {
                let message = format!(
                    "cannot seal an object of {} bytes: resource=`{}`: at most {} MiB",
                    got.meta.size,
                    self.resource,
                    MAX_BODY_BYTES >> 20
                );
                return Err(Error::new(Kind::Unsupported, message));
            }
            let bytes = in_time(PUT, &self.resource, Kind::Unavailable, got.bytes()).await?;
            let bytes = bytes.map_err(|e| failure(&e, &self.resource, Kind::Unavailable))?;
            Some(if is_salted { Salt::remove(bytes) } else { bytes })
        } else {
            None
        };
        let (high, write) = fence.map_or((None, None), |(high, write)| (Some(high), Some(write)));
        Ok(Some(StoredObject { version, high, former, write, attributes, body }))
    }

    fn fence_of(&self, text: &str) -> Result<(HighWater, Nonce)> {
        let read = || {
            let (token, write) = text.rsplit_once(':')?;
            let token: Token = token.parse().ok()?;
            Some((HighWater::of(&token, token.seq), write.parse().ok()?))
        };
        read().ok_or_else(|| {
            let message = format!("corrupt fence: resource=`{}`: its metadata `{FENCE}` cannot be read", self.resource);
            Error::new(Kind::Corrupt, message)
        })
    }

    fn seal_payload(&self, found: Option<&StoredObject>) -> Result<Payload> {
        let Some(found) = found else {
            let attributes = Attributes::from_iter([(Attribute::ContentType, SEALED)]);
            return Ok(Payload { body: Bytes::new(), attributes, former: None });
        };
        if self.tags == Tags::OfTheContent && self.salt == Salt::None {
            let message = format!(
                "cannot seal resource=`{}`: its ETag is that of the content, so sealing would not stop a stale writer; \
                 allow a salt (`?salt=blank`) if blanks at the end of the content do no harm",
                self.resource
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(Payload { body: found.body.clone().unwrap_or_default(), attributes: found.attributes.clone(), former: None })
    }
}

#[async_trait]
impl Guard for ObjectGuard {
    fn resource(&self) -> String {
        self.resource.clone()
    }

    fn strength(&self) -> Strength {
        match (self.tags, self.salt) {
            (Tags::OfTheContent, Salt::None) => Strength::CheckThenAct {
                window: "a stale put can land while the content is byte for byte what its writer last saw",
            },
            _ => Strength::Atomic,
        }
    }

    /// The same content again, under the new fence. An object that is not there yet is created empty: a stale writer that
    /// saw none would otherwise create it.
    async fn seal(&self, token: &Token) -> Result<HighWater> {
        let judge = |high: Option<&HighWater>| {
            guard::seal(high, token).map_err(|rejection| rejection.into_error(&self.resource))
        };
        self.swap(Intent::Seal, judge, |found| self.seal_payload(found)).await
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        Ok(self.look(false).await?.and_then(|found| found.high))
    }
}

#[async_trait]
impl Adopt for ObjectGuard {
    /// Only where sealing stops a stale writer: not with tags of the content and no salt.
    async fn adopt(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
        let judge = |high: Option<&HighWater>| succession::adopt(&self.resource, high, from, token);
        judge(Some(from))?;
        let note = plain(&succession::note(from, by, why));
        self.swap(Intent::Adopt, judge, |found| {
            let mut payload = self.seal_payload(found)?;
            let former = found.map(|found| found.former.clone()).unwrap_or_default();
            payload.former = Some(former.given(&self.resource, from, token, FORMER_CHARS)?);
            payload.attributes.insert(Attribute::Metadata(ADOPTED.into()), note.clone().into());
            Ok(payload)
        })
        .await
    }
}
