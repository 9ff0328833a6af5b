//! Records as objects in a bucket of S3, Google Cloud Storage, Azure, or a compatible server.
//!
//! Promise: one conditional put per swap (`If-None-Match: *`, `If-Match`, a generation), decided by the service; its
//! `Date` header is the clock. A server that does not enforce the condition, in single requests or in a race, is
//! refused before the first record is written. Non-promise: no hints, so waiters poll; nothing is ever deleted, so a
//! rule that expires objects below the prefix destroys leases; an erased record leaves a tombstone of 20 bytes, because
//! not every service has a conditional delete.
//!
//! Every write has a random tag before its value: equal bodies have equal ETags, and no revision may be used twice. 409
//! is not 412: it means that the service has not decided, so the write is retried and then reported as contended. The
//! driver's own retries are off: a write that is repeated after it was applied looks refused.

mod azure;
mod config;
mod connection;
mod error;
mod files;
mod layout;
mod proof;
#[cfg(test)]
mod rotation_tests;

pub use files::Files;

use crate::credentials::{self, Env, Issue};
use crate::phase::Phase;
use crate::url::{Address, Namespace};
use async_trait::async_trait;
use config::{Bucket, Service};
use connection::{Exchange, Watcher, in_time};
use error::failed;
use futures_util::{StreamExt, TryStreamExt, stream};
use layout::Content;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetOptions, PutMode, PutOptions};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// The pauses before retrying a write that the service could not decide.
const CONFLICTS: [Duration; 3] = [Duration::from_millis(20), Duration::from_millis(60), Duration::from_millis(150)];
/// How many values of a listing are fetched at once.
const FETCHES: usize = 16;
/// The most keys that a service lists at once.
const MAX_KEYS: usize = 1_000;
/// The most pages of a listing, in case a server's pages never end.
const MAX_PAGES: usize = 10_000;

/// A store in a bucket. Clones share its connections.
#[derive(Clone)]
pub struct BucketStore {
    namespace: Arc<BucketNamespace>,
}

/// One namespace of a bucket.
#[derive(Debug)]
struct BucketNamespace {
    bucket: Bucket,
    /// The folder of this namespace.
    folder: Path,
    /// Set once the server is known to enforce conditions.
    proven: OnceCell<()>,
}

/// An object that was read.
#[derive(Debug)]
struct Stored {
    content: Content,
    revision: Revision,
}

impl Stored {
    /// The record; none if it was erased.
    fn versioned(self) -> Option<Versioned> {
        Some(Versioned { bytes: self.content.value?, revision: self.revision })
    }
}

/// The result of a conditional put.
#[derive(Debug)]
enum Put {
    Done { revision: Revision, now: Timestamp },
    Refused,
}

impl fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketStore({})", self.namespace.bucket.display_name)
    }
}

/// Refuses an address that could not be used, before anything is opened.
pub fn check(address: &Address) -> Result<()> {
    config::check(address)
}

/// Finds the credentials. Nothing is sent before the first call, and nothing is created before the first write.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<BucketStore> {
    BucketStore::new(address, namespace, &credentials::env())
}

impl BucketStore {
    fn new(address: &Address, namespace: &Namespace, env: &Env) -> Result<Self> {
        config::bucket(address, env).map(|bucket| BucketStore::within(bucket, namespace))
    }

    fn within(bucket: Bucket, namespace: &Namespace) -> Self {
        let folder = bucket.prefix.clone().join(namespace.as_str());
        BucketStore { namespace: Arc::new(BucketNamespace { bucket, folder, proven: OnceCell::new() }) }
    }
}

/// A client for the bucket at this address, for uses other than a store. Credentials and endpoint are found in the same
/// way, and no request is repeated. The caller reads the address's path.
pub fn client(address: &Address) -> Result<Arc<dyn object_store::ObjectStore>> {
    Ok(config::bucket(address, &credentials::env())?.cloud)
}

impl BucketNamespace {
    fn shelf(&self, shelf: Shelf) -> Path {
        self.folder.clone().join(shelf.as_str())
    }

    fn path(&self, key: &Key) -> Path {
        self.shelf(key.shelf).join(layout::encode(&key.name))
    }

