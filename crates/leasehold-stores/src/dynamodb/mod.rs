//! Records in a DynamoDB table, which many namespaces can share.
//!
//! Promise: a swap is one conditional write, a read is strongly consistent, and no write is repeated without the
//! caller's knowledge: a lost answer is `Indeterminate`. Non-promise: time is the endpoint's `Date` header, to the
//! second; there are no hints; a global table is class B unless its replicas are strongly consistent.
//!
//! `dynamodb://table`, in the region of the environment, or `dynamodb://region/table`.
//! Each item has the partition key `shelf` (`namespace#shelf`), the sort key `name`, a
//! random `revision` and the `value`. The first write creates the table if it is missing.
//!
//! Options: `endpoint`, `profile`, `credentials` (a file like `~/.aws/credentials`), `ca`.
//! Otherwise as in AWS's own tools: AWS_ACCESS_KEY_ID, AWS_PROFILE, `~/.aws`, AWS_REGION,
//! AWS_ENDPOINT_URL_DYNAMODB, web identity, and the services of containers and instances.

mod connection;
mod error;
mod table;

use crate::credentials::{self, Env, aws};
use crate::http::client::{CA, client};
use crate::phase::Phase;
use crate::url::{Address, Namespace};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use connection::Endpoint;
use error::CallError;
use leasehold_core::store::{
    Capabilities, Change, Class, ClockSource, Page, Range, Reach, Reading, Revision, Store, Survey, Swap, Versioned,
    Watch, Watching, skip_by_reading,
};
use leasehold_core::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp};
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The most items that one query returns.
const MAX_PAGE: usize = 1000;

/// A store in a DynamoDB table. Clones share their connections.
#[derive(Clone)]
pub struct DynamoStore {
    endpoint: Arc<Endpoint>,
    table: String,
    namespace: Namespace,
}

impl fmt::Debug for DynamoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DynamoStore({} at {})", self.table, self.endpoint)
    }
}

/// Refuses an address that cannot be a table's.
pub fn check(address: &Address) -> Result<()> {
    parts(address).map(drop)
}

/// The region, if given, and the table.
fn parts(address: &Address) -> Result<(Option<&str>, &str)> {
    address.allow_options(&["credentials", "endpoint", "profile", CA])?;
    let [host] = address.hosts.as_slice() else {
        return Err(address.invalid("name a table: dynamodb://table or dynamodb://region/table"));
    };
    if address.user.is_some() || address.password.is_some() || host.port.is_some() {
        return Err(address.invalid(
            "credentials come from the environment or ~/.aws, and a server from `endpoint`; use dynamodb://region/table",
        ));
    }
    let (region, table) = match address.path.as_str() {
        "" => (None, host.name.as_str()),
        table => (Some(host.name.as_str()), table),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !(3..=255).contains(&table.len()) || !table.chars().all(is_name) {
        return Err(address.invalid("a table has 3 to 255 of A-Z a-z 0-9 . _ -"));
    }
    if region.is_some_and(|region| !connection::is_region(region)) {
        return Err(address.invalid("a region has lower-case letters, digits and `-`, as in eu-central-1"));
    }
    if address.option("endpoint").is_some_and(|endpoint| connection::endpoint_url(endpoint).is_none()) {
        return Err(address.invalid("`endpoint` is not of the form http://host:port"));
    }
    Ok((region, table))
}

/// Creates a client; nothing is sent.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<DynamoStore> {
    DynamoStore::new(address, namespace, credentials::env())
}

impl DynamoStore {
    pub(crate) fn new(address: &Address, namespace: &Namespace, env: Env) -> Result<Self> {
        let (region, table) = parts(address)?;
        let client = client(address)?;
        let wanted = aws::Wanted {
            env,
            keys: None,
            profile: address.option("profile").map(str::to_owned),
            file: address.option("credentials").map(PathBuf::from),
            region: region.map(str::to_owned),
        };
        let endpoint = Endpoint::new(client, wanted, address.option("endpoint"))?;
        Ok(DynamoStore { endpoint: Arc::new(endpoint), table: table.to_owned(), namespace: namespace.clone() })
    }

