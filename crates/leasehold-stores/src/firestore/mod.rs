//! Records in a Firestore database, below one collection, over its REST interface.
//!
//! Promise: a swap is one commit whose precondition is the document's update time, a read is
//! strongly consistent, and time is the database's own, as it stamps reads and commits.
//! Non-promise: there are no hints; a database that was restored from a backup has old epochs.
//!
//! `firestore://project/collection`, or `firestore://project/database/collection`.
//! Records are the documents `collection/NAMESPACE/SHELF/n:NAME`, with the name's `/`
//! written as `:`. The prefix avoids ids that Firestore reserves (`.`, `..`, `__x__`). A
//! commit that changes nothing keeps the update time, so each commit has a random `tag`.

mod connection;
mod error;

use crate::credentials::{self, Env, google, var};
use crate::http::client::{CA, client};
use crate::phase::Phase;
use crate::url::{Address, Namespace};
use crate::utc::millis_of;
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use connection::{Service, Tokens};
use error::CallError;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Next, Page, Range, Reach, Reading, Revision, Store, Survey, Swap,
    Versioned, Watch, Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp};
use object_store::client::HttpClient;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The database if none is given.
const DEFAULT_DATABASE: &str = "(default)";
const PUBLIC: &str = "https://firestore.googleapis.com";
/// The most documents that one query returns.
const MAX_PAGE: usize = 300;

/// A store in a Firestore database. Clones share their connections.
#[derive(Clone)]
pub struct FirestoreStore {
    service: Arc<Service>,
    /// The parent document of this namespace's shelves.
    parent: String,
}

impl fmt::Debug for FirestoreStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FirestoreStore({} at {})", self.parent, self.service)
    }
}

/// The parts of an address.
struct CollectionPath<'a> {
    project: &'a str,
    database: &'a str,
    collection: &'a str,
}

/// Refuses an address that cannot be a collection's.
pub fn check(address: &Address) -> Result<()> {
    parts(address).map(drop)
}

fn parts(address: &Address) -> Result<CollectionPath<'_>> {
    const FORM: &str = "use firestore://project/collection or firestore://project/database/collection";
    address.allow_options(&["credentials", "emulator", "endpoint", CA])?;
    let [host] = address.hosts.as_slice() else { return Err(address.invalid(FORM)) };
    if address.user.is_some() || address.password.is_some() || host.port.is_some() {
        return Err(address.invalid(format!("credentials come from GOOGLE_APPLICATION_CREDENTIALS; {FORM}")));
    }
    let (database, collection) = match address.path.split('/').collect::<Vec<_>>()[..] {
        [collection] => (DEFAULT_DATABASE, collection),
        [database, collection] => (database, collection),
        _ => return Err(address.invalid(FORM)),
    };
    let is_id = |text: &str| {
        let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        (1..=100).contains(&text.len()) && is_plain && !text.starts_with('.') && !text.starts_with("__")
    };
    // Projects of an organisation may be called `example.com:name`, percent-encoded as `%3A`.
    if !is_id(&host.name.replace(':', ".")) || !is_id(collection) || !(database == DEFAULT_DATABASE || is_id(database))
    {
        return Err(address.invalid(format!("names have letters, digits, `.`, `_` and `-`; {FORM}")));
    }
    if address.option("endpoint").is_some_and(|endpoint| !connection::is_endpoint(endpoint)) {
        return Err(address.invalid("`endpoint` is not of the form https://host, or http:// to a loopback address"));
    }
    if address.option("emulator").is_some_and(|host| !connection::is_endpoint_of_emulator(host)) {
        return Err(address.invalid("`emulator` is not of the form host:port"));
    }
    Ok(CollectionPath { project: &host.name, database, collection })
}

/// Creates a client; nothing is sent.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<FirestoreStore> {
    FirestoreStore::new(address, namespace, credentials::env())
}