    fn failed(&self, driver: Option<object_store::Error>, seen: &Exchange, phase: Phase) -> Error {
        failed(driver, seen, phase, &self.bucket.display_name, &self.bucket.advice)
    }

    /// Identifies the credentials that the next request is sent with.
    fn issue(&self) -> Option<Issue> {
        self.bucket.credentials.as_ref().map(|credentials| credentials.issue())
    }

    /// Whether the credentials were refused and have changed. Then the request may be sent once more.
    async fn is_replaced(&self, issue: Option<Issue>, seen: &Exchange) -> bool {
        match (&self.bucket.credentials, issue) {
            (Some(credentials), Some(issue)) if seen.is_refused() => credentials.replaced(issue).await,
            _ => false,
        }
    }

    /// Reads an object; none if it does not exist.
    async fn get(&self, path: &Path) -> Result<(Option<Stored>, Timestamp)> {
        let watcher = Watcher::default();
        let once = || async {
            let options = GetOptions { extensions: watcher.extensions(), ..GetOptions::default() };
            let found = self.bucket.cloud.get_opts(path, options).await?;
            let (e_tag, version) = (found.meta.e_tag.clone(), found.meta.version.clone());
            Ok((e_tag, version, found.bytes().await?))
        };
        let issue = self.issue();
        let answer = in_time(async {
            match once().await {
                // A pooled connection may have been closed; a read may be repeated.
                Err(_) if watcher.seen().is_broken_off() => once().await,
                Err(_) if self.is_replaced(issue, &watcher.seen()).await => once().await,
                answer => answer,
            }
        });
        let answer = answer.await;
        let seen = watcher.seen();
        let stored = match answer {
            Some(Ok((e_tag, version, bytes))) => {
                let content = layout::content(&bytes, path)?;
                let compared = self.bucket.service.compared();
                let revision = layout::revision(content.tag, compared, e_tag.as_deref(), version.as_deref())
                    .ok_or_else(|| self.failed(None, &seen, Phase::Reading))?;
                Some(Stored { content, revision })
            }
            _ if is_absent(&seen) => None,
            answer => return Err(self.failed(answer.and_then(Result::err), &seen, Phase::Reading)),
        };
        Ok((stored, seen.now(Phase::Reading, &self.bucket.display_name)?))
    }

    /// Writes a value or a tombstone, if the object still has this revision (none: if it does not exist).
    async fn put(&self, path: &Path, expected: Option<&Revision>, tag: Nonce, value: Option<&[u8]>) -> Result<Put> {
        let compared = self.bucket.service.compared();
        let mode = match expected {
            None => PutMode::Create,
            Some(revision) => match layout::expected(revision, compared) {
                Some(version) => PutMode::Update(version),
                None => return Ok(Put::Refused),
            },
        };
        let body = bytes::Bytes::from(layout::body(tag, value));
        let mut pauses = CONFLICTS.iter();
        let mut is_repeated = false;
        loop {
            let (watcher, issue) = (Watcher::default(), self.issue());
            let options = PutOptions {
                mode: mode.clone(),
                attributes: attributes(),
                extensions: watcher.extensions(),
                ..PutOptions::default()
            };
            let answer = in_time(self.bucket.cloud.put_opts(path, body.clone().into(), options)).await;
            let seen = watcher.seen();
            match (answer, seen.status) {
                (Some(Ok(put)), _) => {
                    let now = seen.now(Phase::Writing, &self.bucket.display_name)?;
                    let revision = layout::revision(tag, compared, put.e_tag.as_deref(), put.version.as_deref());
                    let revision = revision.ok_or_else(|| self.failed(None, &seen, Phase::Writing))?;
                    return Ok(Put::Done { revision, now });
                }
                // Some servers answer a refused `If-None-Match` with 304.
                (_, Some(412 | 304)) => return Ok(Put::Refused),
                // Azure's code for the same. Any other 409 means that nothing was decided.
                (_, Some(409)) if seen.code == "BlobAlreadyExists" => return Ok(Put::Refused),
                // The object does not exist, so it does not have the expected revision.
                _ if expected.is_some() && is_absent(&seen) => return Ok(Put::Refused),
                (answer, status) => {
                    if let (Some(409), Some(pause)) = (status, pauses.next()) {
                        tokio::time::sleep(*pause).await;
                        continue;
                    }
                    if !is_repeated && self.is_replaced(issue, &seen).await {
                        is_repeated = true;
                        continue;
                    }
                    return Err(self.failed(answer.and_then(Result::err), &seen, Phase::Writing));
                }
            }
        }
    }