    fn shelf(&self, shelf: Shelf) -> Value {
        json!({ "S": format!("{}#{}", self.namespace, shelf.as_str()) })
    }

    fn key(&self, key: &Key) -> Value {
        json!({ "shelf": self.shelf(key.shelf), "name": { "S": key.name.as_str() } })
    }

    async fn ask(&self, action: &str, question: &Value) -> Result<(Value, Timestamp), CallError> {
        self.endpoint.call(action, question, Phase::Reading, &self.table).await
    }

    /// One conditional write. `None` if there is no table.
    async fn change(&self, action: &str, question: &Value, revision: &str) -> Result<Option<Swap>> {
        match self.endpoint.call(action, question, Phase::Writing, &self.table).await {
            Ok((_, now)) => Ok(Some(Swap::Done { revision: Revision(revision.to_owned()), now })),
            Err(CallError::Mismatch) => Ok(Some(Swap::Mismatch)),
            Err(CallError::NoTable(_)) => Ok(None),
            Err(CallError::Error(error)) => Err(error),
        }
    }

    fn damaged(&self) -> Error {
        let message = format!("table `{}` has an item that is not leasehold's; remove it by hand", self.table);
        Error::new(Kind::Corrupt, message)
    }

    fn value(&self, item: &Value) -> Result<Versioned> {
        let revision = item["revision"]["S"].as_str().ok_or_else(|| self.damaged())?;
        // An empty value has no attribute: not every server accepts empty ones.
        let bytes = match item.get("value") {
            Some(value) => {
                value["B"].as_str().and_then(|text| BASE64.decode(text).ok()).ok_or_else(|| self.damaged())?
            }
            None => Vec::new(),
        };
        Ok(Versioned { bytes, revision: Revision(revision.to_owned()) })
    }

    fn query(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize, start: Option<&Value>) -> Value {
        let mut query = json!({
            "TableName": self.table,
            "ConsistentRead": true,
            "Limit": limit.clamp(1, MAX_PAGE),
            "KeyConditionExpression": "#shelf = :shelf",
            "ExpressionAttributeNames": { "#shelf": "shelf" },
            "ExpressionAttributeValues": { ":shelf": self.shelf(shelf) },
        });
        if let Some(after) = after {
            query["KeyConditionExpression"] = json!("#shelf = :shelf AND #name > :after");
            query["ExpressionAttributeNames"]["#name"] = json!("name");
            query["ExpressionAttributeValues"][":after"] = json!({ "S": after.as_str() });
        }
        if let Some(start) = start {
            query["ExclusiveStartKey"] = start.clone();
        }
        query
    }
}

