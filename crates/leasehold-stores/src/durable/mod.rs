//! Records in a Cloudflare Durable Object, one per namespace, behind the Worker in `workers/durable-object/`.
//!
//! Promise: the object is single-threaded and its answers wait until their writes are stored, so a swap is atomic and
//! an answered one is durable; time is the object's own clock. Non-promise: setting the object's storage back to an
//! earlier time (point-in-time recovery) sets epochs back, too. Revisions are random, so none is used twice.
//!
//! `do+https://host/path`; `do+http` only to a loopback address, for trying it out. The token is the password in the
//! URL, or `LEASEHOLD_DO_TOKEN`, or in the file that `LEASEHOLD_DO_TOKEN_FILE` names.

use crate::http::client::{CA, Untimed, client, quoted, untimed};
use crate::phase::Phase;
use crate::url::{Address, Namespace, Secret, is_loopback};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf, Timestamp, secret};
use reqwest::{Client, RequestBuilder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

const TOKEN: &str = "LEASEHOLD_DO_TOKEN";
/// The version of the protocol that this client speaks.
const PROTOCOL: u64 = 1;
/// The worker sends a sign of life every 15 s. A watch that is silent for longer than this is dead.
const SILENCE: Duration = Duration::from_secs(40);
/// The pause between two attempts to watch.
const PAUSE: Duration = Duration::from_secs(1);

/// A store in a Durable Object. Clones share their connections.
#[derive(Clone)]
pub struct DurableStore {
    client: Client,
    token: Secret,
    /// The URL up to the operation's name.
    base: String,
    endpoint: String,
}

impl fmt::Debug for DurableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DurableStore({})", self.base)
    }
}

/// Refuses an address that cannot be a worker's.
pub fn check(address: &Address) -> Result<()> {
    address.allow_options(&[CA])?;
    let [host] = address.hosts.as_slice() else {
        return Err(address.invalid("name one host, as in do+https://leasehold.example.workers.dev"));
    };
    if address.user.is_some() {
        return Err(address.invalid("there is no user; the token is the password: do+https://:TOKEN@host"));
    }
    if address.scheme == "do+http" && !is_loopback(&host.name) {
        return Err(address.invalid("the token would be sent in the clear; use do+https"));
    }
    Ok(())
}

/// Creates a client; nothing is sent.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<DurableStore> {
    check(address)?;
    let token = match address.password.clone() {
        Some(token) => Some(token),
        None => secret::variable(TOKEN)?.map(|token| Secret::new(token.trim())),
    };
    DurableStore::new(address, namespace, token)
}

impl DurableStore {
    fn new(address: &Address, namespace: &Namespace, token: Option<Secret>) -> Result<Self> {
        let (scheme, port) = if address.scheme == "do+http" { ("http", 80) } else { ("https", 443) };
        let authority = address.hosts[0].authority(port);
        let token = token.filter(|token| !token.reveal().is_empty()).ok_or_else(|| {
            let message = format!("no token for {address}; set {TOKEN} to the worker's LEASEHOLD_TOKEN");
            Error::new(Kind::Unsupported, message)
        })?;
        let root = format!("{scheme}://{authority}/{}", address.path.trim_matches('/'));
        let base = format!("{}/v1/{namespace}", root.trim_end_matches('/'));
        Ok(DurableStore { client: client(address)?, token, base, endpoint: format!("the worker at {authority}") })
    }

    fn request(&self, operation: &str, question: &impl Serialize) -> RequestBuilder {
        let url = format!("{}/{operation}", self.base);
        self.client.post(url).bearer_auth(self.token.reveal()).json(question)
    }

    async fn ask<T: DeserializeOwned>(&self, operation: &str, question: &impl Serialize) -> Result<T> {
        let answer = untimed(self.request(operation, question), Phase::Reading, &self.endpoint).await?;
        self.understand(&answer, Phase::Reading)
    }

    async fn change(&self, operation: &str, question: &impl Serialize) -> Result<Swap> {
        let answer = untimed(self.request(operation, question), Phase::Writing, &self.endpoint).await?;
        let Written { now, revision } = self.understand(&answer, Phase::Writing)?;
        let now = Timestamp::from_millis(now);
        Ok(revision.map_or(Swap::Mismatch, |revision| Swap::Done { revision: Revision(revision), now }))
    }

    fn understand<T: DeserializeOwned>(&self, answer: &Untimed, phase: Phase) -> Result<T> {
        if answer.status != 200 {
            return Err(self.refused(answer, phase));
        }
        serde_json::from_slice(&answer.body).map_err(|e| {
            let message =
                format!("{} gave an answer that is none of a leasehold worker's; check the URL", self.endpoint);
            Error::new(phase.unanswered(), message).with_source(e)
        })
    }

    /// What a status other than 200 means. The worker changes nothing when the status is below 500.
    fn refused(&self, answer: &Untimed, phase: Phase) -> Error {
        let endpoint = &self.endpoint;
        let said = serde_json::from_slice::<Complaint>(&answer.body).map(|said| said.error).unwrap_or_default();
        let said = quoted(&said);
        let (kind, what) = match answer.status {
            401 | 403 => {
                (Kind::Unsupported, format!("{endpoint} refused the token; set {TOKEN} to its LEASEHOLD_TOKEN"))
            }
            300..=399 | 404 | 405 => {
                let deploy = "deploy workers/durable-object there, or fix the path of the URL";
                (Kind::Unsupported, format!("{endpoint} is no leasehold worker (status {}); {deploy}", answer.status))
            }
            501 => (Kind::Unsupported, format!("{endpoint} is not set up: {said}")),
            429 => (Kind::Unavailable, format!("{endpoint} is asked too often; try again later")),
            400..=499 => (Kind::Invalid, format!("{endpoint} refused the request with {}: {said}", answer.status)),
            status => (phase.unanswered(), format!("{endpoint} failed with {status}; try again")),
        };
        Error::new(kind, what)
    }