    /// The first write of a key, which may have a tombstone.
    async fn create(&self, path: &Path, next: &[u8]) -> Result<Swap> {
        let put = self.put(path, None, Nonce::random(), Some(next)).await?;
        if let Put::Done { revision, now } = put {
            return Ok(Swap::Done { revision, now });
        }
        match self.get(path).await?.0 {
            // Erased means absent: the write then expects this tombstone.
            Some(Stored { content: Content { value: None, .. }, revision }) => {
                Ok(self.put(path, Some(&revision), Nonce::random(), Some(next)).await?.into())
            }
            _ => Ok(Swap::Mismatch),
        }
    }

    /// The names on one page of a shelf, without the erased ones, and how to continue.
    async fn names(&self, shelf: Shelf, asked: &PageRequest<'_>) -> Result<Names> {
        let prefix = format!("{}/", self.shelf(shelf));
        let watcher = Watcher::default();
        let once = || {
            let options = PaginatedListOptions {
                offset: asked.after.map(|after| format!("{prefix}{}", layout::encode(after))),
                // Keys in deeper folders are not ours.
                delimiter: Some("/".into()),
                max_keys: Some(asked.count.clamp(1, MAX_KEYS)),
                page_token: asked.token.clone(),
                extensions: watcher.extensions(),
            };
            self.bucket.cloud.list_paginated(Some(&prefix), options)
        };
        let issue = self.issue();
        let answer = in_time(async {
            match once().await {
                Err(_) if self.is_replaced(issue, &watcher.seen()).await => once().await,
                answer => answer,
            }
        });
        let answer = answer.await;
        let seen = watcher.seen();
        let page = match answer {
            Some(Ok(page)) => page,
            Some(Err(error)) => return Err(self.failed(Some(error), &seen, Phase::Reading)),
            None => return Err(self.failed(None, &seen, Phase::Reading)),
        };
        let mut names: Vec<LeaseName> = Vec::new();
        for object in page.result.objects {
            let Some(name) = object.location.as_ref().strip_prefix(&prefix).and_then(layout::decode) else { continue };
            // An emulator may ignore the offset.
            if layout::is_tombstone(object.size) || asked.after.is_some_and(|after| name <= *after) {
                continue;
            }
            if names.last().or(asked.last).is_some_and(|last| name <= *last) {
                let message = format!(
                    "{} does not list in the order of names; use another kind of bucket",
                    self.bucket.display_name
                );
                return Err(Error::new(Kind::Unsupported, message));
            }
            names.push(name);
        }
        let now = seen.now(Phase::Reading, &self.bucket.display_name)?;
        Ok(Names { names, token: page.page_token.filter(|token| !token.is_empty()), now })
    }

    async fn list(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let mut entries: Vec<(LeaseName, Versioned)> = Vec::new();
        let mut last: Option<LeaseName> = None;
        let mut token = None;
        for turn in 0..MAX_PAGES {
            // One more, because an offset may be listed itself. If the first page was
            // not enough, as many as possible: then most names are of erased records.
            let count = if turn == 0 { limit.saturating_add(1) } else { MAX_KEYS };
            let asked = PageRequest { after, last: last.as_ref(), token: token.take(), count };
            let mut page = self.names(shelf, &asked).await?;
            last = page.names.last().cloned().or(last);
            let mut names = page.names.drain(..);
            // Some may have been erased since they were listed. Then the next ones follow.
            while entries.len() < limit {
                let batch: Vec<LeaseName> = names.by_ref().take(limit - entries.len()).collect();
                if batch.is_empty() {
                    break;
                }
                let values = stream::iter(batch.into_iter().map(|name| self.value(shelf, name)));
                let values: Vec<_> = values.buffered(FETCHES).try_collect().await?;
                entries.extend(values.into_iter().flatten());
            }
            let more = names.len() > 0 || page.token.is_some();
            if entries.len() >= limit || !more {
                return Ok(Page { entries, more, now: page.now });
            }
            drop(names);
            token = page.token;
        }
        Err(Error::new(Kind::Unsupported, format!("a listing of {} does not end", self.bucket.display_name)))
    }