impl FirestoreStore {
    pub(crate) fn new(address: &Address, namespace: &Namespace, env: Env) -> Result<Self> {
        let CollectionPath { project, database, collection } = parts(address)?;
        let client = client(address)?;
        let emulator = address.option("emulator").or_else(|| var(&env, "FIRESTORE_EMULATOR_HOST"));
        let (base, tokens) = match (address.option("endpoint"), emulator) {
            (None, Some(host)) => {
                if !connection::is_endpoint_of_emulator(host) {
                    let message = "FIRESTORE_EMULATOR_HOST is not of the form host:port";
                    return Err(Error::new(Kind::Unsupported, message));
                }
                (format!("http://{host}"), Tokens::Emulator)
            }
            (endpoint, _) => {
                let base = endpoint.unwrap_or(PUBLIC).trim_end_matches('/').to_owned();
                let file = address.option("credentials").map(PathBuf::from);
                (base, Tokens::Google(google::credentials(HttpClient::new(client.clone()), env, file)))
            }
        };
        let service = Service::new(client, tokens, base, project, database);
        let parent = format!("{}/{collection}/{namespace}", service.documents());
        Ok(FirestoreStore { service: Arc::new(service), parent })
    }

    fn document(&self, key: &Key) -> String {
        format!("{}/{}/n:{}", self.parent, key.shelf.as_str(), key.name.as_str().replace('/', ":"))
    }

    /// One write with a precondition.
    async fn commit(&self, write: Value) -> Result<Swap> {
        let question = json!({ "writes": [write] });
        match self.service.call(":commit", &question, Phase::Writing).await {
            Ok(answer) => {
                let now = time(&answer["commitTime"]).ok_or_else(|| self.malformed(Phase::Writing))?;
                // A deleted document has no update time.
                let revision = answer["writeResults"][0]["updateTime"].as_str().unwrap_or_default();
                Ok(Swap::Done { revision: Revision(revision.to_owned()), now })
            }
            Err(CallError::Mismatch) => Ok(Swap::Mismatch),
            Err(CallError::Error(error)) => Err(error),
        }
    }

    async fn ask(&self, call: &str, question: &Value) -> Result<Vec<Value>> {
        match self.service.call(call, question, Phase::Reading).await {
            Ok(Value::Array(answers)) => Ok(answers),
            Ok(_) => Err(self.malformed(Phase::Reading)),
            Err(error) => Err(error.into()),
        }
    }

    fn malformed(&self, phase: Phase) -> Error {
        let message = format!("{} gave an answer that is not Firestore's; check the endpoint", self.service);
        Error::new(phase.unanswered(), message)
    }

    fn value(&self, document: &Value) -> Result<Versioned> {
        let damaged = || {
            let message = format!("{} has a document that is not leasehold's; remove it by hand", self.parent);
            Error::new(Kind::Corrupt, message)
        };
        let revision = document["updateTime"].as_str().ok_or_else(damaged)?;
        let value = document["fields"]["value"]["bytesValue"].as_str();
        let bytes = value.and_then(|text| BASE64.decode(text).ok()).ok_or_else(damaged)?;
        Ok(Versioned { bytes, revision: Revision(revision.to_owned()) })
    }
}

/// A time from the database, rounded down so that it is never ahead.
fn time(value: &Value) -> Option<Timestamp> {
    value.as_str().and_then(millis_of).map(Timestamp::from_millis)
}