    fn value(&self, record: Record) -> Result<Versioned> {
        let bytes = BASE64.decode(record.bytes).map_err(|e| {
            Error::new(Kind::Corrupt, format!("{} gave a value that is not base64", self.endpoint)).with_source(e)
        })?;
        Ok(Versioned { bytes, revision: Revision(record.revision) })
    }

    /// Passes hints on until the stream ends.
    async fn listen(&self, question: &Watched, hints: &Sender<()>) -> reqwest::Result<()> {
        let mut stream = self.request("watch", question).send().await?.error_for_status()?;
        while let Ok(part) = tokio::time::timeout(SILENCE, stream.chunk()).await {
            let Some(part) = part? else { break };
            if part.contains(&b'h') {
                let _ = hints.try_send(());
            }
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Watched {
    shelf: &'static str,
    name: String,
}

impl Watched {
    fn of(key: &Key) -> Self {
        Watched { shelf: key.shelf.as_str(), name: key.name.as_str().to_owned() }
    }
}

#[derive(Serialize)]
struct Swapping<'a> {
    #[serde(flatten)]
    key: Watched,
    expected: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize)]
struct Listing<'a> {
    shelf: &'static str,
    after: Option<&'a str>,
    limit: usize,
}

#[derive(Deserialize)]
struct Read {
    now: u64,
    value: Option<Record>,
}

#[derive(Deserialize)]
struct Record {
    revision: String,
    bytes: String,
}

#[derive(Deserialize)]
struct Written {
    now: u64,
    revision: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    now: u64,
    entries: Vec<Entry>,
    more: bool,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    #[serde(flatten)]
    record: Record,
}

#[derive(Deserialize)]
struct Facts {
    protocol: u64,
    made: bool,
    bytes: u64,
}

#[derive(Deserialize)]
struct Complaint {
    error: String,
}

#[async_trait]
impl Store for DurableStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "durable",
            class: Class::A,
            clock: ClockSource::Store { grain: Duration::from_millis(1) },
            reach: Reach::Network,
            watch: Watching::Hints,
            writes_along: false,
            by_verbs: false,
            durability: "the object's storage has confirmed the write before the answer leaves",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let Read { now, value } = self.ask("read", &Watched::of(key)).await?;
        let value = value.map(|record| self.value(record)).transpose()?;
        Ok(Reading { value, now: Timestamp::from_millis(now) })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let (key, expected) = (Watched::of(change.key), change.expected.map(|revision| revision.0.as_str()));
        match change.next {
            Next::Put(value) => {
                self.change("swap", &Swapping { key, expected, next: Some(BASE64.encode(value)) }).await
            }
            Next::Erase => self.change("erase", &Swapping { key, expected, next: None }).await,
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        let listing = Listing { shelf: shelf.as_str(), after: range.after.map(LeaseName::as_str), limit: range.limit };
        let Listed { now, entries, more } = self.ask("list", &listing).await?;
        let entry = |entry: Entry| {
            let name = LeaseName::new(entry.name).map_err(|e| {
                Error::new(Kind::Corrupt, format!("{} has a record with an invalid name", self.endpoint)).with_source(e)
            })?;
            Ok((name, self.value(entry.record)?))
        };
        let entries = entries.into_iter().map(entry).collect::<Result<Vec<_>>>()?;
        Ok(Page { entries, more, now: Timestamp::from_millis(now) }.until(range.until))
    }

    /// A stream from the object, opened again when it ends.
    async fn watch(&self, key: &Key) -> Result<Watch> {
        let (sender, watch) = Watch::channel();
        let (store, question) = (self.clone(), Watched::of(key));
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    _ = store.listen(&question, &sender) => {}
                }
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        });
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        let facts: Facts = self.ask("survey", &serde_json::json!({})).await?;
        let mut survey = Survey::plain(Class::A);
        let protocol = facts.protocol.to_string();
        survey = if facts.protocol == PROTOCOL {
            survey.fine("worker protocol", protocol)
        } else {
            let advice = format!("this client speaks {PROTOCOL}; deploy the workers/durable-object of its release");
            survey.advise("worker protocol", protocol, advice)
        };
        let size = format!("{} bytes{}", facts.bytes, if facts.made { "" } else { ", nothing written yet" });
        Ok(survey.fine("object storage", size).fine("output gates", "on: they cannot be turned off in this worker"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        let (scheme, rest) = text.split_once(':').unwrap();
        Address::parse(scheme, rest).unwrap()
    }

    #[test]
    fn addresses_that_cannot_work_are_refused() {
        for (text, says) in [
            ("do+https://", "name one host"),
            ("do+https://a,b", "name one host"),
            ("do+https://me:t@a", "there is no user"),
            ("do+http://example.org", "in the clear"),
            ("do+https://a?x=1", "`x` is not known"),
        ] {
            let error = check(&address(text)).unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(says), "{text} gave {error}");
        }
        for text in ["do+https://a", "do+https://:t@a/b/c?ca=/x", "do+http://localhost:8787", "do+http://[::1]:1"] {
            check(&address(text)).unwrap();
        }
    }

    #[test]
    fn the_url_leads_to_the_namespace_and_hides_the_token() {
        let address = address("do+https://:hunter2@a.example/x/y/");
        let store = DurableStore::new(&address, &Namespace::default(), address.password.clone()).unwrap();
        assert_eq!(store.base, "https://a.example:443/x/y/v1/default");
        assert!(!format!("{store:?} {address}").contains("hunter2"));
        let error = DurableStore::new(&address, &Namespace::default(), None).unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains(TOKEN), "{error}");
    }
}