    /// A value of a listing; none if it was erased since.
    async fn value(&self, shelf: Shelf, name: LeaseName) -> Result<Option<(LeaseName, Versioned)>> {
        let stored = match self.get(&self.path(&Key::new(shelf, &name))).await {
            Ok((stored, _)) => stored,
            // A damaged object must not hide the others. Empty bytes decode to
            // no record, and no swap expects this revision.
            Err(e) if e.kind() == Kind::Corrupt => {
                return Ok(Some((name, Versioned { bytes: Vec::new(), revision: Revision("damaged".into()) })));
            }
            Err(e) => return Err(e),
        };
        Ok(stored.and_then(|stored| Some((name, stored.versioned()?))))
    }
}

/// The request for one page.
struct PageRequest<'a> {
    after: Option<&'a LeaseName>,
    /// The last name of the previous page, to check the order.
    last: Option<&'a LeaseName>,
    token: Option<String>,
    count: usize,
}

/// One page of names.
struct Names {
    names: Vec<LeaseName>,
    token: Option<String>,
    now: Timestamp,
}

/// Whether the service said that there is no such object. Any other 404 comes
/// from a server that is not an object store.
fn is_absent(seen: &Exchange) -> bool {
    seen.status == Some(404) && matches!(seen.code.as_str(), "NoSuchKey" | "BlobNotFound")
}

/// Some services cache public objects without this attribute.
fn attributes() -> Attributes {
    Attributes::from_iter([(Attribute::CacheControl, "no-store"), (Attribute::ContentType, "application/octet-stream")])
}

impl From<Put> for Swap {
    fn from(put: Put) -> Self {
        match put {
            Put::Done { revision, now } => Swap::Done { revision, now },
            Put::Refused => Swap::Mismatch,
        }
    }
}

#[async_trait]
impl Store for BucketStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.namespace.bucket.service.name(),
            class: Class::A,
            clock: ClockSource::Store { grain: Duration::from_secs(1) },
            reach: Reach::Network,
            watch: Watching::None,
            writes_along: false,
            by_verbs: false,
            durability: "the service has stored the object, as redundantly as the bucket is set up",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let (stored, now) = self.namespace.get(&self.namespace.path(key)).await?;
        let value = stored.and_then(Stored::versioned);
        Ok(Reading { value, now })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        self.namespace.prove().await?;
        let (path, tag) = (self.namespace.path(change.key), Nonce::random());
        match (change.next, change.expected) {
            (Next::Put(value), None) => self.namespace.create(&path, value).await,
            (Next::Put(value), expected) => Ok(self.namespace.put(&path, expected, tag, Some(value)).await?.into()),
            (Next::Erase, expected) => Ok(match self.namespace.put(&path, expected, tag, None).await? {
                Put::Done { now, .. } => Swap::Done { revision: layout::erased(tag), now },
                Put::Refused => Swap::Mismatch,
            }),
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        Ok(self.namespace.list(shelf, range.after, range.limit).await?.until(range.until))
    }

    async fn watch(&self, _key: &Key) -> Result<Watch> {
        Ok(Watch::silent())
    }

    async fn survey(&self) -> Result<Survey> {
        let namespace = &self.namespace;
        let survey = match namespace.get(&namespace.marker()).await?.0 {
            Some(_) => Survey::plain(Class::A).fine("conditional writes", "proven, one by one and in races"),
            None => Survey::plain(Class::B).advise(
                "conditional writes",
                "not proven yet",
                "they are proven by the first write of this namespace; until then nothing is claimed",
            ),
        };
        let bucket = &namespace.bucket.name;
        let look = match namespace.bucket.service {
            Service::S3 => format!("aws s3api get-bucket-lifecycle-configuration --bucket {bucket}"),
            Service::Google => format!("gcloud storage buckets describe gs://{bucket} --format='default(lifecycle)'"),
            Service::Azure => "az storage account management-policy show".to_owned(),
        };
        Ok(survey.fine("server", &namespace.bucket.display_name).advise(
            "lifecycle rules",
            "cannot be read from here",
            format!("see that none expires or archives objects below `{}/`: {look}", namespace.folder),
        ))
    }
}
