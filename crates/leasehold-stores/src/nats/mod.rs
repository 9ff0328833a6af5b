//! Records in a NATS JetStream key-value bucket, one bucket per namespace.
//!
//! Promise: a swap is one publish that the stream's leader accepts only while the record's last
//! message is the expected one. A read is answered by the leader, never by a copy that may lag (no
//! direct gets). A revision is the stream's sequence number, which no two messages share. The clock is
//! the leader's: a stream's description, which contains the time, is requested together with the read
//! or the write, so each is one exchange. Many calls within a few milliseconds share one such answer.
//!
//! Non-promise: NATS answers before it syncs to disk unless it has `sync_interval: always`, so a power failure may take
//! back answered writes: class B. A leader that was just cut off from the others may still answer a read with an older
//! record; the swap, which needs a majority, then decides.
//!
//! A record is one message.
//!
//! Erasing writes a marker and then drops it. A writer that finds a marker that was not dropped overwrites it. The
//! first write creates the bucket, and nothing is written to a bucket whose settings would let records vanish.
//!
//! URL: `nats://user:password@host:4222,other`; a token alone before the `@`; `tls://` or `nats+tls://`
//! to require TLS. Options: `creds` and `nkey` (files), `ca`, `cert`, `key` (files), `replicas` (of a
//! bucket that is created), `inbox` (a prefix, if the user may not subscribe to `_INBOX`). What the URL
//! leaves out is read from `NATS_URL`, `NATS_USER`, `NATS_PASSWORD`, `NATS_TOKEN`, `NATS_CREDS`,
//! `NATS_NKEY`, `NATS_CA`, `NATS_CERT`, `NATS_KEY` and `NATS_INBOX_PREFIX`.

mod clock;
mod config;
mod connection;
mod error;
mod names;
mod survey;
mod watch;
mod wire;

use crate::phase::Phase;
use crate::url::{Address, Namespace};
use async_nats::HeaderMap;
use async_trait::async_trait;
use clock::Next;
use config::Config;
use connection::{Connection, Connections};
use error::CallError;
use futures_util::future::try_join_all;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next as NextValue, Page, Range, Reach, Reading, Revision, Store, Survey,
    Swap, Versioned, Watch, Watching,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp};
use names::Names;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use wire::{Ack, Got, Info, NO_MESSAGE, NO_STREAM, Purged, ServerTime, Stored};

/// How many records are requested at once.
const CONCURRENT_READS: usize = 64;
/// How often a write that had no listener is sent, and the pause in between: a stream that was just created, or whose
/// leader just died, has no listener for a moment.
const WRITE_ATTEMPTS: usize = 20;
const WRITE_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How often a first write may find that another writer has replaced the marker in its place.
const MARKER_RETRIES: usize = 4;
/// The most answers that one listing reads.
const MAX_ANSWERS: usize = 1_000;
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

/// A store in a NATS bucket. Clones share one connection.
#[derive(Clone)]
pub struct NatsStore {
    connections: Arc<Connections>,
    names: Arc<Names>,
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsStore({} {})", self.connections.config.endpoint, self.names.bucket)
    }
}

/// Opens the store: connects, and creates nothing.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<NatsStore> {
    let config = Config::new(address, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    crate::tls::install();
    let store = NatsStore { connections: Arc::new(Connections::new(config)), names: Arc::new(Names::new(namespace)) };
    store.connections.connection().await?;
    Ok(store)
}

/// Refuses an address that the store could not use.
pub fn check(address: &Address) -> Result<()> {
    config::check(address)
}

/// The result of a write.
enum Published {
    Stored(u64, Timestamp),
    Mismatch,
    /// There is no bucket.
    NoBucket,
}

impl NatsStore {
    async fn connection(&self) -> Result<Arc<Connection>, CallError> {
        self.connections.connection().await.map_err(CallError::Unasked)
    }