#[async_trait]
impl Store for DynamoStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "dynamodb",
            class: Class::A,
            clock: ClockSource::Store { grain: Duration::from_secs(1) },
            reach: Reach::Network,
            watch: Watching::None,
            writes_along: false,
            by_verbs: false,
            durability: "the write is stored in two of three availability zones before each answer",
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let question = json!({ "TableName": self.table, "Key": self.key(key), "ConsistentRead": true });
        match self.ask("GetItem", &question).await {
            Ok((answer, now)) => {
                let value = answer.get("Item").map(|item| self.value(item)).transpose()?;
                Ok(Reading { value, now })
            }
            // Never written to, so nothing is in it.
            Err(CallError::NoTable(now)) => Ok(Reading { value: None, now }),
            Err(error) => Err(error.into()),
        }
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        let Some(value) = change.next.value() else {
            let mut question = json!({ "TableName": self.table, "Key": self.key(change.key) });
            condition(&mut question, change.expected);
            let revision = change.expected.map_or("", |revision| &revision.0);
            return Ok(self.change("DeleteItem", &question, revision).await?.unwrap_or(Swap::Mismatch));
        };
        // Random, so that none is used twice, even after the table was restored from a backup.
        let revision = Nonce::random().to_string();
        let mut item = self.key(change.key);
        item["revision"] = json!({ "S": revision });
        if !value.is_empty() {
            item["value"] = json!({ "B": BASE64.encode(value) });
        }
        let mut question = json!({ "TableName": self.table, "Item": item });
        condition(&mut question, change.expected);
        if let Some(swap) = self.change("PutItem", &question, &revision).await? {
            return Ok(swap);
        }
        if change.expected.is_some() {
            return Ok(Swap::Mismatch);
        }
        self.make_table().await?;
        self.change("PutItem", &question, &revision).await?.ok_or_else(|| {
            let message = format!("table `{}` is not there yet; try again", self.table);
            Error::new(Kind::Unavailable, message)
        })
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if range.skip > 0 {
            return skip_by_reading(self, shelf, range).await;
        }
        let Range { after, until, limit, .. } = range;
        let (mut entries, mut start, mut told) = (Vec::new(), None, None);
        loop {
            let wanted = limit.saturating_add(1) - entries.len();
            let (answer, now) = match self.ask("Query", &self.query(shelf, after, wanted, start.as_ref())).await {
                Ok(answer) => answer,
                Err(CallError::NoTable(now)) => return Ok(Page { entries: Vec::new(), more: false, now }),
                Err(error) => return Err(error.into()),
            };
            // The earliest time of the pages: later changes may or may not be seen.
            let now = *told.get_or_insert(now);
            for item in answer["Items"].as_array().into_iter().flatten() {
                let name = item["name"]["S"].as_str().unwrap_or_default();
                let name = LeaseName::new(name).map_err(|e| self.damaged().with_source(e))?;
                entries.push((name, self.value(item)?));
            }
            start = answer.get("LastEvaluatedKey").cloned();
            if entries.len() > limit || start.is_none() {
                return Ok(Page::of(entries, limit, now).until(until));
            }
        }
    }

    async fn watch(&self, _key: &Key) -> Result<Watch> {
        Ok(Watch::silent())
    }

    async fn survey(&self) -> Result<Survey> {
        self.look().await
    }
}

/// Makes a write conditional on the item's revision, or on its absence.
fn condition(question: &mut Value, expected: Option<&Revision>) {
    match expected {
        None => {
            question["ConditionExpression"] = json!("attribute_not_exists(#shelf)");
            question["ExpressionAttributeNames"] = json!({ "#shelf": "shelf" });
        }
        Some(revision) => {
            question["ConditionExpression"] = json!("#revision = :expected");
            question["ExpressionAttributeNames"] = json!({ "#revision": "revision" });
            question["ExpressionAttributeValues"] = json!({ ":expected": { "S": revision.0 } });
        }
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
    fn addresses_name_a_table_and_perhaps_a_region() {
        assert_eq!(parts(&address("dynamodb://leases")).unwrap(), (None, "leases"));
        assert_eq!(parts(&address("dynamodb://eu-central-1/leases")).unwrap(), (Some("eu-central-1"), "leases"));
        for (text, says) in [
            ("dynamodb://", "name a table"),
            ("dynamodb://a,b/leases", "name a table"),
            ("dynamodb://AKIA:secret@eu-central-1/leases", "credentials come from the environment"),
            ("dynamodb://host:8000/leases", "a server from `endpoint`"),
            ("dynamodb://eu-central-1/le", "3 to 255"),
            ("dynamodb://eu-central-1/a/b/c", "3 to 255"),
            ("dynamodb://EU/leases", "a region has"),
            ("dynamodb://leases?endpoint=localhost:8000", "`endpoint` is not"),
            ("dynamodb://leases?region=x", "`region` is not known"),
        ] {
            let error = check(&address(text)).unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(says), "{text} gave {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