#[async_trait]
impl Store for FirestoreStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "firestore",
            class: Class::A,
            // Commits are stamped to the microsecond. How far behind a read's time may be is not documented; we assume
            // the same as for the `Date` header of other services.
            clock: ClockSource::Store { grain: Duration::from_secs(1) },
            reach: Reach::Network,
            watch: Watching::None,
            writes_along: false,
            by_verbs: false,
            durability: "the commit is replicated to a majority of zones before each answer",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let answers = self.ask(":batchGet", &json!({ "documents": [self.document(key)] })).await?;
        let found = answers.iter().find(|answer| answer.get("found").is_some() || answer.get("missing").is_some());
        let found = found.ok_or_else(|| self.malformed(Phase::Reading))?;
        let now = time(&found["readTime"]).ok_or_else(|| self.malformed(Phase::Reading))?;
        let value = found.get("found").map(|document| self.value(document)).transpose()?;
        Ok(Reading { value, now })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let precondition = match change.expected {
            None => json!({ "exists": false }),
            // Not a time, so not a revision of ours.
            Some(revision) if millis_of(&revision.0).is_none() => return Ok(Swap::Mismatch),
            Some(revision) => json!({ "updateTime": revision.0 }),
        };
        let document = self.document(change.key);
        let write = match change.next {
            Next::Erase => json!({ "delete": document, "currentDocument": precondition }),
            Next::Put(value) => {
                let fields = json!({
                    "name": { "stringValue": change.key.name.as_str() },
                    "tag": { "stringValue": Nonce::random().to_string() },
                    "value": { "bytesValue": BASE64.encode(value) },
                });
                let update = json!({ "name": document, "fields": fields });
                json!({ "update": update, "currentDocument": precondition })
            }
        };
        self.commit(write).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        let (limit, wanted) = (range.limit, range.limit.saturating_add(1));
        let (mut entries, mut after, mut told) = (Vec::new(), range.after.cloned(), None);
        let parent = self.parent.strip_prefix(self.service.documents()).unwrap_or_default();
        loop {
            let asked = (wanted - entries.len()).min(MAX_PAGE);
            let mut query = json!({
                "from": [{ "collectionId": shelf.as_str() }],
                "orderBy": [{ "field": { "fieldPath": "name" }, "direction": "ASCENDING" }],
                "limit": asked,
            });
            if let Some(after) = &after {
                query["startAt"] = json!({ "values": [{ "stringValue": after.as_str() }], "before": false });
            }
            let answers = self.ask(&format!("{parent}:runQuery"), &json!({ "structuredQuery": query })).await?;
            let stamp = answers.iter().find_map(|answer| time(&answer["readTime"]));
            // The earliest time of the pages: later changes may or may not be seen.
            let now = *told.get_or_insert(stamp.ok_or_else(|| self.malformed(Phase::Reading))?);
            let documents: Vec<&Value> = answers.iter().filter_map(|answer| answer.get("document")).collect();
            for document in &documents {
                let name = document["fields"]["name"]["stringValue"].as_str().unwrap_or_default();
                let name = LeaseName::new(name).map_err(|e| {
                    Error::new(Kind::Corrupt, format!("{} has a document of no lease", self.parent)).with_source(e)
                })?;
                entries.push((name, self.value(document)?));
            }
            if documents.len() < asked || entries.len() >= wanted {
                return Ok(Page::of(entries, limit, now).until(range.until));
            }
            after = entries.last().map(|(name, _)| name.clone());
        }
    }

    async fn watch(&self, _key: &Key) -> Result<Watch> {
        Ok(Watch::silent())
    }

    async fn survey(&self) -> Result<Survey> {
        let survey = Survey::plain(Class::A);
        let (setting, emulated) = ("service", self.service.is_emulator());
        if emulated {
            let advice = "an emulator keeps its records in memory and forgets its epochs: for trying out only";
            let survey = survey.advise(setting, format!("emulator at {}", self.service), advice);
            return Ok(Survey { class: Class::B, ..survey });
        }
        // An answer shows that project, database and credentials are right.
        let probe = json!({ "documents": [format!("{}/probe/n:survey", self.parent)] });
        self.ask(":batchGet", &probe).await?;
        let expiry = "not seen from here; set no TTL policy on these collections, records must never expire";
        Ok(survey.fine(setting, self.service.to_string()).fine("TTL policy", expiry))
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
    fn addresses_name_project_and_collection_and_perhaps_a_database() {
        let parent =
            |text: &str| FirestoreStore::new(&address(text), &Namespace::default(), Env::new()).unwrap().parent;
        assert_eq!(parent("firestore://p-1/leases"), "projects/p-1/databases/(default)/documents/leases/default");
        assert_eq!(parent("firestore://p-1/eu/leases"), "projects/p-1/databases/eu/documents/leases/default");
        for (text, says) in [
            ("firestore://", "use firestore://project/collection"),
            ("firestore://p", "names have letters"),
            ("firestore://p/a/b/c", "use firestore://project/collection"),
            ("firestore://p/__x__", "names have letters"),
            ("firestore://p:80/x", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("firestore://u:secret@p/x", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("firestore://p/x?endpoint=http://example.org", "loopback"),
            ("firestore://p/x?emulator=http://localhost", "host:port"),
            ("firestore://p/x?database=y", "`database` is not known"),
        ] {
            let error = check(&address(text)).unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(says), "{text} gave {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_emulator_variable_that_users_know_is_respected() {
        let env = Env::from([("FIRESTORE_EMULATOR_HOST".to_owned(), "localhost:8080".to_owned())]);
        let store = FirestoreStore::new(&address("firestore://p/x"), &Namespace::default(), env).unwrap();
        assert!(store.service.is_emulator());
        assert_eq!(store.service.to_string(), "http://localhost:8080");
    }
}