    /// The stream, if there is one; an error if its settings do not fit leases.
    async fn info(&self, connection: &Connection, payload: Vec<u8>) -> Result<Option<Info>, CallError> {
        let info: Info = match connection.api(&format!("STREAM.INFO.{}", self.names.stream), payload).await {
            Ok(info) => info,
            Err(error) if error.is(NO_STREAM) => {
                connection.is_bucket_fit.store(false, Ordering::Relaxed);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let unfit = info.config.unfit();
        connection.is_bucket_fit.store(unfit.is_none(), Ordering::Relaxed);
        match unfit {
            None => Ok(Some(info)),
            Some(why) => {
                let Names { bucket, .. } = &*self.names;
                let message = format!(
                    "the bucket `{bucket}` at {} cannot carry leases: {why}; change it with `nats stream edit {}`, or \
                     use another namespace",
                    self.connections.config.endpoint, self.names.stream
                );
                Err(CallError::Unasked(Error::new(Kind::Unsupported, message)))
            }
        }
    }

    fn time(&self, info: &Info) -> Result<Timestamp, CallError> {
        info.now().ok_or_else(|| {
            let message =
                format!("{} does not tell its time; nats-server 2.10 or newer does", self.connections.config.endpoint);
            CallError::Unasked(Error::new(Kind::Unsupported, message))
        })
    }

    /// The time by the leader's clock; none if there is no bucket.
    async fn now(&self, connection: &Connection) -> Result<Option<Timestamp>, CallError> {
        let teller = match connection.pulse.next() {
            Next::Ask(teller) => Some(teller),
            Next::Wait(told) => match clock::answer(told).await {
                Some(now) => return Ok(Some(now)),
                None => None,
            },
        };
        let Some(info) = self.info(connection, Vec::new()).await? else { return Ok(None) };
        let now = self.time(&info)?;
        if let Some(teller) = teller {
            let _ = teller.send(Some(now));
        }
        Ok(Some(now))
    }

    /// The time where there is no stream yet, by the clock of the server that we are connected to.
    async fn time_without_bucket(&self, connection: &Connection) -> Result<Timestamp, CallError> {
        let message = match connection.ask("$SYS.REQ.USER.INFO", None, Vec::new()).await {
            Ok(message) => message,
            Err(CallError::Denied(_) | CallError::Nobody | CallError::Off) => {
                let message = format!(
                    "{} tells no time while there is no bucket; allow `$SYS.REQ.USER.INFO`, or make it with `{}`",
                    self.connections.config.endpoint,
                    self.command()
                );
                return Err(CallError::Unasked(Error::new(Kind::Unsupported, message)));
            }
            Err(error) => return Err(error),
        };
        let told = serde_json::from_slice::<ServerTime>(&message.payload).ok().and_then(|who| who.now());
        told.ok_or_else(|| CallError::Garbled("no time in the answer".into()))
    }

    async fn last(&self, connection: &Connection, subject: &str) -> Result<Option<Stored>, CallError> {
        let payload = json(&json!({ "last_by_subj": subject }));
        match connection.api::<Got>(&format!("STREAM.MSG.GET.{}", self.names.stream), payload).await {
            Ok(got) => Ok(got.message),
            Err(error) if error.is(NO_MESSAGE) || error.is(NO_STREAM) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn look(&self, key: &Key) -> Result<Reading, CallError> {
        let connection = self.connection().await?;
        let subject = self.names.subject(key);
        let (stored, now) = tokio::join!(self.last(&connection, &subject), self.now(&connection));
        let Some(now) = now? else {
            return Ok(Reading { value: None, now: self.time_without_bucket(&connection).await? });
        };
        Ok(Reading { value: value(stored?)?, now })
    }

    /// Publishes, expecting this number of the subject's last message, and requests the time together with it.
    async fn publish_once(
        &self,
        connection: &Connection,
        subject: &str,
        expected: u64,
        next: NextValue<'_>,
    ) -> Result<Published, CallError> {
        for _ in 0..WRITE_ATTEMPTS {
            let mut headers = HeaderMap::new();
            headers.insert(EXPECTED, expected.to_string());
            if let NextValue::Erase = next {
                headers.insert(wire::OPERATION, "DEL");
            }
            let payload = next.value().unwrap_or_default().to_vec();
            let (told, now) = tokio::join!(connection.ask(subject, Some(headers), payload), self.now(connection));
            match told.and_then(|message| connection::read::<Ack>(&message)) {
                Ok(ack) => {
                    if let Ok(Some(now)) = now {
                        return Ok(Published::Stored(ack.seq, now));
                    }
                    // The write was stored, but without a time its outcome can only be reported as unknown.
                    let now = self.now(connection).await.ok().flatten().ok_or(CallError::Broken)?;
                    return Ok(Published::Stored(ack.seq, now));
                }
                Err(CallError::Refused(api_error)) if wire::WRONG_SEQUENCE.contains(&api_error.err_code) => {
                    return Ok(Published::Mismatch);
                }
                // Nobody received it, so it may be sent again.
                Err(error @ (CallError::Nobody | CallError::Off)) => match self.info(connection, Vec::new()).await {
                    Ok(None) => return Ok(Published::NoBucket),
                    Ok(Some(_)) => tokio::time::sleep(WRITE_RETRY_PAUSE).await,
                    Err(_) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
        Err(CallError::Nobody)
    }

    /// The command that creates the bucket.
    fn command(&self) -> String {
        let (bucket, replicas) = (&self.names.bucket, self.connections.config.replicas);
        format!("nats kv add {bucket} --history=1 --storage=file --replicas={replicas}")
    }

    /// Creates the bucket if it is missing, and checks that its settings fit leases. Writes no record.
    async fn prepare(&self, connection: &Connection) -> Result<()> {
        let told = |error| self.told(error, Phase::Reading);
        if self.info(connection, Vec::new()).await.map_err(told)?.is_some() {
            return Ok(());
        }
        let Names { bucket, stream } = &*self.names;
        let replicas = self.connections.config.replicas;
        let config = wire::new_bucket(stream, &self.names.all(), replicas);
        match connection.api::<Info>(&format!("STREAM.CREATE.{stream}"), json(&config)).await {
            Ok(_) => {}
            // Another process just created it, with other settings.
            Err(error) if error.is(wire::OTHER_SETTINGS) => {}
            Err(error @ (CallError::Denied(_) | CallError::Refused(_))) => {
                let (command, why) = (self.command(), self.told(error, Phase::Reading));
                let message = format!("the bucket `{bucket}` cannot be made; make it with `{command}`: {why}");
                return Err(Error::new(why.kind(), message));
            }
            Err(error) => return Err(told(error)),
        }
        match self.info(connection, Vec::new()).await.map_err(told)? {
            Some(_) => Ok(()),
            None => {
                let message =
                    format!("the bucket `{bucket}` at {} vanished as it was made", self.connections.config.endpoint);
                Err(Error::new(Kind::Unavailable, message))
            }
        }
    }

    /// Writes if the record's last message is the expected one; zero stands for no record.
    async fn publish(&self, key: &Key, expected: u64, next: NextValue<'_>) -> Result<Published> {
        let connection = self.connections.connection().await?;
        if !connection.is_bucket_fit.load(Ordering::Relaxed) {
            if expected > 0
                && self.info(&connection, Vec::new()).await.map_err(|e| self.told(e, Phase::Reading))?.is_none()
            {
                return Ok(Published::Mismatch);
            }
            self.prepare(&connection).await?;
        }
        let subject = self.names.subject(key);
        let mut last = expected;
        for _ in 0..MARKER_RETRIES {
            let told = |error| self.told(error, Phase::Writing);
            match self.publish_once(&connection, &subject, last, next).await.map_err(told)? {
                Published::NoBucket if expected > 0 => return Ok(Published::Mismatch),
                // The bucket existed a moment ago.
                Published::NoBucket => self.prepare(&connection).await?,
                Published::Mismatch if expected == 0 => {
                    // Certainly not written, so it may be sent again in place of a marker.
                    match self.last(&connection, &subject).await.map_err(|error| self.told(error, Phase::Reading))? {
                        Some(stored) if stored.is_erasure() => last = stored.seq,
                        None => last = 0,
                        Some(_) => return Ok(Published::Mismatch),
                    }
                }
                done => return Ok(done),
            }
        }
        Ok(Published::Mismatch)
    }

    /// Every name of a shelf, with its subject, and the time.
    async fn everything(
        &self,
        connection: &Connection,
        shelf: Shelf,
    ) -> Result<(BTreeMap<LeaseName, String>, Timestamp), CallError> {
        let filter = self.names.shelf(shelf);
        let mut all = BTreeMap::new();
        let mut offset = 0;
        for _ in 0..MAX_ANSWERS {
            let payload = json(&json!({ "subjects_filter": filter, "offset": offset }));
            let Some(info) = self.info(connection, payload).await? else {
                return Ok((BTreeMap::new(), self.time_without_bucket(connection).await?));
            };
            let now = self.time(&info)?;
            offset += info.state.subjects.len() as u64;
            let is_last = info.state.subjects.is_empty() || offset >= info.total;
            let named =
                info.state.subjects.into_keys().filter_map(|subject| Some((self.names.name_of(&subject)?, subject)));
            all.extend(named);
            if is_last {
                return Ok((all, now));
            }
        }
        Err(CallError::Garbled("more subjects than can be listed".into()))
    }

    async fn page(&self, shelf: Shelf, range: Range<'_>) -> Result<Page, CallError> {
        let Range { after, until, skip, limit } = range;
        let connection = self.connection().await?;
        let (all, now) = self.everything(&connection, shelf).await?;
        let all = all.into_iter().skip_while(|(name, _)| after.is_some_and(|after| name <= after));
        let all = all.take_while(|(name, _)| until.is_none_or(|until| name < until));
        let mut wanted = all.skip(skip).peekable();
        let mut entries = Vec::new();
        while entries.len() < limit && wanted.peek().is_some() {
            let some: Vec<_> = wanted.by_ref().take((limit - entries.len()).min(CONCURRENT_READS)).collect();
            let connection = &connection;
            let found = some.into_iter().map(|(name, subject)| async move {
                Ok(value(self.last(connection, &subject).await?)?.map(|value| (name, value)))
            });
            entries.extend(try_join_all(found).await?.into_iter().flatten());
        }
        Ok(Page { entries, more: wanted.peek().is_some(), now })
    }

    /// The error for the caller.
    fn told(&self, error: CallError, phase: Phase) -> Error {
        error.into_error(&self.connections.config.endpoint, &self.names.bucket, phase)
    }
}

/// A subject's last message as a record; none if it marks an erased one.
fn value(stored: Option<Stored>) -> Result<Option<Versioned>, CallError> {
    let Some(stored) = stored.filter(|stored| !stored.is_erasure()) else { return Ok(None) };
    let bytes = stored.bytes().ok_or_else(|| CallError::Garbled("a record that is not base64".into()))?;
    Ok(Some(Versioned { bytes, revision: Revision(stored.seq.to_string()) }))
}

fn json(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

#[async_trait]
impl Store for NatsStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "nats",
            class: Class::B,
            clock: ClockSource::Store { grain: clock::GRAIN },
            reach: Reach::Network,
            watch: Watching::Hints,
            writes_along: false,
            by_verbs: false,
            durability: "in the stream of every answering replica, synced to disk every 2 minutes unless set otherwise",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        match self.look(key).await {
            // The server may have closed the connection long ago. A read may be repeated.
            Err(CallError::Broken) => self.look(key).await,
            other => other,
        }
        .map_err(|error| self.told(error, Phase::Reading))
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let last = match change.expected.map(Revision::number::<NonZeroU64>) {
            None => 0,
            Some(None) => return Ok(Swap::Mismatch),
            Some(Some(seq)) => seq.get(),
        };
        let Published::Stored(seq, now) = self.publish(change.key, last, change.next).await? else {
            return Ok(Swap::Mismatch);
        };
        if let NextValue::Put(_) = change.next {
            return Ok(Swap::Done { revision: Revision(seq.to_string()), now });
        }
        // The record is gone. The marker does no harm, and the next writer
        // replaces it. Messages after the marker have higher numbers and stay.
        if let Ok(connection) = self.connections.connection().await {
            let payload = json(&json!({ "filter": self.names.subject(change.key), "seq": seq + 1 }));
            let _ = connection.api::<Purged>(&format!("STREAM.PURGE.{}", self.names.stream), payload).await;
        }
        // Not a number: the key has no value any more, so no swap may expect this.
        Ok(Swap::Done { revision: Revision(format!("erased-{seq}")), now })
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        match self.page(shelf, range).await {
            Err(CallError::Broken) => self.page(shelf, range).await,
            other => other,
        }
        .map_err(|error| self.told(error, Phase::Reading))
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        watch::watch(self, key).await
    }

    async fn survey(&self) -> Result<Survey> {
        let told = |error| self.told(error, Phase::Reading);
        let connection = self.connections.connection().await?;
        let info = self.info(&connection, Vec::new()).await.map_err(told)?;
        let survey = Survey::plain(Class::B).fine("nats-server", connection.server().version);
        let survey = survey.advise(
            "sync_interval",
            "cannot be seen from here; 2 minutes unless set",
            "set `jetstream { sync_interval: always }` on every server, or a power cut may take back what was answered",
        );
        Ok(match info {
            None => survey.fine("bucket", format!("`{}` is not made yet; the first write makes it", self.names.bucket)),
            Some(info) => survey::findings(survey, &self.names.bucket, &info),
        })
    }
}
